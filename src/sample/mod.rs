//! Room `sample`: from a row of scores to the next token.

mod filters;
mod report;
mod sampler;
#[cfg(test)]
mod tests;

pub use filters::{min_p, top_k, top_p};
pub use report::report;
pub use sampler::{Precision, Sampled, sample, step_seed};
