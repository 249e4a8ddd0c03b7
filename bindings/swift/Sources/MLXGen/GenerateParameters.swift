import CMLXGen

/// How tokens are chosen and when a generation ends. The defaults choose the likeliest token until
/// the model ends by itself or its context is full.
public struct GenerateParameters: Equatable, Sendable {
    /// Most tokens to generate; nil: up to the context limit. With 0 only the prompt is processed.
    public var maxTokens: Int?
    /// 0 always takes the likeliest token; greater values flatten the distribution.
    public var temperature: Float
    /// Share of the probability that the kept candidates have together; 1: all. 0 is the same as 1, as in
    /// mlx-lm: for the likeliest alone set `topK` to 1.
    public var topP: Float
    /// Number of kept candidates; 0: all.
    public var topK: Int
    /// Keeps candidates that are at least this share of the likeliest; 0: all.
    public var minP: Float
    /// The same seed gives the same tokens; nil: a random one.
    public var seed: UInt64?
    /// Texts that end the generation; they are not part of the output.
    public var stop: [String]
    /// Tokens that end it, besides the model's own.
    public var extraEndTokens: [TokenID]
    /// Go on after the model's own end tokens.
    public var ignoresEndTokens: Bool
    /// Report the log-probability of each chosen token.
    public var logprobs: Bool
    /// Report this many of the likeliest tokens too, at most 20.
    public var topLogprobs: Int

    public init(
        maxTokens: Int? = nil, temperature: Float = 0, topP: Float = 1, topK: Int = 0, minP: Float = 0,
        seed: UInt64? = nil, stop: [String] = [], extraEndTokens: [TokenID] = [],
        ignoresEndTokens: Bool = false, logprobs: Bool = false, topLogprobs: Int = 0
    ) {
        self.maxTokens = maxTokens
        self.temperature = temperature
        self.topP = topP
        self.topK = topK
        self.minP = minP
        self.seed = seed
        self.stop = stop
        self.extraEndTokens = extraEndTokens
        self.ignoresEndTokens = ignoresEndTokens
        self.logprobs = logprobs
        self.topLogprobs = topLogprobs
    }

    /// Lends the parameters as the library takes them.
    func withLibraryOptions<Result>(
        cancel: CancelToken, _ body: (UnsafePointer<mlxgen_generate_options>) throws -> Result
    ) throws -> Result {
        var options = mlxgen_generate_options()
        _ = mlxgen_generate_options_init(&options, MemoryLayout.size(ofValue: options))
        options.temperature = temperature
        options.top_p = topP
        options.min_p = minP
        options.top_k = try unsigned(topK, "top_k")
        options.has_seed = seed == nil ? 0 : 1
        options.seed = seed ?? 0
        options.has_max_tokens = maxTokens == nil ? 0 : 1
        options.max_tokens = try unsigned(maxTokens ?? 0, "max_tokens")
        options.ignore_eos = ignoresEndTokens ? 1 : 0
        options.logprobs = logprobs ? 1 : 0
        options.top_logprobs = try unsigned(topLogprobs, "top_logprobs")
        options.cancel = cancel.pointer
        let texts = stop.map { Array($0.utf8CString) }
        return try texts.flatMap { $0 }.withUnsafeBufferPointer { characters in
            var start = 0
            let views = texts.map { text in
                // utf8CString ends in a NUL that is not part of the text.
                defer { start += text.count }
                return mlxgen_text(
                    data: characters.baseAddress.map { $0 + start }, size: text.count - 1)
            }
            return try views.withUnsafeBufferPointer { views in
                options.stop = views.baseAddress
                options.stop_count = views.count
                return try extraEndTokens.withUnsafeBufferPointer { tokens in
                    options.extra_eos = tokens.baseAddress
                    options.extra_eos_count = tokens.count
                    return try body(&options)
                }
            }
        }
    }
}
