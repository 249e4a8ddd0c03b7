//! The stream handle: one generation, pulled event by event.

use std::ffi::{c_char, c_void};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

use super::buffer::Plain;
use super::cache::mlxgen_cache;
use super::cancel::{self, mlxgen_cancel};
use super::error::mlxgen_error;
use super::event::{LastEvent, mlxgen_event};
use super::guard::{self, Call, UserData, mlxgen_drop_callback};
use super::handle::{self, object};
use super::library::milliseconds;
use super::model::{ModelObject, mlxgen_model};
use super::options::{self, flag, versioned};
use super::prompt::{mlxgen_prompt_part, read_prompt};
use super::status::mlxgen_status;
use crate::base::options::{GenerateOptions, Sampling};
use crate::base::{Code, Error, Result};
use crate::engine::{CacheSet, Stream};

/// One generation. Events are pulled with mlxgen_stream_next; a stream that is not pulled pauses.
/// Close or release it with mlxgen_stream_close and mlxgen_stream_release.
pub struct mlxgen_stream {
    _opaque: [u8; 0],
}

struct StreamObject {
    stream: Stream,
    /// What the caller's event points into; locked while a call pulls.
    last: Mutex<LastEvent>,
    wakeup: Mutex<Option<Arc<Wakeup>>>,
}

object!(
    StreamObject,
    mlxgen_stream,
    8,
    fn last_release(&self) {
        if let Err(error) = self.close() {
            ::log::warn!("cannot close a released stream: {error}");
        }
    }
);

impl StreamObject {
    fn close(&self) -> Result<()> {
        let outcome = self.stream.close();
        self.replace_wakeup(None);
        outcome
    }

    fn replace_wakeup(&self, wakeup: Option<Arc<Wakeup>>) {
        let old = std::mem::replace(&mut *self.wakeup.lock(), wakeup);
        if let Some(old) = old {
            old.stop();
        }
    }
}

/// Tells that an event is ready. Called on a thread of the library; it must return soon and
/// normally, must not wait for a thread that is in a call on the same stream, and may only signal.
pub type mlxgen_wakeup_callback = Option<unsafe extern "C" fn(user: *mut c_void)>;

/// The lock is held while the callback runs, so that `stop` returns when none does.
struct Wakeup(Mutex<Option<(unsafe extern "C" fn(*mut c_void), UserData)>>);

impl Wakeup {
    fn call(&self) {
        if let Some((callback, user)) = &*self.0.lock() {
            // SAFETY: the header asks for a function that takes `user` on any thread.
            guard::callback(|| unsafe { callback(user.user()) });
        }
    }

    fn stop(&self) {
        let stopped = self.0.lock().take();
        drop(stopped);
    }
}

/// A text: UTF-8, `size` bytes at `data`. This struct will never grow.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_text {
    pub data: *const c_char,
    pub size: usize,
}

/// How to generate. Set it up with mlxgen_generate_options_init.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_generate_options {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// 0 (the default): always the likeliest token. Greater: more random.
    pub temperature: f32,
    /// Sample among the likeliest tokens that have this share of the probability; 1 (the default):
    /// among all. 0 is the same as 1, as in mlx-lm: for the likeliest alone set `top_k` to 1.
    pub top_p: f32,
    /// Sample among the tokens that have this share of the likeliest one's probability; 0 (the
    /// default): among all.
    pub min_p: f32,
    /// Sample among that many of the likeliest tokens; 0 (the default): among all.
    pub top_k: u32,
    /// With `has_seed` 1: the same seed gives the same tokens.
    pub seed: u64,
    /// 0 (the default): a random seed.
    pub has_seed: i32,
    /// With `has_max_tokens` 1: most tokens to generate; with 0 tokens the prompt is read and
    /// nothing is generated.
    pub max_tokens: u64,
    /// 0 (the default): generate up to the context limit.
    pub has_max_tokens: i32,
    /// Texts that end the generation and are not part of the output.
    pub stop: *const mlxgen_text,
    pub stop_count: usize,
    /// Token ids that end the generation, besides the model's own.
    pub extra_eos: *const u32,
    pub extra_eos_count: usize,
    /// 1: the model's own end-of-sequence tokens do not end the generation. 0 is the default.
    pub ignore_eos: i32,
    /// 1: report the log-probability of each token. 0 is the default.
    pub logprobs: i32,
    /// With `logprobs` 1: report that many of the likeliest tokens too, at most 20.
    pub top_logprobs: u32,
    /// Ends the generation; may be NULL.
    pub cancel: *mut mlxgen_cancel,
}

impl Plain for mlxgen_text {}

