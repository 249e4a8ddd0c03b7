import CMLXGen
import Dispatch
import Foundation

/// A language model in memory, with its tokenizer. Any number of generations may share it.
public final class Model: Sendable {
    let handle: Handle
    /// The engine that it runs on.
    public let engine: Engine
    /// What it tells about itself.
    public let info: ModelInfo
    /// Nil for a model that comes without one.
    public let tokenizer: Tokenizer?

    /// How arithmetic is done.
    public enum Numerics: Int32, Sendable {
        /// The fastest way; its results are reproducible but the library's own.
        case fast = 0
        /// Bit-equal to mlx-lm.
        case exact
    }

    /// The element type of activations.
    public enum ComputeType: Int32, Sendable {
        /// Chosen by the library: see its documents on numerics.
        case automatic = 0
        case float32, float16, bfloat16
    }

    /// How a model is loaded.
    public struct Options: Equatable, Sendable {
        /// How arithmetic is done.
        public var numerics: Numerics
        /// The element type of activations.
        public var computeType: ComputeType
        /// Tokens of one prefill step; 0: chosen by the library.
        public var prefillStepSize: Int
        /// Most tokens of a sequence; 0: the model's own limit.
        public var contextLimit: Int

        public init(
            numerics: Numerics = .fast, computeType: ComputeType = .automatic, prefillStepSize: Int = 0,
            contextLimit: Int = 0
        ) {
            self.numerics = numerics
            self.computeType = computeType
            self.prefillStepSize = prefillStepSize
            self.contextLimit = contextLimit
        }

        /// The options as the library takes them, without a token and progress.
        func libraryOptions() throws -> mlxgen_model_options {
            var plain = mlxgen_model_options()
            _ = mlxgen_model_options_init(&plain, MemoryLayout.size(ofValue: plain))
            plain.numerics = numerics.rawValue
            plain.compute_type = computeType.rawValue
            plain.prefill_chunk = try unsigned(prefillStepSize, "prefill_chunk")
            plain.context_limit = try unsigned(contextLimit, "context_limit")
            return plain
        }
    }

    /// How far a load is. `done` never decreases within a phase.
    public struct LoadProgress: Equatable, Sendable {
        /// What the load is doing.
        public enum Phase: Int32, Sendable {
            /// Configuration, tokenizer and headers of the weights.
            case open = 0
            /// `done` and `total` are bytes of the files.
            case weights
            /// Evaluation of what was read.
            case finish
        }

        /// What the load is doing.
        public let phase: Phase
        /// How much of `total` is done.
        public let done: Int
        /// The whole of the phase.
        public let total: Int

        /// From 0 to 1 within the phase.
        public var fractionCompleted: Double { total > 0 ? Double(done) / Double(total) : 0 }
    }

    /// Loads a model. Cancelling the task stops the load.
    ///
    /// - Parameters:
    ///   - url: a folder with `config.json` and safetensors, a repository's folder in the cache of the
    ///     Hugging Face hub (its revision main), or a `.gguf` file.
    ///   - engine: the engine to run on; nil makes one with default limits.
    ///   - options: numerics and limits.
    ///   - progress: called on a thread of this module while the load goes on. It should return soon
    ///     and must not use this module.
    /// - Throws: ``MLXGenError``: `notFound`, `invalidModel` with file and tensor, `unsupported`,
    ///   `outOfMemory`, `io`; `CancellationError` when the task was cancelled.
    public static func load(
        from url: URL, engine: Engine? = nil, options: Options = .init(),
        progress: (@Sendable (LoadProgress) -> Void)? = nil
    ) async throws -> Model {
        let engine = try engine ?? Engine()
        let path = url.path
        return try await DispatchQueue.engineCalls.offload { token in
            var plain = try options.libraryOptions()
            plain.cancel = token.pointer
            let box = progress.map { Box($0) }
            if let box {
                plain.progress_user = Unmanaged.passUnretained(box).toOpaque()
                plain.progress = { user, phase, done, total in
                    guard let user, let phase = LoadProgress.Phase(rawValue: phase) else { return }
                    let report = LoadProgress(
                        phase: phase, done: Int(clamping: done), total: Int(clamping: total))
                    Unmanaged<Box<@Sendable (LoadProgress) -> Void>>.fromOpaque(user)
                        .takeUnretainedValue().value(report)
                }
            }
            let handle = try withExtendedLifetime(box) {
                try path.withLibraryText { path, size in
                    try make(mlxgen_model_release) {
                        mlxgen_model_load(engine.handle.pointer, path, size, &plain, $0, $1)
                    }
                }
            }
            return try Model(owning: handle, engine: engine)
        }
    }

    private init(owning handle: Handle, engine: Engine) throws {
        self.handle = handle
        self.engine = engine
        info = try ModelInfo(of: handle)
        do {
            tokenizer = Tokenizer(
                owning: try make(mlxgen_tokenizer_release) {
                    mlxgen_model_tokenizer(handle.pointer, $0, $1)
                })
        } catch let error as MLXGenError where error.code == .notFound {
            tokenizer = nil
        }
    }

    /// Streams what follows a prompt of tokens. The work begins with the first `next()` of the
    /// stream and pauses when nobody asks for more; dropping the stream, or cancelling the task that
    /// reads it, ends it.
    ///
    /// - Parameters:
    ///   - prompt: the whole prompt, not only what is new.
    ///   - cache: lent to the generation until it ends. The longest prefix that it has in common
    ///     with the prompt is not computed again.
    ///   - parameters: how tokens are chosen and when it ends.
    /// - Throws: (from the stream) ``MLXGenError``: `invalidArgument` for an empty prompt or a token
    ///   outside the vocabulary, `contextFull`, `outOfMemory`, `busy` when the cache set is lent.
    public func generate(
        prompt: [TokenID], cache: CacheSet? = nil, parameters: GenerateParameters = .init()
    ) -> AsyncThrowingStream<Generation, any Error> {
        generate(parts: [.tokens(prompt)], cache: cache, parameters: parameters)
    }

    /// Streams what follows a prompt of tokens and embeddings; see ``generate(prompt:cache:parameters:)``.
    ///
    /// - Throws: as for tokens; `invalidArgument` also for embeddings of another width than ``ModelInfo/hiddenSize`` or
    ///   without a key.
    public func generate(
        parts: [PromptPart], cache: CacheSet? = nil, parameters: GenerateParameters = .init()
    ) -> AsyncThrowingStream<Generation, any Error> {
        let generator = Generator(model: self, cache: cache, prompt: parts, parameters: parameters)
        return AsyncThrowingStream { try await generator.next() }
    }
}

/// The name that mlx-swift-lm uses for a loaded model.
public typealias ModelContainer = Model

/// Loads a model; see ``Model/load(from:engine:options:progress:)``.
public func loadModel(
    from url: URL, engine: Engine? = nil, options: Model.Options = .init(),
    progress: (@Sendable (Model.LoadProgress) -> Void)? = nil
) async throws -> Model {
    try await Model.load(from: url, engine: engine, options: options, progress: progress)
}
