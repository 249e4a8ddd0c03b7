//! Products of activations with weight matrices, quantised or dense.
//!
//! Each output is, for whatever number of rows: over the groups of inputs in order, the fused
//! multiply-adds total ← bias · (sum of the group's activations) + total and total ← scale · g + total,
//! where g is one chain of fused multiply-adds over the group's inputs in order. A dense output is one
//! such chain over all inputs. Then the matrix's bias and the residual are added, in this order.

mod arrange;
mod few;
mod few_stream;
mod interleave;
mod layout;
mod many;
mod pack;
mod panel;
mod product;
mod unit;

pub use layout::{BLOCK, Format, Layout};
pub use product::{Matrix, multiply, multiply_gated};
#[cfg_attr(feature = "mlx", expect(unused_imports, reason = "for families with experts"))]
pub use product::{multiply_chosen, multiply_gated_chosen};

#[cfg(all(test, not(feature = "mlx")))]
mod tests;
