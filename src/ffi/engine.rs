//! The engine handle: a budget on the thread that owns MLX.

use std::time::Duration;

use super::error::mlxgen_error;
use super::guard;
use super::handle::{self, object};
use super::library::milliseconds;
use super::options::{self, choice, versioned};
use super::status::mlxgen_status;
use crate::base::options::{Device, EngineOptions};
use crate::base::{Code, Result};
use crate::engine::Engine;

/// A budget of memory for models and everything made from them. All engines of a process share
/// one worker, which does their work in turn, and the threads that compute for it. Any thread.
/// Release it with mlxgen_engine_release; models keep their engine alive.
pub struct mlxgen_engine {
    _opaque: [u8; 0],
}

object!(Engine, mlxgen_engine, 4);

/// The GPU where there is one, else the CPU.
pub const MLXGEN_DEVICE_AUTO: i32 = 0;
/// The CPU.
pub const MLXGEN_DEVICE_CPU: i32 = 1;
/// The GPU; mlxgen_engine_new gives MLXGEN_UNSUPPORTED where there is none.
pub const MLXGEN_DEVICE_GPU: i32 = 2;

/// How to make an engine. Set it up with mlxgen_engine_options_init.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_engine_options {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// Bytes that models, cache sets and work may take together; 0: three quarters of the machine's
    /// memory.
    pub memory_limit: u64,
    /// Bytes of freed memory that may be kept for reuse; 0: 256 MiB or an eighth of the limit, the
    /// smaller. The memory is that of the process: the limit that was set last holds for all engines.
    pub pool_limit: u64,
    /// Threads that compute, at most 1024; 0: one for each physical core. They are those of the
    /// process: the engine that was made last decides for all, also after its release.
    pub threads: u32,
    /// One of the MLXGEN_DEVICE_ numbers.
    pub device: i32,
}

versioned!(
    mlxgen_engine_options, "engine_options", 32,
    { memory_limit: 8, pool_limit: 16, threads: 24, device: 28 },
    device: i32,
    mlxgen_engine_options { struct_size: 0, memory_limit: 0, pool_limit: 0, threads: 0, device: MLXGEN_DEVICE_AUTO }
);

/// What an engine's memory is used for, in bytes. Set it up with mlxgen_memory_info_init.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_memory_info {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// In use for arrays, of all engines.
    pub active: u64,
    /// Freed and kept for reuse, of all engines.
    pub pooled: u64,
    /// The most that `active` has been since the engine was made.
    pub peak: u64,
    /// The engine's limit.
    pub limit: u64,
    /// The engine's limit for `pooled`.
    pub pool_limit: u64,
    /// What the machine could still give to this process.
    pub available: u64,
    /// Weights of this engine's models.
    pub models: u64,
    /// This engine's cache sets.
    pub caches: u64,
}

versioned!(
    mlxgen_memory_info, "memory_info", 72,
    { active: 8, pooled: 16, peak: 24, limit: 32, pool_limit: 40, available: 48, models: 56, caches: 64 },
    caches: u64,
    mlxgen_memory_info {
        struct_size: 0, active: 0, pooled: 0, peak: 0, limit: 0, pool_limit: 0, available: 0, models: 0, caches: 0
    }
);

fn read_options(options: &mlxgen_engine_options) -> Result<EngineOptions> {
    let devices = [
        (MLXGEN_DEVICE_AUTO, Device::Auto),
        (MLXGEN_DEVICE_CPU, Device::Cpu),
        (MLXGEN_DEVICE_GPU, Device::Gpu),
    ];
    Ok(EngineOptions {
        memory_limit: options.memory_limit,
        pool_limit: options.pool_limit,
        threads: options.threads,
        device: choice(options.device, "device", &devices)?,
    })
}

/// Sets options to their defaults. Pass `sizeof(mlxgen_engine_options)` as `struct_size`.
///
/// Threads: any thread.
/// Ownership: `struct_size` bytes at `options` are written.
/// Codes: OK, INVALID_ARGUMENT (`options` is NULL, or `struct_size` is not that of this struct in
/// any version).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_engine_options_init(
    options: *mut mlxgen_engine_options,
    struct_size: usize,
) -> mlxgen_status {
    // SAFETY: the header asks that `struct_size` bytes are writable.
    unsafe { options::init(options, struct_size) }
}

/// Sets a memory report to zeros. Pass `sizeof(mlxgen_memory_info)` as `struct_size`.
///
/// Threads: any thread.
/// Ownership: `struct_size` bytes at `info` are written.
/// Codes: OK, INVALID_ARGUMENT (`info` is NULL, or `struct_size` is not that of this struct in any
/// version).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_memory_info_init(
    info: *mut mlxgen_memory_info,
    struct_size: usize,
) -> mlxgen_status {
    // SAFETY: the header asks that `struct_size` bytes are writable.
    unsafe { options::init(info, struct_size) }
}

