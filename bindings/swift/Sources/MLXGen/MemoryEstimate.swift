import CMLXGen
import Dispatch
import Foundation

/// What a model with one cache set would take, told from its headers.
public struct MemoryEstimate: Equatable, Sendable {
    /// Bytes that the weights would occupy.
    public let weightBytes: Int
    /// Bytes of the files that a load would read.
    public let fileBytes: Int
    /// The most bytes that a load would take at once, the weights included.
    public let loadBytes: Int
    /// Bytes of each further token in a cache set, once precision is reduced and as long as no window is full.
    public let cacheBytesPerToken: Int
    /// Bytes of a cache set with ``context`` tokens, its room for the next ones included.
    public let cacheBytes: Int
    /// Transient bytes of the greatest forward up to ``context`` tokens.
    public let workspaceBytes: Int
    /// Weights, cache set and workspace together, or ``loadBytes`` if that is more.
    public let totalBytes: Int
    /// The tokens that the last three and ``fits`` are about.
    public let context: Int
    /// Most tokens of the cache set, memory aside.
    public let contextLimit: Int
    /// What ``totalBytes`` was compared with.
    public let budget: Int
    /// Most tokens whose ``totalBytes`` are within the budget; 0 if the model itself is not.
    public let maxContext: Int
    /// Whether ``context`` is at most ``maxContext``.
    public let fits: Bool

    /// Asks about a model. Nothing is loaded, what the engine holds already is not counted, and no later call depends
    /// on the answer. Cancelling the task stops the reading of headers. The tokenizer and the data of the weights are not
    /// read: a load may still refuse a model that has an estimate.
    ///
    /// - Parameters:
    ///   - url: as for ``Model/load(from:engine:options:progress:)``.
    ///   - engine: where it would compute, and whose limit counts; nil: one with default limits.
    ///   - options: how the model would be loaded.
    ///   - context: tokens to ask about; 0: the most that there can be.
    ///   - budget: bytes to compare with; 0: the engine's limit.
    ///   - capacity: most tokens of the cache set, as for ``CacheSet``; 0: the model's limit.
    ///   - kvType: element type of its keys and values.
    ///   - precision: to what they are reduced, if they are.
    ///   - window: the latest tokens that layers keep, if not all.
    ///   - pages: where segments come from, if from pages.
    /// - Throws: ``MLXGenError``: `notFound`, `invalidModel` with file and tensor, `unsupported`, `invalidArgument`, `io`;
    ///   `CancellationError` when the task was cancelled.
    public static func of(
        _ url: URL, engine: Engine? = nil, options: Model.Options = .init(), context: Int = 0,
        budget: Int = 0, capacity: Int = 0, kvType: CacheSet.KVType = .automatic,
        precision: CacheSet.KVPrecision? = nil,
        window: CacheSet.KVWindow? = nil, pages: CacheSet.KVPages? = nil
    ) async throws -> MemoryEstimate {
        try Library.checkInterface()
        let path = url.path
        return try await DispatchQueue.engineCalls.offload { token in
            var plain = try options.libraryOptions()
            plain.cancel = token.pointer
            let (settings, table) = try libraryOptions(capacity, kvType, precision, window, pages)
            let context: UInt64 = try unsigned(context, "context")
            let budget: UInt64 = try unsigned(budget, "budget")
            var raw = mlxgen_memory_estimate()
            raw.struct_size = MemoryLayout.size(ofValue: raw)
            try table.withLibraryText { bytes, count in
                var cache = settings
                if count > 0 {
                    cache.kv_config = bytes
                    cache.kv_config_size = count
                }
                try path.withLibraryText { path, size in
                    try check {
                        mlxgen_model_estimate(
                            engine?.handle.pointer, path, size, &plain, &cache, context, budget, &raw, $0)
                    }
                }
            }
            return MemoryEstimate(raw)
        }
    }

    private init(_ raw: mlxgen_memory_estimate) {
        weightBytes = Int(clamping: raw.weight_bytes)
        fileBytes = Int(clamping: raw.file_bytes)
        loadBytes = Int(clamping: raw.load_bytes)
        cacheBytesPerToken = Int(clamping: raw.cache_bytes_per_token)
        cacheBytes = Int(clamping: raw.cache_bytes)
        workspaceBytes = Int(clamping: raw.workspace_bytes)
        totalBytes = Int(clamping: raw.total_bytes)
        context = Int(clamping: raw.context)
        contextLimit = Int(clamping: raw.context_limit)
        budget = Int(clamping: raw.budget)
        maxContext = Int(clamping: raw.max_context)
        fits = raw.fits != 0
    }
}
