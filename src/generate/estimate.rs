//! What a model would take, before any of its weights is read.

use crate::base::info::MemoryEstimate;

/// The needs of a model and a cache set, told by a back end from headers and options. Sizes are bytes.
pub trait MemoryNeeds {
    /// That the weights will occupy.
    fn weight_bytes(&self) -> u64;

    /// Of the files that a load reads.
    fn file_bytes(&self) -> u64;

    /// The most that a load takes at once, the weights included.
    fn load_bytes(&self) -> u64;

    /// Most tokens of the cache set, memory aside.
    fn context_limit(&self) -> u64;

    /// Tokens of a prompt that are computed at once.
    fn chunk(&self) -> u64;

    /// Of each further token, as long as no window is full.
    fn cache_bytes_per_token(&self) -> u64;

    /// Of the cache set with so many tokens. Does not fall with their number.
    fn cache_bytes(&self, tokens: u64) -> u64;

    /// Transient, of a forward of `tokens` tokens that ends at position `end`, beside a state of `state_bytes`. Does
    /// not fall with any of them.
    fn workspace_bytes(&self, tokens: u64, end: u64, state_bytes: u64) -> u64;
}

/// Compares what `context` tokens take with `budget` bytes, and finds the most tokens that fit. 0 tokens stand for the
/// most that there can be.
pub fn estimate(needs: &dyn MemoryNeeds, context: u64, budget: u64) -> MemoryEstimate {
    let limit = needs.context_limit();
    let context = if context == 0 { limit } else { context };
    let (cache_bytes, workspace_bytes) = cache_and_workspace(needs, context);
    let max_context = max_context(needs, budget);
    MemoryEstimate {
        weight_bytes: needs.weight_bytes(),
        file_bytes: needs.file_bytes(),
        load_bytes: needs.load_bytes(),
        cache_bytes_per_token: needs.cache_bytes_per_token(),
        cache_bytes,
        workspace_bytes,
        total_bytes: total_bytes(needs, context),
        context,
        context_limit: limit,
        budget,
        max_context,
        fits: context > 0 && context <= max_context,
    }
}

fn cache_and_workspace(needs: &dyn MemoryNeeds, context: u64) -> (u64, u64) {
    let cache = needs.cache_bytes(context);
    (cache, needs.workspace_bytes(needs.chunk().min(context), context, cache))
}

fn total_bytes(needs: &dyn MemoryNeeds, context: u64) -> u64 {
    let (cache, workspace) = cache_and_workspace(needs, context);
    needs.weight_bytes().saturating_add(cache).saturating_add(workspace).max(needs.load_bytes())
}

/// By halving: `total_bytes` does not fall with the context.
fn max_context(needs: &dyn MemoryNeeds, budget: u64) -> u64 {
    let fits = |context: u64| total_bytes(needs, context) <= budget;
    let limit = needs.context_limit();
    if fits(limit) {
        return limit;
    }
    // `low` fits, or is 0; `high` does not.
    let (mut low, mut high) = (0, limit);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model whose sliding layers keep 100 tokens and whose other layers keep all.
    struct Windowed {
        limit: u64,
    }

    impl MemoryNeeds for Windowed {
        fn weight_bytes(&self) -> u64 {
            10_000
        }
        fn file_bytes(&self) -> u64 {
            9_000
        }
        fn load_bytes(&self) -> u64 {
            12_000
        }
        fn context_limit(&self) -> u64 {
            self.limit
        }
        fn chunk(&self) -> u64 {
            64
        }
        fn cache_bytes_per_token(&self) -> u64 {
            12
        }
        fn cache_bytes(&self, tokens: u64) -> u64 {
            tokens.saturating_mul(4).saturating_add(8 * tokens.min(100))
        }
        fn workspace_bytes(&self, tokens: u64, end: u64, _state_bytes: u64) -> u64 {
            tokens * 10 + end / 8
        }
    }

    #[test]
    fn the_greatest_context_fits_and_one_more_does_not() {
        let needs = Windowed { limit: 100_000 };
        for budget in (11_990..14_000).step_by(7).chain([20_000, 57_123, 413_939, 413_940, u64::MAX]) {
            let most = estimate(&needs, 0, budget).max_context;
            if budget < 12_000 {
                assert_eq!(most, 0, "the load does not fit into {budget}");
                assert!(!estimate(&needs, 1, budget).fits);
                continue;
            }
            assert!(most > 0 && estimate(&needs, most, budget).fits, "{most} in {budget}");
            assert!(estimate(&needs, most, budget).total_bytes <= budget);
            assert!(!estimate(&needs, most + 1, budget).fits, "{most} + 1 in {budget}");
            if most < needs.limit {
                assert!(estimate(&needs, most + 1, budget).total_bytes > budget);
            }
        }
        assert_eq!(estimate(&needs, 0, u64::MAX).max_context, 100_000);
    }

    #[test]
    fn the_parts_add_up_and_a_load_that_takes_more_decides() {
        let of = |context| estimate(&Windowed { limit: 1000 }, context, 1 << 20);
        let small = of(1);
        assert_eq!((small.cache_bytes, small.workspace_bytes, small.total_bytes), (12, 10, 12_000));
        let large = of(0);
        assert_eq!((large.context, large.cache_bytes), (1000, 4800), "8 bytes a token end at the window");
        assert_eq!(large.total_bytes, 10_000 + 4800 + 640 + 125);
        assert!(large.fits && !of(1001).fits, "no memory helps beyond the limit");
    }
}
