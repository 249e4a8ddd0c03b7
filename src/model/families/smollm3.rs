//! SmolLM3: a llama some of whose layers have no positions.

use super::llama;
use crate::base::Result;
use crate::model::config::{Fields, ModelConfig};

/// Every fourth layer, unless the file lists them.
const INTERVAL: usize = 4;

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let mut config = llama::llama(fields)?;
    let interval = fields.size("no_rope_layer_interval")?.unwrap_or(INTERVAL);
    let Some(list) = fields.get("no_rope_layers") else {
        if interval == 0 {
            return Err(fields.invalid("no_rope_layer_interval", "is 0; it must be at least 1"));
        }
        for (index, layer) in config.layers.iter_mut().enumerate() {
            layer.rope = (!(index + 1).is_multiple_of(interval)).then_some(0);
        }
        return Ok(config);
    };
    let count = config.layers.len();
    let wrong =
        || fields.invalid("no_rope_layers", format!("must list 0 or 1 for each of the {count} layers"));
    let list = list.as_array().filter(|list| list.len() == count).ok_or_else(wrong)?;
    for (layer, turns) in config.layers.iter_mut().zip(list) {
        layer.rope = match turns.as_u64() {
            Some(0) => None,
            Some(1) => Some(0),
            _ => return Err(wrong()),
        };
    }
    Ok(config)
}
