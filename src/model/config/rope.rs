//! Rotary position parameters.

use serde_json::Value;

use super::Names;
use super::fields::Fields;
use crate::base::Result;
use crate::base::quote::quote;

/// What mlx-lm takes where a file says nothing.
const DEFAULT_THETA: f64 = 10_000.0;

/// Rotary positions: pair `i` of a head turns by `position / theta^(2i / head_dim)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    pub theta: f64,
    /// Neighbours form a pair, instead of elements half a head apart.
    pub traditional: bool,
    pub scaling: RopeScaling,
}

/// How the turning is slowed for longer contexts.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    /// Positions are divided by `factor`.
    Linear {
        factor: f64,
    },
    /// Long wavelengths are stretched by `factor`, short ones kept, those between blended.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_positions: f64,
    },
    /// Pair `i`'s wavelength is multiplied by the factor at `i` (`head_dim / 2` of them).
    Factors(Vec<f32>),
}

impl Rope {
    /// From the sections of `config.json`: `rope_theta` and `rope_scaling` of older files,
    /// `rope_parameters` of newer ones.
    pub(super) fn from_fields(fields: &Fields<'_>) -> Result<Rope> {
        let newer = fields.section("rope_parameters")?;
        let older = fields.section("rope_scaling")?;
        let outer = fields.number("rope_theta")?;
        let inner = newer.as_ref().map(|newer| newer.number("rope_theta")).transpose()?.flatten();
        if let (Some(outer), Some(inner)) = (outer, inner)
            && outer != inner
        {
            return Err(fields
                .invalid("rope_parameters.rope_theta", format!("is {inner}, but rope_theta is {outer}")));
        }
        let newer_scaling = newer.as_ref().map(scaling).transpose()?;
        let older_scaling = older.as_ref().map(scaling).transpose()?;
        let scaling = match (newer_scaling, older_scaling) {
            (Some(newer), Some(older)) if newer != older => {
                return Err(fields.invalid("rope_scaling", "contradicts rope_parameters"));
            }
            (newer, older) => newer.or(older).unwrap_or(RopeScaling::None),
        };
        Ok(Rope {
            theta: outer.or(inner).unwrap_or(DEFAULT_THETA),
            traditional: fields.flag("rope_traditional")?.unwrap_or(false),
            scaling,
        })
    }

    pub(super) fn validate(&self, head_dim: usize, names: Names) -> Result<()> {
        let bad = |field: &'static str, what: String| Err(names.invalid(field, what));
        if !(self.theta > 0.0 && self.theta.is_finite() && self.theta <= f64::from(f32::MAX)) {
            return bad("rope_theta", format!("is {}; it must be a number above 0", self.theta));
        }
        let positive = |value: f64| value > 0.0 && value <= f64::from(f32::MAX);
        match &self.scaling {
            RopeScaling::None => {}
            RopeScaling::Linear { factor } => {
                if !positive(*factor) {
                    return bad("rope_scaling.factor", format!("is {factor}; it must be above 0"));
                }
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                for (field, value) in [
                    ("rope_scaling.factor", factor),
                    ("rope_scaling.low_freq_factor", low_freq_factor),
                    ("rope_scaling.high_freq_factor", high_freq_factor),
                    ("rope_scaling.original_max_position_embeddings", original_max_positions),
                ] {
                    if !positive(*value) {
                        return bad(field, format!("is {value}; it must be above 0"));
                    }
                }
                if high_freq_factor <= low_freq_factor {
                    return bad(
                        "rope_scaling.high_freq_factor",
                        format!("is {high_freq_factor}; it must be above low_freq_factor, {low_freq_factor}"),
                    );
                }
            }
            RopeScaling::Factors(factors) => {
                if factors.len() != head_dim / 2 {
                    return bad(
                        "rope_freqs.weight",
                        format!("has {} factors; {} are needed", factors.len(), head_dim / 2),
                    );
                }
                if let Some(factor) = factors.iter().find(|factor| !positive(f64::from(**factor))) {
                    return bad("rope_freqs.weight", format!("holds {factor}; factors must be above 0"));
                }
            }
        }
        Ok(())
    }
}

/// The scaling that a section describes. Its type may stand under `rope_type` or `type`.
fn scaling(section: &Fields<'_>) -> Result<RopeScaling> {
    let kind = match section.text("type")? {
        Some(kind) => Some(kind),
        None => section.text("rope_type")?,
    };
    let factor = || section.number("factor")?.ok_or_else(|| section.invalid("factor", "is missing"));
    match kind.unwrap_or("default") {
        // A share of the head that does not turn would change every number.
        "default" => refuse_partial(section).map(|()| RopeScaling::None),
        "linear" => refuse_partial(section).and_then(|()| Ok(RopeScaling::Linear { factor: factor()? })),
        "llama3" => {
            refuse_partial(section)?;
            Ok(RopeScaling::Llama3 {
                factor: factor()?,
                low_freq_factor: section.number("low_freq_factor")?.unwrap_or(1.0),
                high_freq_factor: section.number("high_freq_factor")?.unwrap_or(4.0),
                original_max_positions: section.number("original_max_position_embeddings")?.unwrap_or(8192.0),
            })
        }
        other => Err(section.unsupported("rope_type", format!("is {}", quote(other)))),
    }
}

fn refuse_partial(section: &Fields<'_>) -> Result<()> {
    match section.get("partial_rotary_factor") {
        None => Ok(()),
        Some(Value::Number(share)) if share.as_f64() == Some(1.0) => Ok(()),
        Some(other) => Err(section.unsupported("partial_rotary_factor", format!("is {other}"))),
    }
}
