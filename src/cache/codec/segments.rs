//! `segments`: the tokens that are held, in an order that does not depend on the size of segments.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::fields::{Fields, check_count, wrong, wrong_tensor};
use super::{Codec, Header, Provider, Tensor, as_kind};
use crate::base::Result;
use crate::cache::planes::MOST;
use crate::cache::segmented::{Layout, shape};
use crate::cache::{KvSizes, LayerCache, SEGMENT, SegmentForm, SegmentedCache};
use crate::mlx::Dtype;
use crate::mlx::ops::{KvShape, Pools, SavedTokens, Visible};

/// Sixteen positions of a head lie together.
pub(super) const SIXTEEN: usize = 16;

/// Most tokens of a segment.
const LARGEST: usize = 1 << 16;

pub struct SegmentsCodec {
    /// Where loaded caches have their memory from.
    pub pools: Arc<Pools>,
}

impl Codec for SegmentsCodec {
    fn kind(&self) -> &'static str {
        "segments"
    }

    fn matches(&self, cache: &dyn LayerCache) -> bool {
        cache.as_any().is::<SegmentedCache>()
    }

    /// Waits for what is being written, and copies.
    fn snapshot(&self, cache: &dyn LayerCache, header: &mut Header, _: &Provider) -> Result<Vec<Tensor>> {
        let cache: &SegmentedCache = as_kind(cache)?;
        let Layout { form, sizes, segment, visible } = cache.layout();
        let SavedTokens { absent, keys, values } = cache.saved()?;
        header.insert("form".into(), form.to_string().into());
        header.insert("kvHeads".into(), sizes.kv_heads.into());
        header.insert("keyDims".into(), sizes.key_dims.into());
        header.insert("valueDims".into(), sizes.value_dims.into());
        header.insert("segmentTokens".into(), segment.into());
        if let Some(window) = visible.window {
            header.insert("window".into(), window.into());
            header.insert("keep".into(), visible.keep.into());
        }
        if !absent.is_empty() {
            header.insert("absent".into(), vec![absent.start, absent.end].into());
        }
        let shapes = shapes(&shape(form, sizes)?, sixteens(cache.offset(), &absent));
        Ok(vec![slab(shapes[0], keys.into_owned()), slab(shapes[1], values.into_owned())])
    }

    fn load(
        &self,
        offset: usize,
        fields: &mut Fields,
        tensors: &[Tensor],
        _: &Provider,
    ) -> Result<Box<dyn LayerCache>> {
        if offset == 0 {
            return Err(wrong("offset", "a cache without tokens was stored"));
        }
        let layout = layout(fields)?;
        let absent = absent(fields, offset, &layout)?;
        let shapes = shapes(&shape(layout.form, layout.sizes)?, sixteens(offset, &absent));
        let slabs = slab_bytes(tensors, &shapes)?;
        let [keys, values] = slabs.try_into().map_err(|_| wrong("tensors", "there are no two tensors"))?;
        let saved = SavedTokens { absent, keys, values };
        let pools = Arc::clone(&self.pools);
        Ok(Box::new(SegmentedCache::restored(layout, pools, offset, &saved)?))
    }

    fn header_trimmable(&self, offset: usize, fields: &mut Fields, _: &Provider) -> Result<bool> {
        let layout = layout(fields)?;
        let absent = absent(fields, offset, &layout)?;
        Ok(layout.visible.window.is_none_or(|window| absent.end <= offset.saturating_sub(window)))
    }
}

/// A slab as it is stored.
pub(super) fn slab(shape: [usize; 3], bytes: Vec<u8>) -> Tensor {
    let shape = shape.map(|size| size as i32).to_vec();
    Tensor::Bytes { dtype: Dtype::Uint8, shape, data: Arc::new(bytes) }
}

/// The bytes of slabs of such shapes.
pub(super) fn slab_bytes<'a>(tensors: &'a [Tensor], shapes: &[[usize; 3]]) -> Result<Vec<Cow<'a, [u8]>>> {
    check_count(tensors, shapes.len())?;
    let slab = |(index, (tensor, shape)): (usize, (&'a Tensor, &[usize; 3]))| {
        let found = tensor.shape().iter().map(|size| usize::try_from(*size).ok());
        if !found.eq(shape.map(Some)) {
            return Err(wrong_tensor(index, "shape", tensor));
        }
        tensor.bytes().map_err(|error| error.tensor(index.to_string()))
    };
    tensors.iter().zip(shapes).enumerate().map(slab).collect()
}

