//! The model handle.

use std::ffi::{CString, c_char, c_void};

use super::cancel::{self, mlxgen_cancel};
use super::engine::mlxgen_engine;
use super::error::{c_text, mlxgen_error};
use super::guard::{self, Call};
use super::handle::{self, object};
use super::library::path;
use super::options::{self, choice, versioned};
use super::status::mlxgen_status;
use super::tokenizer::{TokenizerObject, mlxgen_tokenizer};
use crate::base::options::{ComputeType, ModelOptions, Numerics};
use crate::base::{Code, Error, LoadPhase, Result};
use crate::engine::{Engine, Model};

/// A loaded model. Immutable; any thread; serves any number of cache sets and streams. Release it
/// with mlxgen_model_release; what was made from it keeps it alive.
pub struct mlxgen_model {
    _opaque: [u8; 0],
}

pub(super) struct ModelObject {
    pub(super) model: Model,
    /// C forms of the texts of the model's info.
    family: CString,
    name: CString,
    format: CString,
    weights: CString,
    compute_type: CString,
    numerics: CString,
}

object!(ModelObject, mlxgen_model, 6);

/// The fastest arithmetic; results are the library's own.
pub const MLXGEN_NUMERICS_FAST: i32 = 0;
/// Only MLX's operations in mlx-lm's order: the same tokens as mlx-lm on the same machine.
pub const MLXGEN_NUMERICS_EXACT: i32 = 1;

/// The element type of the file under MLXGEN_NUMERICS_EXACT; else what is fastest.
pub const MLXGEN_COMPUTE_AUTO: i32 = 0;
/// 32 bits.
pub const MLXGEN_COMPUTE_FLOAT32: i32 = 1;
/// 16 bits, IEEE half precision.
pub const MLXGEN_COMPUTE_FLOAT16: i32 = 2;
/// 16 bits with the exponent of float32.
pub const MLXGEN_COMPUTE_BFLOAT16: i32 = 3;

/// Progress of a load: configuration, tokenizer and weight headers.
pub const MLXGEN_LOAD_OPEN: i32 = 0;
/// Progress of a load: weights; the numbers are bytes of the files.
pub const MLXGEN_LOAD_WEIGHTS: i32 = 1;
/// Progress of a load: the last preparations.
pub const MLXGEN_LOAD_FINISH: i32 = 2;

const _: () = assert!(
    LoadPhase::Open as i32 == MLXGEN_LOAD_OPEN
        && LoadPhase::Weights as i32 == MLXGEN_LOAD_WEIGHTS
        && LoadPhase::Finish as i32 == MLXGEN_LOAD_FINISH
);

/// Tells the progress of a load. `phase` is one of the MLXGEN_LOAD_ numbers; `done` never falls
/// within a phase and reaches `total` at its end. Called on the thread that called
/// mlxgen_model_load, before that returns; it must return normally and may only signal, such as
/// with mlxgen_cancel_request.
pub type mlxgen_progress_callback =
    Option<unsafe extern "C" fn(user: *mut c_void, phase: i32, done: u64, total: u64)>;

/// How to load a model. Set it up with mlxgen_model_options_init.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_model_options {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// One of the MLXGEN_NUMERICS_ numbers.
    pub numerics: i32,
    /// One of the MLXGEN_COMPUTE_ numbers.
    pub compute_type: i32,
    /// Tokens of a prompt that are computed at once; 0: chosen by the library.
    pub prefill_chunk: u32,
    /// Most tokens of a sequence; 0: the model's own limit. Never above the model's.
    pub context_limit: u32,
    /// Stops the load; may be NULL.
    pub cancel: *mut mlxgen_cancel,
    /// Told the progress; may be NULL.
    pub progress: mlxgen_progress_callback,
    /// Passed to `progress`.
    pub progress_user: *mut c_void,
}

versioned!(
    mlxgen_model_options, "model_options", 48,
    {
        numerics: 8, compute_type: 12, prefill_chunk: 16, context_limit: 20, cancel: 24, progress: 32,
        progress_user: 40
    },
    progress_user: *mut c_void,
    mlxgen_model_options {
        struct_size: 0,
        numerics: MLXGEN_NUMERICS_FAST,
        compute_type: MLXGEN_COMPUTE_AUTO,
        prefill_chunk: 0,
        context_limit: 0,
        cancel: std::ptr::null_mut(),
        progress: None,
        progress_user: std::ptr::null_mut(),
    }
);

