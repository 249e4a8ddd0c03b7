//! StarCoder 2: layer norms, biases everywhere, a feed-forward layer without a gate.

use crate::base::Result;
use crate::model::config::{Activation, Defaults, Fields, HeadDim, MlpForm, ModelConfig, NormKind, Windows};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let defaults = Defaults {
        head_dim: HeadDim::Shared,
        vocabulary: Some(49_152),
        eps_field: "norm_epsilon",
        eps: Some(1e-5),
        theta: 100_000.0,
        // The published files ask for the approximation; mlx-lm 0.32.2 computes the exact one whatever they say.
        activations: &[Activation::Gelu, Activation::GeluTanh],
        ..Defaults::LLAMA
    };
    let mut config = defaults.read(fields)?;
    if fields.flag("use_bias")? == Some(false) {
        return Err(fields.unsupported("use_bias", "is false"));
    }
    // mlx-lm 0.32.2 leaves the window out, unlike the model's own code.
    config.slide(fields, Windows::All, None)?;
    config.attention.bias = true;
    config.attention.output_bias = true.into();
    config.norm.kind = NormKind::Layer { bias: true };
    config.mlp.form = MlpForm::Plain { up: "c_fc", down: "c_proj" };
    config.mlp.bias = true;
    Ok(config)
}
