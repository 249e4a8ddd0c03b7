"""The mlx-lm side of the parity tests. It runs in a process of its own."""
