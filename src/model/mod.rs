//! Models: configuration, weight files, layers, families.

pub mod config;
pub mod weights;
