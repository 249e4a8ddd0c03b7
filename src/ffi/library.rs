//! What concerns the library as a whole.

use std::ffi::{c_char, c_void};
use std::time::Duration;

use ::log::LevelFilter;

use super::buffer::{self, mlxgen_buffer};
use super::error::mlxgen_error;
use super::guard::{self, UserData, mlxgen_drop_callback};
use super::handle;
use super::log::{self, mlxgen_log_callback};
use super::options::choice;
use super::status::{self, mlxgen_status};
use crate::base::{Code, Error};
use crate::engine;

/// The ABI that this header describes; mlxgen_abi_version gives that of the library in use. A
/// library serves all programs that were built for its ABI, older and newer.
pub const MLXGEN_ABI_VERSION: u32 = 1;
/// The version of this header, as MLXGEN_VERSION_MAJOR.MLXGEN_VERSION_MINOR.MLXGEN_VERSION_PATCH.
pub const MLXGEN_VERSION_MAJOR: u32 = 0;
/// See MLXGEN_VERSION_MAJOR.
pub const MLXGEN_VERSION_MINOR: u32 = 1;
/// See MLXGEN_VERSION_MAJOR.
pub const MLXGEN_VERSION_PATCH: u32 = 0;

/// No log lines.
pub const MLXGEN_LOG_OFF: i32 = 0;
/// Something failed that no call could report.
pub const MLXGEN_LOG_ERROR: i32 = 1;
/// A load or a generation failed, or something works less well than it should.
pub const MLXGEN_LOG_WARNING: i32 = 2;
/// What the library does, in few lines: its thread begins, a model was loaded.
pub const MLXGEN_LOG_INFO: i32 = 3;
/// Details for the search of a fault: the steps of a load, the begin and end of each generation.
pub const MLXGEN_LOG_DEBUG: i32 = 4;
/// Everything; as yet no more than MLXGEN_LOG_DEBUG.
pub const MLXGEN_LOG_TRACE: i32 = 5;

/// What mlxgen_has_feature knows, and whether this build has it.
const FEATURES: [(&str, bool); 7] = [
    ("mlx", cfg!(feature = "mlx")),
    ("fake", cfg!(feature = "fake")),
    ("safetensors", cfg!(feature = "mlx")),
    ("gguf", cfg!(feature = "mlx")),
    ("chat_template", true),
    ("metal", cfg!(all(feature = "mlx", target_os = "macos"))),
    ("fast_kernels", cfg!(cpu_kernels)),
];

/// Gives the ABI of the library in use; compare it with MLXGEN_ABI_VERSION.
///
/// Threads: any thread; also in callbacks.
/// Ownership: nothing changes hands.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn mlxgen_abi_version() -> u32 {
    MLXGEN_ABI_VERSION
}

/// Gives the version of the library in use, such as "0.1.0".
///
/// Threads: any thread; also in callbacks.
/// Ownership: the text is NUL-terminated and lives as long as the process.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn mlxgen_version_string() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Tells how the library was built, as a JSON object: "version", "abi" (number), "backend" (such
/// as "MLX 0.32.2, CPU"), "target", "features" (array of texts), "debug" (true or false).
///
/// Threads: any thread.
/// Ownership: `out_json` receives a text buffer that you release with mlxgen_buffer_release.
/// Codes: OK, INVALID_ARGUMENT (`out_json` is NULL).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_build_info(
    out_json: *mut *mut mlxgen_buffer,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that the outputs are NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [out_json.cast()], |call| {
            call.required(out_json, "out_json")?;
            let features: Vec<&str> =
                FEATURES.iter().filter(|(_, built)| *built).map(|(name, _)| *name).collect();
            let target = format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS);
            let info = serde_json::json!({
                "version": env!("CARGO_PKG_VERSION"),
                "abi": MLXGEN_ABI_VERSION,
                "backend": engine::backend_description(),
                "target": target,
                "features": features,
                "debug": cfg!(debug_assertions),
            });
            call.write(out_json, buffer::text(info.to_string())?);
            Ok(Code::Ok)
        })
    }
}

/// Tells whether this build of the library has a feature: 1 or 0. The names:
/// "mlx": models are computed by MLX;
/// "fake": a back end without numerics, for tests, is built in. Without "mlx" it is what serves;
/// "safetensors", "gguf": such weight files can be loaded;
/// "chat_template": mlxgen_chat_render renders the templates of models;
/// "metal": MLX computes on Apple's GPU where the machine has one that it can use, which "backend" of
/// mlxgen_build_info tells;
/// "fast_kernels": with MLXGEN_NUMERICS_FAST, the compute type float32 and the CPU, the library's own
/// kernels compute. On Linux they do on every processor, elsewhere on none.
/// A name that this version does not know gives 0.
///
/// Threads: any thread; also in callbacks.
/// Ownership: the `size` bytes at `name` are read during the call.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_has_feature(name: *const c_char, size: usize) -> i32 {
    // SAFETY: the header asks that `size` bytes are readable at `name`.
    unsafe {
        guard::infallible(0, |call| {
            let wanted = call.text(name, size, "name").unwrap_or_default();
            i32::from(FEATURES.iter().any(|(name, built)| *built && *name == wanted))
        })
    }
}

/// Gives the name of a status, such as "MLXGEN_OK"; "MLXGEN_UNKNOWN" for a number that this version
/// does not know.
///
/// Threads: any thread; also in callbacks.
/// Ownership: the text is NUL-terminated and lives as long as the process.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn mlxgen_status_name(status: mlxgen_status) -> *const c_char {
    status::c_name(status).as_ptr()
}

