//! What a kernel is to the graph that it is part of.

use crate::base::Result;
use crate::mlx::Dtype;

/// What is computed when the operation's turn comes.
pub(crate) trait Kernel: Send + Sync + 'static {
    /// `inputs` are the elements in row-major order. `outputs` are the results, which hold nothing of meaning: every
    /// byte of them has to be written.
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()>;
}

/// Shape and type of a result.
pub(crate) struct Output<'a> {
    pub shape: &'a [i32],
    pub dtype: Dtype,
}

impl<'a> Output<'a> {
    pub(crate) fn float(shape: &'a [i32]) -> Self {
        Output { shape, dtype: Dtype::Float32 }
    }
}
