//! Weights in the order in which our kernels read them.

#[cfg(test)]
use crate::base::Result;
use crate::mlx::Dtype;
use crate::mlx::kernels::arena::Stored;
use crate::mlx::kernels::float::Float;
use crate::mlx::kernels::linear::Layout;
#[cfg(test)]
use crate::mlx::{
    Array,
    kernels::{
        arena::Arena,
        linear::{BLOCK, Format},
    },
};

/// A weight matrix in blocks of rows whose elements are interleaved.
#[derive(Clone, Debug)]
pub struct PackedWeight {
    layout: Layout,
    data: Stored,
}

impl PackedWeight {
    /// Of what has been packed as the layout says.
    pub(super) fn new(layout: Layout, data: Stored) -> Self {
        PackedWeight { layout, data }
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

/// Packed from arrays: what tests compare the rest with.
#[cfg(test)]
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
}

pub(super) fn float_of(dtype: Dtype) -> Option<Float> {
    match dtype {
        Dtype::Float32 => Some(Float::F32),
        Dtype::Float16 => Some(Float::F16),
        Dtype::Bfloat16 => Some(Float::Bf16),
        _ => None,
    }
}
