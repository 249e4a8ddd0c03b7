//! Room `mlx`: arrays, streams, operations and memory of MLX behind safe types.
//!
//! The only room that names `mlx_sys`. Everything here belongs to the thread that uses it: arrays
//! are not `Send`, streams are per thread, errors are kept per thread.
//!
//! * `prim` has MLX's operations one by one.
//! * `ops` has the operations of models. Model code calls these only, so that a kernel of ours can
//!   take the place of a whole operation.

mod array;
mod blas;
mod dtype;
mod error;
mod foreign_threads;
mod kernels;
pub mod memory;
pub mod microscaled;
pub mod ops;
pub mod prim;
mod staged;
mod stream;
#[cfg(test)]
mod tests;
mod turboquant;
mod version;

pub use array::Array;
pub use blas::{blas_description, direct_product_limit, physical_cores};
pub use dtype::{Dtype, Element};
pub use kernels::arena::Arena;
pub use prim::{Mask, async_eval, eval};
pub use staged::StagedTensor;
pub use stream::{DeviceKind, device, gpu_is_available, select_device, synchronize};

pub use version::version;

use crate::base::Result;

/// Whether the CPU's own kernels are there: operations in `ops` that say so need not be MLX's to the bit.
pub fn has_cpu_kernels() -> bool {
    kernels::AVAILABLE
}

/// Sets the number of threads of the BLAS and of our kernels.
pub fn set_threads(threads: u32) -> Result<()> {
    blas::set_blas_threads(threads);
    if kernels::AVAILABLE { kernels::threads::set_threads(threads) } else { Ok(()) }
}

/// Ends this thread's work with MLX, and the threads of our kernels. No array of this thread may be used afterwards.
pub fn leave() {
    stream::leave_thread();
    kernels::threads::end();
}
