//! Rotary position parameters.

use serde_json::Value;

use super::Names;
use super::fields::Fields;
use crate::base::Result;
use crate::base::quote::quote;

/// What mlx-lm takes where a file says nothing.
pub const DEFAULT_THETA: f64 = 10_000.0;

/// Rotary positions: pair `i` of a head turns by `position / theta^(2i / dims)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Elements at the beginning of a head that turn; even.
    pub dims: usize,
    pub theta: f64,
    /// Neighbours form a pair, instead of elements half of `dims` apart.
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
    /// The base grows with the length of the sequence, once that exceeds `positions`.
    Dynamic {
        factor: f64,
        positions: f64,
    },
    /// Long wavelengths are stretched by `factor`, short ones kept, those between blended.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_positions: f64,
    },
    /// Pairs that turn less than `beta_slow` times within the original positions are stretched, those that turn more
    /// than `beta_fast` times are kept; queries and keys are multiplied by a factor.
    Yarn {
        factor: f64,
        original_max_positions: f64,
        beta_fast: f64,
        beta_slow: f64,
        mscale: f64,
        mscale_all_dim: f64,
    },
    /// One list of factors for sequences within the original positions and one for longer ones, each with a factor
    /// of queries and keys.
    Long(Box<LongRope>),
    /// Pairs as of a whole head of which only the first turn, `rotated` elements.
    Proportional {
        factor: f64,
        rotated: usize,
    },
    /// Pair `i`'s wavelength is multiplied by the factor at `i` (`dims / 2` of them).
    Factors(Vec<f32>),
}

/// The parameters of LongRoPE.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    pub original_max_positions: usize,
    /// `dims / 2` each.
    pub short_factors: Vec<f64>,
    pub long_factors: Vec<f64>,
    pub short_scale: f64,
    pub long_scale: f64,
}

/// What a family says about its rotation before the file does.
#[derive(Clone, Copy, Debug)]
pub struct RopeDefaults {
    /// Elements of a head.
    pub head_dim: usize,
    /// The share of a head that turns; `None`: all of it, and a file must not say otherwise.
    pub partial: Option<f64>,
    /// Unless the file says so.
    pub theta: f64,
    pub traditional: bool,
    pub max_positions: Option<usize>,
}

impl RopeDefaults {
    /// From the sections of `config.json`: `rope_theta` and `rope_scaling` of older files, `rope_parameters` of newer
    /// ones. `kind` is the sort of layer, such as `sliding_attention`, for files that tell it apart.
    pub fn read(self, fields: &Fields<'_>, kind: &str) -> Result<Rope> {
        let newer = match fields.section("rope_parameters")? {
            Some(section) => section.section(kind)?.or(Some(section)),
            None => None,
        };
        let older = fields.section("rope_scaling")?;
        let outer = fields.number("rope_theta")?;
        let inner = newer.as_ref().map(|newer| newer.number("rope_theta")).transpose()?.flatten();
        if let (Some(outer), Some(inner), Some(newer)) = (outer, inner, &newer)
            && outer != inner
        {
            return Err(newer.invalid("rope_theta", format!("is {inner}, but rope_theta is {outer}")));
        }
        let dims = self.dims(fields, newer.as_ref())?;
        let scaling = |section: &Fields<'_>| scaling(section, fields, dims, &self);
        let newer_scaling = newer.as_ref().map(scaling).transpose()?;
        let older_scaling = older.as_ref().map(scaling).transpose()?;
        let scaling = match (newer_scaling, older_scaling) {
            (Some(newer), Some(older)) if newer != older => {
                return Err(fields.invalid("rope_scaling", "contradicts rope_parameters"));
            }
            (newer, older) => newer.or(older).unwrap_or(RopeScaling::None),
        };
        Ok(Rope {
            dims,
            theta: outer.or(inner).unwrap_or(self.theta),
            traditional: fields.flag("rope_traditional")?.unwrap_or(self.traditional),
            scaling,
        })
    }

    /// As `read` for the layers that slide, of files that tell them apart: their own section, or `rope_local_base_freq`
    /// and no scaling.
    pub fn read_local(self, fields: &Fields<'_>) -> Result<Rope> {
        let newer = fields.section("rope_parameters")?;
        let section = newer.as_ref().map(|newer| newer.section("sliding_attention")).transpose()?.flatten();
        let own = section.as_ref().map(|section| section.number("rope_theta")).transpose()?.flatten();
        let scaling = match &section {
            Some(section) => scaling(section, fields, self.head_dim, &self)?,
            None => RopeScaling::None,
        };
        let theta = fields.number("rope_local_base_freq")?.or(own).unwrap_or(self.theta);
        Ok(Rope { dims: self.head_dim, theta, traditional: self.traditional, scaling })
    }

