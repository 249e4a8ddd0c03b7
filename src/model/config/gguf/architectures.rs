//! The architectures by their names in the format: what each changes in a llama.

use super::source::{Base, LAYER_NORM_EPSILON, Source};
use crate::base::Result;
use crate::model::config::{
    Activation, BlockConfig, EmbeddingScale, HeadNorm, MlpForm, ModelConfig, NormKind, Order, Wide,
};

pub(super) struct Architecture {
    pub(super) name: &'static str,
    /// The family that computes it.
    pub(super) family: &'static str,
    /// Keys that it reads besides those of all architectures, or that it need not read.
    pub(super) keys: &'static [&'static str],
    /// Whether it can have a sliding window.
    pub(super) slides: bool,
    pub(super) describe: fn(&Source<'_>) -> Result<ModelConfig>,
}

const PATTERN: &str = "attention.sliding_window_pattern";
const SLIDING_THETA: &str = "rope.freq_base_swa";

const fn plain(name: &'static str, describe: fn(&Source<'_>) -> Result<ModelConfig>) -> Architecture {
    Architecture { name, family: name, keys: &[], slides: false, describe }
}

pub(super) static ALL: [Architecture; 18] = [
    plain("llama", llama),
    plain("qwen2", llama),
    plain("qwen3", qwen3),
    Architecture {
        keys: &[PATTERN, SLIDING_THETA, "attn_logit_softcapping", "final_logit_softcapping"],
        slides: true,
        ..plain("gemma2", gemma2)
    },
    Architecture {
        keys: &[PATTERN, SLIDING_THETA, "final_logit_softcapping"],
        slides: true,
        ..plain("gemma3", gemma3)
    },
    Architecture { slides: true, ..plain("phi3", phi3) },
    plain("smollm3", smollm3),
    Architecture { keys: &[PATTERN, SLIDING_THETA], slides: true, ..plain("olmo2", olmo2) },
    Architecture {
        keys: &["logit_scale", "embedding_scale", "residual_scale", "attention.scale"],
        ..plain("granite", granite)
    },
    Architecture {
        keys: &[PATTERN, SLIDING_THETA, LAYER_NORM_EPSILON, "logit_scale"],
        slides: true,
        ..plain("cohere2", cohere2)
    },
    plain("glm4", glm4),
    Architecture { keys: &[PATTERN, SLIDING_THETA], slides: true, ..plain("exaone4", exaone4) },
    plain("seed_oss", llama),
    plain("ernie4_5", ernie4_5),
    Architecture { keys: &[LAYER_NORM_EPSILON], ..plain("nemotron", nemotron) },
    Architecture { keys: &["logit_scale", "embedding_scale", "residual_scale"], ..plain("minicpm", minicpm) },
    Architecture { keys: &[LAYER_NORM_EPSILON], slides: true, ..plain("starcoder2", starcoder2) },
    // Whether the halves are parallel, the tensors tell; converters set the switch for those in series too.
    Architecture { keys: &[LAYER_NORM_EPSILON, "use_parallel_residual"], ..plain("stablelm", stablelm) },
];

impl Architecture {
    pub(super) fn find(name: &str) -> Option<&'static Architecture> {
        ALL.iter().find(|architecture| architecture.name == name)
    }
}

fn llama(source: &Source<'_>) -> Result<ModelConfig> {
    source.base(Base::LLAMA)
}

/// Norms of each head's queries and keys.
fn qwen3(source: &Source<'_>) -> Result<ModelConfig> {
    let mut config = source.base(Base::LLAMA)?;
    config.attention.head_norm = Some(HeadNorm::Shared);
    Ok(config)
}

/// What Gemma 2 and 3 have in common. `widest` layers are those of the largest model, which divides queries by another
/// width than that of a head.
fn gemma(source: &Source<'_>, widest: usize) -> Result<ModelConfig> {
    let mut config = source.base(Base::LLAMA)?;
    config.mlp.activation = Activation::GeluTanh;
    if config.layers.len() == widest && config.heads > 0 {
        config.attention.scale = ((config.hidden / config.heads) as f64).powf(-0.5);
    }
    Ok(config)
}

fn gemma2(source: &Source<'_>) -> Result<ModelConfig> {
    const WINDOW: usize = 4096;
    const EVERY: usize = 2;
    let mut config = gemma(source, 46)?;
    source.refuse_sliding_theta(&config)?;
    let sliding = source.sliding(config.layers.len(), EVERY)?;
    source.slide(&mut config, source.window()?.unwrap_or(WINDOW), &sliding);
    config.block = BlockConfig::AROUND;
    config.attention.softcap = Some(source.number("attn_logit_softcapping")?.unwrap_or(50.0));
    config.head.softcap = Some(source.number("final_logit_softcapping")?.unwrap_or(30.0));
    config.embedding_scale = Some(EmbeddingScale::Rounded((config.hidden as f64).powf(0.5)));
    Ok(config)
}

