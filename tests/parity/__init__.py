"""Bit-for-bit comparison with mlx-lm."""
