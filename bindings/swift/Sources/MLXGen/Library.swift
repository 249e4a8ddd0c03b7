import CMLXGen
import Dispatch

/// The C library as a whole.
public enum Library {
    /// The version of the loaded library, such as `0.1.0`.
    public static var version: String { String(cString: mlxgen_version_string()) }

    /// The version of its C interface.
    public static var abiVersion: Int { Int(mlxgen_abi_version()) }

    /// Objects of the library that are alive in this process: engines, models, cache sets and so on.
    public static var liveHandles: Int { Int(clamping: mlxgen_live_handles()) }

    /// How the loaded library was built.
    public struct BuildInfo: Codable, Equatable, Sendable {
        /// Such as `0.1.0`.
        public let version: String
        /// The version of the C interface.
        public let abi: Int
        /// Such as `MLX 0.32.2, CPU`.
        public let backend: String
        /// The platform, such as `aarch64-apple-darwin`.
        public let target: String
        /// What ``Library/hasFeature(_:)`` answers with true.
        public let features: [String]
        /// Whether it was built without optimisation.
        public let debug: Bool
    }

    /// How the loaded library was built.
    public static func buildInfo() throws -> BuildInfo {
        try Buffer { mlxgen_build_info($0, $1) }.decoded()
    }

    /// Whether the library was built with a feature, such as `gguf`.
    public static func hasFeature(_ name: String) -> Bool {
        name.withLibraryText { mlxgen_has_feature($0, $1) } != 0
    }

    /// Ends all generations and waits until the library has stopped working. Nothing can be started
    /// afterwards: calls that need an engine throw ``MLXGenError/Code-swift.struct/wrongState``.
    ///
    /// - Throws: ``MLXGenError/Code-swift.struct/timeout`` when it did not stop within `limit`.
    public static func shutdown(within limit: Duration = .seconds(10)) async throws {
        let milliseconds = limit.libraryMilliseconds
        try await DispatchQueue.engineCalls.offload {
            try check { mlxgen_shutdown(milliseconds, $0) }
        }
    }

    /// How important a log line is, from `error` to `trace`.
    public enum LogLevel: Int32, Comparable, Sendable {
        case error = 1
        case warning, info, debug, trace

        public static func < (one: LogLevel, other: LogLevel) -> Bool {
            one.rawValue < other.rawValue
        }
    }

    /// Takes one log line.
    public typealias LogHandler = @Sendable (LogLevel, String) -> Void

    /// Sends the library's log lines up to `maximum` to `handler`. Without a handler it is silent,
    /// as it is from the start.
    ///
    /// The handler runs on the library's threads: it should return soon and must not use this module.
    public static func setLogHandler(maximum: LogLevel = .info, _ handler: LogHandler?) throws {
        guard let handler else {
            try check { mlxgen_set_log_sink(nil, nil, nil, maximum.rawValue, $0) }
            return
        }
        let box = Unmanaged.passRetained(Box(handler))
        do {
            try check { error in
                mlxgen_set_log_sink(
                    { user, level, message, size in
                        guard let user, let level = LogLevel(rawValue: level) else { return }
                        Unmanaged<Box<LogHandler>>.fromOpaque(user).takeUnretainedValue()
                            .value(level, String(libraryText: message, count: size))
                    },
                    box.toOpaque(),
                    { user in user.map { Unmanaged<Box<LogHandler>>.fromOpaque($0).release() } },
                    maximum.rawValue, error)
            }
        } catch {
            box.release()
            throw error
        }
    }

    /// Refuses a library whose interface is not the one that this module was compiled for.
    static func checkInterface() throws {
        guard mlxgen_abi_version() == UInt32(MLXGEN_ABI_VERSION) else {
            throw MLXGenError(
                .unsupported,
                "this module was compiled for version \(MLXGEN_ABI_VERSION) of the library's "
                    + "interface and met version \(mlxgen_abi_version())")
        }
    }
}

/// Carries a value through a `void *`.
final class Box<Value: Sendable>: Sendable {
    let value: Value

    init(_ value: Value) {
        self.value = value
    }
}
