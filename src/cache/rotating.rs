//! Keys and values of a window of the latest tokens, and of the first ones if they are to stay.

use std::any::Any;

use super::encoding::{Affine, Encoding, Exact, RotatingEncoding};
use super::planes::STEP;
use super::ring::Ring;
use super::{LayerCache, Precision, Signature};
use crate::base::Result;
use crate::mlx::ops::KeysValues;
use crate::mlx::{Array, Mask};

/// Keeps as many tokens as a query may attend, a few more while several are appended at once.
///
/// `append` returns columns in no order of time. Tokens can be forgotten only until the first one is overwritten: while
/// fewer than a window have been appended.
#[derive(Clone, Debug)]
pub struct WindowCache<E> {
    pub(super) encoding: E,
    pub(super) ring: Ring,
}

/// `kv:rotating-plain`: planes `[1, kv heads, columns, dims]` for keys and for values, whose dims may differ.
pub type RotatingCache = WindowCache<Exact>;

/// `kv:rotating-quant:<bits>:<group>`: words, scales and biases for each; only new tokens are quantised.
pub type RotatingAffineCache = WindowCache<Affine>;

impl RotatingCache {
    /// Queries attend at most `window` tokens, the first `keep` among them always. INVALID_ARGUMENT unless
    /// `keep < window`.
    pub fn new(window: usize, keep: usize) -> Result<Self> {
        Ok(WindowCache { encoding: Exact, ring: Ring::new(window, keep)? })
    }

    /// Most tokens that there is room for once `tokens` tokens are covered, at most `forward` of them appended at once.
    pub fn capacity_for(tokens: u64, window: usize, forward: u64) -> u64 {
        if tokens == 0 {
            return 0;
        }
        // Tokens that come together stand behind all but one of the window.
        tokens.saturating_add(STEP as u64).min((window as u64).saturating_add(forward))
    }
}

impl RotatingAffineCache {
    /// As `RotatingCache::new` and `AffineCache::new`.
    pub fn new(window: usize, keep: usize, bits: u32, group: u32) -> Result<Self> {
        Ok(WindowCache { encoding: Affine::new(bits, group)?, ring: Ring::new(window, keep)? })
    }
}

impl<E: RotatingEncoding> LayerCache for WindowCache<E> {
    fn offset(&self) -> usize {
        self.ring.offset()
    }

    fn append(&mut self, keys: &Array, values: &Array) -> Result<KeysValues> {
        let new = self.encoding.encode(keys, values)?;
        self.encoding.decode(self.ring.append(&new)?)
    }

    /// A window wider than the cache's own is the cache's own.
    fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask> {
        self.ring.mask(queries, window)
    }

    fn state(&self) -> Result<Vec<Array>> {
        Ok(self.ring.planes().to_vec())
    }

    fn can_forget(&self, tokens: usize) -> bool {
        self.ring.can_forget(tokens)
    }

    fn always_forgets(&self) -> bool {
        false
    }

    fn forget(&mut self, tokens: usize) -> usize {
        self.ring.forget(tokens)
    }

    fn signature(&self) -> Signature {
        self.encoding.rotating_signature()
    }

    fn bytes(&self) -> usize {
        self.ring.bytes()
    }

    fn fork(&self) -> Box<dyn LayerCache> {
        Box::new(self.clone())
    }

    /// Columns stay where they lie. There is no form of TurboQuant for a window: its layers stay as they are.
    fn encoded(&self, precision: Precision) -> Result<Option<Box<dyn LayerCache>>> {
        let (true, Precision::Affine { bits, group }) = (E::EXACT, precision) else { return Ok(None) };
        let encoding = Affine::new(bits, group)?;
        let planes = match self.ring.planes() {
            [keys, values] => encoding.encode(keys, values)?,
            _ => Vec::new(),
        };
        Ok(Some(Box::new(WindowCache { encoding, ring: self.ring.with_planes(planes) })))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