versioned!(
    mlxgen_generate_options, "generate_options", 112,
    {
        temperature: 8, top_p: 12, min_p: 16, top_k: 20, seed: 24, has_seed: 32, max_tokens: 40,
        has_max_tokens: 48, stop: 56, stop_count: 64, extra_eos: 72, extra_eos_count: 80, ignore_eos: 88,
        logprobs: 92, top_logprobs: 96, cancel: 104
    },
    cancel: *mut mlxgen_cancel,
    mlxgen_generate_options {
        struct_size: 0,
        temperature: 0.0,
        top_p: 1.0,
        min_p: 0.0,
        top_k: 0,
        seed: 0,
        has_seed: 0,
        max_tokens: 0,
        has_max_tokens: 0,
        stop: std::ptr::null(),
        stop_count: 0,
        extra_eos: std::ptr::null(),
        extra_eos_count: 0,
        ignore_eos: 0,
        logprobs: 0,
        top_logprobs: 0,
        cancel: std::ptr::null_mut(),
    }
);

fn read_options(call: &Call, options: *const mlxgen_generate_options) -> Result<GenerateOptions> {
    let options = call.options(options)?;
    let texts = call.array(options.stop, options.stop_count, "stop")?;
    let mut stop = Vec::with_capacity(texts.len());
    for (index, text) in (0_u64..).zip(texts) {
        let text = call.text(text.data, text.size, "stop").map_err(|error| error.position(index))?;
        if text.is_empty() {
            return Err(Error::invalid_argument("a stop text is empty").field("stop").position(index));
        }
        stop.push(text.to_owned());
    }
    let seed = match flag(options.has_seed, "has_seed")? {
        true => options.seed,
        false => RandomState::new().build_hasher().finish(),
    };
    Ok(GenerateOptions {
        sampling: Sampling {
            temperature: options.temperature,
            top_p: options.top_p,
            min_p: options.min_p,
            top_k: options.top_k,
            seed,
        },
        max_tokens: flag(options.has_max_tokens, "has_max_tokens")?.then_some(options.max_tokens),
        stop,
        extra_eos: call.array(options.extra_eos, options.extra_eos_count, "extra_eos")?.to_vec(),
        ignore_eos: flag(options.ignore_eos, "ignore_eos")?,
        logprobs: flag(options.logprobs, "logprobs")?,
        top_logprobs: options.top_logprobs,
        cancel: cancel::share(options.cancel, "cancel")?,
    })
}

/// Sets options to their defaults. Pass `sizeof(mlxgen_generate_options)` as `struct_size`.
///
/// Threads: any thread.
/// Ownership: `struct_size` bytes at `options` are written.
/// Codes: OK, INVALID_ARGUMENT (`options` is NULL, or `struct_size` is not that of this struct in
/// any version).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_generate_options_init(
    options: *mut mlxgen_generate_options,
    struct_size: usize,
) -> mlxgen_status {
    // SAFETY: the header asks that `struct_size` bytes are writable.
    unsafe { options::init(options, struct_size) }
}

/// Starts a generation. The prompt is the whole conversation: what a given cache set already holds
/// of its beginning is not computed again, and what it holds beyond is cut off. NULL as `cache`
/// uses a set of the stream's own; NULL as `options` means the defaults.
///
/// Threads: any thread; the cache set is used alone.
/// Ownership: `parts`, what they point to and `options` are read during the call. The stream holds `cache` alone until
/// it is closed; then the set holds exactly the tokens that were read and generated, but for the
/// last one if that was not read again. `out` receives a handle that you release with
/// mlxgen_stream_release.
/// Codes: OK, INVALID_ARGUMENT (also for an empty prompt, for an id beyond the vocabulary, with its
/// position, and for embeddings of another width than the model's or without a key), UNSUPPORTED (a kind of part that this version does not know), OUT_OF_MEMORY,
/// CONTEXT_FULL (the prompt alone is too long), BUSY (the cache set is in use), WRONG_STATE (the
/// cache set has diverged from the prompt and cannot be cut: the error names the layer; suspended;
/// or after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_stream_open(
    model: *mut mlxgen_model,
    cache: *mut mlxgen_cache,
    parts: *const mlxgen_prompt_part,
    part_count: usize,
    options: *const mlxgen_generate_options,
    out: *mut *mut mlxgen_stream,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    let open = |call: &Call| {
        call.required(out, "out")?;
        let model = handle::get::<ModelObject>(model, "model")?;
        let cache = match cache.is_null() {
            true => None,
            false => Some(handle::get::<CacheSet>(cache, "cache")?),
        };
        let prompt = read_prompt(call, parts, part_count, model.model.info())?;
        let options = read_options(call, options)?;
        let stream = Stream::open(&model.model, cache.as_deref(), prompt, &options)?;
        let object = StreamObject { stream, last: Mutex::default(), wakeup: Mutex::new(None) };
        call.write(out, handle::hand_out(object)?);
        Ok(Code::Ok)
    };
    // SAFETY: the header asks for readable parts and options, and for outputs that are NULL or writable.
    unsafe { guard::fallible(out_error, [out.cast()], open) }
}

