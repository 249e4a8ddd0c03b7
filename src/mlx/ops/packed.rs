//! Weights in the order in which our kernels read them.

use std::sync::{Mutex, PoisonError};
use std::thread;

use crate::base::{Error, Result};
use crate::mlx::kernels::arena::{self, Arena, Stored};
use crate::mlx::kernels::linear::{Float, Format, Layout};
use crate::mlx::{Array, Dtype, kernels};

/// Rows of a block, the unit of packing.
const BLOCK: usize = 32;

/// A weight matrix in blocks of rows whose elements are interleaved.
#[derive(Clone, Debug)]
pub struct PackedWeight {
    layout: Layout,
    data: Stored,
}

impl PackedWeight {
    /// An affine weight: words `[outputs, words]`, scales and biases `[outputs, groups]`. `None` if there is no kernel
    /// for such weights.
    pub fn affine(
        arena: &mut Arena,
        words: &Array,
        scales: &Array,
        biases: &Array,
        group: u32,
        bits: u32,
    ) -> Result<Option<Self>> {
        if biases.dtype() != scales.dtype() {
            return Ok(None);
        }
        let Some(scale_type) = float_of(scales.dtype()) else { return Ok(None) };
        let (outputs, groups) = (scales.dim(0) as usize, scales.dim(1) as usize);
        let format = Format::Affine { bits, group, scales: scale_type };
        let Some(layout) = Layout::new(format, outputs, groups * group as usize) else { return Ok(None) };
        let parts = [words.row_major_bytes()?, scales.row_major_bytes()?, biases.row_major_bytes()?];
        Self::fill(arena, layout, |block, rows, target| {
            let [words, scales, biases] = parts.map(|part| {
                let row = part.len() / outputs;
                &part[block * BLOCK * row..(block * BLOCK + rows) * row]
            });
            layout.pack_affine_block(target, rows, words, scales, biases);
        })
        .map(Some)
    }

    /// A matrix `[outputs, inputs]` of floats. `None` if there is no kernel for such.
    pub fn dense(arena: &mut Arena, matrix: &Array) -> Result<Option<Self>> {
        let Some(float) = float_of(matrix.dtype()) else { return Ok(None) };
        let (outputs, inputs) = (matrix.dim(0) as usize, matrix.dim(1) as usize);
        let Some(layout) = Layout::new(Format::Dense(float), outputs, inputs) else { return Ok(None) };
        let elements = matrix.row_major_bytes()?;
        let row = elements.len() / outputs;
        Self::fill(arena, layout, |block, rows, target| {
            let elements = &elements[block * BLOCK * row..(block * BLOCK + rows) * row];
            layout.pack_dense_block(target, rows, elements);
        })
        .map(Some)
    }

    /// A matrix of floats `[outputs, inputs]` that comes row by row, packed by so many threads while it is read: it lies
    /// in memory once. `read` fills a buffer with whole rows from a row on. `None` if there is no kernel for such.
    pub fn dense_of_rows(
        arena: &mut Arena,
        element: Dtype,
        [outputs, inputs]: [usize; 2],
        threads: usize,
        read: impl Fn(usize, &mut [u8]) -> Result<()> + Sync,
    ) -> Result<Option<Self>> {
        let Some(float) = float_of(element) else { return Ok(None) };
        let Some(layout) = Layout::new(Format::Dense(float), outputs, inputs) else { return Ok(None) };
        let row_bytes = inputs * float.size();
        let data = arena.store(layout.bytes(), |target| {
            let blocks = Mutex::new(target.chunks_exact_mut(layout.block_bytes()).enumerate());
            let next = || blocks.lock().unwrap_or_else(PoisonError::into_inner).next();
            let work = || {
                let mut rows = vec![0; BLOCK.min(outputs) * row_bytes];
                while let Some((block, target)) = next() {
                    let count = BLOCK.min(outputs - block * BLOCK);
                    let rows = &mut rows[..count * row_bytes];
                    read(block * BLOCK, rows)?;
                    layout.pack_dense_block(target, count, rows);
                }
                Ok(())
            };
            with_threads(threads.min(layout.blocks()), &work)
        })?;
        Ok(Some(PackedWeight { layout, data }))
    }

    /// `pack` gets the number of each block, the rows that it really has, and its bytes.
    fn fill(arena: &mut Arena, layout: Layout, pack: impl Fn(usize, usize, &mut [u8])) -> Result<Self> {
        let data = arena.store(layout.bytes(), |target| {
            for (block, target) in target.chunks_exact_mut(layout.block_bytes()).enumerate() {
                let rows = BLOCK.min(layout.outputs() - block * BLOCK);
                pack(block, rows, target);
            }
            Ok(())
        })?;
        Ok(PackedWeight { layout, data })
    }

    pub fn outputs(&self) -> usize {
        self.layout.outputs()
    }

    pub fn inputs(&self) -> usize {
        self.layout.inputs()
    }

    pub fn byte_size(&self) -> usize {
        self.layout.bytes()
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) fn data(&self) -> &Stored {
        &self.data
    }
}

/// Does `work` on so many threads, this one among them. Where the system gives fewer, those that there are do all.
fn with_threads(threads: usize, work: &(impl Fn() -> Result<()> + Sync)) -> Result<()> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .filter_map(|_| {
                thread::Builder::new().name("mlxgen-weights".to_owned()).spawn_scoped(scope, work).ok()
            })
            .collect();
        let mut outcome = work();
        for other in others {
            let joined =
                other.join().unwrap_or_else(|_| Err(Error::internal("a thread that packs weights panicked")));
            outcome = outcome.and(joined);
        }
        outcome
    })
}

/// Bytes of the memory that a packed matrix of floats takes; `None` if there is no kernel for it.
pub fn packed_dense_bytes(element: Dtype, outputs: usize, inputs: usize) -> Option<usize> {
    layout_bytes(Format::Dense(float_of(element)?), outputs, inputs)
}

/// The same for an affine matrix.
pub fn packed_affine_bytes(
    scales: Dtype,
    bits: u32,
    group: u32,
    outputs: usize,
    inputs: usize,
) -> Option<usize> {
    layout_bytes(Format::Affine { bits, group, scales: float_of(scales)? }, outputs, inputs)
}

fn layout_bytes(format: Format, outputs: usize, inputs: usize) -> Option<usize> {
    if !kernels::AVAILABLE {
        return None;
    }
    Layout::new(format, outputs, inputs).map(|layout| arena::rounded(layout.bytes()))
}

fn float_of(dtype: Dtype) -> Option<Float> {
    match dtype {
        Dtype::Float32 => Some(Float::F32),
        Dtype::Float16 => Some(Float::F16),
        Dtype::Bfloat16 => Some(Float::Bf16),
        _ => None,
    }
}
