import Dispatch

/// A conversation with a model.
///
/// ```swift
/// let model = try await loadModel(from: url)
/// let session = ChatSession(model)
/// print(try await session.respond(to: "What are two things to see in San Francisco?"))
/// print(try await session.respond(to: "How about a great place to eat?"))
/// ```
///
/// The session keeps the conversation in a cache set, so that each turn computes only what is new.
/// One turn runs at a time: starting another before the first is finished, cancelled or dropped
/// throws ``MLXGenError/Code-swift.struct/busy``.
public final class ChatSession: Sendable {
    /// The model that answers.
    public let model: Model
    private let state: Locked<State>

    fileprivate struct State {
        var instructions: String?
        var messages: [Chat.Message]
        var parameters: GenerateParameters
        var options: Chat.Options
        var cache: CacheSet?
        var turnIsRunning = false
    }

    /// Begins or continues a conversation.
    ///
    /// - Parameters:
    ///   - model: the model that answers; it needs a tokenizer with a chat template.
    ///   - instructions: a system message.
    ///   - history: earlier messages, to continue a saved conversation.
    ///   - cache: a cache set that already holds the beginning of the conversation; nil makes one.
    ///   - generateParameters: how answers are generated.
    ///   - options: tools, template and its variables.
    public init(
        _ model: Model, instructions: String? = nil, history: [Chat.Message] = [],
        cache: CacheSet? = nil, generateParameters: GenerateParameters = .init(),
        options: Chat.Options = .init()
    ) {
        self.model = model
        state = Locked(
            State(
                instructions: instructions, messages: history, parameters: generateParameters,
                options: options, cache: cache))
    }

    /// The system message. A change holds from the next turn on.
    public var instructions: String? {
        get { state.withLock { $0.instructions } }
        set { state.withLock { $0.instructions = newValue } }
    }

    /// How the next turns are generated.
    public var generateParameters: GenerateParameters {
        get { state.withLock { $0.parameters } }
        set { state.withLock { $0.parameters = newValue } }
    }

    /// The conversation so far, without the instructions.
    public var messages: [Chat.Message] {
        state.withLock { $0.messages }
    }

    /// Answers a message.
    ///
    /// - Returns: the whole answer.
    /// - Throws: ``MLXGenError``, after which the conversation is as it was before;
    ///   `CancellationError` when the task was cancelled, after which the conversation has the part
    ///   of the answer that was generated.
    public func respond(to prompt: String, role: Chat.Message.Role = .user) async throws -> String {
        var answer = ""
        var isComplete = false
        for try await event in streamDetails(to: prompt, role: role) {
            answer += event.chunk ?? ""
            if let info = event.info { isComplete = info.stopReason != .cancelled }
        }
        guard isComplete else { throw CancellationError() }
        return answer
    }

    /// Streams the answer to a message as pieces of text.
    ///
    /// The turn begins with the first piece that is asked for and pauses when no more are. Dropping
    /// the stream, or cancelling the task that reads it, ends the turn; the conversation keeps the
    /// part that was read.
    public func streamResponse(
        to prompt: String, role: Chat.Message.Role = .user
    ) -> AsyncThrowingStream<String, any Error> {
        let turn = Turn(self, .init(role: role, content: prompt))
        return AsyncThrowingStream {
            while let event = try await turn.next() {
                if let text = event.chunk, !text.isEmpty { return text }
            }
            return nil
        }
    }

    /// Like ``streamResponse(to:role:)`` with everything else that happens: prefill reports, tokens
    /// and log-probabilities, and how it ended.
    public func streamDetails(
        to prompt: String, role: Chat.Message.Role = .user
    ) -> AsyncThrowingStream<Generation, any Error> {
        let turn = Turn(self, .init(role: role, content: prompt))
        return AsyncThrowingStream { try await turn.next() }
    }

    /// Begins a new conversation with the same instructions.
    ///
    /// - Throws: ``MLXGenError``: `busy` during a turn.
    public func clear() throws {
        try state.withLock { state in
            try state.checkIdle()
            state.messages = []
            state.cache = nil
        }
    }
}

extension ChatSession.State {
    fileprivate func checkIdle() throws {
        if turnIsRunning {
            throw MLXGenError(.busy, "a turn of this session is running: finish, cancel or drop it first")
        }
    }
}

extension ChatSession {
    /// One question and its answer.
    private actor Turn {
        private let session: ChatSession
        private let question: Chat.Message
        private var generator: Generator?
        private var answer = ""
        private var stage = Stage.ready
        private var isPulled = false

        private enum Stage {
            case ready, running, done
        }

        init(_ session: ChatSession, _ question: Chat.Message) {
            self.session = session
            self.question = question
        }

        deinit {
            if stage == .running { session.end(answer.isEmpty ? nil : question, answer) }
        }

        func next() async throws -> Generation? {
            guard !isPulled else {
                throw MLXGenError(.busy, "another task is reading this answer")
            }
            if stage == .ready {
                try session.begin()
                stage = .running
            }
            guard stage == .running else { return nil }
            isPulled = true
            defer { isPulled = false }
            do {
                let generator = try await start()
                let event = try await generator.next()
                answer += event?.chunk ?? ""
                if let info = event?.info {
                    finish(keeping: info.stopReason != .cancelled || !answer.isEmpty)
                }
                return event
            } catch {
                finish(keeping: error is CancellationError && !answer.isEmpty)
                throw error
            }
        }

        private func start() async throws -> Generator {
            if let generator { return generator }
            let generator = try await session.generator(for: question)
            self.generator = generator
            return generator
        }

        private func finish(keeping isKept: Bool) {
            stage = .done
            session.end(isKept ? question : nil, answer)
        }
    }

    private func begin() throws {
        try state.withLock { state in
            try state.checkIdle()
            state.turnIsRunning = true
        }
    }

    /// Ends the running turn. Without a question the conversation stays as it was.
    private func end(_ question: Chat.Message?, _ answer: String) {
        state.withLock { state in
            state.turnIsRunning = false
            guard let question else { return }
            state.messages += [question, .assistant(answer)]
        }
    }

    private func generator(for question: Chat.Message) async throws -> Generator {
        guard let tokenizer = model.tokenizer else {
            throw MLXGenError(.notFound, "the model has no tokenizer")
        }
        let (messages, options, parameters) = state.withLock { state in
            let system = state.instructions.map { [Chat.Message.system($0)] } ?? []
            return (system + state.messages + [question], state.options, state.parameters)
        }
        let prompt = try await DispatchQueue.engineCalls.offload {
            try tokenizer.applyChatTemplate(messages: messages, options: options)
        }
        let cache = try await currentCache()
        return Generator(model: model, cache: cache, prompt: [.tokens(prompt)], parameters: parameters)
    }

    private func currentCache() async throws -> CacheSet {
        if let cache = state.withLock({ $0.cache }) { return cache }
        let cache = try await CacheSet(model)
        state.withLock { $0.cache = cache }
        return cache
    }
}
