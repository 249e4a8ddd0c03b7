//! Room `cache`: what layers remember of the tokens before.
//!
//! A model's state is an ordered list of caches, one per layer that owns one. A cache kind is one
//! file here; models see the trait only.

mod interleaved;
#[cfg(all(test, target_os = "linux"))]
mod interleaved_tests;
mod plain;
#[cfg(test)]
mod plain_tests;

pub use interleaved::InterleavedCache;
pub use plain::PlainCache;

use crate::base::{Error, Result};
use crate::mlx::ops::CausalAttention;
use crate::mlx::{Array, Mask};

/// The keys and values of one layer for one sequence.
pub trait KvCache {
    /// Tokens covered.
    fn offset(&self) -> usize;

    /// Appends the keys and values of the next tokens, `[1, kv heads, tokens, dims]`, and returns
    /// those of all tokens. Fails without a change.
    fn append(&mut self, keys: &Array, values: &Array) -> Result<(Array, Array)>;

    /// Rotates, appends and attends in one step: `qkv` `[1, tokens, (heads + 2 kv heads) * dims]` are the products of
    /// queries, keys and values, the result is `[1, tokens, heads * dims]`. Only kinds that keep their state in the
    /// order of our kernels can. Fails without a change.
    fn attend(&mut self, _qkv: &Array, _attention: &CausalAttention) -> Result<Array> {
        Err(Error::internal(format!("{} has no kernel for attention", self.signature())))
    }

    /// As `attend` for keys and values alone, without attending.
    fn store(&mut self, _kv: &Array, _attention: &CausalAttention) -> Result<()> {
        Err(Error::internal(format!("{} has no kernel for storing", self.signature())))
    }

    /// What `queries` tokens that are about to be appended may attend. Ask before the append.
    fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask>;

    /// The arrays that hold the state, to be evaluated at a boundary of work.
    fn state(&self) -> [Option<&Array>; 2];

    fn is_trimmable(&self) -> bool;

    /// Forgets the last `tokens` tokens, or all if there are fewer; returns how many. Only while
    /// `is_trimmable`.
    fn trim(&mut self, tokens: usize) -> usize;

    /// Names how the state is stored, such as `kv:plain`. Equal names mean equal layouts.
    fn signature(&self) -> String;

    /// Bytes held now.
    fn bytes(&self) -> usize;

    /// An independent cache with the same tokens. Shares memory until one of the two is written.
    fn fork(&self) -> Box<dyn KvCache>;
}
