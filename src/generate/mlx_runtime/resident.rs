//! What a model's weights occupy once they are loaded.

use super::packed::form_of;
use crate::model::tensors::Arithmetic;
use crate::model::weights::LoadPlan;

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
        let as_planned = || linear.tensors().iter().map(|index| kept[*index].bytes).sum();
        linear.tensors().iter().for_each(|index| vector[*index] = false);
        bytes += form_of(kept, linear).map_or_else(as_planned, |form| form.bytes() as u64);
    }
    let vectors = kept.iter().zip(vector).filter(|(_, vector)| *vector);
    bytes + vectors.map(|(kept, _)| kept.bytes / kept.element.size() as u64 * 4).sum::<u64>()
}
