//! Numbers as weights, keys and values store them.

use half::{bf16, f16};

/// The type of floating-point numbers in memory, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Float {
    F32,
    F16,
    Bf16,
}

impl Float {
    /// Bytes of a number.
    pub const fn size(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::F16 | Float::Bf16 => 2,
        }
    }

    /// Number `index` of `bytes`.
    pub(super) fn read(self, bytes: &[u8], index: usize) -> f32 {
        let bytes = &bytes[index * self.size()..][..self.size()];
        match self {
            Float::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Float::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Float::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
        }
    }
}
