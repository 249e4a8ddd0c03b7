//! Root-mean-square normalisation.

use crate::base::Result;
use crate::mlx::{Array, ops};
use crate::model::tensors::Arithmetic;

#[derive(Debug)]
pub struct RmsNorm {
    /// float32 under `Kernels`.
    pub gain: Array,
    pub eps: f32,
    pub arithmetic: Arithmetic,
}

impl RmsNorm {
    pub fn apply(&self, x: &Array) -> Result<Array> {
        match self.arithmetic {
            Arithmetic::Kernels => ops::normalized(x, Some(self.parameters())),
            Arithmetic::Exact | Arithmetic::Blas => ops::rms_norm(x, &self.gain, self.eps),
        }
    }

    pub fn parameters(&self) -> ops::Norm<'_> {
        ops::Norm { gain: &self.gain, eps: self.eps }
    }
}
