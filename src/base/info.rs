//! What objects tell about themselves: mirrors kept on the host, readable from any thread.

/// A model as loaded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelInfo {
    /// The graph family, such as `llama`.
    pub family: String,
    /// The folder's or file's name, or the one the file gives.
    pub name: String,
    /// `safetensors`, `gguf` or `fake`.
    pub format: String,
    /// How the matrices are kept: each form, most elements first, such as `affine 4-bit group 32 (from Q4_K), float16`.
    pub weights: String,
    /// `float32`, `float16` or `bfloat16`.
    pub compute_type: String,
    /// `fast` or `exact`.
    pub numerics: String,
    pub vocabulary: u32,
    pub layers: u32,
    pub hidden: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// Most tokens of a sequence.
    pub context_limit: u64,
    pub prefill_chunk: u32,
    pub parameters: u64,
    /// Bytes that the weights occupy in memory.
    pub weight_bytes: u64,
    /// Bytes of a cache for each token.
    pub cache_bytes_per_token: u64,
    /// Ids that end a generation, ascending.
    pub eos: Vec<u32>,
    pub bos: Option<u32>,
    pub has_chat_template: bool,
}

/// What a model with one cache set would take, told from headers alone. Sizes are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// That the weights would occupy.
    pub weight_bytes: u64,
    /// Of the files that a load reads.
    pub file_bytes: u64,
    /// The most that a load takes at once, the weights included.
    pub load_bytes: u64,
    /// Of each further token, as long as no window is full.
    pub cache_bytes_per_token: u64,
    /// Of the cache set with `context` tokens.
    pub cache_bytes: u64,
    /// Transient, of the greatest forward up to `context` tokens.
    pub workspace_bytes: u64,
    /// Weights, cache set and workspace, or the load if that takes more.
    pub total_bytes: u64,
    /// Tokens that were asked about.
    pub context: u64,
    /// Most tokens of the cache set, memory aside.
    pub context_limit: u64,
    /// That `total_bytes` was compared with.
    pub budget: u64,
    /// Most tokens that fit into the budget; 0 if the model itself does not.
    pub max_context: u64,
    /// Whether `context` is at most `max_context`, and the model fits.
    pub fits: bool,
}

/// Memory in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryInfo {
    /// In use by arrays.
    pub active: u64,
    /// Freed and kept for reuse.
    pub pooled: u64,
    /// Greatest `active` since the first engine was made.
    pub peak: u64,
    pub limit: u64,
    pub pool_limit: u64,
    /// What the machine could still give to this process.
    pub available: u64,
    /// Weights of this engine's models.
    pub models: u64,
    /// Cache sets of this engine.
    pub caches: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerCacheInfo {
    /// Storage identity, such as `kv:plain`.
    pub signature: String,
    pub offset: u64,
    /// Bytes held, shared ones included.
    pub bytes: u64,
    /// Bytes among them that forks hold too.
    pub shared_bytes: u64,
    /// Whether the latest token can be forgotten.
    pub trimmable: bool,
    /// The least number of tokens that the state may be cut to and still be what these tokens alone would have made.
    pub minimum_reusable_offset: u64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheInfo {
    pub tokens: u64,
    pub capacity: u64,
    pub bytes: u64,
    pub layers: Vec<LayerCacheInfo>,
}
