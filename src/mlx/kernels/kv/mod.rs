//! The keys and values of sequences in memory of our own, and the operation that writes and attends them.

mod blocks;
mod saved;
mod segments;
mod step;

#[cfg(test)]
mod blocks_tests;
#[cfg(test)]
mod saved_tests;

pub use blocks::Pools;
pub use saved::SavedTokens;
pub use segments::Segments;
pub use step::{CausalAttention, HeadNorm, HeadNorms, QueryGrowth, Visible, attend, store};
