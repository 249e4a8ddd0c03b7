//! EXAONE 4: norms after each half and of each head; layers that see everything have no positions, where some slide.

use serde_json::Value;

use crate::base::Result;
use crate::model::config::{BlockConfig, Defaults, Fields, HeadNorm, ModelConfig, Windows};

const PATTERN: &str = "sliding_window_pattern";

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let mut config = Defaults { tied: false, ..Defaults::LLAMA }.read(fields)?;
    config.block = BlockConfig::AFTER;
    config.attention.head_norm = Some(HeadNorm::Shared);
    let sliding = match fields.get(PATTERN) {
        // Newer files list the layers.
        _ if fields.get("layer_types").is_some() => config.slide(fields, Windows::None, None)?,
        // Such as `LLLG`: local and global layers, over and over.
        Some(Value::String(pattern)) => {
            let pattern = pattern.as_bytes();
            if pattern.is_empty() || pattern.iter().any(|kind| !matches!(kind, b'L' | b'G')) {
                return Err(fields.invalid(PATTERN, "must be made of L and G"));
            }
            let kinds = pattern.iter().cycle().take(config.layers.len());
            let sliding: Vec<bool> = kinds.map(|kind| *kind == b'L').collect();
            config.set_windows(fields, &sliding, None, true)?;
            sliding
        }
        Some(_) => {
            let every = fields.required_size(PATTERN)?;
            if every == 0 {
                return Err(fields.invalid(PATTERN, "is 0; it must be at least 1"));
            }
            config.slide(fields, Windows::AllButEvery(every), None)?
        }
        None => config.slide(fields, Windows::None, None)?,
    };
    if sliding.contains(&true) {
        for (layer, slides) in config.layers.iter_mut().zip(sliding) {
            layer.rope = slides.then_some(0);
        }
    }
    Ok(config)
}