fn gemma3(source: &Source<'_>) -> Result<ModelConfig> {
    const EVERY: usize = 6;
    const SLIDING_THETA: f64 = 10_000.0;
    let mut config = gemma(source, 62)?;
    if let Some(window) = source.window()? {
        let sliding = source.sliding(config.layers.len(), EVERY)?;
        source.slide(&mut config, window, &sliding);
        turn_apart(source, &mut config, SLIDING_THETA, &sliding)?;
    }
    config.block = BlockConfig { clipped: true, ..BlockConfig::AROUND };
    config.attention.head_norm = Some(HeadNorm::Shared);
    config.head.softcap = source.number("final_logit_softcapping")?.filter(|softcap| *softcap != 0.0);
    config.embedding_scale = Some(EmbeddingScale::Bfloat16((config.hidden as f64).powf(0.5)));
    Ok(config)
}

/// Gives the layers that slide a rotation of their own.
fn turn_apart(source: &Source<'_>, config: &mut ModelConfig, theta: f64, sliding: &[bool]) -> Result<()> {
    let local = source.sliding_rope(config, theta)?;
    config.ropes.push(local);
    for (layer, slides) in config.layers.iter_mut().zip(sliding) {
        layer.rope = Some(usize::from(*slides));
    }
    Ok(())
}

/// The window is that of the model's own code; llama.cpp leaves it out.
fn phi3(source: &Source<'_>) -> Result<ModelConfig> {
    let mut config = source.base(Base { partial: true, long: true, ..Base::LLAMA })?;
    slide_all(source, &mut config)?;
    config.mlp.form = MlpForm::GatedJoined;
    Ok(config)
}

fn slide_all(source: &Source<'_>, config: &mut ModelConfig) -> Result<()> {
    if let Some(window) = source.window()? {
        let all = vec![true; config.layers.len()];
        source.slide(config, window, &all);
    }
    Ok(())
}

/// Every fourth layer has no positions.
fn smollm3(source: &Source<'_>) -> Result<ModelConfig> {
    const INTERVAL: usize = 4;
    let mut config = source.base(Base::LLAMA)?;
    for layer in config.layers.iter_mut().skip(INTERVAL - 1).step_by(INTERVAL) {
        layer.rope = None;
    }
    Ok(config)
}

/// Olmo 2, and with a window Olmo 3, whose sliding layers have no scaled positions.
fn olmo2(source: &Source<'_>) -> Result<ModelConfig> {
    const EVERY: usize = 4;
    let mut config = source.base(Base::LLAMA)?;
    config.block = BlockConfig::AFTER;
    config.attention.head_norm = Some(HeadNorm::Whole);
    if let Some(window) = source.window()? {
        let sliding = source.sliding(config.layers.len(), EVERY)?;
        source.slide(&mut config, window, &sliding);
        let theta = config.ropes[0].theta;
        turn_apart(source, &mut config, theta, &sliding)?;
    }
    Ok(config)
}

/// `rope.scaling.finetuned` says here whether there are positions at all.
fn granite(source: &Source<'_>) -> Result<ModelConfig> {
    let mut config = source.base(Base::LLAMA)?;
    config.head.divisor = Some(source.required_number("logit_scale")?);
    let factor =
        |name: &str| -> Result<Option<f64>> { Ok(source.number(name)?.filter(|factor| *factor != 0.0)) };
    config.embedding_scale = factor("embedding_scale")?.map(EmbeddingScale::Plain);
    config.residual_scale = factor("residual_scale")?;
    if let Some(scale) = factor("attention.scale")? {
        config.attention.scale = scale;
    }
    if source.metadata.flag(&source.key("rope.scaling.finetuned"))? == Some(false) {
        config.layers.iter_mut().for_each(|layer| layer.rope = None);
    }
    Ok(config)
}

/// Both halves of a layer from one norm; layers that see everything have no positions.
fn cohere2(source: &Source<'_>) -> Result<ModelConfig> {
    const EVERY: usize = 4;
    let mut config = source.base(Base { epsilon: LAYER_NORM_EPSILON, traditional: true, ..Base::LLAMA })?;
    source.refuse_sliding_theta(&config)?;
    let window = source.window()?;
    let window = window.ok_or_else(|| source.invalid("attention.sliding_window", "is missing"))?;
    let sliding = source.sliding(config.layers.len(), EVERY)?;
    source.slide(&mut config, window, &sliding);
    for (layer, slides) in config.layers.iter_mut().zip(sliding) {
        layer.rope = slides.then_some(0);
    }
    config.norm.kind = NormKind::Layer { bias: false };
    config.block = BlockConfig { before_mlp: None, order: Order::ParallelFirst, ..BlockConfig::BEFORE };
    config.attention.wide = Wide::Float16Queries;
    config.head.factor = Some(source.required_number("logit_scale")?);
    Ok(config)
}

