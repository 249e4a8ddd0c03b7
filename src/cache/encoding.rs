//! How the keys and values of a token are written into planes.

use std::fmt;

use super::Signature;
use crate::base::{Error, Result};
use crate::mlx::ops::KeysValues;
use crate::mlx::{Array, prim};

/// A way of storing keys and values. Tokens do not touch each other: those that are encoded together have the same
/// planes as those that are encoded one by one, so planes may be cut between any two tokens.
pub trait Encoding: Clone + fmt::Debug + 'static {
    /// The planes of keys `[batch, kv heads, tokens, dims]` and values, whose dims may differ. UNSUPPORTED for dims
    /// that cannot be encoded.
    fn encode(&self, keys: &Array, values: &Array) -> Result<Vec<Array>>;

    /// What attention reads in planes that `encode` made.
    fn decode(&self, planes: Vec<Array>) -> Result<KeysValues>;

    /// Of a cache that keeps all tokens in this way.
    fn signature(&self) -> Signature;
}

/// An encoding for caches that keep a window of tokens, too.
pub trait RotatingEncoding: Encoding {
    /// Whether the planes are the keys and the values themselves.
    const EXACT: bool;

    /// Of a cache that keeps a window of tokens in this way.
    fn rotating_signature(&self) -> Signature;
}

/// Keys and values as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact;

impl Encoding for Exact {
    fn encode(&self, keys: &Array, values: &Array) -> Result<Vec<Array>> {
        Ok(vec![keys.clone(), values.clone()])
    }

    fn decode(&self, planes: Vec<Array>) -> Result<KeysValues> {
        let [keys, values] = counted(planes)?;
        Ok(KeysValues::Plain { keys, values })
    }

    fn signature(&self) -> Signature {
        Signature::Plain
    }
}

impl RotatingEncoding for Exact {
    const EXACT: bool = true;

    fn rotating_signature(&self) -> Signature {
        Signature::Rotating
    }
}

/// MLX's affine groups along the head: packed words `[…, dims * bits / 32]` (uint32), scales and biases
/// `[…, dims / group]` in the type of what was encoded; those of the keys, then those of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affine {
    bits: u32,
    group: u32,
}

impl Affine {
    /// INVALID_ARGUMENT unless `bits` is 4 or 8 and `group` 32, 64 or 128.
    pub fn new(bits: u32, group: u32) -> Result<Self> {
        if !matches!(bits, 4 | 8) {
            return Err(Error::invalid_argument(format!(
                "keys and values take 4 or 8 bits when they are quantised, not {bits}"
            ))
            .field("bits"));
        }
        if !matches!(group, 32 | 64 | 128) {
            return Err(Error::invalid_argument(format!(
                "keys and values are quantised in groups of 32, 64 or 128, not {group}"
            ))
            .field("group"));
        }
        Ok(Affine { bits, group })
    }

    pub fn bits(&self) -> u32 {
        self.bits
    }

    pub fn group(&self) -> u32 {
        self.group
    }

    /// UNSUPPORTED unless heads of `dims` fall into whole groups.
    pub fn check_head(&self, dims: usize) -> Result<()> {
        if dims > 0 && dims.is_multiple_of(self.group as usize) {
            return Ok(());
        }
        Err(Error::unsupported(format!(
            "a head of size {dims} does not fall into quantisation groups of {}",
            self.group
        )))
    }
}

impl Encoding for Affine {
    fn encode(&self, keys: &Array, values: &Array) -> Result<Vec<Array>> {
        for part in [keys, values] {
            self.check_head(part.dim(-1) as usize)?;
        }
        let mut planes = Vec::with_capacity(6);
        planes.extend(prim::quantize(keys, self.group, self.bits)?);
        planes.extend(prim::quantize(values, self.group, self.bits)?);
        Ok(planes)
    }

    fn decode(&self, planes: Vec<Array>) -> Result<KeysValues> {
        let [key_words, key_scales, key_biases, value_words, value_scales, value_biases] = counted(planes)?;
        Ok(KeysValues::Affine {
            keys: [key_words, key_scales, key_biases],
            values: [value_words, value_scales, value_biases],
            group: self.group,
            bits: self.bits,
        })
    }

    fn signature(&self) -> Signature {
        Signature::Affine { bits: self.bits, group: self.group }
    }
}

impl RotatingEncoding for Affine {
    const EXACT: bool = false;

    fn rotating_signature(&self) -> Signature {
        Signature::RotatingAffine { bits: self.bits, group: self.group }
    }
}

/// Exactly as many planes as an encoding has.
pub fn counted<const N: usize>(planes: Vec<Array>) -> Result<[Array; N]> {
    let count = planes.len();
    planes.try_into().map_err(|_| Error::internal(format!("{count} planes instead of {N}")))
}
