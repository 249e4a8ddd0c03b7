import CMLXGen
import Foundation

/// What went wrong in the library: a code for programs, a sentence for people, and where the fault lies.
///
/// Cancelling a task gives `CancellationError` instead.
public struct MLXGenError: Error, Equatable, Sendable {
    /// The status of the C library. The numbers are frozen; later versions may add some.
    public struct Code: RawRepresentable, Hashable, Sendable {
        public let rawValue: Int32

        public init(rawValue: Int32) {
            self.rawValue = rawValue
        }

        /// The time given is over.
        public static let timeout = Code(rawValue: MLXGEN_TIMEOUT)
        /// A cancel was requested.
        public static let cancelled = Code(rawValue: MLXGEN_CANCELLED)
        /// An argument has no meaning; `detail.field` names it.
        public static let invalidArgument = Code(rawValue: MLXGEN_INVALID_ARGUMENT)
        /// A file is missing, or something that was asked for does not exist.
        public static let notFound = Code(rawValue: MLXGEN_NOT_FOUND)
        /// A file of a model is damaged or contradicts itself.
        public static let invalidModel = Code(rawValue: MLXGEN_INVALID_MODEL)
        /// This build or version cannot do it.
        public static let unsupported = Code(rawValue: MLXGEN_UNSUPPORTED)
        /// It would exceed the engine's limit or the machine's memory.
        public static let outOfMemory = Code(rawValue: MLXGEN_OUT_OF_MEMORY)
        /// More tokens than the model or the cache set can hold.
        public static let contextFull = Code(rawValue: MLXGEN_CONTEXT_FULL)
        /// Somebody else uses the object.
        public static let busy = Code(rawValue: MLXGEN_BUSY)
        /// Not possible in this state, such as after ``Library/shutdown(within:)``.
        public static let wrongState = Code(rawValue: MLXGEN_WRONG_STATE)
        /// A checkpoint of another model or version.
        public static let incompatibleCheckpoint = Code(rawValue: MLXGEN_INCOMPATIBLE_CHECKPOINT)
        /// A file cannot be read or written.
        public static let io = Code(rawValue: MLXGEN_IO)
        /// The system stopped work that took the GPU too long.
        public static let gpuTimeout = Code(rawValue: MLXGEN_GPU_TIMEOUT)
        /// The system forbids work on the GPU, as it does for apps in the background.
        public static let gpuNotPermitted = Code(rawValue: MLXGEN_GPU_NOT_PERMITTED)
        /// A fault of the library.
        public static let `internal` = Code(rawValue: MLXGEN_INTERNAL)
    }

    /// Where the fault lies, as far as it is known.
    public struct Detail: Codable, Equatable, Sendable {
        /// A path.
        public var file: String?
        /// A tensor of that file.
        public var tensor: String?
        /// A configuration key, an option or an argument.
        public var field: String?
        /// A byte offset in `file`, or an index in the array `field`.
        public var position: UInt64?

        public init(
            file: String? = nil, tensor: String? = nil, field: String? = nil, position: UInt64? = nil
        ) {
            self.file = file
            self.tensor = tensor
            self.field = field
            self.position = position
        }
    }

    /// For programs.
    public let code: Code
    /// A sentence for people.
    public let message: String
    /// Where the fault lies.
    public let detail: Detail

    init(_ code: Code, _ message: String, detail: Detail = .init()) {
        self.code = code
        self.message = message
        self.detail = detail
    }

    /// Copies the error object of a failed call and releases it.
    init(status: mlxgen_status, owning error: OpaquePointer?) {
        defer { mlxgen_error_release(error) }
        var size = 0
        let message = mlxgen_error_message(error, &size)
        let text = String(libraryText: message, count: size)
        let detail = mlxgen_error_detail(error, &size)
        let json = Data(String(libraryText: detail, count: size).utf8)
        self.init(
            Code(rawValue: status), text,
            detail: (try? JSONDecoder().decode(Detail.self, from: json)) ?? Detail())
    }
}

extension MLXGenError.Code: CustomStringConvertible {
    /// The name in the C header, such as `MLXGEN_NOT_FOUND`.
    public var description: String {
        String(cString: mlxgen_status_name(rawValue))
    }
}

extension MLXGenError: CustomStringConvertible, LocalizedError {
    public var description: String { "\(code): \(message)" }
    public var errorDescription: String? { message }
}
