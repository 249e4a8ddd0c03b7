//! Plain data that every room shares: errors, cancel tokens, options, events. No MLX.

pub mod cancel;
pub mod deep;
pub mod error;
pub mod event;
pub mod info;
pub mod json;
pub mod kv_config;
pub mod options;
pub mod panics;
pub mod progress;
pub mod prompt;
pub mod quote;
pub mod signals;
pub mod small_file;

pub use cancel::CancelToken;
pub use error::{Code, Error, Result};
pub use progress::{LoadPhase, Progress};
pub use prompt::Prompt;
