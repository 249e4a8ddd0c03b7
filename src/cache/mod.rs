//! Room `cache`: what layers remember of the tokens before.
//!
//! A model's state is an ordered list of caches, one per layer that owns one. A cache kind is one
//! file here; models see the trait only.

#[cfg(test)]
mod affine_tests;
mod attachments;
#[cfg(test)]
mod attachments_tests;
mod codec;
mod composite;
mod encoding;
mod expected;
mod full;
mod growing;
mod latent;
mod maintenance;
#[cfg(test)]
mod maintenance_tests;
#[cfg(test)]
mod oracle_tests;
mod paged;
#[cfg(test)]
mod paged_tests;
#[cfg(test)]
mod parts_tests;
#[cfg(test)]
mod plain_tests;
mod planes;
mod pool;
#[cfg(test)]
mod property_tests;
mod recurrent;
mod reusable;
mod ring;
mod rotating;
#[cfg(test)]
mod rotating_tests;
mod scheme;
#[cfg(test)]
mod scheme_tests;
mod segmented;
mod segmented_latent;
#[cfg(all(test, target_os = "linux"))]
mod segmented_latent_tests;
#[cfg(all(test, target_os = "linux"))]
mod segmented_saved_tests;
#[cfg(all(test, target_os = "linux"))]
mod segmented_tests;
mod signature;
#[cfg(test)]
mod test_support;
mod turboquant;
#[cfg(test)]
mod turboquant_tests;

use std::any::Any;

pub use attachments::{Attachments, materialize, trimmable};
pub use codec::{Entry, Header, Provider, Tensor};
pub use composite::CompositeCache;
pub use encoding::Affine;
pub use full::{AffineCache, PlainCache};
pub use latent::{LatentCache, LatentColumns, LatentDims};
pub use maintenance::{Maintenance, Planned};
pub use paged::{PagedCache, PagedForm};
pub use recurrent::RecurrentCache;
pub use reusable::reusable_from;
pub use rotating::{RotatingAffineCache, RotatingCache};
pub use scheme::{Backing, LayerNeeds, Scheme};
pub use segmented::{KvSizes, SEGMENT, SegmentedCache};
pub use segmented_latent::{IndexStep, LatentLayout, SegmentedLatentCache};
pub use signature::{LatentRole, SegmentForm, Signature};
pub use turboquant::{TurboQuantCache, TurboQuantCodes, TurboQuantForm};

use crate::base::{Error, Result};
use crate::mlx::ops::{CausalAttention, KeysValues};
use crate::mlx::{Array, Mask};

/// What one layer keeps of one sequence.
///
/// Operations that fail leave the cache as it was. None evaluates arrays, unless it says so.
pub trait LayerCache {
    /// Tokens covered.
    fn offset(&self) -> usize;

    /// Appends the keys and values of the next tokens, `[1, kv heads, tokens, dims]`, and returns what attention is
    /// to read: those of all tokens that the cache still has. INTERNAL for kinds that keep something else.
    fn append(&mut self, _keys: &Array, _values: &Array) -> Result<KeysValues> {
        Err(Error::internal(format!("{} does not take keys and values", self.signature())))
    }

    /// Rotates, appends and attends in one step: `qkv` `[1, tokens, (heads + 2 kv heads) * dims]` are the products of
    /// queries, keys and values, the result is `[1, tokens, heads * dims]`. Only kinds that keep their state in the
    /// order of our kernels can.
    fn attend(&mut self, _qkv: &Array, _attention: &CausalAttention) -> Result<Array> {
        Err(Error::internal(format!("{} has no kernel for attention", self.signature())))
    }

    /// As `attend` for keys and values alone, without attending.
    fn store(&mut self, _kv: &Array, _attention: &CausalAttention) -> Result<()> {
        Err(Error::internal(format!("{} has no kernel for storing", self.signature())))
    }

    /// What `queries` tokens that are about to be appended may attend, each at most the `window` latest tokens, its
    /// own included. Ask before the append.
    fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask>;

    /// The arrays that hold the state, to be evaluated at a boundary of work. They may be views made for the call:
    /// drop them before the next append, or it copies.
    fn state(&self) -> Result<Vec<Array>>;

    /// Whether the last `tokens` tokens, at most `offset`, can be forgotten.
    fn can_forget(&self, tokens: usize) -> bool;

    /// Whether the latest token can be forgotten, now and whenever there are more.
    fn always_forgets(&self) -> bool {
        true
    }

    /// Forgets the last `tokens` tokens, or all if there are fewer, and returns how many: 0, and nothing has changed,
    /// if that is not possible.
    fn forget(&mut self, tokens: usize) -> usize;

    /// What was appended stays: gives up what no later token can see. Until then it can be forgotten as a whole.
    fn settle(&mut self) {}

    /// Names how the state is stored.
    fn signature(&self) -> Signature;

    /// The least number of tokens that this state may be cut to and still continue as a state that was made of these
    /// tokens alone: what was quantised after the fact is good for no less.
    fn minimum_reusable_offset(&self) -> usize {
        0
    }

    /// Bytes held now, shared ones included.
    fn bytes(&self) -> usize;

    /// Bytes among them that other caches hold too.
    fn shared_bytes(&self) -> usize {
        0
    }

    /// The part of the bytes that no pool counts.
    fn own_bytes(&self) -> usize {
        self.bytes()
    }

    /// Bytes that a fork takes, now or with the next token.
    fn fork_bytes(&self) -> usize {
        self.bytes()
    }

    /// Bytes that the next token takes because others share the last ones.
    fn copied_bytes(&self) -> usize {
        0
    }

    /// An independent cache with the same tokens. Shares memory until one of the two is written.
    fn fork(&self) -> Box<dyn LayerCache>;

    /// The same tokens at a lower precision. `None` for kinds that stay as they are: what is quantised already, and
    /// what keeps no keys and values.
    fn encoded(&self, _precision: Precision) -> Result<Option<Box<dyn LayerCache>>> {
        Ok(None)
    }

    fn as_any(&self) -> &dyn Any;

    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// The precision to which keys and values are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// MLX's affine groups along the head: 4 or 8 bits.
    Affine { bits: u32, group: u32 },
    /// Keys in affine groups of 32, values rotated and put on Lloyd-Max levels. `deferred`: values are read rotated,
    /// and attention's result is rotated back.
    TurboQuant { key_bits: u32, value_bits: u32, deferred: bool },
}

/// A cache as the kind that a layer works with.
pub fn of_kind<T: LayerCache + 'static>(cache: &mut dyn LayerCache) -> Result<&mut T> {
    let signature = cache.signature();
    cache.as_any_mut().downcast_mut::<T>().ok_or_else(|| {
        Error::internal(format!("{signature} is not the kind of cache that this layer works with"))
    })
}

/// UNSUPPORTED unless groups fill a head.
pub fn check_group(dims: usize, group: u32) -> Result<()> {
    if dims.is_multiple_of(group as usize) {
        return Ok(());
    }
    let text = format!("heads of {dims} elements cannot be cut into groups of {group}");
    Err(Error::unsupported(text).field("kv_group"))
}
