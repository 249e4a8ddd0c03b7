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
mod fused_attention_tests;
mod fused_rows;
#[cfg(all(test, target_os = "linux"))]
mod fused_tests;
mod linear;
mod packed;
mod packing;
mod pointwise;
mod rope;
mod scores;
mod turboquant;

pub use crate::mlx::kernels::activation::Activation;
pub use attention::{KeysValues, attention, attention_of_one, capped_attention, merge_heads, split_heads};
pub use embedding::{embedding, token_ids};
pub use fused::{
    Norm, NormKind, best, gated_products, joined_products, normalized, normalized_scores, product_onto,
};
pub use fused_attention::{
    CausalAttention, Float, HeadNorm, HeadNorms, KvForm, KvShape, LatentAttention, Pools, QueryGrowth,
    Rotation, SavedTokens, Segments, TokenIndexer, Visible, attend, attend_latent, choose_tokens, rotation,
    store,
};
pub use fused_rows::{activated_rows, added, gated_halves, rescaled};
pub use linear::{Linear, Weight, linear};
pub use packed::PackedWeight;
pub use packing::{PackedForm, pack_rows};
pub use pointwise::{
    activated, add, add_clipped, divided, gated, layer_norm, one_more, rms_norm, scaled, scaled_by_bfloat16,
    soft_capped, split_columns,
};
pub use rope::{Llama3Scaling, Rope, YarnScaling, rope};
pub use scores::{argmax, last_row, log_probabilities, logsumexp};
pub use turboquant::{EncodedKeys, EncodedValues, TurboQuant};
