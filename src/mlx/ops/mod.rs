//! The operations of models. Model code calls these and never MLX's single operations, so that a
//! kernel of ours can take the place of a whole operation without a change in any model.
//!
//! Shapes are `[batch, tokens, features]` for hidden values and `[batch, heads, tokens, dims]`
//! inside attention.

mod attention;
mod embedding;
mod linear;
mod pointwise;
mod rope;
mod scores;

pub use attention::{attention, attention_of_one, merge_heads, split_heads};
pub use embedding::{embedding, token_ids};
pub use linear::{Linear, Weight, linear};
pub use pointwise::{add, rms_norm, silu_gate};
pub use rope::{Llama3Scaling, Rope, rope};
pub use scores::{argmax, last_row, log_probabilities, logsumexp};