/// Sends the library's log lines up to `max_level` to `sink`, in place of an earlier sink. Without
/// a sink, as at the start, the library is silent. NULL as `sink` makes it silent again. Lines speak
/// of files, sizes and times, never of prompts or of what is generated; none come while the process exits.
///
/// Threads: any thread. `sink` is called on any thread, by several at once, and possibly once more
/// after it was replaced, until `drop` was called. It must return soon and normally. In it every
/// call of the library is refused with MLXGEN_WRONG_STATE, except mlxgen_cancel_request and those
/// whose comment allows callbacks.
/// Ownership: on success the library holds `user` until it calls `drop` (which may be NULL) with
/// it, exactly once: when the sink was replaced and its last call has returned. Without `sink` that
/// is at once. On failure `user` stays yours and `drop` is not called.
/// Codes: OK, INVALID_ARGUMENT (`max_level` is not one of the MLXGEN_LOG_ numbers).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_set_log_sink(
    sink: mlxgen_log_callback,
    user: *mut c_void,
    drop: mlxgen_drop_callback,
    max_level: i32,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    let levels = [
        (MLXGEN_LOG_OFF, LevelFilter::Off),
        (MLXGEN_LOG_ERROR, LevelFilter::Error),
        (MLXGEN_LOG_WARNING, LevelFilter::Warn),
        (MLXGEN_LOG_INFO, LevelFilter::Info),
        (MLXGEN_LOG_DEBUG, LevelFilter::Debug),
        (MLXGEN_LOG_TRACE, LevelFilter::Trace),
    ];
    // SAFETY: the header asks that `out_error` is NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [], |_| {
            let level = choice(max_level, "max_level", &levels)?;
            log::set_sink(sink, UserData::new(user, drop), level);
            Ok(Code::Ok)
        })
    }
}

/// Counts the handles that are alive: errors, buffers and everything else that you have not
/// released as often as it was handed out or retained.
///
/// Threads: any thread.
/// Ownership: nothing changes hands.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn mlxgen_live_handles() -> u64 {
    guard::plain(0, handle::live)
}

/// Cancels all work, closes all streams and waits until the library's own threads have stopped. Afterwards
/// engines, models, cache sets and streams that were made before answer MLXGEN_WRONG_STATE, and
/// are still to be released; a new engine starts afresh. A program need not call this before it
/// exits.
///
/// Threads: any thread.
/// Ownership: nothing changes hands.
/// Codes: OK, TIMEOUT (work was still running after `timeout_ms`; call again to go on waiting).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_shutdown(
    timeout_ms: u32,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that `out_error` is NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [], |_| {
            engine::shutdown(milliseconds(timeout_ms).unwrap_or(Duration::MAX))?;
            Ok(Code::Ok)
        })
    }
}

/// Waits as long as it takes.
pub const MLXGEN_WAIT_FOREVER: u32 = 4294967295;

/// A time limit; none for MLXGEN_WAIT_FOREVER.
pub(super) fn milliseconds(limit: u32) -> Option<Duration> {
    (limit != MLXGEN_WAIT_FOREVER).then(|| Duration::from_millis(limit.into()))
}

/// INVALID_ARGUMENT for paths that no system takes.
pub(super) fn path<'a>(text: &'a str, field: &str) -> crate::base::Result<&'a std::path::Path> {
    let bad = |rule: &str| Err(Error::invalid_argument(format!("{field} {rule}")).field(field));
    if text.is_empty() {
        return bad("is empty");
    }
    if let Some(position) = text.find('\0') {
        return bad(&format!("has a NUL at byte {position}"))
            .map_err(|error| error.position(position as u64));
    }
    Ok(std::path::Path::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_macros_are_the_crates_version() {
        let version = format!("{MLXGEN_VERSION_MAJOR}.{MLXGEN_VERSION_MINOR}.{MLXGEN_VERSION_PATCH}");
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
    }

    fn has(name: &str) -> bool {
        // SAFETY: the text is readable.
        unsafe { mlxgen_has_feature(name.as_ptr().cast(), name.len()) == 1 }
    }

    #[test]
    fn features_are_documented_and_true() {
        let header = include_str!("../../include/mlxgen.h");
        let comment = header.split("int32_t mlxgen_has_feature").next().unwrap();
        let comment = &comment[comment.rfind("/**").unwrap()..];
        for (name, _) in FEATURES {
            assert!(comment.contains(&format!("\"{name}\"")), "{name}");
        }
        assert_eq!(comment.matches("\":").count() + comment.matches("\",").count(), FEATURES.len());
        assert_eq!(has("mlx"), cfg!(feature = "mlx"));
        #[cfg(feature = "mlx")]
        assert_eq!(has("fast_kernels"), crate::mlx::has_cpu_kernels());
        #[cfg(not(feature = "mlx"))]
        assert!(!has("fast_kernels"));
        assert_eq!(has("fast_kernels"), cfg!(all(feature = "mlx", target_os = "linux")));
    }

    #[test]
    fn forever_is_the_greatest_number() {
        assert_eq!(MLXGEN_WAIT_FOREVER, u32::MAX);
        assert_eq!(milliseconds(u32::MAX), None);
        assert_eq!(milliseconds(1500), Some(Duration::from_millis(1500)));
    }
}
