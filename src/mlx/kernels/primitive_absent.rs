//! Stands in for `primitive` where MLX is not built from its headers: no kernel runs.

use super::kernel::{Kernel, Output};
use crate::base::{Error, Result};
use crate::mlx::Array;

pub(super) fn apply(
    _kernel: Box<dyn Kernel>,
    _inputs: &[&Array],
    _outputs: &[Output<'_>],
) -> Result<Vec<Array>> {
    Err(Error::internal("this build has no CPU kernels"))
}

pub(super) fn can_make(_outputs: &[Output<'_>]) -> bool {
    false
}
