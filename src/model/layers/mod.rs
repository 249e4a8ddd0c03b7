//! Layers that families share.

mod attention;
mod mlp;
mod norm;

pub use attention::{Attention, AttentionShape, Projections};
pub use mlp::GatedMlp;
pub use norm::RmsNorm;

use crate::base::{Error, Result};
use crate::mlx::ops::{Llama3Scaling, Rope};
use crate::model::config::{self, RopeScaling};

/// The rotation that a configuration asks for, over all `dims` of a head.
pub fn rope_of(rope: &config::Rope, dims: usize) -> Result<Rope> {
    let dims = i32::try_from(dims).map_err(|_| Error::invalid_model("the heads are too wide"))?;
    match &rope.scaling {
        RopeScaling::None => Ok(Rope::plain(dims, rope.traditional, rope.theta, 1.0)),
        RopeScaling::Linear { factor } => Ok(Rope::plain(dims, rope.traditional, rope.theta, 1.0 / factor)),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            Rope::llama3(
                dims,
                rope.traditional,
                rope.theta,
                Llama3Scaling {
                    factor: *factor,
                    low_freq_factor: *low_freq_factor,
                    high_freq_factor: *high_freq_factor,
                    original_max_positions: *original_max_positions,
                },
            )
        }
        RopeScaling::Factors(factors) => Rope::with_factors(dims, rope.traditional, rope.theta, factors),
    }
}
