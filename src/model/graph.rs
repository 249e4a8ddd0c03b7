//! What a family's graph offers to the drivers.

use crate::base::Result;
use crate::cache::{LayerCache, LayerNeeds};
use crate::mlx::Array;

/// A causal language model over token ids.
pub trait CausalGraph {
    /// What each layer that owns a cache needs of it, in order.
    fn cache_needs(&self) -> Vec<LayerNeeds>;

    /// The embeddings `[1, tokens, hidden]` of `ids` `[1, tokens]`, as the first layer takes them.
    fn embed(&self, ids: &Array) -> Result<Array>;

    /// Appends tokens whose embeddings are `x` `[1, tokens, hidden]` to the caches and leaves out what only the scores
    /// need. On failure the caches may cover the tokens in part.
    fn extend(&self, x: &Array, caches: &mut [Box<dyn LayerCache>], pace: &mut dyn Pace) -> Result<()>;

    /// As `extend`, and returns the normalised hidden values `[1, tokens, hidden]`.
    fn hidden(&self, x: &Array, caches: &mut [Box<dyn LayerCache>], pace: &mut dyn Pace) -> Result<Array>;

    /// The scores of hidden values: `[1, tokens, vocabulary]`.
    fn scores(&self, hidden: &Array) -> Result<Array>;
}

/// Stops at points of a forward where the work may be cut short.
///
/// Computing a graph piece by piece changes no bit of it, so a graph calls this between its
/// operations, and the driver decides whether to compute what there is.
pub trait Pace {
    /// `arrays` are all that the rest of the forward needs of what was built up to here, and cost
    /// about `work` multiplications more than the last point.
    fn reached(&mut self, work: f64, arrays: &[&Array]) -> Result<()>;

    /// Whether `work` multiplications are too much for one piece and should be divided, where that
    /// changes no bit.
    fn is_long(&self, work: f64) -> bool;

    /// Positions that the sequence reaches with the prompt at hand, however that is cut into forwards.
    fn horizon(&self) -> usize;
}

/// Never stops: the whole forward is one graph.
#[derive(Debug)]
pub struct Unpaced {
    pub horizon: usize,
}

impl Pace for Unpaced {
    fn reached(&mut self, _work: f64, _arrays: &[&Array]) -> Result<()> {
        Ok(())
    }

    fn is_long(&self, _work: f64) -> bool {
        false
    }

    fn horizon(&self) -> usize {
        self.horizon
    }
}
