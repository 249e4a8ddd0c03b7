//! Attention over keys and values that lie in several places, without a matrix of scores and without padding.
//!
//! The arithmetic, the same on every path: positions are cut into blocks at absolute multiples of [`BLOCK`].
//! For a query of a head and a block, each score is one chain of fused multiply-adds over the dimensions in
//! order, starting from 0, of the query times `scale`; then soft cap and mask. With m the largest score, weights
//! are e^(score - m); their sum goes over sixteen partial sums (position mod 16) and a fixed tree; each output
//! dimension is one chain of fused multiply-adds over the positions in order. Blocks are merged in the order of
//! their positions, then the values are divided by the sum of weights. Where the first positions are kept besides a
//! window, a block that has kept and other positions is two.
//!
//! A position that a query does not see, by order or window, has no influence on its row whatever is stored
//! there. One that only a mask hides has the weight 0, and its value must be finite.

mod affine;
mod aligned;
mod block;
mod call;
mod convert;
mod forms;
mod halves;
mod index;
mod joint;
mod micro;
mod packed;
mod shape;
mod softmax;
mod store;
mod stored;
mod tile;
mod turbo;

#[cfg(all(test, not(feature = "mlx")))]
mod tests;

pub use call::attend;
pub use convert::{Source, Target, convert};
pub use index::{Indexer, choose};
pub use shape::Mask;
pub use shape::{Attention, GROUP, KvForm, KvShape, Sequence, Span};
pub use store::{NewTokens, store, store_on};
