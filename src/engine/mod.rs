//! The owner thread, its queue, the turns of the rows, memory admission, suspension, exit and fork.
//!
//! [`Engine`], [`Model`], [`CacheSet`] and [`Stream`] are handles that any thread may hold. What
//! they stand for lives on the owner thread.

mod budget;
mod cache_set;
mod engine_handle;
mod estimate;
mod fork;
mod gate;
mod memory;
mod model;
mod os;
mod owner;
mod process;
mod queue;
mod scheduler;
mod slab;
mod stream;

pub use cache_set::CacheSet;
pub use engine_handle::Engine;
pub use estimate::estimate_model;
pub use fork::in_forked_child;
pub use model::Model;
pub use owner::{on_owner_thread, shutdown};
pub use process::{check_process, is_exiting};
pub use queue::Wakeup;
pub use slab::EngineBox;
pub use stream::Stream;

/// Such as `MLX 0.32.2, CPU`.
pub fn backend_description() -> String {
    crate::generate::backend::backend().description()
}
