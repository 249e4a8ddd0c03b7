//! The pool on which all kernels run: as many threads as the BLAS has.

use std::sync::Arc;

use parking_lot::Mutex;

use super::pool::Pool;
use crate::base::{Error, Result};
use crate::mlx::physical_cores;

static POOL: Mutex<Option<Arc<Pool>>> = Mutex::new(None);

/// The pool, made with its first use.
pub(crate) fn pool() -> Result<Arc<Pool>> {
    let mut slot = POOL.lock();
    if let Some(pool) = &*slot {
        return Ok(Arc::clone(pool));
    }
    let pool = make(physical_cores())?;
    *slot = Some(Arc::clone(&pool));
    Ok(pool)
}

/// Has kernels that start from now on use `threads` threads, that of MLX's stream among them.
pub(crate) fn set_threads(threads: u32) -> Result<()> {
    let mut slot = POOL.lock();
    if slot.as_ref().is_none_or(|pool| pool.threads() != threads.max(1) as usize) {
        *slot = Some(make(threads)?);
    }
    Ok(())
}

/// Ends the threads and waits for them. Kernels that run, or start later, have a pool all the same.
pub(crate) fn end() {
    let pool = POOL.lock().take();
    // Not under the lock: whoever lets go of the pool last waits for its threads.
    drop(pool);
}

fn make(threads: u32) -> Result<Arc<Pool>> {
    match Pool::new(threads.max(1) as usize) {
        Ok(pool) => Ok(Arc::new(pool)),
        Err(error) => Err(Error::out_of_memory(format!("the kernels' threads cannot be started: {error}"))),
    }
}
