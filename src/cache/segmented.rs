//! Keys and values in the order of our CPU kernels, in segments that forks share.
//!
//! What is appended is never moved: a cache that grows takes one more segment, a fork takes none, and the first to
//! write after a fork copies the live part of the last segment. With a window, segments that have left it are given
//! up.

use std::any::Any;
use std::sync::Arc;

use super::{LayerCache, Precision, SegmentForm, Signature};
use crate::base::{Error, Result};
use crate::mlx::ops::{self, CausalAttention, KvForm, KvShape, Pools, SavedTokens, Segments, Visible};
use crate::mlx::{Array, Dtype, Mask};

/// Tokens of a segment, unless pages of another size are asked for.
pub const SEGMENT: usize = 256;

/// Tokens that a window keeps beyond its own, so that as many of the latest can be forgotten again.
pub(super) const BEHIND: usize = 64;

/// The sizes of the keys and values of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSizes {
    pub kv_heads: usize,
    pub key_dims: usize,
    pub value_dims: usize,
}

/// `kv:segments:` and the form of the numbers, or `kv:pages:`, their size and the form.
#[derive(Clone, Debug)]
pub struct SegmentedCache {
    form: SegmentForm,
    sizes: KvSizes,
    segments: Segments,
    offset: usize,
    visible: Visible,
}

/// What is to be known of a segmented cache besides its tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub form: SegmentForm,
    pub sizes: KvSizes,
    /// Tokens of a segment.
    pub segment: usize,
    pub visible: Visible,
}

impl SegmentedCache {
    /// UNSUPPORTED naming the head size if the form cannot take it.
    pub fn new(
        form: SegmentForm,
        sizes: KvSizes,
        segment: usize,
        visible: Visible,
        pools: Arc<Pools>,
    ) -> Result<Self> {
        let segments = Segments::new(shape(form, sizes)?, segment, pools);
        Ok(SegmentedCache { form, sizes, segments, offset: 0, visible })
    }

    pub(super) fn layout(&self) -> Layout {
        let (form, sizes, visible) = (self.form, self.sizes, self.visible);
        Layout { form, sizes, segment: self.segments.segment_tokens(), visible }
    }

    /// All tokens as host bytes. Computes what is left to compute.
    pub(super) fn saved(&self) -> Result<SavedTokens<'static>> {
        self.segments.saved(self.offset)
    }

    /// A cache of `offset` tokens with memory of its own. Errors as of `new` and of `Segments::restored`.
    pub(super) fn restored(
        layout: Layout,
        pools: Arc<Pools>,
        offset: usize,
        saved: &SavedTokens<'_>,
    ) -> Result<Self> {
        let Layout { form, sizes, segment, visible } = layout;
        let segments = Segments::restored(shape(form, sizes)?, segment, pools, offset, saved)?;
        Ok(SegmentedCache { form, sizes, segments, offset, visible })
    }

    /// Bytes of each token, the layer's sizes and the form being given.
    pub fn bytes_per_token(form: SegmentForm, sizes: KvSizes) -> Result<usize> {
        let shape = shape(form, sizes)?;
        Ok((shape.key_bytes(SEGMENT) + shape.value_bytes(SEGMENT)) / SEGMENT)
    }

    /// Most tokens that there is room for once `tokens` tokens are covered, at most `forward` of them appended at once.
    pub fn capacity_for(tokens: u64, visible: Visible, segment: usize, forward: u64) -> u64 {
        let segment = segment as u64;
        let all = tokens.div_ceil(segment).saturating_mul(segment);
        let Some(window) = visible.window else { return all };
        let kept = (visible.keep as u64).next_multiple_of(segment);
        // What a forward of tokens and the window before it need, from any place in a segment to any other.
        let behind = (window as u64 + BEHIND as u64).saturating_add(forward).saturating_add(2 * segment);
        all.min(kept.saturating_add(behind / segment * segment))
    }

    fn check_room(&self, tokens: usize) -> Result<()> {
        if self.offset + tokens > i32::MAX as usize {
            return Err(Error::context_full("a cache covers at most 2^31 - 1 tokens"));
        }
        Ok(())
    }
}

