//! Rotary positions from the keys `rope.*` and the tables of factors.

use super::source::{Base, Source};
use crate::base::Result;
use crate::base::quote::quote;
use crate::model::config::{DEFAULT_THETA, LongRope, ModelConfig, Rope, RopeScaling, yarn_scale};
use crate::model::weights::{ElementType, Encoding};

const THETA: &str = "rope.freq_base";
const SLIDING_THETA: &str = "rope.freq_base_swa";
const DIMS: &str = "rope.dimension_count";
const KIND: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
const SCALE: &str = "rope.scaling.attn_factor";
const ORIGINAL: &str = "rope.scaling.original_context_length";
/// Llama 3's scaling comes as a table.
const TABLE: &str = "rope_freqs.weight";
const LONG_TABLE: &str = "rope_factors_long.weight";
const SHORT_TABLE: &str = "rope_factors_short.weight";

impl Source<'_> {
    /// The rotation of all layers, or of those that see everything.
    pub(super) fn rope(&self, base: Base, head_dim: usize, positions: Option<usize>) -> Result<Rope> {
        let dims = self.size(DIMS)?.unwrap_or(head_dim);
        if dims != head_dim && !(base.partial && dims < head_dim) {
            return Err(self.unsupported(DIMS, format!("is {dims}, but a head has {head_dim}")));
        }
        if dims == 0 || !dims.is_multiple_of(2) {
            return Err(self.invalid(DIMS, format!("is {dims}; an even number of elements must turn")));
        }
        Ok(Rope {
            dims,
            theta: self.number(THETA)?.unwrap_or(DEFAULT_THETA),
            // Where q's and k's rows are stored interleaved, they are brought into the order in which halves form pairs.
            traditional: base.traditional,
            scaling: self.scaling(base, positions)?,
        })
    }

    /// The rotation of the layers that slide, which is not scaled: with a base of its own, `default` unless the file
    /// says so.
    pub(super) fn sliding_rope(&self, config: &ModelConfig, default: f64) -> Result<Rope> {
        let theta = self.number(SLIDING_THETA)?.unwrap_or(default);
        Ok(Rope { theta, scaling: RopeScaling::None, ..config.ropes[0].clone() })
    }

    /// UNSUPPORTED if the layers that slide have another base than the others.
    pub(super) fn refuse_sliding_theta(&self, config: &ModelConfig) -> Result<()> {
        match self.number(SLIDING_THETA)? {
            Some(theta) if theta != config.ropes[0].theta => {
                let what = format!("is {theta}, but {THETA} is {}", config.ropes[0].theta);
                Err(self.unsupported(SLIDING_THETA, what))
            }
            _ => Ok(()),
        }
    }

    fn scaling(&self, base: Base, positions: Option<usize>) -> Result<RopeScaling> {
        // A factor of 0 means that none is given.
        let mut factor = self.number(FACTOR)?.filter(|factor| *factor != 0.0);
        if factor.is_none() {
            factor = self.number("rope.scale_linear")?.filter(|factor| *factor != 0.0);
        }
        let kind = self.text(KIND)?;
        let long = kind == Some("longrope") || base.long && self.weights.get(LONG_TABLE).is_some();
        if !long && let Some(scale) = self.number(SCALE)?.filter(|scale| *scale != 1.0) {
            return Err(self.unsupported(SCALE, format!("is {scale}")));
        }
        let scaling = match (kind, factor) {
            (_, None | Some(1.0)) if long => return self.long(positions),
            (None | Some("none"), Some(_)) if long => {
                return Err(self.unsupported(FACTOR, "is given together with tables of factors"));
            }
            (Some("none"), _) | (None | Some("linear"), None | Some(1.0)) => RopeScaling::None,
            (None | Some("linear"), Some(factor)) => RopeScaling::Linear { factor },
            (Some("yarn"), factor) => {
                let factor = factor.ok_or_else(|| self.invalid(FACTOR, "is missing"))?;
                self.yarn(factor, positions)?
            }
            (Some(other), _) => return Err(self.unsupported(KIND, format!("is {}", quote(other)))),
        };
        match self.table(TABLE)? {
            Some(_) if scaling != RopeScaling::None => {
                Err(self.unsupported(KIND, format!("is given together with {TABLE}")))
            }
            Some(factors) => Ok(RopeScaling::Factors(factors)),
            None => Ok(scaling),
        }
    }

    fn yarn(&self, factor: f64, positions: Option<usize>) -> Result<RopeScaling> {
        const OWN_SCALE: &str = "rope.scaling.yarn_attn_factor";
        let own = yarn_scale(factor, 1.0);
        if let Some(scale) = self.number(OWN_SCALE)?
            && (scale - own).abs() > 1e-6
        {
            return Err(self.unsupported(OWN_SCALE, format!("is {scale}, but the factor gives {own}")));
        }
        let original = match self.number(ORIGINAL)? {
            Some(original) => original,
            None => positions
                .map(|positions| positions as f64)
                .ok_or_else(|| self.invalid(ORIGINAL, "is missing"))?,
        };
        Ok(RopeScaling::Yarn {
            factor,
            original_max_positions: original,
            beta_fast: self.number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: self.number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
            mscale: 1.0,
            mscale_all_dim: 0.0,
        })
    }

    fn long(&self, positions: Option<usize>) -> Result<RopeScaling> {
        let table = |name: &str| -> Result<Vec<f64>> {
            let factors = self.table(name)?.ok_or_else(|| self.weights.missing(name))?;
            Ok(factors.into_iter().map(f64::from).collect())
        };
        let original = self.size(ORIGINAL)?.or(positions);
        let original = original.ok_or_else(|| self.invalid(ORIGINAL, "is missing"))?;
        if original < 2 {
            return Err(self.invalid(ORIGINAL, format!("is {original}; it must be at least 2")));
        }
        let ratio = positions.unwrap_or(original) as f64 / original as f64;
        let own = if ratio <= 1.0 { 1.0 } else { (1.0 + ratio.ln() / (original as f64).ln()).sqrt() };
        let scale = self.number(SCALE)?.unwrap_or(own);
        Ok(RopeScaling::Long(Box::new(LongRope {
            original_max_positions: original,
            short_factors: table(SHORT_TABLE)?,
            long_factors: table(LONG_TABLE)?,
            short_scale: scale,
            long_scale: scale,
        })))
    }

    fn table(&self, name: &str) -> Result<Option<Vec<f32>>> {
        const BYTES_LIMIT: u64 = 65_536;
        let Some(tensor) = self.weights.get(name) else { return Ok(None) };
        if tensor.encoding != Encoding::Plain(ElementType::F32) || tensor.bytes > BYTES_LIMIT {
            return Err(self.weights.invalid(tensor, "must be a short list of float32"));
        }
        let bytes = self.weights.read(tensor, 0..tensor.bytes)?;
        Ok(Some(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()))
    }
}
