//! The cache set handle: what a model keeps of the tokens it has read.

use std::ffi::c_char;
use std::sync::Arc;

use serde_json::Value;

use super::buffer::{self, mlxgen_buffer};
use super::cancel::{self, mlxgen_cancel};
use super::error::mlxgen_error;
use super::guard::{self, Call};
use super::handle::{self, object};
use super::model::{ModelObject, mlxgen_model};
use super::options::{self, choice, flag, versioned};
use super::prompt::{check_prompt_size, mlxgen_prompt_part, read_prompt};
use super::status::mlxgen_status;
use crate::base::info::LayerCacheInfo;
use crate::base::kv_config::{check_kv_config_size, parse_kv_config};
use crate::base::options::{
    AffineGroups, AffineLayers, AffineOptions, CacheOptions, KvType, PageOptions, TurboQuantOptions,
    WindowOptions,
};
use crate::base::{Code, Error, Result};
use crate::engine::CacheSet;

/// What a model keeps of the tokens it has read, so that they are not computed again. One call at
/// a time; a stream that was given it holds it until it is closed. Release it with
/// mlxgen_cache_release.
pub struct mlxgen_cache {
    _opaque: [u8; 0],
}

object!(CacheSet, mlxgen_cache, 7);

/// float16 where the library's own kernels compute (Linux, MLXGEN_NUMERICS_FAST, compute type float32); else the
/// model's compute type, which is then the only one that can be asked for.
pub const MLXGEN_KV_AUTO: i32 = 0;
/// float32.
pub const MLXGEN_KV_FLOAT32: i32 = 1;
/// float16.
pub const MLXGEN_KV_FLOAT16: i32 = 2;
/// bfloat16.
pub const MLXGEN_KV_BFLOAT16: i32 = 3;

/// How to make a cache set. Set it up with mlxgen_cache_options_init.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_cache_options {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// Most tokens; 0: the model's context limit.
    pub capacity: u64,
    /// One of the MLXGEN_KV_ numbers.
    pub kv_type: i32,
    /// Keys and values in affine groups of 4 or 8 bits each; 0: as they are.
    pub kv_bits: u32,
    /// Tokens from which on keys and values are reduced, those before too; -1: 0 for kv_config and TurboQuant, else
    /// 5000, as in mlx-lm.
    pub kv_start: i64,
    /// Elements that share a scale: 32, 64 or 128; 0: 64.
    pub kv_group: u32,
    /// TurboQuant for keys: 2, 4, 5 or 8 bits; 0: off. It needs heads of 64, 128, 256 or 512 elements and wins over
    /// kv_bits and kv_config. Layers with a window stay as they are.
    pub turboquant_key_bits: u32,
    /// TurboQuant for values: 2, 3, 4, 5 or 8 bits. Set both or none.
    pub turboquant_value_bits: u32,
    /// 1: attention reads TurboQuant's values rotated and rotates its result back, which is faster and not the same to
    /// the last bit. The library's own kernels always do.
    pub turboquant_deferred: i32,
    /// Affine groups layer by layer: the text of a kv_config.json, a list of
    /// {"layer_idx": …, "bits": …, "group_size": …}. It wins over kv_bits. May be NULL.
    pub kv_config: *const c_char,
    /// Bytes of kv_config.
    pub kv_config_size: usize,
    /// Layers without a window of their own keep that many tokens only: the first window_keep and the latest; 0: all.
    pub window: u64,
    /// The default is 4.
    pub window_keep: u64,
    /// Keys and values in pages of that many tokens, which the set and its forks take from one pool; 0: no pages. The
    /// library's own kernels need a multiple of 16.
    pub page_tokens: u32,
    /// Zero.
    pub reserved: i32,
    /// Most tokens in the pages of the set and its forks together; 0: as many as the engine's memory takes.
    pub page_capacity: u64,
}

