//! The estimate of a model that is not loaded.

use std::ffi::c_char;
use std::sync::Arc;

use super::cache::{self, mlxgen_cache_options};
use super::cancel;
use super::engine::mlxgen_engine;
use super::error::mlxgen_error;
use super::guard;
use super::handle;
use super::library::path;
use super::model::{self, mlxgen_model_options};
use super::options::{self, versioned};
use super::status::mlxgen_status;
use crate::base::Code;
use crate::engine::{Engine, estimate_model};

/// What a model with one cache set would take, told from its headers. All sizes are bytes. Set it up with
/// mlxgen_memory_estimate_init.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_memory_estimate {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// That the weights would occupy: the `weight_bytes` of the loaded model.
    pub weight_bytes: u64,
    /// Of the files that a load would read.
    pub file_bytes: u64,
    /// The most that a load would take at once, the weights included.
    pub load_bytes: u64,
    /// Of each further token in a cache set, once precision is reduced and as long as no window is full.
    pub cache_bytes_per_token: u64,
    /// Of a cache set with `context` tokens, its room for the next ones included.
    pub cache_bytes: u64,
    /// Transient, of the greatest forward up to `context` tokens.
    pub workspace_bytes: u64,
    /// Weights, cache set and workspace together, or `load_bytes` if that is more.
    pub total_bytes: u64,
    /// The tokens that `cache_bytes`, `workspace_bytes`, `total_bytes` and `fits` are about.
    pub context: u64,
    /// Most tokens of the cache set, memory aside.
    pub context_limit: u64,
    /// What `total_bytes` was compared with.
    pub budget: u64,
    /// Most tokens whose `total_bytes` are within the budget; 0 if the model itself is not.
    pub max_context: u64,
    /// 1 if `context` is at most `max_context`, else 0.
    pub fits: i32,
    /// 0.
    pub reserved: i32,
}

versioned!(
    mlxgen_memory_estimate, "memory_estimate", 104,
    {
        weight_bytes: 8, file_bytes: 16, load_bytes: 24, cache_bytes_per_token: 32, cache_bytes: 40,
        workspace_bytes: 48, total_bytes: 56, context: 64, context_limit: 72, budget: 80, max_context: 88,
        fits: 96, reserved: 100
    },
    reserved: i32,
    mlxgen_memory_estimate {
        struct_size: 0,
        weight_bytes: 0,
        file_bytes: 0,
        load_bytes: 0,
        cache_bytes_per_token: 0,
        cache_bytes: 0,
        workspace_bytes: 0,
        total_bytes: 0,
        context: 0,
        context_limit: 0,
        budget: 0,
        max_context: 0,
        fits: 0,
        reserved: 0,
    }
);

/// Sets an estimate to zeros. Pass `sizeof(mlxgen_memory_estimate)` as `struct_size`.
///
/// Threads: any thread.
/// Ownership: `struct_size` bytes at `estimate` are written.
/// Codes: OK, INVALID_ARGUMENT (`estimate` is NULL, or `struct_size` is not that of this struct in any version).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_memory_estimate_init(
    estimate: *mut mlxgen_memory_estimate,
    struct_size: usize,
) -> mlxgen_status {
    // SAFETY: the header asks that `struct_size` bytes are writable.
    unsafe { options::init(estimate, struct_size) }
}

/// Tells what a model and a cache set of it would take, from its configuration and the headers of its weights alone.
/// `engine` decides where it would compute and, for `budget` 0, what there is: its limit; NULL stands for an engine with
/// the defaults, whose limit is three quarters of the memory. NULL as `model_options` or `cache_options` means the
/// defaults; no progress is told. `context` 0 stands for the most tokens that there can be. Nothing
/// is loaded or set aside, what the engine holds already is not counted, and no later call depends on the answer.
/// The tokenizer and the data of the weights are not read: a load may still refuse a model that has an estimate.
///
/// Threads: any thread.
/// Ownership: `path`, `model_options` and `cache_options` are read during the call. `out` is yours; set its `struct_size` before the call.
/// Codes: OK, CANCELLED, INVALID_ARGUMENT, NOT_FOUND, INVALID_MODEL, UNSUPPORTED, OUT_OF_MEMORY (for the headers), IO.
/// Since: 0.1.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the rule of the C interface: inputs, then outputs")]
pub unsafe extern "C" fn mlxgen_model_estimate(
    engine: *const mlxgen_engine,
    path: *const c_char,
    path_size: usize,
    model_options: *const mlxgen_model_options,
    cache_options: *const mlxgen_cache_options,
    context: u64,
    budget: u64,
    out: *mut mlxgen_memory_estimate,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for a readable text, readable options, a struct of the size that it says, and an
    // `out_error` that is NULL or writable.
    unsafe {
        guard::fallible(out_error, [], |call| {
            call.struct_size(out)?;
            let engine: Option<Arc<Engine>> =
                if engine.is_null() { None } else { Some(handle::get(engine, "engine")?) };
            let path = self::path(call.text(path, path_size, "path")?, "path")?;
            let options = call.options_of(model_options, "model_options")?;
            let cache = cache::read_options(call, &call.options_of(cache_options, "cache_options")?)?;
            let cancel = cancel::share(options.cancel, "cancel")?;
            let estimate = estimate_model(
                engine.as_deref(),
                path,
                &model::read_options(&options)?,
                &cache,
                cancel.as_ref(),
                context,
                budget,
            )?;
            call.fill(
                out,
                &mlxgen_memory_estimate {
                    struct_size: 0,
                    weight_bytes: estimate.weight_bytes,
                    file_bytes: estimate.file_bytes,
                    load_bytes: estimate.load_bytes,
                    cache_bytes_per_token: estimate.cache_bytes_per_token,
                    cache_bytes: estimate.cache_bytes,
                    workspace_bytes: estimate.workspace_bytes,
                    total_bytes: estimate.total_bytes,
                    context: estimate.context,
                    context_limit: estimate.context_limit,
                    budget: estimate.budget,
                    max_context: estimate.max_context,
                    fits: i32::from(estimate.fits),
                    reserved: 0,
                },
            )?;
            Ok(Code::Ok)
        })
    }
}