    fn dims(&self, fields: &Fields<'_>, newer: Option<&Fields<'_>>) -> Result<usize> {
        const SHARE: &str = "partial_rotary_factor";
        let inner = match newer {
            // There it is the share of another kind of rotation.
            Some(newer) if kind_of(newer)? != Some("proportional") => newer.number(SHARE)?,
            _ => None,
        };
        let Some(default) = self.partial else {
            for (section, share) in [(Some(fields), fields.number(SHARE)?), (newer, inner)] {
                if let (Some(section), Some(share)) = (section, share)
                    && share != 1.0
                {
                    return Err(section.unsupported(SHARE, format!("is {share}")));
                }
            }
            return Ok(self.head_dim);
        };
        let share = fields.number(SHARE)?.or(inner).unwrap_or(default);
        let dims = (self.head_dim as f64 * share) as usize;
        if !(share > 0.0 && share <= 1.0) || dims == 0 || !dims.is_multiple_of(2) {
            let what = format!(
                "is {share}; it must give an even number of at most {} rotated elements",
                self.head_dim
            );
            return Err(fields.invalid(SHARE, what));
        }
        Ok(dims)
    }
}

impl Rope {
    pub(super) fn validate(&self, names: Names) -> Result<()> {
        let bad = |field: &'static str, what: String| Err(names.invalid(field, what));
        if !positive(self.theta) {
            return bad("rope_theta", format!("is {}; it must be a number above 0", self.theta));
        }
        let above_zero = |values: &[(&'static str, f64)]| {
            for (field, value) in values {
                if !positive(*value) {
                    return bad(field, format!("is {value}; it must be above 0"));
                }
            }
            Ok(())
        };
        match &self.scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } | RopeScaling::Proportional { factor, .. } => {
                above_zero(&[("rope_scaling.factor", *factor)])
            }
            RopeScaling::Dynamic { factor, positions } => {
                above_zero(&[("rope_scaling.factor", *factor), ("max_position_embeddings", *positions)])?;
                if self.dims <= 2 {
                    return bad(
                        "head_dim",
                        "is too small for rotations that grow with the length".to_owned(),
                    );
                }
                Ok(())
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
                above_zero(&[
                    ("rope_scaling.factor", *factor),
                    ("rope_scaling.low_freq_factor", *low_freq_factor),
                    ("rope_scaling.high_freq_factor", *high_freq_factor),
                    ("rope_scaling.original_max_position_embeddings", *original_max_positions),
                ])?;
                if high_freq_factor <= low_freq_factor {
                    return bad(
                        "rope_scaling.high_freq_factor",
                        format!("is {high_freq_factor}; it must be above low_freq_factor, {low_freq_factor}"),
                    );
                }
                Ok(())
            }
            RopeScaling::Yarn {
                factor,
                original_max_positions,
                beta_fast,
                beta_slow,
                mscale,
                mscale_all_dim,
            } => {
                let scale = yarn_scale(*factor, *mscale) / yarn_scale(*factor, *mscale_all_dim);
                if !(scale as f32).is_finite() {
                    return bad("rope_scaling.mscale", format!("gives a factor of {scale}"));
                }
                above_zero(&[
                    ("rope_scaling.factor", *factor),
                    ("rope_scaling.original_max_position_embeddings", *original_max_positions),
                    ("rope_scaling.beta_fast", *beta_fast),
                    ("rope_scaling.beta_slow", *beta_slow),
                ])?;
                if self.theta == 1.0 {
                    return bad("rope_theta", "is 1, with which all pairs turn alike".to_owned());
                }
                Ok(())
            }
            RopeScaling::Long(long) => {
                for (field, factors) in [
                    ("rope_scaling.short_factor", &long.short_factors),
                    ("rope_scaling.long_factor", &long.long_factors),
                ] {
                    if factors.len() != self.dims / 2 {
                        let what = format!("has {} factors; {} are needed", factors.len(), self.dims / 2);
                        return bad(field, what);
                    }
                    if let Some(factor) = factors.iter().find(|factor| !positive(**factor)) {
                        return bad(field, format!("holds {factor}; factors must be above 0"));
                    }
                }
                above_zero(&[
                    ("rope_scaling.short_mscale", long.short_scale),
                    ("rope_scaling.long_mscale", long.long_scale),
                ])
            }
            RopeScaling::Factors(factors) => {
                if factors.len() != self.dims / 2 {
                    return bad(
                        "rope_freqs.weight",
                        format!("has {} factors; {} are needed", factors.len(), self.dims / 2),
                    );
                }
                if let Some(factor) = factors.iter().find(|factor| !positive(f64::from(**factor))) {
                    return bad("rope_freqs.weight", format!("holds {factor}; factors must be above 0"));
                }
                Ok(())
            }
        }
    }
}

/// Whether a number is above 0 as float32 too, in which it is used.
fn positive(value: f64) -> bool {
    (value as f32).is_normal() && value > 0.0
}

