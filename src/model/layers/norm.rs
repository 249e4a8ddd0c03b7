//! Root-mean-square normalisation.

use crate::base::Result;
use crate::mlx::{Array, ops};

#[derive(Debug)]
pub struct RmsNorm {
    pub gain: Array,
    pub eps: f32,
}

impl RmsNorm {
    pub fn apply(&self, x: &Array) -> Result<Array> {
        ops::rms_norm(x, &self.gain, self.eps)
    }
}
