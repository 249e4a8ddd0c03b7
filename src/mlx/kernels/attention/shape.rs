//! How keys and values lie in memory, and what an attention call is made of.

use super::affine::LARGEST_GROUP;
use super::turbo;
use crate::mlx::kernels::float::Float;
use crate::mlx::turboquant;

/// Positions of one sequence are cut into blocks at absolute multiples of this. A block's softmax is computed
/// on its own and blocks are merged in order: results depend on nothing else than these cuts.
pub const BLOCK: usize = 256;

/// Consecutive positions whose keys are interleaved.
pub const GROUP: usize = 16;

/// The form of stored keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvForm {
    F32,
    F16,
    Bf16,
    /// Whole numbers of 4 or 8 bits, times a scale, plus a bias: both in half precision, for each position and
    /// each `group` of consecutive dimensions, a multiple of 16 up to
    /// 256 that divides the dimensions of a head.
    Affine {
        bits: u32,
        group: usize,
    },
    /// TurboQuant: keys of 2, 4, 5 or 8 bits, values of 2, 3, 4, 5 or 8, for heads of 64, 128, 256 or 512 dimensions.
    /// Values are stored rotated, and what attention gives is rotated back.
    Turbo {
        key_bits: u32,
        value_bits: u32,
    },
    /// Keys as such numbers; a value is the first `value_dims` dimensions of its key, and is not stored by itself: what
    /// heads share that are computed from one compressed vector.
    Joint(Float),
}

/// What a slab of keys and one of values hold at each position.
///
/// Floats, also joint ones: keys lie as `[kv_heads][capacity / 16][key_dims][16]`, sixteen consecutive positions interleaved, and
/// values as `[kv_heads][capacity][value_dims]`. For the other forms see the files `affine.rs` and `turbo.rs`. In all
/// forms, a head's sixteen positions from a multiple of 16 on lie together. Slabs need no alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub kv_heads: usize,
    pub key_dims: usize,
    pub value_dims: usize,
    pub form: KvForm,
}

impl KvShape {
    /// Bytes of a slab of keys for so many positions, a multiple of 16.
    pub fn key_bytes(&self, capacity: usize) -> usize {
        self.kv_heads * capacity / GROUP * self.key_group_bytes()
    }

    /// Bytes of a slab of values for so many positions, a multiple of 16.
    pub fn value_bytes(&self, capacity: usize) -> usize {
        self.kv_heads * capacity / GROUP * self.value_group_bytes()
    }

    /// Bytes of the keys of sixteen positions of a head.
    pub(super) fn key_group_bytes(&self) -> usize {
        self.group_bytes(self.key_dims, |bits, _| turbo::key_bytes(self.key_dims, bits))
    }

    /// Bytes of the values of sixteen positions of a head: none where they are a part of the keys.
    pub(super) fn value_group_bytes(&self) -> usize {
        if self.is_joint() {
            return 0;
        }
        self.group_bytes(self.value_dims, |_, bits| turbo::value_bytes(self.value_dims, bits))
    }

    /// Whether values are a part of the keys.
    pub fn is_joint(&self) -> bool {
        matches!(self.form, KvForm::Joint(_))
    }

    /// Bytes of sixteen positions of a head where values are read.
    pub(super) fn value_source_bytes(&self) -> usize {
        if self.is_joint() { self.key_group_bytes() } else { self.value_group_bytes() }
    }

    /// Bytes of sixteen positions with so many dimensions; `turbo` gives them for bits of keys and values.
    fn group_bytes(&self, dims: usize, turbo: impl Fn(u32, u32) -> usize) -> usize {
        match self.form {
            KvForm::F32 => GROUP * dims * 4,
            KvForm::F16 | KvForm::Bf16 => GROUP * dims * 2,
            KvForm::Joint(float) => GROUP * dims * float.size(),
            KvForm::Affine { bits, group } => GROUP * (dims * bits as usize / 8 + dims / group * 4),
            KvForm::Turbo { key_bits, value_bits } => turbo(key_bits, value_bits),
        }
    }

