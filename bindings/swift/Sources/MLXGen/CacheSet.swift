import CMLXGen
import Dispatch

/// The computed state of one sequence of tokens: keys and values of every layer.
///
/// Lend it to generations one after another; to run two from the same beginning, ``fork()`` it.
public final class CacheSet: Sendable {
    let handle: Handle
    /// The model that computes it.
    public let model: Model
    /// Calls on a cache set go one at a time. A generation that ends gives the set back in a call
    /// on this queue, so that the next call finds it free.
    let queue = DispatchQueue(label: "mlxgen.cache")

    /// The element type of keys and values.
    public enum KVType: Int32, Sendable {
        /// float16 where the library's own kernels compute, on Linux; else the model's compute type.
        case automatic = 0
        case float32, float16, bfloat16
    }

    /// How keys and values are reduced. `start`: tokens from which on they are, those before too.
    public enum KVPrecision: Sendable {
        /// Affine groups of 4 or 8 bits; 32, 64 or 128 elements share a scale. Without `start`: 5000.
        case affine(bits: Int, group: Int = 64, start: Int? = nil)
        /// Affine groups layer by layer: the text of a `kv_config.json`. Without `start`: 0.
        case table(String, start: Int? = nil)
        /// TurboQuant: 2, 4, 5 or 8 bits for keys, 2, 3, 4, 5 or 8 for values, in heads of 64, 128, 256 or 512
        /// elements. `deferred`: attention's result is rotated back instead of the values.
        case turboQuant(keyBits: Int = 8, valueBits: Int = 3, start: Int = 0, deferred: Bool = false)
    }

    /// The tokens that are kept: the first `keep` and the latest, `tokens` together.
    public struct KVWindow: Sendable {
        public var tokens: Int
        public var keep: Int

        public init(tokens: Int, keep: Int = 4) {
            self.tokens = tokens
            self.keep = keep
        }
    }

    /// Keys and values in pages of `tokens` tokens, which a set and its forks take from one pool of pages for at most
    /// `capacity` tokens; 0: without a limit.
    public struct KVPages: Sendable {
        public var tokens: Int
        public var capacity: Int

        public init(tokens: Int = 256, capacity: Int = 0) {
            self.tokens = tokens
            self.capacity = capacity
        }
    }

    /// Makes an empty set.
    ///
    /// - Parameters:
    ///   - model: the model that computes it; only this model can use it.
    ///   - capacity: most tokens that it may hold; 0: the model's context limit.
    ///   - kvType: the element type of keys and values.
    ///   - precision: how keys and values are reduced; `nil`: not.
    ///   - window: which tokens are kept, in layers without a window of their own; `nil`: all.
    ///   - pages: keys and values in pages; `nil`: not.
    /// - Throws: ``MLXGenError``: `outOfMemory`, `invalidArgument`, `unsupported` if the model keeps keys
    ///   and values in another type, or its heads do not take the precision.
    public convenience init(
        _ model: Model, capacity: Int = 0, kvType: KVType = .automatic, precision: KVPrecision? = nil,
        window: KVWindow? = nil, pages: KVPages? = nil
    ) async throws {
        let handle = try await DispatchQueue.engineCalls.offload {
            let (settings, table) = try libraryOptions(capacity, kvType, precision, window, pages)
            return try table.withLibraryText { bytes, count in
                var options = settings
                if count > 0 {
                    options.kv_config = bytes
                    options.kv_config_size = count
                }
                return try make(mlxgen_cache_release) {
                    mlxgen_cache_new(model.handle.pointer, &options, $0, $1)
                }
            }
        }
        self.init(owning: handle, model: model)
    }

    private init(owning handle: Handle, model: Model) {
        self.handle = handle
        self.model = model
    }

    /// Computes further tokens. When the task is cancelled, whole steps of them may be kept: see
    /// ``tokenCount``.
    ///
    /// - Throws: ``MLXGenError``: `invalidArgument` for no or unknown tokens, `contextFull`,
    ///   `outOfMemory`, `busy` while a generation has the set; `CancellationError`.
    public func append(_ tokens: [TokenID]) async throws {
        try await queue.offload { [handle] token in
            try tokens.withUnsafeBufferPointer { tokens in
                try check {
                    mlxgen_cache_append(handle.pointer, tokens.baseAddress, tokens.count, token.pointer, $0)
                }
            }
        }
    }

    /// Computes further tokens and embeddings; see ``append(_:)``.
    ///
    /// - Throws: as for tokens; `invalidArgument` also for embeddings of another width than the model's hidden size or
    ///   without a key.
    public func append(parts: [PromptPart]) async throws {
        try await queue.offload { [handle] token in
            try parts.withLibraryParts { parts, count in
                try check { mlxgen_cache_append_parts(handle.pointer, parts, count, token.pointer, $0) }
            }
        }
    }

    /// The scores of every token of the vocabulary as the next one, after an ``append(_:)``.
    ///
    /// - Throws: ``MLXGenError``: `wrongState` when the last change was not an append.
    public func logits() async throws -> [Float] {
        try await queue.offload { [handle] in
            try Buffer { mlxgen_cache_logits(handle.pointer, $0, $1) }.array(of: Float.self)
        }
    }

