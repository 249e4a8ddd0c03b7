//! The tests of the CPU kernels, as a crate that has neither MLX nor the rest of the library.
//!
//! The kernels' own files are compiled here, optimised with debug assertions and checks of overflow, and so are their
//! tests; the library leaves those out of its own. Without MLX they also run where it cannot: under valgrind, and
//! built with AddressSanitizer.

#![cfg(test)]

/// What the kernels use of it.
#[path = "../../../src/base"]
mod base {
    #[expect(dead_code, reason = "kernels make few kinds of errors")]
    pub mod error;
    pub mod panics;
    pub mod signals;

    pub use error::{Code, Error, Result};
}

#[path = "../../../src/mlx"]
mod mlx {
    #[expect(dead_code, unused_imports, reason = "operations use what tests do not")]
    pub mod kernels;
    pub mod turboquant;
}
