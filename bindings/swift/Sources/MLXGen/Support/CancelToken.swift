import CMLXGen

/// Tells work of the library to stop; for one use, since a request stays.
final class CancelToken: Sendable {
    private let handle: Handle

    init() throws {
        handle = try make(mlxgen_cancel_release) { mlxgen_cancel_new($0, $1) }
    }

    var pointer: OpaquePointer { handle.pointer }

    func request() {
        mlxgen_cancel_request(handle.pointer)
    }
}
