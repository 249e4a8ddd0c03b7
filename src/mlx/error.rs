//! The error slot: every failure of MLX becomes a `base::Error` of the thread that called.
//!
//! mlx-c reports through one process-wide handler, whose default prints and ends the process.
//! Ours is installed before the first MLX call and keeps the text in the calling thread; the
//! return code, which every wrapper checks, says when to take it.

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Once;

use mlx_sys as sys;

use crate::base::{Code, Error, Result};

thread_local! {
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Installs the handler, looks after the BLAS and switches off compilation, which on the CPU would start a C++
/// compiler. Cheap after the first time; everything that can be the first MLX call goes through it.
pub(super) fn init() {
    static INIT: Once = Once::new();
    INIT.call_once(|| {
        // SAFETY: the handler is a plain function without data, valid for the whole process.
        unsafe { sys::mlx_set_error_handler(Some(keep_message), ptr::null_mut(), None) };
        super::blas::init();
        // SAFETY: takes no argument; the handler above is in place for its errors.
        unsafe { sys::mlx_disable_compile() };
    });
}

/// Called by mlx-c on the thread whose call failed. Must not unwind.
unsafe extern "C" fn keep_message(message: *const c_char, _data: *mut c_void) {
    if message.is_null() {
        return;
    }
    // SAFETY: mlx-c passes a NUL-terminated string that lives until the handler returns.
    let text = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    let text = without_origin(&text).to_owned();
    // A thread that is being torn down has no slot any more; nobody will ask for the text there.
    let _ = MESSAGE.try_with(|slot| slot.try_borrow_mut().map(|mut slot| *slot = Some(text)));
}

/// mlx-c appends ` at <path of its source>:<line>`, which means nothing to a user.
fn without_origin(text: &str) -> &str {
    match text.rfind(" at ") {
        Some(at) => {
            let origin = &text[at + 4..];
            let is_source = origin.rsplit_once(':').is_some_and(|(file, line)| {
                file.ends_with(".cpp") && line.bytes().all(|byte| byte.is_ascii_digit())
            });
            if is_source { &text[..at] } else { text }
        }
        None => text,
    }
}

/// The result of a call that returned `code`.
pub(super) fn check(code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(take()) }
}

/// The error of the last failed call of this thread.
#[cold]
pub(super) fn take() -> Error {
    let text = MESSAGE.with(|slot| slot.borrow_mut().take());
    let text = text.unwrap_or_else(|| "MLX reported a failure without a message".to_owned());
    Error::new(code_of(&text), text)
}

/// MLX throws untyped exceptions; what a host has to tell apart is in their texts.
fn code_of(text: &str) -> Code {
    const RULES: [(&str, Code); 7] = [
        ("std::bad_alloc", Code::OutOfMemory),
        ("Unable to allocate", Code::OutOfMemory),
        ("CallbackErrorOutOfMemory", Code::OutOfMemory),
        ("Insufficient Memory", Code::OutOfMemory),
        ("BackgroundExecutionNotPermitted", Code::GpuNotPermitted),
        ("CallbackErrorTimeout", Code::GpuTimeout),
        ("ImpactingInteractivity", Code::GpuTimeout),
    ];
    RULES.iter().find(|(part, _)| text.contains(part)).map_or(Code::Internal, |(_, code)| *code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_follow_from_the_texts_of_mlx() {
        let timeout = "[METAL] Command buffer execution failed: Caused GPU Timeout Error \
                       (00000002:kIOGPUCommandBufferCallbackErrorTimeout)";
        assert_eq!(code_of(timeout), Code::GpuTimeout);
        let background = "[METAL] Command buffer execution failed: Insufficient Permission (to submit GPU \
                          work from background) \
                          (00000006:kIOGPUCommandBufferCallbackErrorBackgroundExecutionNotPermitted)";
        assert_eq!(code_of(background), Code::GpuNotPermitted);
        assert_eq!(code_of("[metal::malloc] Unable to allocate 12 bytes."), Code::OutOfMemory);
        assert_eq!(code_of("std::bad_alloc"), Code::OutOfMemory);
        assert_eq!(code_of("[reshape] Cannot reshape"), Code::Internal);
    }

    #[test]
    fn the_place_in_the_binding_is_cut_off() {
        assert_eq!(without_origin("[matmul] bad at /x/mlx/c/ops.cpp:12"), "[matmul] bad");
        assert_eq!(without_origin("bad value at axis 2"), "bad value at axis 2");
    }
}
