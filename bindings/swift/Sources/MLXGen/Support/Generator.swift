import CMLXGen
import Dispatch

/// One generation, pulled event by event.
///
/// Nothing blocks: an empty queue of events is awaited through the library's wake-up callback, and
/// opening and closing run on the cache set's queue. Dropping the generator ends the generation.
actor Generator {
    private enum State {
        case ready
        case open(OpenStream)
        case done
    }

    private let model: Model
    private let cache: CacheSet?
    private let prompt: [PromptPart]
    private let parameters: GenerateParameters
    private var state = State.ready
    private var isPulled = false

    init(model: Model, cache: CacheSet?, prompt: [PromptPart], parameters: GenerateParameters) {
        self.model = model
        self.cache = cache
        self.prompt = prompt
        self.parameters = parameters
    }

    /// The next event; nil after the end. The cache set is free again when the end is returned.
    ///
    /// When the task is cancelled the generation ends with the reason `cancelled`.
    func next() async throws -> Generation? {
        guard !isPulled else {
            throw MLXGenError(.busy, "another task is reading this generation")
        }
        isPulled = true
        defer { isPulled = false }
        do {
            return try await pull()
        } catch {
            await close()
            throw error
        }
    }

    private func pull() async throws -> Generation? {
        let stream: OpenStream
        switch state {
        case .done: return nil
        case .open(let open): stream = open
        case .ready:
            stream = try await open()
            state = .open(stream)
        }
        let event = try await stream.next()
        switch event {
        case .end, nil: await close()
        default: break
        }
        return event
    }

    private func open() async throws -> OpenStream {
        let queue = cache?.queue ?? .engineCalls
        return try await queue.offload { [model, cache, prompt, parameters] token in
            try OpenStream(model, cache, prompt, parameters, cancel: token, queue: queue)
        }
    }

    private func close() async {
        if case .open(let stream) = state { await stream.close() }
        state = .done
    }
}

/// An open stream of the library and the signal that its wake-up callback raises.
private final class OpenStream: Sendable {
    private let handle: Handle
    private let cancel: CancelToken
    private let signal = Signal()
    private let queue: DispatchQueue

    /// Waits for the engine: runs on `queue`.
    init(
        _ model: Model, _ cache: CacheSet?, _ prompt: [PromptPart], _ parameters: GenerateParameters,
        cancel: CancelToken, queue: DispatchQueue
    ) throws {
        self.cancel = cancel
        self.queue = queue
        handle = try parameters.withLibraryOptions(cancel: cancel) { options in
            try prompt.withLibraryParts { parts, count in
                try make(mlxgen_stream_release) {
                    mlxgen_stream_open(
                        model.handle.pointer, cache?.handle.pointer, parts, count, options, $0, $1)
                }
            }
        }
        let user = Unmanaged.passRetained(signal)
        do {
            try check { error in
                mlxgen_stream_set_wakeup(
                    handle.pointer,
                    { user in user.map { Unmanaged<Signal>.fromOpaque($0).takeUnretainedValue().raise() } },
                    user.toOpaque(),
                    { user in user.map { Unmanaged<Signal>.fromOpaque($0).release() } },
                    error)
            }
        } catch {
            user.release()
            throw error
        }
    }

    deinit {
        cancel.request()
        // Closing waits for the engine; it does nothing when `close` did it.
        queue.async { [handle] in _ = mlxgen_stream_close(handle.pointer, nil) }
    }

    func next() async throws -> Generation? {
        try await withTaskCancellationHandler {
            while true {
                var event = mlxgen_event()
                event.struct_size = MemoryLayout.size(ofValue: event)
                var error: OpaquePointer?
                switch mlxgen_stream_next(handle.pointer, 0, &event, &error) {
                case MLXGEN_OK:
                    if let event = Generation(event) { return event }
                case MLXGEN_DONE:
                    return nil
                case MLXGEN_TIMEOUT:
                    mlxgen_error_release(error)
                    await signal.wait()
                case let status:
                    throw MLXGenError(status: status, owning: error)
                }
            }
        } onCancel: {
            cancel.request()
        }
    }

    /// Ends the generation and gives the cache set back.
    func close() async {
        _ = try? await queue.offload { [handle] in mlxgen_stream_close(handle.pointer, nil) }
    }
}