/// The type of a section may stand under `type` or `rope_type`.
fn kind_of<'a>(section: &Fields<'a>) -> Result<Option<&'a str>> {
    match section.text("type")? {
        Some(kind) => Ok(Some(kind)),
        None => section.text("rope_type"),
    }
}

/// The scaling that a section describes.
fn scaling(
    section: &Fields<'_>,
    outer: &Fields<'_>,
    dims: usize,
    defaults: &RopeDefaults,
) -> Result<RopeScaling> {
    let factor = || section.number("factor")?.ok_or_else(|| section.invalid("factor", "is missing"));
    let number = |name: &str, default: f64| -> Result<f64> { Ok(section.number(name)?.unwrap_or(default)) };
    let positions = defaults.max_positions.map(|positions| positions as f64);
    match kind_of(section)?.unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: factor()? }),
        "dynamic" => Ok(RopeScaling::Dynamic {
            factor: factor()?,
            positions: positions.ok_or_else(|| outer.invalid("max_position_embeddings", "is missing"))?,
        }),
        "llama3" => Ok(RopeScaling::Llama3 {
            factor: factor()?,
            low_freq_factor: number("low_freq_factor", 1.0)?,
            high_freq_factor: number("high_freq_factor", 4.0)?,
            original_max_positions: number("original_max_position_embeddings", 8192.0)?,
        }),
        "yarn" | "deepseek_yarn" | "telechat3-yarn" => yarn(section),
        "longrope" | "su" => long(section, outer, defaults).map(|long| RopeScaling::Long(Box::new(long))),
        "proportional" => {
            let share = number("partial_rotary_factor", 1.0)?;
            let rotated = (dims as f64 * share) as usize;
            if !(0.0..=1.0).contains(&share) || !rotated.is_multiple_of(2) {
                let what = format!("is {share}; it must give an even number of rotated elements");
                return Err(section.invalid("partial_rotary_factor", what));
            }
            Ok(RopeScaling::Proportional { factor: number("factor", 1.0)?, rotated })
        }
        other => Err(section.unsupported("rope_type", format!("is {}", quote(other)))),
    }
}

fn yarn(section: &Fields<'_>) -> Result<RopeScaling> {
    let number = |name: &str, default: f64| -> Result<f64> { Ok(section.number(name)?.unwrap_or(default)) };
    let factor = section.number("factor")?.ok_or_else(|| section.invalid("factor", "is missing"))?;
    let (mscale, mscale_all_dim) = (number("mscale", 1.0)?, number("mscale_all_dim", 0.0)?);
    if section.flag("truncate")? == Some(false) {
        return Err(section.unsupported("truncate", "is false"));
    }
    if let Some(wanted) = section.number("attention_factor")? {
        let own = yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all_dim);
        if (wanted - own).abs() > 1e-6 {
            let what = format!("is {wanted}, but the other fields give {own}");
            return Err(section.unsupported("attention_factor", what));
        }
    }
    Ok(RopeScaling::Yarn {
        factor,
        original_max_positions: number("original_max_position_embeddings", 4096.0)?,
        beta_fast: number("beta_fast", 32.0)?,
        beta_slow: number("beta_slow", 1.0)?,
        mscale,
        mscale_all_dim,
    })
}

/// YaRN's factor of queries and keys (Peng et al. 2023, equation 22).
pub fn yarn_scale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

fn long(section: &Fields<'_>, outer: &Fields<'_>, defaults: &RopeDefaults) -> Result<LongRope> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    let original = match section.size(ORIGINAL)? {
        Some(original) => original,
        None => outer.size(ORIGINAL)?.unwrap_or(4096),
    };
    let most = defaults.max_positions.unwrap_or(131_072);
    if original < 2 {
        return Err(section.invalid(ORIGINAL, format!("is {original}; it must be at least 2")));
    }
    let ratio = most as f64 / original as f64;
    let own = if ratio <= 1.0 { 1.0 } else { (1.0 + ratio.ln() / (original as f64).ln()).sqrt() };
    let scale = section.number("attention_factor")?.unwrap_or(own);
    Ok(LongRope {
        original_max_positions: original,
        short_factors: numbers(section, "short_factor")?,
        long_factors: numbers(section, "long_factor")?,
        short_scale: section.number("short_mscale")?.unwrap_or(scale),
        long_scale: section.number("long_mscale")?.unwrap_or(scale),
    })
}

fn numbers(section: &Fields<'_>, name: &str) -> Result<Vec<f64>> {
    let list = section.get(name).and_then(Value::as_array);
    let list = list.ok_or_else(|| section.invalid(name, "must be a list of numbers"))?;
    let numbers: Option<Vec<f64>> = list.iter().map(Value::as_f64).collect();
    numbers.ok_or_else(|| section.invalid(name, "must be a list of numbers"))
}
