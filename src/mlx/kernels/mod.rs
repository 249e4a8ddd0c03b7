//! The CPU's own kernels: what MLX computes one number at a time on x86-64, computed as fast as the machine can.
//!
//! A kernel is a pure function of slices; `primitive` makes operations of MLX's from kernels. Only `ops` calls these.

mod primitive;
#[cfg(test)]
mod primitive_tests;
