//! The graph of dense decoders, as a configuration describes it.

mod build;
mod graph;
mod plan;

pub use plan::{DensePlan, plan};