/// What a model is. Texts are UTF-8 and NUL-terminated; they and the array are borrowed while you
/// hold the model's handle. Set it up with mlxgen_model_description_init.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_model_description {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// The kind of network, such as "llama".
    pub family: *const c_char,
    /// The name that the files give, else that of the folder or file.
    pub name: *const c_char,
    /// "safetensors", "gguf" or "fake".
    pub format: *const c_char,
    /// How the weights are kept, such as "affine 4-bit group 32".
    pub weights: *const c_char,
    /// "float32", "float16" or "bfloat16".
    pub compute_type: *const c_char,
    /// "fast" or "exact".
    pub numerics: *const c_char,
    /// Token ids are below it.
    pub vocabulary: u32,
    pub layers: u32,
    pub hidden: u32,
    pub heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// Most tokens of a sequence.
    pub context_limit: u64,
    /// Tokens of a prompt that are computed at once.
    pub prefill_chunk: u32,
    /// Numbers that were trained.
    pub parameters: u64,
    /// Bytes that the weights occupy in memory.
    pub weight_bytes: u64,
    /// Bytes of a cache set of MLXGEN_KV_AUTO for each token. Sets grow by 256 tokens at a time.
    pub cache_bytes_per_token: u64,
    /// Token ids that end a generation, ascending.
    pub eos: *const u32,
    pub eos_count: usize,
    /// The token id that begins a sequence; -1: none.
    pub bos: i64,
    /// 1 if the model has a default chat template that mlxgen_chat_render understands, else 0.
    pub has_chat_template: i32,
    /// 0.
    pub reserved: i32,
}

versioned!(
    mlxgen_model_description, "model_description", 152,
    {
        family: 8, name: 16, format: 24, weights: 32, compute_type: 40, numerics: 48, vocabulary: 56,
        layers: 60, hidden: 64, heads: 68, kv_heads: 72, head_dim: 76, context_limit: 80,
        prefill_chunk: 88, parameters: 96, weight_bytes: 104, cache_bytes_per_token: 112, eos: 120,
        eos_count: 128, bos: 136, has_chat_template: 144
    },
    reserved: i32,
    mlxgen_model_description {
        struct_size: 0,
        family: std::ptr::null(),
        name: std::ptr::null(),
        format: std::ptr::null(),
        weights: std::ptr::null(),
        compute_type: std::ptr::null(),
        numerics: std::ptr::null(),
        vocabulary: 0,
        layers: 0,
        hidden: 0,
        heads: 0,
        kv_heads: 0,
        head_dim: 0,
        context_limit: 0,
        prefill_chunk: 0,
        parameters: 0,
        weight_bytes: 0,
        cache_bytes_per_token: 0,
        eos: std::ptr::null(),
        eos_count: 0,
        bos: -1,
        has_chat_template: 0,
        reserved: 0,
    }
);

impl ModelObject {
    fn new(model: Model) -> Self {
        let info = model.info();
        ModelObject {
            family: c_text(&info.family),
            name: c_text(&info.name),
            format: c_text(&info.format),
            weights: c_text(&info.weights),
            compute_type: c_text(&info.compute_type),
            numerics: c_text(&info.numerics),
            model,
        }
    }

    fn describe(&self) -> mlxgen_model_description {
        let info = self.model.info();
        mlxgen_model_description {
            struct_size: 0,
            family: self.family.as_ptr(),
            name: self.name.as_ptr(),
            format: self.format.as_ptr(),
            weights: self.weights.as_ptr(),
            compute_type: self.compute_type.as_ptr(),
            numerics: self.numerics.as_ptr(),
            vocabulary: info.vocabulary,
            layers: info.layers,
            hidden: info.hidden,
            heads: info.heads,
            kv_heads: info.kv_heads,
            head_dim: info.head_dim,
            context_limit: info.context_limit,
            prefill_chunk: info.prefill_chunk,
            parameters: info.parameters,
            weight_bytes: info.weight_bytes,
            cache_bytes_per_token: info.cache_bytes_per_token,
            eos: info.eos.as_ptr(),
            eos_count: info.eos.len(),
            bos: info.bos.map_or(-1, i64::from),
            has_chat_template: i32::from(info.has_chat_template),
            reserved: 0,
        }
    }
}

pub(super) fn read_options(options: &mlxgen_model_options) -> Result<ModelOptions> {
    let numerics = [(MLXGEN_NUMERICS_FAST, Numerics::Fast), (MLXGEN_NUMERICS_EXACT, Numerics::Exact)];
    let types = [
        (MLXGEN_COMPUTE_AUTO, ComputeType::Auto),
        (MLXGEN_COMPUTE_FLOAT32, ComputeType::Float32),
        (MLXGEN_COMPUTE_FLOAT16, ComputeType::Float16),
        (MLXGEN_COMPUTE_BFLOAT16, ComputeType::Bfloat16),
    ];
    Ok(ModelOptions {
        numerics: choice(options.numerics, "numerics", &numerics)?,
        compute_type: choice(options.compute_type, "compute_type", &types)?,
        prefill_chunk: options.prefill_chunk,
        context_limit: options.context_limit,
    })
}

/// Sets options to their defaults. Pass `sizeof(mlxgen_model_options)` as `struct_size`.
///
/// Threads: any thread.
/// Ownership: `struct_size` bytes at `options` are written.
/// Codes: OK, INVALID_ARGUMENT (`options` is NULL, or `struct_size` is not that of this struct in
/// any version).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_model_options_init(
    options: *mut mlxgen_model_options,
    struct_size: usize,
) -> mlxgen_status {
    // SAFETY: the header asks that `struct_size` bytes are writable.
    unsafe { options::init(options, struct_size) }
}