    /// Dimensions that share a scale.
    pub(super) fn quantised_group(&self) -> usize {
        match self.form {
            KvForm::Affine { group, .. } => group,
            _ => 1,
        }
    }

    /// Whether there is such a shape; if not, why. To be asked before anything is stored: with another shape, all
    /// functions that take one panic.
    pub fn supported(&self) -> Result<(), &'static str> {
        let needs = |holds: bool, reason: &'static str| if holds { Ok(()) } else { Err(reason) };
        needs(self.kv_heads > 0 && self.key_dims > 0 && self.value_dims > 0, "a size is 0")?;
        match self.form {
            KvForm::F32 | KvForm::F16 | KvForm::Bf16 => Ok(()),
            KvForm::Joint(_) => needs(self.value_dims <= self.key_dims, "a value is longer than its key"),
            KvForm::Affine { bits, group } => {
                needs(matches!(bits, 4 | 8), "keys and values can have 4 or 8 bits")?;
                needs(
                    group > 0 && group <= LARGEST_GROUP && group.is_multiple_of(GROUP),
                    "the group of keys and values must be a multiple of 16 up to 256",
                )?;
                needs(
                    self.key_dims.is_multiple_of(group) && self.value_dims.is_multiple_of(group),
                    "the group does not divide the dimensions of a head",
                )
            }
            KvForm::Turbo { key_bits, value_bits } => {
                turboquant::supported(key_bits, value_bits, self.key_dims, self.value_dims)
            }
        }
    }

    /// # Panics
    /// When there is no such shape.
    pub(super) fn check(&self) {
        if let Err(reason) = self.supported() {
            panic!("{reason}");
        }
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

impl Span<'_> {
    /// A run of positions that no query of the call sees by order, window and `keep`: it has no memory.
    pub fn absent(len: usize) -> Span<'static> {
        Span { keys: &[], values: &[], capacity: 0, first: 0, len }
    }

    /// Whether the span has positions without memory.
    pub(super) fn is_absent(&self) -> bool {
        self.capacity == 0 && self.len > 0
    }
}

/// An additional mask of one sequence, `[queries][keys]`, where key 0 is the sequence's `first_position`.
/// It hides positions besides those hidden by order and window.
#[cfg_attr(feature = "mlx", expect(dead_code, reason = "no operation adds to scores yet"))]
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
    /// Cover positions from `first_position` in order without gaps (but see [`Span::absent`]). Each starts at an absolute multiple of 16,
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

    /// # Panics
    /// When spans do not follow each other as they must, or one with memory leaves its slabs.
    pub(super) fn check(&self, shape: &KvShape) {
        assert!(self.first_position.is_multiple_of(GROUP), "first position");
        for (index, span) in self.spans.iter().enumerate() {
            let last = index + 1 == self.spans.len();
            assert!(last || span.len.is_multiple_of(GROUP), "length of a span before the last");
            if span.is_absent() {
                continue;
            }
            assert!(
                span.capacity.is_multiple_of(GROUP) && span.first.is_multiple_of(GROUP),
                "alignment of a span"
            );
            assert!(span.first + span.len <= span.capacity, "a span leaves its slab");
            assert!(span.keys.len() >= shape.key_bytes(span.capacity), "slab of keys");
            assert!(span.values.len() >= shape.value_bytes(span.capacity), "slab of values");
        }
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
    /// A query at position p does not see positions ≤ p - window, except for the first `keep`.
    pub window: Option<usize>,
    /// Positions from 0 on that the window does not hide. They are a part of their own, which comes first: blocks of the
    /// others begin behind them.
    pub keep: usize,
    /// Scores become `cap · tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// One logit a head that takes part in the denominator and has no value.
    pub sinks: Option<&'a [f32]>,
}
