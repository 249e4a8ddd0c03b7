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
#[cfg(cpu_kernels)]
mod kernels;
pub mod memory;
pub mod ops;
pub mod prim;
mod staged;
mod stream;
#[cfg(test)]
mod tests;
mod version;

pub use array::Array;
pub use blas::{blas_description, direct_product_limit, physical_cores, set_blas_threads};
pub use dtype::{Dtype, Element};
pub use prim::{Mask, async_eval, eval};
pub use staged::StagedTensor;
pub use stream::{DeviceKind, device, gpu_is_available, leave_thread, select_device, synchronize};

pub use version::version;
