//! A request becomes events.

pub mod append;
pub mod backend;
pub mod estimate;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod generation;
pub mod gguf_tokenizer;
pub mod group;
pub mod mirror;
#[cfg(feature = "mlx")]
pub mod mlx_runtime;
pub mod plan;
pub mod request;
pub mod row;
pub mod runtime;
pub mod sequence;
pub mod stop;
pub mod surroundings;
pub mod tokenizer_files;
