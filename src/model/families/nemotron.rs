//! Nemotron: layer norms whose gains count from one, a feed-forward layer without a gate.

use super::llama;
use crate::base::Result;
use crate::model::config::{Activation, Defaults, Fields, MlpForm, ModelConfig, NormKind};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = Defaults {
        activations: &[Activation::ReluSquared],
        eps_field: "norm_eps",
        partial: Some(0.5),
        tied: false,
        ..Defaults::LLAMA
    };
    let mut config = defaults.read(fields)?;
    llama::biases(&mut config, fields)?;
    config.norm.kind = NormKind::Layer { bias: true };
    config.norm.one_more = true;
    config.mlp.form = MlpForm::Plain { up: "up_proj", down: "down_proj" };
    Ok(config)
}