/// How a form of keys and values of such sizes lies in memory. UNSUPPORTED where there is no such form.
pub(super) fn shape(form: SegmentForm, sizes: KvSizes) -> Result<KvShape> {
    let KvSizes { kv_heads, key_dims, value_dims } = sizes;
    let kv_form = match form {
        SegmentForm::Float(Dtype::Float32) => KvForm::F32,
        SegmentForm::Float(Dtype::Float16) => KvForm::F16,
        SegmentForm::Float(Dtype::Bfloat16) => KvForm::Bf16,
        SegmentForm::Float(other) => return Err(Error::internal(format!("keys of {}", other.name()))),
        SegmentForm::Affine { bits, group } => KvForm::Affine { bits, group: group as usize },
        SegmentForm::TurboQuant { key_bits, value_bits } => KvForm::Turbo { key_bits, value_bits },
    };
    let shape = KvShape { kv_heads, key_dims, value_dims, form: kv_form };
    shape.supported().map_err(|reason| {
        Error::unsupported(format!("{form} for heads of {key_dims} and {value_dims} elements: {reason}"))
    })?;
    Ok(shape)
}

impl LayerCache for SegmentedCache {
    fn offset(&self) -> usize {
        self.offset
    }

    fn attend(&mut self, qkv: &Array, attention: &CausalAttention) -> Result<Array> {
        let tokens = qkv.dim(1) as usize;
        self.check_room(tokens)?;
        let attended = ops::attend(qkv, &mut self.segments, self.offset, attention, self.visible)?;
        self.offset += tokens;
        Ok(attended)
    }

    fn store(&mut self, kv: &Array, attention: &CausalAttention) -> Result<()> {
        let tokens = kv.dim(1) as usize;
        self.check_room(tokens)?;
        ops::store(kv, &mut self.segments, self.offset, attention)?;
        self.offset += tokens;
        Ok(())
    }

    fn mask(&self, _queries: usize, _window: Option<usize>) -> Result<Mask> {
        // The kernel knows the positions.
        Ok(Mask::None)
    }

    fn state(&self) -> Result<Vec<Array>> {
        Ok(self.segments.written().cloned().into_iter().collect())
    }

    /// While what the token after the cut sees is still there.
    fn can_forget(&self, tokens: usize) -> bool {
        let keep = self.offset.saturating_sub(tokens);
        let Some(window) = self.visible.window else { return true };
        self.segments.held_from(self.visible.keep) <= (keep + 1).saturating_sub(window)
    }

    fn forget(&mut self, tokens: usize) -> usize {
        if !self.can_forget(tokens) {
            return 0;
        }
        let dropped = tokens.min(self.offset);
        self.offset -= dropped;
        self.segments.cut(self.offset);
        dropped
    }

    fn settle(&mut self) {
        let Visible { window: Some(window), keep } = self.visible else { return };
        self.segments.give_up(keep, (self.offset + 1).saturating_sub(window + BEHIND));
    }

    fn signature(&self) -> Signature {
        match self.segments.segment_tokens() {
            SEGMENT => Signature::Segments(self.form),
            page => Signature::Pages { page: page as u32, form: self.form },
        }
    }

    fn bytes(&self) -> usize {
        self.segments.bytes()
    }

    fn shared_bytes(&self) -> usize {
        self.segments.shared_bytes()
    }

    /// The pools count them.
    fn own_bytes(&self) -> usize {
        0
    }

    fn fork_bytes(&self) -> usize {
        0
    }

    fn copied_bytes(&self) -> usize {
        self.segments.copied_bytes(self.offset)
    }

    fn fork(&self) -> Box<dyn LayerCache> {
        Box::new(self.clone())
    }

    /// Computes what is left to compute, then converts at once.
    fn encoded(&self, precision: Precision) -> Result<Option<Box<dyn LayerCache>>> {
        let SegmentForm::Float(_) = self.form else { return Ok(None) };
        let form = match precision {
            Precision::Affine { bits, group } => SegmentForm::Affine { bits, group },
            Precision::TurboQuant { key_bits, value_bits, .. } => {
                SegmentForm::TurboQuant { key_bits, value_bits }
            }
        };
        let segments = self.segments.converted(shape(form, self.sizes)?, self.offset)?;
        Ok(Some(Box::new(SegmentedCache { form, segments, ..self.clone() })))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