/// Clears a model description. Pass `sizeof(mlxgen_model_description)` as `struct_size`.
///
/// Threads: any thread.
/// Ownership: `struct_size` bytes at `description` are written.
/// Codes: OK, INVALID_ARGUMENT (`description` is NULL, or `struct_size` is not that of this struct
/// in any version).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_model_description_init(
    description: *mut mlxgen_model_description,
    struct_size: usize,
) -> mlxgen_status {
    // SAFETY: the header asks that `struct_size` bytes are writable.
    unsafe { options::init(description, struct_size) }
}

/// Loads a model from a folder (config.json and safetensors), a repository's folder in the cache of the Hugging Face hub
/// (its revision main), or a .gguf file. NULL as `options`
/// means the defaults. The files are not needed afterwards. Nothing is kept of a load that fails.
///
/// Threads: any thread.
/// Ownership: `path` and `options` are read during the call. `out` receives a handle that you
/// release with mlxgen_model_release.
/// Codes: OK, CANCELLED, INVALID_ARGUMENT, NOT_FOUND, INVALID_MODEL, UNSUPPORTED, OUT_OF_MEMORY (the
/// engine's limit or the machine's memory), WRONG_STATE (suspended, or after mlxgen_shutdown), IO,
/// GPU_TIMEOUT, GPU_NOT_PERMITTED.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_model_load(
    engine: *mut mlxgen_engine,
    path: *const c_char,
    path_size: usize,
    options: *const mlxgen_model_options,
    out: *mut *mut mlxgen_model,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    let load = |call: &Call| {
        call.required(out, "out")?;
        let engine = handle::get::<Engine>(engine, "engine")?;
        let path = self::path(call.text(path, path_size, "path")?, "path")?;
        let options = call.options(options)?;
        let cancel = cancel::share(options.cancel, "cancel")?;
        let mut progress = |report: crate::base::Progress| {
            if let Some(progress) = options.progress {
                let (phase, user) = (report.phase as i32, options.progress_user);
                // SAFETY: the header asks for a function that takes these on this thread.
                guard::callback(|| unsafe { progress(user, phase, report.done, report.total) });
            }
        };
        let model = Model::load(&engine, path, &read_options(&options)?, cancel.as_ref(), &mut progress)?;
        call.write(out, handle::hand_out(ModelObject::new(model))?);
        Ok(Code::Ok)
    };
    // SAFETY: the header asks for readable texts and options, and for outputs that are NULL or writable.
    unsafe { guard::fallible(out_error, [out.cast()], load) }
}

/// Tells what a model is.
///
/// Threads: any thread.
/// Ownership: `out` is yours; set its `struct_size` before the call. What its pointers lead to is
/// borrowed while you hold `model`.
/// Codes: OK, INVALID_ARGUMENT.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_model_info(
    model: *const mlxgen_model,
    out: *mut mlxgen_model_description,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for a struct of the size it says, and for a writable `out_error`.
    unsafe {
        guard::fallible(out_error, [], |call| {
            call.struct_size(out)?;
            let model = handle::get::<ModelObject>(model, "model")?;
            call.fill(out, &model.describe())?;
            Ok(Code::Ok)
        })
    }
}

/// Gives a model's own tokenizer.
///
/// Threads: any thread.
/// Ownership: `out` receives a handle that you release with mlxgen_tokenizer_release; it may outlive
/// the model.
/// Codes: OK, INVALID_ARGUMENT, NOT_FOUND (the model has none).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_model_tokenizer(
    model: *const mlxgen_model,
    out: *mut *mut mlxgen_tokenizer,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that the outputs are NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [out.cast()], |call| {
            call.required(out, "out")?;
            let model = handle::get::<ModelObject>(model, "model")?;
            let none = || Error::not_found("the model has no tokenizer").field("tokenizer");
            let tokenizer = model.model.tokenizer().ok_or_else(none)?;
            call.write(out, handle::hand_out(TokenizerObject(tokenizer))?);
            Ok(Code::Ok)
        })
    }
}

/// Adds a reference to a model.
///
/// Threads: any thread.
/// Ownership: gives back `model`, to be released once more; NULL if it is not alive.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_model_retain(model: *mut mlxgen_model) -> *mut mlxgen_model {
    guard::plain(std::ptr::null_mut(), || handle::retain::<ModelObject>(model))
}

/// Gives up a reference to a model; its memory is given back when its cache sets and streams have
/// ended too. NULL and a handle that is not alive are left alone.
///
/// Threads: any thread.
/// Ownership: takes your reference; what was borrowed from the model ends with the last one.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_model_release(model: *mut mlxgen_model) {
    guard::plain((), || handle::release::<ModelObject>(model));
}
