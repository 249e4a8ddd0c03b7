//! What MLX's allocator holds.

use mlx_sys as sys;

use super::error::{self, check};
use super::kernels::mapping;
use crate::base::Result;

fn read(get: unsafe extern "C" fn(*mut usize) -> i32) -> usize {
    error::init();
    let mut bytes = 0;
    // SAFETY: each of these functions stores one number through the pointer.
    let code = unsafe { get(&mut bytes) };
    if code == 0 { bytes } else { 0 }
}

/// Bytes in use by arrays, and by the weights, keys and values of our kernels.
pub fn active() -> usize {
    read(sys::mlx_get_active_memory) + mapping::held()
}

/// Bytes of freed buffers kept for reuse. The CPU allocator keeps none.
pub fn pooled() -> usize {
    read(sys::mlx_get_cache_memory)
}

/// The greatest `active` since the process began or `reset_peak` was called.
///
/// That of arrays, with what our kernels hold now: that grows and shrinks with models and caches only.
pub fn peak() -> usize {
    read(sys::mlx_get_peak_memory) + mapping::held()
}

pub fn reset_peak() {
    error::init();
    // SAFETY: takes no argument.
    unsafe { sys::mlx_reset_peak_memory() };
}

fn set(limit: usize, set: unsafe extern "C" fn(*mut usize, usize) -> i32) -> Result<usize> {
    error::init();
    let mut previous = 0;
    // SAFETY: these functions take a number and store the previous one through the pointer.
    check(unsafe { set(&mut previous, limit) })?;
    Ok(previous)
}

/// Bounds the bytes of freed buffers; returns the previous bound.
pub fn set_pool_limit(bytes: usize) -> Result<usize> {
    set(bytes, sys::mlx_set_cache_limit)
}

/// Where MLX's GPU allocators start to wait for running work before they allocate. The CPU
/// allocator ignores it; admission happens before MLX is asked. Returns the previous limit.
pub fn set_limit(bytes: usize) -> Result<usize> {
    set(bytes, sys::mlx_set_memory_limit)
}

/// Gives freed buffers back to the system.
pub fn clear_pool() -> Result<()> {
    error::init();
    // SAFETY: takes no argument.
    check(unsafe { sys::mlx_clear_cache() })?;
    give_back_heap();
    Ok(())
}

/// On the CPU MLX's buffers come from the C heap, which keeps what was freed.
fn give_back_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
