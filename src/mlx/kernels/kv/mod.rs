//! The keys and values of sequences in memory of our own, and the operation that writes and attends them.

mod blocks;
mod latent;
mod saved;
mod segments;
mod step;
mod tokens;

#[cfg(test)]
mod blocks_tests;
#[cfg(test)]
mod saved_tests;

pub use blocks::Pools;
pub use latent::{LatentAttention, TokenIndexer, attend_latent, choose_tokens};
pub use saved::SavedTokens;
pub use segments::Segments;
pub use step::{CausalAttention, HeadNorm, HeadNorms, QueryGrowth, Visible, attend, store};
