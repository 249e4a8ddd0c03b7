//! A request becomes events.

#[cfg(feature = "mlx")]
pub mod mlx_runtime;
pub mod runtime;
