//! Which block formats there are, and how large.

use crate::model::config::Affine;
use crate::model::weights::types::ElementType;

/// GGUF block formats that can be used. q is a number's bits, unsigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// 32 elements: float16 scale, 4 bits each: `scale * (q - 8)`.
    Q4_0,
    /// 32 elements: float16 scale and minimum, 4 bits each: `scale * q + minimum`.
    Q4_1,
    /// 32 elements: float16 scale, 5 bits each: `scale * (q - 16)`.
    Q5_0,
    /// 32 elements: float16 scale and minimum, 5 bits each: `scale * q + minimum`.
    Q5_1,
    /// 32 elements: float16 scale, int8 each: `scale * q`.
    Q8_0,
    /// 256 elements, 2 bits each; 16 groups with 4 bits of scale and of minimum, which the block's two
    /// float16 multiply: `d * scale * q - dmin * minimum`.
    Q2K,
    /// 256 elements, 3 bits each; 16 groups with 6 bits of scale: `d * (scale - 32) * (q - 4)`.
    Q3K,
    /// 256 elements, 4 bits each; 8 groups with 6 bits of scale and of minimum, else as `Q2K`.
    Q4K,
    /// As `Q4K` with 5 bits each.
    Q5K,
    /// 256 elements, 6 bits each; 16 groups with an int8 scale: `d * scale * (q - 32)`.
    Q6K,
}

impl BlockFormat {
    pub const ALL: [BlockFormat; 10] = [
        BlockFormat::Q4_0,
        BlockFormat::Q4_1,
        BlockFormat::Q5_0,
        BlockFormat::Q5_1,
        BlockFormat::Q8_0,
        BlockFormat::Q2K,
        BlockFormat::Q3K,
        BlockFormat::Q4K,
        BlockFormat::Q5K,
        BlockFormat::Q6K,
    ];

    /// Elements of a block.
    pub const fn elements(self) -> usize {
        if self.is_super() { 256 } else { 32 }
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> usize {
        match self {
            BlockFormat::Q4_0 => 18,
            BlockFormat::Q4_1 => 20,
            BlockFormat::Q5_0 => 22,
            BlockFormat::Q5_1 => 24,
            BlockFormat::Q8_0 => 34,
            BlockFormat::Q2K => 84,
            BlockFormat::Q3K => 110,
            BlockFormat::Q4K => 144,
            BlockFormat::Q5K => 176,
            BlockFormat::Q6K => 210,
        }
    }

    /// Form of the affine triple that a block becomes without loss. The kernels take groups of 16 if
    /// they fill whole words, which three bits each do not.
    pub const fn affine(self) -> Affine {
        let (bits, group) = match self {
            BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q4K => (4, 32),
            BlockFormat::Q5_0 | BlockFormat::Q5_1 | BlockFormat::Q5K => (5, 32),
            BlockFormat::Q8_0 => (8, 32),
            BlockFormat::Q2K => (2, 16),
            BlockFormat::Q3K => (4, 16),
            BlockFormat::Q6K => (6, 16),
        };
        Affine { bits, group }
    }

    /// The type that holds scales and biases of the affine triple as they are: in a super-block they are products
    /// of a float16 and a number of up to 8 bits.
    pub const fn parameters(self) -> ElementType {
        if self.is_super() { ElementType::F32 } else { ElementType::F16 }
    }

    pub const fn name(self) -> &'static str {
        match self {
            BlockFormat::Q4_0 => "Q4_0",
            BlockFormat::Q4_1 => "Q4_1",
            BlockFormat::Q5_0 => "Q5_0",
            BlockFormat::Q5_1 => "Q5_1",
            BlockFormat::Q8_0 => "Q8_0",
            BlockFormat::Q2K => "Q2_K",
            BlockFormat::Q3K => "Q3_K",
            BlockFormat::Q4K => "Q4_K",
            BlockFormat::Q5K => "Q5_K",
            BlockFormat::Q6K => "Q6_K",
        }
    }

    /// Whether blocks have 256 elements in groups with scales of their own.
    const fn is_super(self) -> bool {
        matches!(
            self,
            BlockFormat::Q2K | BlockFormat::Q3K | BlockFormat::Q4K | BlockFormat::Q5K | BlockFormat::Q6K
        )
    }
}
