//! OLMo 2 and 3: norms after each half, and of all queries and all keys of a token.

use super::llama;
use crate::base::Result;
use crate::model::config::{
    BlockConfig, Defaults, Fields, HeadNorm, ModelConfig, Rope, RopeScaling, Windows,
};

pub fn olmo2(fields: &Fields<'_>) -> Result<ModelConfig> {
    describe(fields, Defaults::LLAMA)
}

/// Three layers of four slide, without scaled positions.
pub fn olmo3(fields: &Fields<'_>) -> Result<ModelConfig> {
    let mut config = describe(fields, Defaults { tied: false, ..Defaults::LLAMA })?;
    config.mlp.bias = false;
    let sliding = config.slide(fields, Windows::AllButEvery(4), None)?;
    let local = Rope { scaling: RopeScaling::None, ..config.ropes[0].clone() };
    config.ropes.push(local);
    for (layer, slides) in config.layers.iter_mut().zip(sliding) {
        layer.rope = Some(usize::from(slides));
    }
    Ok(config)
}

fn describe(fields: &Fields<'_>, defaults: Defaults) -> Result<ModelConfig> {
    let mut config = defaults.read(fields)?;
    llama::biases(&mut config, fields)?;
    config.block = BlockConfig::AFTER;
    config.attention.head_norm = Some(HeadNorm::Whole);
    Ok(config)
}