/// Sixteens that are held of `offset` tokens.
fn sixteens(offset: usize, absent: &Range<usize>) -> usize {
    offset.div_ceil(SIXTEEN) - absent.len() / SIXTEEN
}

/// The shapes of the slabs of keys and of values.
fn shapes(shape: &KvShape, sixteens: usize) -> [[usize; 3]; 2] {
    let one = KvShape { kv_heads: 1, ..*shape };
    [one.key_bytes(SIXTEEN), one.value_bytes(SIXTEEN)].map(|bytes| [shape.kv_heads, sixteens, bytes])
}

fn layout(fields: &mut Fields) -> Result<Layout> {
    let form =
        fields.text("form")?.parse().map_err(|error: crate::base::Error| wrong("form", error.message()))?;
    let kv_heads = fields.number("kvHeads")?;
    let sizes =
        KvSizes { kv_heads, key_dims: fields.number("keyDims")?, value_dims: fields.number("valueDims")? };
    check_sizes(form, sizes)?;
    let segment = segment_tokens(fields)?;
    let window = fields.optional_number("window")?;
    let keep = fields.optional_number("keep")?;
    match window {
        Some(0) => return Err(wrong("window", "a window has no tokens")),
        // Where segments are given up, they have one size.
        Some(_) if segment != SEGMENT => {
            return Err(wrong("segmentTokens", format!("a window over segments of {segment} tokens")));
        }
        Some(_) if keep.is_none() => return Err(wrong("keep", "the field keep is missing")),
        None if keep.is_some() => return Err(wrong("keep", "tokens are kept without a window")),
        _ => {}
    }
    Ok(Layout { form, sizes, segment, visible: Visible { window, keep: keep.unwrap_or(0) } })
}

pub(super) fn segment_tokens(fields: &mut Fields) -> Result<usize> {
    let segment = fields.number("segmentTokens")?;
    if segment == 0 || segment > LARGEST || !segment.is_multiple_of(SIXTEEN) {
        return Err(wrong("segmentTokens", format!("segments of {segment} tokens")));
    }
    Ok(segment)
}

/// Refuses sizes that the form cannot take, and those that no memory has.
fn check_sizes(form: SegmentForm, sizes: KvSizes) -> Result<()> {
    let KvSizes { kv_heads, key_dims, value_dims } = sizes;
    let possible = KvSizes { kv_heads: 1, key_dims: 512, value_dims: 512 };
    let each = [
        ("form", possible),
        ("kvHeads", KvSizes { kv_heads, ..possible }),
        ("keyDims", KvSizes { key_dims, ..possible }),
        ("valueDims", KvSizes { value_dims, ..possible }),
    ];
    for (field, sizes) in each {
        shape(form, sizes).map_err(|error| wrong(field, error.message()))?;
    }
    let elements = key_dims.checked_add(value_dims).and_then(|dims| dims.checked_mul(kv_heads));
    if elements.is_none_or(|elements| elements > MOST) {
        return Err(wrong("kvHeads", format!("{kv_heads} heads of {key_dims} and {value_dims} elements")));
    }
    Ok(())
}

/// The tokens that were given up: whole segments behind the kept tokens, which no next token sees.
fn absent(fields: &mut Fields, offset: usize, layout: &Layout) -> Result<Range<usize>> {
    let Some(ends) = fields.optional_numbers("absent")? else { return Ok(0..0) };
    let Visible { window, keep } = layout.visible;
    match (&ends[..], window) {
        (&[start, end], Some(window))
            if start < end
                && start >= keep
                && end <= (offset + 1).saturating_sub(window)
                && [start, end].iter().all(|end: &usize| end.is_multiple_of(layout.segment)) =>
        {
            Ok(start..end)
        }
        _ => Err(wrong("absent", format!("tokens {ends:?} of {offset} cannot have been given up"))),
    }
}