/// Waits up to `timeout_ms` for the next event. 0 only looks; MLXGEN_WAIT_FOREVER waits as long as
/// it takes. An error ends the generation: it is told once, and then comes DONE. A generation that
/// was cancelled, or has reached the context limit, is no error: its MLXGEN_EVENT_END says so.
///
/// Threads: one call at a time per handle: a second one gives BUSY. While it waits,
/// mlxgen_stream_close may be called on another thread; then it gives WRONG_STATE.
/// Ownership: `event` is yours; set its `struct_size` before the call. It is filled only with OK.
/// What its pointers lead to is borrowed until the next call on this stream.
/// Codes: OK, DONE (after the END event, or after an error), TIMEOUT, INVALID_ARGUMENT,
/// INVALID_MODEL (scores that are NaN or infinite, of which none can be chosen), OUT_OF_MEMORY, BUSY, WRONG_STATE (closed, or after mlxgen_shutdown), GPU_TIMEOUT,
/// GPU_NOT_PERMITTED.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_stream_next(
    stream: *mut mlxgen_stream,
    timeout_ms: u32,
    event: *mut mlxgen_event,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for a struct of the size it says, and for a writable `out_error`.
    unsafe {
        guard::fallible(out_error, [], |call| {
            call.struct_size_of(event, "event")?;
            let object = handle::get::<StreamObject>(stream, "stream")?;
            let busy = || Error::busy("another call is waiting for this stream's next event");
            let mut last = object.last.try_lock().ok_or_else(busy)?;
            match object.stream.next(milliseconds(timeout_ms))? {
                Some(next) => {
                    call.fill(event, &last.keep(next))?;
                    Ok(Code::Ok)
                }
                None => Ok(Code::Done),
            }
        })
    }
}

/// Has `wakeup` called when an event is ready for mlxgen_stream_next, in place of an earlier one;
/// NULL as `wakeup` ends that. If an event is ready already, it is called soon.
///
/// Threads: any thread. `wakeup` is called on a thread of the library; none is running any more
/// when mlxgen_stream_close has returned. In it every call of the library is refused with
/// MLXGEN_WRONG_STATE, except mlxgen_cancel_request and those whose comment allows callbacks.
/// Ownership: on success the library holds `user` until it calls `drop` (which may be NULL) with
/// it, exactly once: when the wake-up was replaced or the stream closed. Without `wakeup` that is at
/// once. On failure `user` stays yours and `drop` is not called.
/// Codes: OK, INVALID_ARGUMENT, WRONG_STATE (closed, or after mlxgen_shutdown).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_stream_set_wakeup(
    stream: *mut mlxgen_stream,
    wakeup: mlxgen_wakeup_callback,
    user: *mut c_void,
    drop: mlxgen_drop_callback,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that `out_error` is NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [], |_| {
            let object = handle::get::<StreamObject>(stream, "stream")?;
            let Some(callback) = wakeup else {
                object.stream.set_wakeup(None)?;
                object.replace_wakeup(None);
                std::mem::drop(UserData::new(user, drop));
                return Ok(Code::Ok);
            };
            let wakeup = Arc::new(Wakeup(Mutex::new(Some((callback, UserData::new(user, drop))))));
            let engines = wakeup.clone();
            object.stream.set_wakeup(Some(Box::new(move || engines.call()))).inspect_err(|_| {
                // The caller keeps what a failed call was given.
                std::mem::forget(wakeup.0.lock().take());
            })?;
            object.replace_wakeup(Some(wakeup));
            Ok(Code::Ok)
        })
    }
}

/// Ends a generation and waits until the engine has let go of it: within one group of layers. A
/// given cache set is then free again. Closing twice is the same as once.
///
/// Threads: any thread, also while mlxgen_stream_next waits on another.
/// Ownership: the handle is still to be released; views of the last event end.
/// Codes: OK, INVALID_ARGUMENT.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_stream_close(
    stream: *mut mlxgen_stream,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that `out_error` is NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [], |_| {
            handle::get::<StreamObject>(stream, "stream")?.close()?;
            Ok(Code::Ok)
        })
    }
}

/// Adds a reference to a stream.
///
/// Threads: any thread.
/// Ownership: gives back `stream`, to be released once more; NULL if it is not alive.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_stream_retain(stream: *mut mlxgen_stream) -> *mut mlxgen_stream {
    guard::plain(std::ptr::null_mut(), || handle::retain::<StreamObject>(stream))
}

/// Gives up a reference to a stream; the last one closes it, as mlxgen_stream_close does. NULL and
/// a handle that is not alive are left alone.
///
/// Threads: any thread.
/// Ownership: takes your reference; views of the last event end with it.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_stream_release(stream: *mut mlxgen_stream) {
    guard::plain((), || handle::release::<StreamObject>(stream));
}
