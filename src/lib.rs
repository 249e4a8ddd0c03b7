//! libmlxgen: an embeddable LLM inference core over MLX.
//!
//! Programs use it through the C header `include/mlxgen.h`; the modules here are its rooms.
//! Each room may use only those below it (see `docs/architecture.md`), which
//! `cargo xtask rooms` checks.

#[cfg(panic = "abort")]
compile_error!("mlxgen turns panics into errors at its boundary and cannot be built with panic = \"abort\"");

#[cfg(not(any(feature = "mlx", feature = "fake")))]
compile_error!("mlxgen needs a back end: enable the feature `mlx` or `fake`");

pub mod base;
#[cfg(feature = "mlx")]
pub mod cache;
pub mod engine;
pub mod ffi;
pub mod generate;
#[cfg(feature = "mlx")]
pub mod mlx;
pub mod model;
#[cfg(feature = "mlx")]
pub mod sample;
pub mod text;
