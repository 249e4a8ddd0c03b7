//! Room `model`: configuration, weight files, layers, families.

pub mod config;
pub mod families;
pub mod registry;
pub mod weights;

#[cfg(feature = "mlx")]
pub mod dense;
#[cfg(feature = "mlx")]
pub mod footprint;
#[cfg(feature = "mlx")]
pub mod graph;
#[cfg(feature = "mlx")]
pub mod layers;
#[cfg(feature = "mlx")]
pub mod tensors;
