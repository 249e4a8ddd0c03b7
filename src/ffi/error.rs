//! The error object, and how it is handed out.

use std::ffi::{CString, c_char};

use super::guard::{self, Call};
use super::handle::{self, object};
use super::status::{MLXGEN_INVALID_ARGUMENT, mlxgen_status};
use crate::base::{Error, Result};

/// What a failed call tells: a status, a sentence for people, and where the fault lies.
/// Immutable; any thread. Release it with mlxgen_error_release.
pub struct mlxgen_error {
    _opaque: [u8; 0],
}

pub(super) struct ErrorObject {
    status: mlxgen_status,
    message: CString,
    detail: CString,
}

object!(ErrorObject, mlxgen_error, 1);

pub(super) fn hand_out(error: Error) -> Result<*mut mlxgen_error> {
    let detail = serde_json::to_string(error.detail())
        .map_err(|fault| Error::internal(format!("cannot write an error's detail: {fault}")))?;
    handle::hand_out(ErrorObject {
        status: error.code() as mlxgen_status,
        message: c_text(error.message()),
        detail: c_text(&detail),
    })
}

/// A copy with a terminator; a NUL inside, which C could not see past, becomes a replacement
/// character.
pub(super) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// Gives an error's status.
///
/// Threads: any thread.
/// Ownership: nothing changes hands.
/// Codes: none; MLXGEN_INVALID_ARGUMENT for a handle that is not alive.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_error_status(error: *const mlxgen_error) -> mlxgen_status {
    guard::plain(MLXGEN_INVALID_ARGUMENT, || {
        handle::find::<ErrorObject>(error).map_or(MLXGEN_INVALID_ARGUMENT, |error| error.status)
    })
}

unsafe fn borrowed(
    error: *const mlxgen_error,
    out_size: *mut usize,
    part: impl FnOnce(&ErrorObject) -> &CString,
) -> *const c_char {
    let answer = |call: &Call| {
        let object = handle::find::<ErrorObject>(error);
        let text = object.as_deref().map_or(c"", |object| part(object).as_c_str());
        call.write(out_size, text.to_bytes().len());
        text.as_ptr()
    };
    // SAFETY: by the caller's promise `out_size` is NULL or valid for a write. The text stays in
    // place while the caller holds its handle.
    unsafe { guard::infallible(c"".as_ptr(), answer) }
}

/// Gives an error's sentence for people: UTF-8, NUL-terminated, never NULL.
///
/// Threads: any thread.
/// Ownership: the text is borrowed until you release `error`; for a handle that is not alive it is
/// the empty text. `out_size` receives its size in bytes without the NUL, and may be NULL.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_error_message(
    error: *const mlxgen_error,
    out_size: *mut usize,
) -> *const c_char {
    // SAFETY: the header asks that `out_size` is NULL or valid for a write.
    unsafe { borrowed(error, out_size, |object| &object.message) }
}

/// Gives where the fault lies, as a JSON object with those of the keys "file", "tensor", "field"
/// and "position" that are known. "field" is the name of a parameter, of a struct's member or of a
/// configuration key: with INVALID_ARGUMENT always one of the first two. "position" counts from 0:
/// with "file": bytes of the file; if "field" is a list in it (such as "tokenizer.ggml.tokens"), its
/// elements;
/// with INVALID_ARGUMENT: bytes of a text (not UTF-8, a NUL in a path, not JSON) or of a struct
/// (newer than the library); elements of an array or of a JSON list; for "tokens" and "embeddings"
/// of a prompt of parts, the tokens of the whole prompt;
/// with an option of mlxgen_cache_options (such as "kv_config"), and with "layer" of WRONG_STATE:
/// layers, as mlxgen_cache_info lists them;
/// with CONTEXT_FULL it is the number of tokens that there is room for.
///
/// Threads: any thread.
/// Ownership: the text is borrowed until you release `error`; for a handle that is not alive it is
/// the empty text. `out_size` receives its size in bytes without the NUL, and may be NULL.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_error_detail(
    error: *const mlxgen_error,
    out_size: *mut usize,
) -> *const c_char {
    // SAFETY: the header asks that `out_size` is NULL or valid for a write.
    unsafe { borrowed(error, out_size, |object| &object.detail) }
}

/// Adds a reference to an error.
///
/// Threads: any thread.
/// Ownership: gives back `error`, to be released once more; NULL if it is not alive.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_error_retain(error: *mut mlxgen_error) -> *mut mlxgen_error {
    guard::plain(std::ptr::null_mut(), || handle::retain::<ErrorObject>(error))
}

/// Gives up a reference to an error; the last one ends it. NULL and a handle that is not alive
/// are left alone.
///
/// Threads: any thread.
/// Ownership: takes your reference; texts borrowed from the error end with it.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_error_release(error: *mut mlxgen_error) {
    guard::plain((), || handle::release::<ErrorObject>(error));
}
