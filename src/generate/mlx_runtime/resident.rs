//! What a model's weights occupy once they are loaded.

use crate::mlx::ops;
use crate::model::tensors::{Arithmetic, dtype_of};
use crate::model::weights::{LoadPlan, PlannedLinear};

/// Bytes of all weights in memory. Our kernels keep matrices in blocks of rows that are filled up, and vectors in
/// float32; MLX keeps what was planned.
pub(super) fn resident_bytes(plan: &LoadPlan, arithmetic: Arithmetic) -> u64 {
    if arithmetic != Arithmetic::Kernels {
        return plan.resident_bytes();
    }
    let kept = plan.kept();
    let mut vector = vec![true; kept.len()];
    let mut bytes = 0;
    for linear in plan.linears() {
        let as_planned: u64 = linear.tensors().iter().map(|index| kept[*index].bytes).sum();
        linear.tensors().iter().for_each(|index| vector[*index] = false);
        bytes += packed_bytes(plan, linear).unwrap_or(as_planned);
    }
    let vectors = kept.iter().zip(vector).filter(|(_, vector)| *vector);
    bytes + vectors.map(|(kept, _)| kept.bytes / kept.element.size() as u64 * 4).sum::<u64>()
}

/// `None` if there is no kernel for the matrix, which then stays as it was planned.
fn packed_bytes(plan: &LoadPlan, linear: &PlannedLinear) -> Option<u64> {
    let kept = plan.kept();
    let shape = |index: usize| match kept[index].shape.as_slice() {
        &[rows, columns] => Some((rows, columns)),
        _ => None,
    };
    let bytes = match *linear {
        PlannedLinear::Plain { weight } => {
            let (outputs, inputs) = shape(weight)?;
            ops::packed_dense_bytes(dtype_of(kept[weight].element), outputs, inputs)
        }
        PlannedLinear::Affine { scales, biases, bits, group, .. } => {
            let (outputs, groups) = shape(scales)?;
            let types = (kept[scales].element, kept[biases].element);
            let inputs = groups * group as usize;
            (types.0 == types.1)
                .then(|| ops::packed_affine_bytes(dtype_of(types.0), bits, group, outputs, inputs))?
        }
        // No kernel takes them as they are.
        PlannedLinear::Microscaled { .. } => None,
    };
    bytes.map(|bytes| bytes as u64)
}
