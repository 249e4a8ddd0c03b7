//! Matrices that are packed while they are read, off the owner thread.
//!
//! What our kernels take need not pass through arrays: the threads that read it write it where it will stay. The builder
//! on the owner thread finds it by the index of its tensor.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::{CancelToken, Result};
use crate::generate::runtime::WeightPiece;
use crate::mlx::Arena;
use crate::mlx::ops::{self, PackedForm, PackedWeight};
use crate::model::tensors::dtype_of;
use crate::model::weights::{KeptTensor, LoadPlan, MatrixRows, PlannedLinear, RowBuffers};

/// Bytes of small matrices that are read together: threads start and wait for each other once for all of them.
const TOGETHER: usize = 8 << 20;

/// The form in which our kernels take the matrix; `None` if there is no kernel for it, and it stays as it was planned.
pub(super) fn form_of(kept: &[KeptTensor], linear: &PlannedLinear) -> Option<PackedForm> {
    let shape = |index: usize| match kept[index].shape.as_slice() {
        &[rows, columns] => Some([rows, columns]),
        _ => None,
    };
    match *linear {
        PlannedLinear::Plain { weight } => PackedForm::dense(dtype_of(kept[weight].element), shape(weight)?),
        PlannedLinear::Affine { scales, biases, bits, group, .. } => {
            let [outputs, groups] = shape(scales)?;
            let element = Some(kept[scales].element).filter(|scale| *scale == kept[biases].element)?;
            PackedForm::affine(dtype_of(element), bits, group, [outputs, groups * group as usize])
        }
        // No kernel takes them as they are.
        PlannedLinear::Microscaled { .. } => None,
    }
}

/// Bytes that packing with so many threads needs beside the weights, at most.
pub(super) fn transient_bytes(plan: &LoadPlan, threads: usize) -> u64 {
    // As much again for what the files have of the same rows, and of those between them.
    let of = |linear: &PlannedLinear| form_of(plan.kept(), linear).map(|form| 4 * form.transient_bytes());
    let most = plan.linears().iter().filter_map(of).max().unwrap_or(0);
    (most * threads.max(1)) as u64
}

/// Packed matrices on their way from the source to the builder.
#[derive(Clone, Default)]
pub(super) struct PackedMatrices(Arc<Mutex<HashMap<usize, (PlannedLinear, PackedWeight)>>>);

impl PackedMatrices {
    fn put(&self, linear: PlannedLinear, weight: PackedWeight) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(linear.weight(), (linear, weight));
    }

    /// By [`PlannedLinear::weight`].
    pub(super) fn take(&self, tensor: usize) -> Option<(PlannedLinear, PackedWeight)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tensor)
    }
}

/// The source's side.
pub(super) struct Packer {
    matrices: PackedMatrices,
    arena: Arena,
    threads: usize,
    cancel: CancelToken,
    waiting: VecDeque<(MatrixRows, PackedForm)>,
    /// Told of what has been packed.
    ready: VecDeque<WeightPiece>,
}

impl Packer {
    /// `kept`: the plan's table, from which all matrices have a form.
    pub(super) fn new(
        kept: &[KeptTensor],
        waiting: Vec<MatrixRows>,
        matrices: PackedMatrices,
        threads: usize,
        cancel: &CancelToken,
    ) -> Self {
        let with_form = |matrix: MatrixRows| form_of(kept, matrix.linear()).map(|form| (matrix, form));
        Packer {
            matrices,
            arena: Arena::new(),
            threads,
            cancel: cancel.clone(),
            waiting: waiting.into_iter().filter_map(with_form).collect(),
            ready: VecDeque::new(),
        }
    }

    /// Tells of the next packed matrix; `None` after the last.
    pub(super) fn next(&mut self) -> Result<Option<WeightPiece>> {
        if self.ready.is_empty() {
            self.pack_some()?;
        }
        Ok(self.ready.pop_front())
    }

    fn pack_some(&mut self) -> Result<()> {
        let mut bytes = 0;
        let fits = |(_, form): &&(MatrixRows, PackedForm)| {
            let before = bytes;
            bytes += form.bytes();
            before == 0 || bytes <= TOGETHER
        };
        let count = self.waiting.iter().take_while(fits).count();
        let (matrices, forms): (Vec<_>, Vec<_>) = self.waiting.drain(..count).unzip();
        let (matrices, cancel) = (&matrices, &self.cancel);
        let reader = || {
            let mut stored = RowBuffers::default();
            move |matrix: usize, row: usize, tensors: [&mut [u8]; 3]| {
                cancel.check()?;
                matrices[matrix].read(row, tensors, &mut stored)
            }
        };
        let packed = ops::pack_rows(&mut self.arena, &forms, self.threads, reader)?;
        for ((matrix, form), weight) in matrices.iter().zip(&forms).zip(packed) {
            let (tensor, file_bytes) = (matrix.linear().weight(), matrix.file_bytes());
            self.matrices.put(*matrix.linear(), weight);
            let memory = form.bytes() as u64;
            self.ready.push_back(WeightPiece { tensor, offset: 0, bytes: Vec::new(), memory, file_bytes });
        }
        Ok(())
    }
}