versioned!(
    mlxgen_cache_options, "cache_options", 16,
    {
        capacity: 8, kv_type: 16, kv_bits: 20, kv_start: 24, kv_group: 32, turboquant_key_bits: 36,
        turboquant_value_bits: 40, turboquant_deferred: 44, kv_config: 48, kv_config_size: 56, window: 64,
        window_keep: 72, page_tokens: 80, reserved: 84, page_capacity: 88
    },
    page_capacity: u64,
    mlxgen_cache_options {
        struct_size: 0,
        capacity: 0,
        kv_type: MLXGEN_KV_AUTO,
        kv_bits: 0,
        kv_start: -1,
        kv_group: 0,
        turboquant_key_bits: 0,
        turboquant_value_bits: 0,
        turboquant_deferred: 0,
        kv_config: std::ptr::null(),
        kv_config_size: 0,
        window: 0,
        window_keep: 4,
        page_tokens: 0,
        reserved: 0,
        page_capacity: 0,
    }
);

/// What a cache set holds. Set it up with mlxgen_cache_description_init.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_cache_description {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// Tokens held.
    pub tokens: u64,
    /// Most tokens.
    pub capacity: u64,
    /// Bytes occupied or granted, those that forks share included, as of the last change of this set.
    pub bytes: u64,
    /// Layers that keep something.
    pub layers: u32,
    /// 1 if mlxgen_cache_truncate can cut the latest token from every layer now, else 0. See "trimmable" of
    /// mlxgen_cache_info for how many more.
    pub trimmable: i32,
}

versioned!(
    mlxgen_cache_description, "cache_description", 40,
    { tokens: 8, capacity: 16, bytes: 24, layers: 32, trimmable: 36 },
    trimmable: i32,
    mlxgen_cache_description { struct_size: 0, tokens: 0, capacity: 0, bytes: 0, layers: 0, trimmable: 0 }
);

pub(super) fn read_options(call: &Call, options: &mlxgen_cache_options) -> Result<CacheOptions> {
    let types = [
        (MLXGEN_KV_AUTO, KvType::Auto),
        (MLXGEN_KV_FLOAT32, KvType::Float32),
        (MLXGEN_KV_FLOAT16, KvType::Float16),
        (MLXGEN_KV_BFLOAT16, KvType::Bfloat16),
    ];
    choice(options.reserved, "reserved", &[(0, ())])?;
    let start = match options.kv_start {
        -1 => None,
        start => Some(u64::try_from(start).map_err(|_| {
            Error::invalid_argument(format!("kv_start is {start}; it can be -1 or a number of tokens"))
                .field("kv_start")
        })?),
    };
    Ok(CacheOptions {
        capacity: options.capacity,
        kv_type: choice(options.kv_type, "kv_type", &types)?,
        affine: read_affine(call, options)?.map(|layers| AffineOptions { layers, start }),
        turboquant: read_turboquant(options, start.unwrap_or(0))?,
        window: (options.window > 0)
            .then_some(WindowOptions { tokens: options.window, keep: options.window_keep }),
        pages: read_pages(options)?,
    })
}

fn read_affine(call: &Call, options: &mlxgen_cache_options) -> Result<Option<AffineLayers>> {
    if !options.kv_config.is_null() || options.kv_config_size > 0 {
        check_kv_config_size(options.kv_config_size)?;
        let text = call.text(options.kv_config, options.kv_config_size, "kv_config")?;
        return parse_kv_config(text).map(Some);
    }
    let group = if options.kv_group == 0 { AffineGroups::DEFAULT_GROUP } else { options.kv_group };
    let groups = AffineGroups { bits: options.kv_bits, group };
    if options.kv_bits == 0 {
        return Ok(None);
    }
    groups.validate()?;
    Ok(Some(AffineLayers::Uniform(groups)))
}

fn read_turboquant(options: &mlxgen_cache_options, start: u64) -> Result<Option<TurboQuantOptions>> {
    let (key_bits, value_bits) = (options.turboquant_key_bits, options.turboquant_value_bits);
    let deferred = flag(options.turboquant_deferred, "turboquant_deferred")?;
    if (key_bits, value_bits) == (0, 0) {
        return Ok(None);
    }
    let options = TurboQuantOptions { key_bits, value_bits, start, deferred };
    options.validate()?;
    Ok(Some(options))
}

