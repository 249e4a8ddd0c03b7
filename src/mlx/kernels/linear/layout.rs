//! How a weight matrix `[outputs, inputs]` lies in memory for the kernels.
//!
//! Blocks of 32 outputs follow each other; the last is filled up with zeros. A block of an affine
//! matrix has, group after group of inputs: 32 scales, 32 biases, then the group's words, each for
//! the 32 outputs in turn. These are MLX's own words (32 bits, little-endian, the first input in the
//! lowest bits), so a vector of words holds the same inputs of neighbouring outputs. A block of a
//! dense matrix has the 32 outputs' elements for each input in turn.

use crate::mlx::kernels::float::Float;

/// Outputs in a block.
pub const BLOCK: usize = 32;
/// Bytes of a line of words: one for each output of a block.
pub const WORDS: usize = BLOCK * 4;
/// Inputs that a dense matrix's kernels take between two visits to the totals.
const DENSE_STEP: usize = 64;

/// The form of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Whole numbers of `bits` bits (2, 3, 4, 5, 6 or 8); each `group` of them (32, 64 or 128; 16
    /// where it fills whole words) has a scale and a bias: weight = scale · number + bias.
    Affine {
        bits: u32,
        group: u32,
        scales: Float,
    },
    Dense(Float),
}

/// Form and size of a packed matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    format: Format,
    outputs: usize,
    inputs: usize,
}

impl Layout {
    /// None for a form or size that the kernels do not take.
    pub fn new(format: Format, outputs: usize, inputs: usize) -> Option<Layout> {
        if outputs == 0 || inputs == 0 {
            return None;
        }
        if let Format::Affine { bits, group, .. } = format {
            let known = matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) && matches!(group, 16 | 32 | 64 | 128);
            if !known || !(bits * group).is_multiple_of(32) || !inputs.is_multiple_of(group as usize) {
                return None;
            }
        }
        // Sizes in bytes and in float32 elements must be representable.
        outputs.checked_next_multiple_of(BLOCK)?.checked_mul(inputs)?.checked_mul(16)?;
        Some(Layout { format, outputs, inputs })
    }

    pub fn format(&self) -> Format {
        self.format
    }

    pub fn outputs(&self) -> usize {
        self.outputs
    }

    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Blocks of 32 outputs.
    pub fn blocks(&self) -> usize {
        self.outputs.div_ceil(BLOCK)
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        match self.format {
            Format::Affine { .. } => self.groups() * self.group_bytes(),
            Format::Dense(float) => self.inputs * BLOCK * float.size(),
        }
    }

    /// Bytes of the packed matrix.
    pub fn bytes(&self) -> usize {
        self.blocks() * self.block_bytes()
    }

    /// Inputs between two visits to the totals: a group, or a fixed number for dense weights, whose
    /// last step may be shorter.
    pub(super) fn step(&self) -> usize {
        match self.format {
            Format::Affine { group, .. } => group as usize,
            Format::Dense(_) => DENSE_STEP,
        }
    }

    /// Steps in a row.
    pub(super) fn groups(&self) -> usize {
        self.inputs.div_ceil(self.step())
    }

    /// Bytes of a full step in a block.
    pub(super) fn group_bytes(&self) -> usize {
        match self.format {
            Format::Affine { scales, .. } => 2 * BLOCK * scales.size() + self.group_words() * WORDS,
            Format::Dense(float) => DENSE_STEP * BLOCK * float.size(),
        }
    }

    /// Words of one output in a group.
    pub(super) fn group_words(&self) -> usize {
        match self.format {
            Format::Affine { bits, group, .. } => (bits * group) as usize / 32,
            Format::Dense(_) => 0,
        }
    }

    /// Writes row `row` of the packed `data` as float32, for the look-up of an embedding.
    ///
    /// # Panics
    /// When a size is wrong or there is no such row.
    pub fn row(&self, data: &[u8], row: usize, out: &mut [f32]) {
        assert!(row < self.outputs && data.len() == self.bytes() && out.len() == self.inputs);
        let block = &data[row / BLOCK * self.block_bytes()..][..self.block_bytes()];
        let lane = row % BLOCK;
        match self.format {
            Format::Dense(float) => {
                for (input, out) in out.iter_mut().enumerate() {
                    *out = float.read(block, input * BLOCK + lane);
                }
            }
            Format::Affine { bits, group, scales } => {
                let groups = block.chunks_exact(self.group_bytes());
                for (group, out) in groups.zip(out.chunks_exact_mut(group as usize)) {
                    let scale = scales.read(group, lane);
                    let bias = scales.read(group, BLOCK + lane);
                    let words = &group[2 * BLOCK * scales.size()..];
                    let word = |index: usize| {
                        let bytes = words.get(index * WORDS + lane * 4..).and_then(<[u8]>::first_chunk);
                        bytes.map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
                    };
                    for (index, out) in out.iter_mut().enumerate() {
                        let bit = index * bits as usize;
                        let pair = word(bit / 32) | word(bit / 32 + 1) << 32;
                        let number = pair >> (bit % 32) & ((1 << bits) - 1);
                        *out = scale.mul_add(number as f32, bias);
                    }
                }
            }
        }
    }
}
