//! Keys and values of all tokens.

use std::any::Any;

use super::encoding::{Affine, Encoding, Exact};
use super::growing::Growing;
use super::planes::STEP;
use super::{LayerCache, Precision, Signature, TurboQuantCache};
use crate::base::Result;
use crate::mlx::ops::KeysValues;
use crate::mlx::{Array, Mask};

/// Keeps every token, in planes that grow in steps.
#[derive(Clone, Debug)]
pub struct FullCache<E> {
    pub(super) encoding: E,
    pub(super) columns: Growing,
}

/// `kv:plain`: planes `[1, kv heads, capacity, dims]` for keys and for values, whose dims may differ.
pub type PlainCache = FullCache<Exact>;

/// `kv:quant:<bits>:<group>`: words, scales and biases for each; only new tokens are quantised.
pub type AffineCache = FullCache<Affine>;

impl PlainCache {
    pub fn new() -> Self {
        FullCache { encoding: Exact, columns: Growing::default() }
    }

    /// Most tokens that there is room for once `tokens` tokens are covered.
    pub fn capacity_for(tokens: u64) -> u64 {
        // A plane that was cut to an odd length before it grew ends up to one step later.
        if tokens == 0 {
            0
        } else {
            (tokens.div_ceil(STEP as u64)).saturating_add(1).saturating_mul(STEP as u64)
        }
    }
}

impl Default for PlainCache {
    fn default() -> Self {
        Self::new()
    }
}

impl AffineCache {
    /// INVALID_ARGUMENT unless `bits` is 4 or 8 and `group` 32, 64 or 128. Appends of heads that the group does not
    /// divide give UNSUPPORTED.
    pub fn new(bits: u32, group: u32) -> Result<Self> {
        Ok(FullCache { encoding: Affine::new(bits, group)?, columns: Growing::default() })
    }

    /// The tokens of a plain cache.
    fn of_plain(plain: &PlainCache, bits: u32, group: u32) -> Result<Self> {
        let encoding = Affine::new(bits, group)?;
        let planes = match plain.columns.planes() {
            [keys, values] => encoding.encode(keys, values)?,
            _ => Vec::new(),
        };
        Ok(FullCache { encoding, columns: Growing::laid_out(planes, plain.offset()) })
    }
}

impl<E: Encoding> LayerCache for FullCache<E> {
    fn offset(&self) -> usize {
        self.columns.offset()
    }

    fn append(&mut self, keys: &Array, values: &Array) -> Result<KeysValues> {
        let new = self.encoding.encode(keys, values)?;
        self.encoding.decode(self.columns.append(&new)?)
    }

    fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask> {
        self.columns.mask(queries, window)
    }

    fn state(&self) -> Result<Vec<Array>> {
        Ok(self.columns.planes().to_vec())
    }

    fn can_forget(&self, _tokens: usize) -> bool {
        true
    }

    fn forget(&mut self, tokens: usize) -> usize {
        self.columns.forget(tokens)
    }

    fn signature(&self) -> Signature {
        self.encoding.signature()
    }

    fn bytes(&self) -> usize {
        self.columns.bytes()
    }

    fn fork(&self) -> Box<dyn LayerCache> {
        Box::new(self.clone())
    }

    /// Affine groups are made of the room behind the tokens, too, TurboQuant's codes of the tokens alone: a cache without
    /// tokens stays as it is then.
    fn encoded(&self, precision: Precision) -> Result<Option<Box<dyn LayerCache>>> {
        let Some(plain) = self.as_any().downcast_ref::<PlainCache>() else { return Ok(None) };
        Ok(match precision {
            Precision::Affine { bits, group } => Some(Box::new(AffineCache::of_plain(plain, bits, group)?)),
            Precision::TurboQuant { key_bits, value_bits, deferred } => {
                let encoded = TurboQuantCache::of_plain(plain, key_bits, value_bits, deferred)?;
                encoded.map(|encoded| Box::new(encoded) as Box<dyn LayerCache>)
            }
        })
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