fn read_pages(options: &mlxgen_cache_options) -> Result<Option<PageOptions>> {
    if options.page_tokens == 0 {
        let text = "page_capacity is set without page_tokens";
        return match options.page_capacity {
            0 => Ok(None),
            _ => Err(Error::invalid_argument(text).field("page_capacity")),
        };
    }
    Ok(Some(PageOptions { tokens: options.page_tokens, capacity: options.page_capacity }))
}

fn get(cache: *const mlxgen_cache) -> Result<Arc<CacheSet>> {
    handle::get::<CacheSet>(cache, "cache")
}

/// Sets options to their defaults. Pass `sizeof(mlxgen_cache_options)` as `struct_size`.
///
/// Threads: any thread.
/// Ownership: `struct_size` bytes at `options` are written.
/// Codes: OK, INVALID_ARGUMENT (`options` is NULL, or `struct_size` is not that of this struct in
/// any version).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_options_init(
    options: *mut mlxgen_cache_options,
    struct_size: usize,
) -> mlxgen_status {
    // SAFETY: the header asks that `struct_size` bytes are writable.
    unsafe { options::init(options, struct_size) }
}

/// Clears a cache description. Pass `sizeof(mlxgen_cache_description)` as `struct_size`.
///
/// Threads: any thread.
/// Ownership: `struct_size` bytes at `description` are written.
/// Codes: OK, INVALID_ARGUMENT (`description` is NULL, or `struct_size` is not that of this struct
/// in any version).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_description_init(
    description: *mut mlxgen_cache_description,
    struct_size: usize,
) -> mlxgen_status {
    // SAFETY: the header asks that `struct_size` bytes are writable.
    unsafe { options::init(description, struct_size) }
}

/// Makes an empty cache set for a model. NULL as `options` means the defaults.
///
/// Threads: any thread.
/// Ownership: `options` is read during the call. `out` receives a handle that you release with
/// mlxgen_cache_release.
/// Codes: OK, INVALID_ARGUMENT (an option without a meaning, or two that exclude each other: the error names it, and
/// the layer where one is the reason), UNSUPPORTED (keys and values of another type than the model computes with, where
/// no kernels of the library's own compute; heads that the options cannot take), OUT_OF_MEMORY, WRONG_STATE (suspended,
/// or after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_new(
    model: *mut mlxgen_model,
    options: *const mlxgen_cache_options,
    out: *mut *mut mlxgen_cache,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for readable options, and for outputs that are NULL or writable.
    unsafe {
        guard::fallible(out_error, [out.cast()], |call| {
            call.required(out, "out")?;
            let model = handle::get::<ModelObject>(model, "model")?;
            let options = read_options(call, &call.options(options)?)?;
            call.write(out, handle::hand_out(CacheSet::new(&model.model, &options)?)?);
            Ok(Code::Ok)
        })
    }
}

/// Reads tokens into a cache set. Afterwards mlxgen_cache_logits gives the scores for the token
/// after the last. A call that is cancelled, or fails in its work, keeps whole chunks of the
/// tokens: mlxgen_cache_token_count tells. One that is refused before has added nothing.
///
/// Threads: one call at a time per handle: a second one gives BUSY.
/// Ownership: `tokens` is read during the call. `cancel` may be NULL; nothing changes hands.
/// Codes: OK, CANCELLED, INVALID_ARGUMENT (also for no tokens, and for an id beyond the vocabulary,
/// with its position), OUT_OF_MEMORY, CONTEXT_FULL, BUSY (also while a stream holds the set),
/// WRONG_STATE (suspended, or after mlxgen_shutdown), GPU_TIMEOUT, GPU_NOT_PERMITTED.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_append(
    cache: *mut mlxgen_cache,
    tokens: *const u32,
    count: usize,
    cancel: *mut mlxgen_cancel,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for `count` readable ids and for a writable `out_error`.
    unsafe {
        guard::fallible(out_error, [], |call| {
            let cache = get(cache)?;
            let tokens = call.array(tokens, count, "tokens")?;
            check_prompt_size(0, tokens.len(), cache.model().info())?;
            let cancel = cancel::share(cancel, "cancel")?;
            cache.append(tokens, cancel.as_ref())?;
            Ok(Code::Ok)
        })
    }
}

