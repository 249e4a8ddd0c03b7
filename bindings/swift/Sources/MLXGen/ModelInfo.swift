import CMLXGen

/// What a model tells about itself.
public struct ModelInfo: Equatable, Sendable {
    /// The architecture, such as `llama`.
    public let family: String
    /// The name that the files give, else that of the folder or file.
    public let name: String
    /// `safetensors` or `gguf`.
    public let format: String
    /// How weights are kept, such as `affine 4-bit group 32`.
    public let weights: String
    /// `float32`, `float16` or `bfloat16`.
    public let computeType: String
    /// `fast` or `exact`.
    public let numerics: String
    /// Token numbers are below it.
    public let vocabularySize: Int
    /// Blocks of the network.
    public let layers: Int
    /// Elements of an activation.
    public let hiddenSize: Int
    /// Query heads of a layer.
    public let heads: Int
    /// Key and value heads of a layer.
    public let keyValueHeads: Int
    /// Elements of a head.
    public let headDimension: Int
    /// Most tokens of a sequence.
    public let contextLimit: Int
    /// Tokens of a prompt that are computed at once.
    public let prefillStepSize: Int
    /// Numbers that were trained.
    public let parameters: Int
    /// Bytes that the weights occupy in memory.
    public let weightBytes: Int
    /// Bytes of a cache set for each token.
    public let cacheBytesPerToken: Int
    /// Tokens that end a generation.
    public let endTokens: [TokenID]
    /// The token that begins a text, if there is one.
    public let beginToken: TokenID?
    /// Whether ``Tokenizer/applyChatTemplate(messages:options:)`` works with its tokenizer.
    public let hasChatTemplate: Bool

    init(of model: Handle) throws {
        var info = mlxgen_model_description()
        info.struct_size = MemoryLayout.size(ofValue: info)
        try check { mlxgen_model_info(model.pointer, &info, $0) }
        func text(_ data: UnsafePointer<CChar>?) -> String { data.map { String(cString: $0) } ?? "" }
        // The texts live as long as the model's handle.
        family = text(info.family)
        name = text(info.name)
        format = text(info.format)
        weights = text(info.weights)
        computeType = text(info.compute_type)
        numerics = text(info.numerics)
        vocabularySize = Int(info.vocabulary)
        layers = Int(info.layers)
        hiddenSize = Int(info.hidden)
        heads = Int(info.heads)
        keyValueHeads = Int(info.kv_heads)
        headDimension = Int(info.head_dim)
        contextLimit = Int(clamping: info.context_limit)
        prefillStepSize = Int(info.prefill_chunk)
        parameters = Int(clamping: info.parameters)
        weightBytes = Int(clamping: info.weight_bytes)
        cacheBytesPerToken = Int(clamping: info.cache_bytes_per_token)
        endTokens = Array(libraryArray: info.eos, count: info.eos_count)
        beginToken = TokenID(exactly: info.bos)
        hasChatTemplate = info.has_chat_template != 0
        withExtendedLifetime(model) {}
    }
}
