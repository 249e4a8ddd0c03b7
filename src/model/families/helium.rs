//! Helium: a llama whose neighbours turn together, without a bias of attention's output.

use super::llama;
use crate::base::Result;
use crate::model::config::{Defaults, Fields, HeadDim, ModelConfig, Presence};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let mut config =
        Defaults { head_dim: HeadDim::Shared, traditional: true, tied: false, ..Defaults::LLAMA }
            .read(fields)?;
    llama::biases(&mut config, fields)?;
    config.attention.output_bias = Presence::Absent;
    Ok(config)
}