/// As mlxgen_cache_append for tokens and embeddings, in parts.
///
/// Threads: one call at a time per handle: a second one gives BUSY.
/// Ownership: `parts` and what they point to are read during the call. `cancel` may be NULL; nothing changes hands.
/// Codes: OK, CANCELLED, INVALID_ARGUMENT (also for no tokens, for an id beyond the vocabulary, with its position, and
/// for embeddings of another width than the model's or without a key), UNSUPPORTED (a kind of part that this version
/// does not know), OUT_OF_MEMORY, CONTEXT_FULL, BUSY (also while a stream holds the set), WRONG_STATE (suspended, or
/// after mlxgen_shutdown), GPU_TIMEOUT, GPU_NOT_PERMITTED.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_append_parts(
    cache: *mut mlxgen_cache,
    parts: *const mlxgen_prompt_part,
    part_count: usize,
    cancel: *mut mlxgen_cancel,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for readable parts and for a writable `out_error`.
    unsafe {
        guard::fallible(out_error, [], |call| {
            let cache = get(cache)?;
            let prompt = read_prompt(call, parts, part_count, cache.model().info())?;
            let cancel = cancel::share(cancel, "cancel")?;
            cache.append(prompt, cancel.as_ref())?;
            Ok(Code::Ok)
        })
    }
}

/// Gives the model's scores for the token after the last one, of the call of mlxgen_cache_append
/// that came last.
///
/// Threads: one call at a time per handle: a second one gives BUSY.
/// Ownership: `out` receives a buffer of float, one for each token id of the vocabulary, that you
/// release with mlxgen_buffer_release.
/// Codes: OK, INVALID_ARGUMENT, BUSY (also while a stream holds the set), WRONG_STATE (the last
/// change of the set was not a successful append; or after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_logits(
    cache: *mut mlxgen_cache,
    out: *mut *mut mlxgen_buffer,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that the outputs are NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [out.cast()], |call| {
            call.required(out, "out")?;
            let cache = get(cache)?;
            call.write(out, buffer::numbers(cache.logits()?)?);
            Ok(Code::Ok)
        })
    }
}

/// Counts the tokens that a cache set holds. While a stream holds the set, these are the tokens
/// committed so far: the chunks of the prompt that were finished, then the generated tokens except
/// the latest. An ending EOS counts as generated, so after it the set holds what was delivered.
///
/// Threads: any thread.
/// Ownership: `out` receives the count.
/// Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_token_count(
    cache: *const mlxgen_cache,
    out: *mut usize,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that the outputs are NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [], |call| {
            call.required(out, "out")?;
            call.write(out, get(cache)?.token_count()?);
            Ok(Code::Ok)
        })
    }
}

/// Gives the tokens that a cache set holds, with UINT32_MAX in the place of each row of embeddings. While a stream holds the set, these are the tokens
/// committed so far.
///
/// Threads: any thread.
/// Ownership: `out` receives a buffer of uint32_t that you release with mlxgen_buffer_release.
/// Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_tokens(
    cache: *const mlxgen_cache,
    out: *mut *mut mlxgen_buffer,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that the outputs are NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [out.cast()], |call| {
            call.required(out, "out")?;
            call.write(out, buffer::tokens(get(cache)?.tokens()?)?);
            Ok(Code::Ok)
        })
    }
}

/// Forgets all but the first `keep` tokens.
///
/// Threads: one call at a time per handle: a second one gives BUSY.
/// Ownership: `out_dropped` receives the number of tokens forgotten, and may be NULL.
/// Codes: OK, INVALID_ARGUMENT (also if the set holds fewer than `keep`), BUSY (also while a stream
/// holds the set), WRONG_STATE (a layer cannot be cut there, or was reduced in precision when it held more: the error
/// names it, and nothing has changed; suspended; or after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_truncate(
    cache: *mut mlxgen_cache,
    keep: usize,
    out_dropped: *mut usize,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that the outputs are NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [], |call| {
            let cache = get(cache)?;
            call.write(out_dropped, cache.truncate(keep)?);
            Ok(Code::Ok)
        })
    }
}