    /// How many tokens are computed. Never waits for the engine.
    public var tokenCount: Int {
        get throws {
            var count = 0
            try check { mlxgen_cache_token_count(handle.pointer, &count, $0) }
            return count
        }
    }

    /// The computed tokens.
    public func tokens() throws -> [TokenID] {
        try Buffer { mlxgen_cache_tokens(handle.pointer, $0, $1) }.array(of: TokenID.self)
    }

    /// Forgets what follows the first `keep` tokens.
    ///
    /// - Returns: how many were dropped.
    /// - Throws: ``MLXGenError``: `invalidArgument` when it holds fewer; `wrongState` naming the layer
    ///   that cannot be cut, and then nothing changed; `busy` while a generation has the set.
    @discardableResult
    public func truncate(to keep: Int) async throws -> Int {
        let keep = Int(try unsigned(keep, "keep", as: UInt.self))
        return try await queue.offload { [handle] in
            var dropped = 0
            try check { mlxgen_cache_truncate(handle.pointer, keep, &dropped, $0) }
            return dropped
        }
    }

    /// An independent set with the same tokens.
    ///
    /// - Throws: ``MLXGenError``: `outOfMemory`, `busy` while a generation has the set.
    public func fork() async throws -> CacheSet {
        let copy = try await queue.offload { [handle] in
            try make(mlxgen_cache_release) { mlxgen_cache_fork(handle.pointer, $0, $1) }
        }
        return CacheSet(owning: copy, model: model)
    }

    /// What a set tells about itself.
    public struct Info: Equatable, Sendable {
        /// Tokens held.
        public let tokens: Int
        /// Most tokens that it may hold.
        public let capacity: Int
        /// What the set stands for in the engine's limit: bytes that forks share count in equal parts.
        public let bytes: Int
        /// One for each layer that keeps something.
        public let layers: [Layer]

        /// What one layer keeps.
        public struct Layer: Codable, Equatable, Sendable {
            /// The kind of storage, such as `kv:plain`.
            public let signature: String
            /// Tokens that it covers.
            public let offset: Int
            /// Bytes occupied, those that forks share included.
            public let bytes: Int
            /// Bytes among them that forks occupy too.
            public let sharedBytes: Int
            /// Whether its end can be cut off.
            public let trimmable: Bool
            /// The least number of tokens that it may be cut to and still be what these tokens alone would have made.
            public let minimumReusableOffset: Int

            enum CodingKeys: String, CodingKey {
                case signature, offset, bytes, trimmable
                case sharedBytes = "shared_bytes"
                case minimumReusableOffset = "minimum_reusable_offset"
            }
        }

        /// Whether the end of the set can be cut off.
        public let trimmable: Bool
    }

    /// Describes the set. Never waits for the engine.
    public func info() throws -> Info {
        var info = mlxgen_cache_description()
        info.struct_size = MemoryLayout.size(ofValue: info)
        let layers = try Buffer { mlxgen_cache_info(handle.pointer, &info, $0, $1) }
        return Info(
            tokens: Int(clamping: info.tokens), capacity: Int(clamping: info.capacity),
            bytes: Int(clamping: info.bytes), layers: try layers.decoded(), trimmable: info.trimmable != 0)
    }
}

/// The options as the library takes them, but for the text of a table, which stands beside them.
func libraryOptions(
    _ capacity: Int, _ kvType: CacheSet.KVType, _ precision: CacheSet.KVPrecision?,
    _ window: CacheSet.KVWindow?, _ pages: CacheSet.KVPages?
) throws -> (mlxgen_cache_options, String) {
    var options = mlxgen_cache_options()
    _ = mlxgen_cache_options_init(&options, MemoryLayout.size(ofValue: options))
    options.capacity = try unsigned(capacity, "capacity")
    options.kv_type = kvType.rawValue
    if let window {
        options.window = try unsigned(window.tokens, "window")
        options.window_keep = try unsigned(window.keep, "window_keep")
    }
    if let pages {
        options.page_tokens = try unsigned(pages.tokens, "page_tokens")
        options.page_capacity = try unsigned(pages.capacity, "page_capacity")
    }
    var table = ""
    switch precision {
    case nil:
        break
    case .affine(let bits, let group, let start):
        options.kv_bits = try unsigned(bits, "kv_bits")
        options.kv_group = try unsigned(group, "kv_group")
        if let start { options.kv_start = Int64(clamping: try unsigned(start, "kv_start", as: UInt64.self)) }
    case .table(let text, let start):
        table = text
        if let start { options.kv_start = Int64(clamping: try unsigned(start, "kv_start", as: UInt64.self)) }
    case .turboQuant(let keyBits, let valueBits, let start, let deferred):
        options.turboquant_key_bits = try unsigned(keyBits, "turboquant_key_bits")
        options.turboquant_value_bits = try unsigned(valueBits, "turboquant_value_bits")
        options.turboquant_deferred = deferred ? 1 : 0
        options.kv_start = Int64(clamping: try unsigned(start, "kv_start", as: UInt64.self))
    }
    return (options, table)
}
