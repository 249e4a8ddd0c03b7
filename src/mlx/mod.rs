//! Room `mlx`.
