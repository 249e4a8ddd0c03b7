import CMLXGen
import Foundation

/// A text or an array that the library gave away; copied out, then released.
struct Buffer {
    private let handle: Handle

    init(_ call: (UnsafeMutablePointer<OpaquePointer?>, ErrorSlot) -> mlxgen_status) throws {
        handle = try make(mlxgen_buffer_release, call)
    }

    private var bytes: UnsafeRawBufferPointer {
        UnsafeRawBufferPointer(
            start: mlxgen_buffer_data(handle.pointer), count: mlxgen_buffer_size(handle.pointer))
    }

    var text: String {
        String(decoding: bytes, as: UTF8.self)
    }

    /// The elements of an array; the library aligns its buffers for every element type it stores.
    func array<Element: BitwiseCopyable>(of type: Element.Type) -> [Element] {
        Array(bytes.bindMemory(to: Element.self))
    }
}

extension Buffer {
    /// The value of a JSON text.
    func decoded<Value: Decodable>(_ type: Value.Type = Value.self) throws -> Value {
        try JSONDecoder().decode(Value.self, from: Data(text.utf8))
    }
}
