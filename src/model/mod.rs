//! Room `model`: configuration, weight files, layers, families.

pub mod config;
pub mod weights;

#[cfg(feature = "mlx")]
pub mod families;
#[cfg(feature = "mlx")]
pub mod footprint;
#[cfg(feature = "mlx")]
pub mod graph;
#[cfg(feature = "mlx")]
pub mod layers;
#[cfg(feature = "mlx")]
pub mod registry;
#[cfg(feature = "mlx")]
pub mod tensors;
