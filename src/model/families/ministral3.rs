//! Ministral 3: a llama whose queries grow with their position.

use super::llama;
use crate::base::Result;
use crate::model::config::{Fields, ModelConfig, QueryGrowth, Windows};

pub fn describe(fields: &Fields<'_>) -> Result<ModelConfig> {
    let mut config = llama::describe(fields, Windows::None)?;
    let section =
        fields.section("rope_parameters")?.ok_or_else(|| fields.invalid("rope_parameters", "is missing"))?;
    let number = |name: &str| section.number(name)?.ok_or_else(|| section.invalid(name, "is missing"));
    let growth = QueryGrowth {
        beta: number("llama_4_scaling_beta")?,
        positions: number("original_max_position_embeddings")?,
    };
    if growth.positions < 1.0 {
        let what = format!("is {}; it must be at least 1", growth.positions);
        return Err(section.invalid("original_max_position_embeddings", what));
    }
    config.attention.query_growth = Some(growth);
    Ok(config)
}
