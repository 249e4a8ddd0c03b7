//! Which back end this build has.

use std::sync::{Arc, OnceLock};

use super::runtime::Backend;

static BACKEND: OnceLock<Arc<dyn Backend>> = OnceLock::new();

/// The back end of the process: MLX where it is built in, else the fake one.
pub fn backend() -> &'static Arc<dyn Backend> {
    BACKEND.get_or_init(make)
}

#[cfg(feature = "mlx")]
fn make() -> Arc<dyn Backend> {
    super::mlx_runtime::backend()
}

#[cfg(not(feature = "mlx"))]
fn make() -> Arc<dyn Backend> {
    Arc::new(super::fake::FakeBackend::default())
}
