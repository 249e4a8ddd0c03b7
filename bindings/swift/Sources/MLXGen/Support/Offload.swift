import Dispatch

extension DispatchQueue {
    /// Where calls run that wait for the engine: Swift's own threads are few and must not block.
    static let engineCalls = DispatchQueue(label: "mlxgen.calls", attributes: .concurrent)

    /// Runs a blocking call here and suspends the task until it is done.
    func offload<Value: Sendable>(_ call: @escaping @Sendable () throws -> Value) async throws -> Value {
        try await withCheckedThrowingContinuation { continuation in
            async { continuation.resume(with: Result(catching: call)) }
        }
    }

    /// The same for a call that takes a cancel token, which the task's cancellation requests.
    ///
    /// - Throws: `CancellationError` when the call stopped for that reason.
    func offload<Value: Sendable>(
        cancellable call: @escaping @Sendable (CancelToken) throws -> Value
    ) async throws -> Value {
        let token = try CancelToken()
        return try await withTaskCancellationHandler {
            do {
                return try await offload { try call(token) }
            } catch let error as MLXGenError where error.code == .cancelled {
                throw CancellationError()
            }
        } onCancel: {
            token.request()
        }
    }
}
