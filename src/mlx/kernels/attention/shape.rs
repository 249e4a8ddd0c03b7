//! How keys and values lie in memory, and what an attention call is made of.

use half::{bf16, f16};

use crate::mlx::kernels::sixteen::Lanes;

/// Positions of one sequence are cut into blocks at absolute multiples of this. A block's softmax is computed
/// on its own and blocks are merged in order: results depend on nothing else than these cuts.
pub const BLOCK: usize = 256;

/// Consecutive positions whose keys are interleaved.
pub const GROUP: usize = 16;

/// The form of stored keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFloat {
    F32,
    F16,
    Bf16,
}

impl KvFloat {
    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            KvFloat::F32 => 4,
            KvFloat::F16 | KvFloat::Bf16 => 2,
        }
    }
}

/// What a slab of keys and one of values hold at each position.
///
/// Keys lie as `[kv_heads][capacity / 16][key_dims][16]`: sixteen consecutive positions interleaved. Values lie
/// as `[kv_heads][capacity][value_dims]`. Slabs need no alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub kv_heads: usize,
    pub key_dims: usize,
    pub value_dims: usize,
    pub float: KvFloat,
}

impl KvShape {
    /// Bytes of a slab of keys for so many positions, a multiple of 16.
    pub fn key_bytes(&self, capacity: usize) -> usize {
        self.kv_heads * capacity * self.key_dims * self.float.bytes()
    }

    /// Bytes of a slab of values for so many positions, a multiple of 16.
    pub fn value_bytes(&self, capacity: usize) -> usize {
        self.kv_heads * capacity * self.value_dims * self.float.bytes()
    }
}

/// A run of consecutive positions of one sequence inside a slab of keys and one of values.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    pub keys: &'a [u8],
    pub values: &'a [u8],
    /// Positions for which the slabs have room: a multiple of 16.
    pub capacity: usize,
    /// Where in the slabs the span's first position lies: a multiple of 16.
    pub first: usize,
    /// Positions. What lies behind the last one is never looked at, whatever it is.
    pub len: usize,
}

/// An additional mask of one sequence, `[queries][keys]`, where key 0 is the sequence's `first_position`.
/// It hides positions besides those hidden by order and window.
#[derive(Clone, Copy, Debug)]
pub enum Mask<'a> {
    /// Added to the scores after scale and soft cap; -∞ hides.
    Added(&'a [f32]),
    /// False hides.
    Allowed(&'a [bool]),
}

/// One sequence of a call: its queries and the positions that they may see.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    pub queries: usize,
    /// Absolute position of the first query.
    pub position: usize,
    /// Cover positions from `first_position` in order without gaps. Each starts at an absolute multiple of 16,
    /// so all but the last have a length that is a multiple of 16.
    pub spans: &'a [Span<'a>],
    /// Absolute position of the first stored position: a multiple of 16.
    pub first_position: usize,
    pub mask: Option<Mask<'a>>,
}

impl Sequence<'_> {
    /// One past the last stored position.
    pub fn end(&self) -> usize {
        self.first_position + self.spans.iter().map(|span| span.len).sum::<usize>()
    }
}

/// What all sequences of a call share.
#[derive(Clone, Copy, Debug)]
pub struct Attention<'a> {
    /// Heads of the queries: a multiple of `shape.kv_heads`. Head h reads the keys of h / (heads / kv_heads).
    pub heads: usize,
    pub shape: KvShape,
    /// Multiplied into the queries.
    pub scale: f32,
    /// Whether a query sees only positions up to its own.
    pub causal: bool,
    /// A query at position p does not see positions ≤ p - window.
    pub window: Option<usize>,
    /// Scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// One logit a head that takes part in the denominator and has no value.
    pub sinks: Option<&'a [f32]>,
}

/// How a number of keys and values is read: sixteen at a time.
pub trait Element: Copy {
    const BYTES: usize;

    /// # Safety
    /// Sixteen numbers from `at` on must be readable. There is no alignment.
    unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::V;

    /// One number from exactly `BYTES` bytes.
    fn one(bytes: &[u8]) -> f32;
}

#[derive(Clone, Copy)]
pub struct F32;
#[derive(Clone, Copy)]
pub struct F16;
#[derive(Clone, Copy)]
pub struct Bf16;

impl Element for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::V {
        // SAFETY: the caller vouches for 64 bytes.
        s.load_f32(unsafe { &*at.cast() })
    }

    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Element for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::V {
        // SAFETY: the caller vouches for 32 bytes.
        s.load_f16(unsafe { &*at.cast() })
    }

    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

impl Element for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load<S: Lanes>(s: S, at: *const u8) -> S::V {
        // SAFETY: the caller vouches for 32 bytes.
        s.load_bf16(unsafe { &*at.cast() })
    }

    #[inline(always)]
    fn one(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}
