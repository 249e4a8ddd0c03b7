//! The library's log lines go to the host's sink, or nowhere.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Once};

use ::log::{LevelFilter, Log, Metadata, Record};
use parking_lot::RwLock;

use super::guard::{self, UserData};
use crate::engine;

/// Receives one log line: UTF-8, `size` bytes, not NUL-terminated, borrowed for the call. `level`
/// is one of the MLXGEN_LOG_ numbers. Called on any thread, also by several at once; it must
/// return soon and normally, and may only signal: see mlxgen_set_log_sink.
pub type mlxgen_log_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, level: i32, message: *const c_char, size: usize)>;

struct Sink {
    callback: unsafe extern "C" fn(*mut c_void, i32, *const c_char, usize),
    user: UserData,
}

static SINK: RwLock<Option<Arc<Sink>>> = RwLock::new(None);

struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Other crates may write what users have written.
        metadata.level() <= ::log::max_level() && metadata.target().starts_with(env!("CARGO_CRATE_NAME"))
    }

    fn log(&self, record: &Record<'_>) {
        let nobody_listens = guard::in_callback() || engine::in_forked_child() || engine::is_exiting();
        if nobody_listens || !self.enabled(record.metadata()) {
            return;
        }
        // Shared for the time of the call: another thread may set another sink meanwhile.
        let Some(sink) = SINK.read().clone() else { return };
        let message = record.args().to_string();
        guard::callback(|| {
            let (text, size) = (message.as_ptr().cast(), message.len());
            // SAFETY: the header asks for a function that takes these on any thread, and `user`
            // has not been let go of, because `sink` owns it.
            unsafe { (sink.callback)(sink.user.user(), record.level() as i32, text, size) }
        });
    }

    fn flush(&self) {}
}

/// Replaces the sink. The old one's user data is let go of when its last running call is over.
pub(super) fn set_sink(callback: mlxgen_log_callback, user: UserData, level: LevelFilter) {
    static LOGGER: Once = Once::new();
    // A host written in Rust may have its own logger, which then keeps the lines.
    LOGGER.call_once(|| drop(::log::set_logger(&Logger)));
    let sink = callback.map(|callback| Arc::new(Sink { callback, user }));
    ::log::set_max_level(if sink.is_some() { level } else { LevelFilter::Off });
    let old = std::mem::replace(&mut *SINK.write(), sink);
    drop(old);
}
