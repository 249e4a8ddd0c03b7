//! The operations of models. Model code calls these and never MLX's single operations, so that a
//! kernel of ours can take the place of a whole operation without a change in any model.
//!
//! Shapes are `[batch, tokens, features]` for hidden values and `[batch, heads, tokens, dims]`
//! inside attention.

mod attention;
mod embedding;
mod fused;
mod fused_attention;
#[cfg(all(test, target_os = "linux"))]
mod fused_tests;
mod linear;
mod packed;
mod pointwise;
mod rope;
mod scores;
mod turboquant;

pub use attention::{KeysValues, attention, attention_of_one, merge_heads, split_heads};
pub use embedding::{embedding, token_ids};
pub use fused::{Norm, best, gated_products, joined_products, normalized, normalized_scores, product_onto};
pub use fused_attention::{
    CausalAttention, KvForm, KvShape, Pools, SavedTokens, Segments, Visible, attend, store,
};
pub use linear::{Linear, Weight, linear};
pub use pointwise::{add, rms_norm, silu_gate};
pub use rope::{Llama3Scaling, Rope, rope};
pub use scores::{argmax, last_row, log_probabilities, logsumexp};
pub use turboquant::{EncodedKeys, EncodedValues, TurboQuant};