/// Makes an independent cache set that holds the same tokens.
///
/// Threads: one call at a time per handle: a second one gives BUSY.
/// Ownership: `out` receives a handle that you release with mlxgen_cache_release.
/// Codes: OK, INVALID_ARGUMENT, OUT_OF_MEMORY, BUSY (also while a stream holds the set), WRONG_STATE
/// (suspended, or after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_fork(
    cache: *mut mlxgen_cache,
    out: *mut *mut mlxgen_cache,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that the outputs are NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [out.cast()], |call| {
            call.required(out, "out")?;
            let cache = get(cache)?;
            call.write(out, handle::hand_out(cache.fork()?)?);
            Ok(Code::Ok)
        })
    }
}

/// Tells what a cache set holds, and if wanted each layer's part as JSON: an array of objects, one
/// for each layer that keeps something, in their order, with
/// "signature": the kind of storage, such as "kv:plain";
/// "offset": the tokens that the layer has read;
/// "bytes": what it occupies;
/// "shared_bytes": how many of these forks of the set hold too;
/// "trimmable": true if its latest token can be forgotten now. So can then all the others, but not
/// in a layer that keeps a window and has given up tokens: there the 64 that were read last can go
/// under MLXGEN_NUMERICS_FAST on Linux, and none elsewhere. mlxgen_cache_truncate cuts all or none;
/// "minimum_reusable_offset": the shortest prefix, in tokens, for which what the layer keeps is good;
/// above 0 where older tokens were reduced in precision after the fact (kv_start).
/// While a stream holds the set, this is the state last committed.
///
/// Threads: any thread.
/// Ownership: `out` is yours; set its `struct_size` before the call. `out_layers_json` receives a
/// text buffer that you release with mlxgen_buffer_release, and may be NULL.
/// Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_info(
    cache: *const mlxgen_cache,
    out: *mut mlxgen_cache_description,
    out_layers_json: *mut *mut mlxgen_buffer,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for a struct of the size it says, and for outputs that are NULL or writable.
    unsafe {
        guard::fallible(out_error, [out_layers_json.cast()], |call| {
            call.struct_size(out)?;
            let info = get(cache)?.info()?;
            if !out_layers_json.is_null() {
                let layers = Value::Array(info.layers.iter().map(layer_json).collect());
                call.write(out_layers_json, buffer::text(layers.to_string())?);
            }
            let description = mlxgen_cache_description {
                struct_size: 0,
                tokens: info.tokens,
                capacity: info.capacity,
                bytes: info.bytes,
                layers: info.layers.len() as u32,
                trimmable: i32::from(info.layers.iter().all(|layer| layer.trimmable)),
            };
            call.fill(out, &description)?;
            Ok(Code::Ok)
        })
    }
}

fn layer_json(layer: &LayerCacheInfo) -> Value {
    let LayerCacheInfo { signature, offset, bytes, shared_bytes, minimum_reusable_offset, trimmable } = layer;
    serde_json::json!({
        "signature": signature,
        "offset": offset,
        "bytes": bytes,
        "shared_bytes": shared_bytes,
        "minimum_reusable_offset": minimum_reusable_offset,
        "trimmable": trimmable,
    })
}

/// Adds a reference to a cache set.
///
/// Threads: any thread.
/// Ownership: gives back `cache`, to be released once more; NULL if it is not alive.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_retain(cache: *mut mlxgen_cache) -> *mut mlxgen_cache {
    guard::plain(std::ptr::null_mut(), || handle::retain::<CacheSet>(cache))
}

/// Gives up a reference to a cache set. Its memory is given back when no stream holds it, soon after
/// this call: mlxgen_engine_memory may still count it then. NULL and a handle that is not alive are
/// left alone.
///
/// Threads: any thread.
/// Ownership: takes your reference.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cache_release(cache: *mut mlxgen_cache) {
    guard::plain((), || handle::release::<CacheSet>(cache));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_of_a_layer_is_documented() {
        let header = include_str!("../../include/mlxgen.h");
        let comment = header.split("mlxgen_status mlxgen_cache_info(").next().unwrap();
        let comment = &comment[comment.rfind("/**").unwrap()..];
        let layer = layer_json(&LayerCacheInfo::default());
        let keys: Vec<&String> = layer.as_object().unwrap().keys().collect();
        assert!(keys.len() > 5);
        for key in keys {
            assert!(comment.contains(&format!("\"{key}\":")), "{key}");
        }
    }
}
