//! Matrices that are packed while they are read, off the owner thread.
//!
//! What our kernels keep as the file has it need not pass through arrays: the threads that read it write it where it will
//! stay. The builder on the owner thread finds it by the index of its tensor.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::{CancelToken, Result};
use crate::mlx::Arena;
use crate::mlx::ops::PackedWeight;
use crate::model::tensors::dtype_of;
use crate::model::weights::{KeptTensor, PlannedLinear, WholeMatrix};

/// Packed matrices on their way from the source to the builder.
#[derive(Clone, Default)]
pub(super) struct PackedMatrices(Arc<Mutex<HashMap<usize, PackedWeight>>>);

impl PackedMatrices {
    fn put(&self, tensor: usize, weight: PackedWeight) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(tensor, weight);
    }

    pub(super) fn take(&self, tensor: usize) -> Option<PackedWeight> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tensor)
    }
}

/// The source's side.
pub(super) struct Packer {
    pub(super) matrices: PackedMatrices,
    arena: Arena,
    threads: usize,
    cancel: CancelToken,
    /// The matrices of floats among the kept tensors: outputs and inputs.
    dense: HashMap<usize, [usize; 2]>,
}

impl Packer {
    pub(super) fn new(
        kept: &[KeptTensor],
        linears: &[PlannedLinear],
        matrices: PackedMatrices,
        threads: usize,
        cancel: &CancelToken,
    ) -> Self {
        let dense = linears.iter().filter_map(|linear| match *linear {
            PlannedLinear::Plain { weight } => match kept[weight].shape.as_slice() {
                &[outputs, inputs] => Some((weight, [outputs, inputs])),
                _ => None,
            },
            PlannedLinear::Affine { .. } | PlannedLinear::Microscaled { .. } => None,
        });
        let cancel = cancel.clone();
        Packer { matrices, arena: Arena::new(), threads: threads.max(1), cancel, dense: dense.collect() }
    }

    /// Reads and packs a matrix; `false` if this is not one to be packed.
    pub(super) fn pack(&mut self, matrix: &WholeMatrix, kept: &[KeptTensor]) -> Result<bool> {
        let Some(&shape) = self.dense.get(&matrix.target) else { return Ok(false) };
        let element = kept[matrix.target].element;
        let row = (shape[1] * element.size()) as u64;
        let cancel = &self.cancel;
        let packed = PackedWeight::dense_of_rows(
            &mut self.arena,
            dtype_of(element),
            shape,
            self.threads,
            |from, rows| {
                cancel.check()?;
                matrix.read(from as u64 * row, rows)
            },
        )?;
        let Some(packed) = packed else { return Ok(false) };
        self.matrices.put(matrix.target, packed);
        Ok(true)
    }
}
