//! Layers that families share.

mod attention;
mod block;
mod mlp;
mod norm;
mod rope;

pub use attention::{Attention, AttentionShape, HeadGains, Projections};
pub use block::Block;
pub use mlp::{Mlp, MlpWeights};
pub use norm::{Input, Norm};
pub use rope::{Turning, rope_of};
