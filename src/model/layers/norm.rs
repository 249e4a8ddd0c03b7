//! Normalisation of rows.

use crate::base::Result;
use crate::mlx::{Array, ops};
use crate::model::tensors::Arithmetic;

#[derive(Debug)]
pub struct Norm {
    pub kind: ops::NormKind,
    /// float32 under `Kernels`.
    pub gain: Array,
    pub bias: Option<Array>,
    pub eps: f32,
    pub arithmetic: Arithmetic,
}

impl Norm {
    pub fn apply(&self, x: &Array) -> Result<Array> {
        match (self.arithmetic, self.kind) {
            (Arithmetic::Kernels, _) => ops::normalized(x, Some(self.parameters())),
            (_, ops::NormKind::RootMeanSquare) => ops::rms_norm(x, &self.gain, self.eps),
            (_, ops::NormKind::Layer) => ops::layer_norm(x, Some(&self.gain), self.bias.as_ref(), self.eps),
        }
    }

    pub fn parameters(&self) -> ops::Norm<'_> {
        ops::Norm { kind: self.kind, gain: &self.gain, bias: self.bias.as_ref(), eps: self.eps }
    }
}

/// Values and the norm that they still have to go through, if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub x: &'a Array,
    pub norm: Option<&'a Norm>,
}

impl Input<'_> {
    pub fn normalized(&self) -> Result<Array> {
        self.norm.map_or_else(|| Ok(self.x.clone()), |norm| norm.apply(self.x))
    }

    pub fn parameters(&self) -> Option<ops::Norm<'_>> {
        self.norm.map(Norm::parameters)
    }
}