/// Norms before and after each half, a rotation of a part of each head.
fn glm4(source: &Source<'_>) -> Result<ModelConfig> {
    let mut config = source.base(Base { traditional: true, partial: true, ..Base::LLAMA })?;
    config.block = BlockConfig {
        after_attention: Some("post_self_attn_layernorm"),
        after_mlp: Some("post_mlp_layernorm"),
        ..BlockConfig::BEFORE
    };
    config.mlp.form = MlpForm::GatedJoined;
    Ok(config)
}

/// Layers that see everything have no positions, where some slide.
fn exaone4(source: &Source<'_>) -> Result<ModelConfig> {
    const EVERY: usize = 4;
    let mut config = source.base(Base::LLAMA)?;
    source.refuse_sliding_theta(&config)?;
    config.block = BlockConfig::AFTER;
    config.attention.head_norm = Some(HeadNorm::Shared);
    if let Some(window) = source.window()? {
        let sliding = source.sliding(config.layers.len(), EVERY)?;
        source.slide(&mut config, window, &sliding);
        if sliding.contains(&true) {
            for (layer, slides) in config.layers.iter_mut().zip(sliding) {
                layer.rope = slides.then_some(0);
            }
        }
    }
    Ok(config)
}

/// A llama whose neighbours turn together.
fn ernie4_5(source: &Source<'_>) -> Result<ModelConfig> {
    source.base(Base { traditional: true, ..Base::LLAMA })
}

/// Layer norms, a feed-forward layer without a gate.
fn nemotron(source: &Source<'_>) -> Result<ModelConfig> {
    let mut config = source.base(Base { epsilon: LAYER_NORM_EPSILON, partial: true, ..Base::LLAMA })?;
    config.norm.kind = NormKind::Layer { bias: true };
    config.mlp.form = MlpForm::Plain { up: "up_proj", down: "down_proj" };
    config.mlp.activation = Activation::ReluSquared;
    Ok(config)
}

/// A llama with multipliers. Files of older converters leave them out: they are those of the first models.
fn minicpm(source: &Source<'_>) -> Result<ModelConfig> {
    const EMBEDDING: f64 = 12.0;
    const DEPTH: f64 = 1.4;
    const WIDTH: f64 = 256.0;
    let mut config = source.base(Base::LLAMA)?;
    config.embedding_scale =
        Some(EmbeddingScale::Plain(source.number("embedding_scale")?.unwrap_or(EMBEDDING)));
    let residual = DEPTH / (config.layers.len() as f64).powf(0.5);
    config.residual_scale = Some(source.number("residual_scale")?.unwrap_or(residual));
    config.head.input_divisor = Some(source.number("logit_scale")?.unwrap_or(config.hidden as f64 / WIDTH));
    Ok(config)
}

/// Layer norms and a feed-forward layer without a gate. The format does not tell the activation; the published models
/// have the approximation.
fn starcoder2(source: &Source<'_>) -> Result<ModelConfig> {
    let mut config = source.base(Base { epsilon: LAYER_NORM_EPSILON, ..Base::LLAMA })?;
    slide_all(source, &mut config)?;
    config.norm.kind = NormKind::Layer { bias: true };
    config.mlp.form = MlpForm::Plain { up: "c_fc", down: "c_proj" };
    config.mlp.activation = Activation::GeluTanh;
    Ok(config)
}

/// Layer norms, a rotation of a part of each head, halves in series or, without a norm between them, in parallel.
fn stablelm(source: &Source<'_>) -> Result<ModelConfig> {
    let mut config = source.base(Base { epsilon: LAYER_NORM_EPSILON, partial: true, ..Base::LLAMA })?;
    config.attention.scale = (1.0 / config.head_dim as f64).sqrt();
    config.attention.wide = Wide::Always;
    if source.has("self_attn.q_layernorm.norms.0.weight") {
        config.attention.head_norm = Some(HeadNorm::Own);
    }
    config.norm.kind = NormKind::Layer { bias: true };
    if !source.has("post_attention_layernorm.weight") {
        config.block = BlockConfig { before_mlp: None, order: Order::Parallel, ..BlockConfig::BEFORE };
    }
    Ok(config)
}
