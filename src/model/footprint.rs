//! What a model's states and forwards occupy, estimated from above: MLX's CPU allocator does not
//! survive a refusal, so work is admitted before it starts. What caches occupy, their scheme tells.

/// The sizes that memory depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Layers that own a cache.
    pub layers: u64,
    pub hidden: u64,
    pub intermediate: u64,
    pub heads: u64,
    pub kv_heads: u64,
    pub head_dim: u64,
    pub vocabulary: u64,
    pub storage: Storage,
}

/// What the arithmetic stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storage {
    /// Bytes of an activation.
    pub float_bytes: u64,
    /// Bytes of an element of a key or value.
    pub kv_bytes: u64,
    /// Whether attention writes the scores of all queries and keys.
    pub scores: bool,
}

/// MLX allocates results when it dispatches operations, on the CPU up to about a hundred before
/// they run; a layer has about thirty.
const LAYERS_IN_FLIGHT: u128 = 4;

impl Footprint {
    /// Keys and values of a token in all layers, without options.
    pub fn cache_bytes_per_token(&self) -> u64 {
        2 * self.layers * self.kv_heads * self.head_dim * self.storage.kv_bytes
    }

    /// Greatest transient bytes of a forward of `tokens` tokens that ends at position `end`, beside a state of
    /// `state_bytes` bytes.
    pub fn workspace_bytes(&self, tokens: u64, end: u64, state_bytes: u64) -> u64 {
        // Positions are 32-bit numbers; in 128 bits nothing below overflows.
        let wide = |number: u64| u128::from(number.min(1 << 32));
        let (tokens, end) = (wide(tokens), wide(end));
        let (heads, kv_heads, head_dim) = (wide(self.heads), wide(self.kv_heads), wide(self.head_dim));
        // Scores, their masked copy, their softmax.
        let scores = if self.storage.scores { 3 * heads * tokens * end } else { 0 };
        // Queries, keys and values before and after rotation, attention before and after merging.
        let projections = 2 * (2 * heads + 2 * kv_heads) * head_dim;
        // Norms and sums; gate, up, the sigmoid and the two products.
        let rows = 6 * wide(self.hidden) + projections + 5 * wide(self.intermediate);
        let layer = (scores + rows * tokens) * wide(self.storage.float_bytes);
        // An array of keys or values that grows exists twice; segments stay where they are.
        let grown = if self.storage.scores { 2 * u128::from(state_bytes) } else { 0 };
        let growth = grown / wide(self.layers.max(1));
        // Scores over the vocabulary: normalised, sorted, cumulated and so on in float32.
        let head = 12 * wide(self.vocabulary) * 4;
        // The mask of a chunk.
        let mask = if self.storage.scores { tokens * end * 4 } else { 0 };
        let total = (layer + growth) * LAYERS_IN_FLIGHT + head + mask;
        u64::try_from(total).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMOLLM2: Footprint = Footprint {
        layers: 30,
        hidden: 576,
        intermediate: 1536,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        vocabulary: 49152,
        storage: Storage { float_bytes: 4, kv_bytes: 4, scores: true },
    };

    #[test]
    fn the_workspace_holds_the_scores_and_does_not_overflow() {
        assert!(SMOLLM2.workspace_bytes(512, 4096, 0) > 3 * 9 * 512 * 4096 * 4);
        assert_eq!(SMOLLM2.workspace_bytes(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
        let storage = Storage { kv_bytes: 2, scores: false, ..SMOLLM2.storage };
        let without = Footprint { storage, ..SMOLLM2 };
        assert!(
            without.workspace_bytes(512, 4096, 1 << 30) < SMOLLM2.workspace_bytes(512, 4096, 1 << 30) / 2
        );
        assert_eq!(without.cache_bytes_per_token() * 2, SMOLLM2.cache_bytes_per_token());
    }
}