/// Makes an engine. NULL as `options` means the defaults.
///
/// Threads: any thread.
/// Ownership: `options` is read during the call. `out` receives a handle that you release with
/// mlxgen_engine_release.
/// Codes: OK, INVALID_ARGUMENT (also for more than 1024 threads), UNSUPPORTED (no such device).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_engine_new(
    options: *const mlxgen_engine_options,
    out: *mut *mut mlxgen_engine,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for readable options, and for outputs that are NULL or writable.
    unsafe {
        guard::fallible(out_error, [out.cast()], |call| {
            call.required(out, "out")?;
            let options = read_options(&call.options(options)?)?;
            call.write(out, handle::hand_out(Engine::new(&options)?)?);
            Ok(Code::Ok)
        })
    }
}

/// Tells what an engine's memory is used for. Does not wait for running work.
///
/// Threads: any thread.
/// Ownership: `out` is yours; set its `struct_size` before the call.
/// Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_engine_memory(
    engine: *const mlxgen_engine,
    out: *mut mlxgen_memory_info,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for a struct of the size it says, and for a writable `out_error`.
    unsafe {
        guard::fallible(out_error, [], |call| {
            call.struct_size(out)?;
            let memory = handle::get::<Engine>(engine, "engine")?.memory()?;
            let info = mlxgen_memory_info {
                struct_size: 0,
                active: memory.active,
                pooled: memory.pooled,
                peak: memory.peak,
                limit: memory.limit,
                pool_limit: memory.pool_limit,
                available: memory.available,
                models: memory.models,
                caches: memory.caches,
            };
            call.fill(out, &info)?;
            Ok(Code::Ok)
        })
    }
}

/// Changes an engine's limits, in bytes; 0 means the default. What already lives stays: a limit
/// below it refuses further loads and growth.
///
/// Threads: any thread.
/// Ownership: nothing changes hands.
/// Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_engine_set_limits(
    engine: *mut mlxgen_engine,
    memory_limit: u64,
    pool_limit: u64,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that `out_error` is NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [], |_| {
            handle::get::<Engine>(engine, "engine")?.set_limits(memory_limit, pool_limit)?;
            Ok(Code::Ok)
        })
    }
}

/// Gives freed memory that was kept for reuse back to the system.
///
/// Threads: any thread; waits for the running piece of work.
/// Ownership: `out_freed` receives the bytes given back, and may be NULL.
/// Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_engine_trim(
    engine: *mut mlxgen_engine,
    out_freed: *mut u64,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that the outputs are NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [], |call| {
            let freed = handle::get::<Engine>(engine, "engine")?.trim()?;
            call.write(out_freed, freed);
            Ok(Code::Ok)
        })
    }
}

/// Stops all work of an engine until mlxgen_engine_resume: when the call returns, nothing runs,
/// streams have paused at a whole token, and freed memory is given back. Meanwhile
/// mlxgen_stream_next waits, and calls that need work give MLXGEN_WRONG_STATE. Suspending twice is
/// the same as once. Made for apps that go to the background.
///
/// Threads: any thread.
/// Ownership: nothing changes hands.
/// Codes: OK, TIMEOUT (a piece of work was still running after `timeout_ms`; the engine is
/// suspended when it ends, call again to wait for that), INVALID_ARGUMENT, WRONG_STATE (after
/// mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_engine_suspend(
    engine: *mut mlxgen_engine,
    timeout_ms: u32,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that `out_error` is NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [], |_| {
            let limit = milliseconds(timeout_ms).unwrap_or(Duration::MAX);
            handle::get::<Engine>(engine, "engine")?.suspend(limit)?;
            Ok(Code::Ok)
        })
    }
}

/// Lets a suspended engine work again; streams go on where they paused. Without effect on an
/// engine that is not suspended.
///
/// Threads: any thread.
/// Ownership: nothing changes hands.
/// Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_engine_resume(
    engine: *mut mlxgen_engine,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that `out_error` is NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [], |_| {
            handle::get::<Engine>(engine, "engine")?.resume()?;
            Ok(Code::Ok)
        })
    }
}

/// Adds a reference to an engine.
///
/// Threads: any thread.
/// Ownership: gives back `engine`, to be released once more; NULL if it is not alive.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_engine_retain(engine: *mut mlxgen_engine) -> *mut mlxgen_engine {
    guard::plain(std::ptr::null_mut(), || handle::retain::<Engine>(engine))
}

/// Gives up a reference to an engine; it ends when its models, cache sets and streams have ended
/// too. With the last engine of the process the library's threads end, soon after: mlxgen_shutdown
/// waits for that. NULL and a handle that is not alive are left alone.
///
/// Threads: any thread.
/// Ownership: takes your reference.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_engine_release(engine: *mut mlxgen_engine) {
    guard::plain((), || handle::release::<Engine>(engine));
}
