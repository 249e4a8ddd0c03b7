//! The MLX back end of the runtime traits.
//!
//! Opening a model, reading and converting its weights happen off the owner thread; arrays exist
//! on it only.

mod builder;
mod cache_forms;
mod model;
mod needs;
mod pace;
mod packed;
mod pending;
mod resident;
mod runtime;
mod source;
mod state;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::runtime::Backend;

/// The MLX back end.
pub fn backend() -> Arc<dyn Backend> {
    Arc::new(runtime::MlxBackend)
}
