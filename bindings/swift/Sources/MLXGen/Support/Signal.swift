/// Lets one task wait until another thread says that there is something to look at.
final class Signal: Sendable {
    private enum State {
        case idle
        case raised
        case waiting(CheckedContinuation<Void, Never>)
    }

    private let state = Locked(State.idle)

    /// Any thread; never blocks. Wakes the waiter, or the next `wait` returns at once.
    func raise() {
        let waiter = state.withLock { state -> CheckedContinuation<Void, Never>? in
            guard case .waiting(let continuation) = state else {
                state = .raised
                return nil
            }
            state = .idle
            return continuation
        }
        waiter?.resume()
    }

    /// Waits for a `raise` since the last `wait`. One waiter at a time.
    func wait() async {
        await withCheckedContinuation { continuation in
            let atOnce = state.withLock { state in
                if case .idle = state {
                    state = .waiting(continuation)
                    return false
                }
                state = .idle
                return true
            }
            if atOnce { continuation.resume() }
        }
    }
}
