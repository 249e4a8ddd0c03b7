import CMLXGen

/// Owns one reference to an object of the library.
///
/// The pointer is a slot number, not an address, and the library checks every use of it, so it may
/// travel between threads; only calls that say "one at a time per handle" need a queue.
final class Handle: @unchecked Sendable {
    typealias Release = @convention(c) (OpaquePointer?) -> Void

    let pointer: OpaquePointer
    private let release: Release

    init(owning pointer: OpaquePointer, release: @escaping Release) {
        self.pointer = pointer
        self.release = release
    }

    deinit {
        release(pointer)
    }
}

typealias ErrorSlot = UnsafeMutablePointer<OpaquePointer?>

/// Makes a call of the library and throws its error.
func check(_ call: (ErrorSlot) -> mlxgen_status) throws {
    var error: OpaquePointer?
    let status = call(&error)
    guard status == MLXGEN_OK else { throw MLXGenError(status: status, owning: error) }
}

/// Makes a call of the library that gives an object.
func make(
    _ release: @escaping Handle.Release,
    _ call: (UnsafeMutablePointer<OpaquePointer?>, ErrorSlot) -> mlxgen_status
) throws -> Handle {
    var object: OpaquePointer?
    var error: OpaquePointer?
    let status = call(&object, &error)
    guard status == MLXGEN_OK, let object else { throw MLXGenError(status: status, owning: error) }
    return Handle(owning: object, release: release)
}
