//! The boundary of every call: panics end here, callbacks and forked children are refused here.

use std::cell::Cell;
use std::ffi::c_void;

use super::error::{self, mlxgen_error};
use super::handle;
use super::status::mlxgen_status;
use crate::base::{Code, Error, Result, panics};
use crate::engine;

/// Lets go of `user`: called exactly once, on any thread, when the library will not use `user`
/// any more. May be NULL. Like every callback it must return normally and may only signal.
pub type mlxgen_drop_callback = Option<unsafe extern "C" fn(user: *mut c_void)>;

thread_local! {
    // Constant and without destructor, so that it can be read while a thread ends.
    static CALLBACKS: Cell<u32> = const { Cell::new(0) };
}

/// A promise, made once for each call by the unsafe code that lets it in: all pointers given to
/// the exported function are as its header comment asks. Reading and writing through them
/// requires this value, and what is borrowed from them lives no longer than it.
pub(super) struct Call(());

impl Call {
    /// INVALID_ARGUMENT if the pointer is NULL.
    pub(super) fn required<T>(&self, pointer: *const T, field: &str) -> Result<()> {
        if pointer.is_null() {
            return Err(Error::invalid_argument(format!("{field} is NULL")).field(field));
        }
        Ok(())
    }

    /// Writes through an output pointer unless it is NULL.
    pub(super) fn write<T>(&self, out: *mut T, value: T) {
        if !out.is_null() {
            // SAFETY: by the promise of `Call`, an output pointer is NULL or valid for a write.
            unsafe { out.write(value) };
        }
    }
}

/// The boundary of a fallible function: clears the outputs, runs `body`, hands out its error.
///
/// # Safety
/// `out_error`, `outs` and all pointers that `body` passes to the methods of `Call` must be as
/// the header asks: NULL, or valid for what the comment says, until the function returns.
pub(super) unsafe fn fallible<const OUTS: usize>(
    out_error: *mut *mut mlxgen_error,
    outs: [*mut *mut c_void; OUTS],
    body: impl FnOnce(&Call) -> Result<Code>,
) -> mlxgen_status {
    let call = Call(());
    outs.into_iter().for_each(|out| call.write(out, std::ptr::null_mut()));
    call.write(out_error, std::ptr::null_mut());
    if engine::in_forked_child() {
        // Not even an error object: its table's lock may be held by a thread that is not here.
        return Code::WrongState as mlxgen_status;
    }
    let outcome = admit().and_then(|()| catch(|| body(&call)));
    if !in_callback() {
        let _ = catch(|| {
            handle::drop_deferred();
            Ok(())
        });
    }
    match outcome {
        Ok(code) => code as mlxgen_status,
        Err(error) => {
            let code = error.code();
            // Neither is a failure, and a poll must not have to release an error each time.
            if !matches!(code, Code::Done | Code::Timeout) && !out_error.is_null() {
                call.write(out_error, catch(|| error::hand_out(error)).unwrap_or(std::ptr::null_mut()));
            }
            code as mlxgen_status
        }
    }
}

/// The boundary of a function that cannot fail; in a forked child it answers `otherwise`.
///
/// # Safety
/// As for `fallible`.
pub(super) unsafe fn infallible<T>(otherwise: T, body: impl FnOnce(&Call) -> T) -> T {
    plain(otherwise, || body(&Call(())))
}

/// The same for a function that is given no pointers, only handles.
pub(super) fn plain<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    if engine::in_forked_child() {
        return otherwise;
    }
    catch(|| Ok(body())).unwrap_or(otherwise)
}

/// Whether this thread may work in the library now.
fn admit() -> Result<()> {
    engine::check_process()?;
    if in_callback() {
        return Err(Error::wrong_state("the library cannot be called from one of its callbacks"));
    }
    Ok(())
}

fn catch<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    panics::catch("a call of the library", body)
}

/// Whether this thread is inside a callback of the host's.
pub(super) fn in_callback() -> bool {
    CALLBACKS.get() > 0
}

/// Runs the host's code: what it calls in the library is refused until it returns.
pub(super) fn callback(body: impl FnOnce()) {
    struct Inside;
    impl Drop for Inside {
        fn drop(&mut self) {
            CALLBACKS.set(CALLBACKS.get() - 1);
        }
    }
    CALLBACKS.set(CALLBACKS.get() + 1);
    let _inside = Inside;
    body();
}

/// The host's `user` pointer with what lets go of it.
pub(super) struct UserData {
    user: *mut c_void,
    drop: mlxgen_drop_callback,
}

// SAFETY: the header says that `user` is passed on from any thread and dropped on any thread.
unsafe impl Send for UserData {}
// SAFETY: as above; the library itself never looks behind the pointer.
unsafe impl Sync for UserData {}

impl UserData {
    pub(super) fn new(user: *mut c_void, drop: mlxgen_drop_callback) -> Self {
        UserData { user, drop }
    }

    pub(super) fn user(&self) -> *mut c_void {
        self.user
    }
}

impl Drop for UserData {
    fn drop(&mut self) {
        if let Some(drop) = self.drop {
            // SAFETY: the header asks for a function that may be called once with `user`.
            callback(|| unsafe { drop(self.user) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::{mlxgen_error_message, mlxgen_error_release, mlxgen_error_status};
    use super::*;

    fn run(body: impl FnOnce(&Call) -> Result<Code>) -> (mlxgen_status, String) {
        let mut error = std::ptr::null_mut();
        // SAFETY: `error` is a valid place for the handle, and the calls get what they ask for.
        unsafe {
            let status = fallible(&mut error, [], body);
            if error.is_null() {
                return (status, String::new());
            }
            assert_eq!(mlxgen_error_status(error), status);
            let text = mlxgen_error_message(error, std::ptr::null_mut());
            let text = std::ffi::CStr::from_ptr(text).to_str().unwrap().to_owned();
            mlxgen_error_release(error);
            (status, text)
        }
    }

    #[test]
    fn a_panic_becomes_internal() {
        let (status, text) = run(|_| panic!("number {}", 7));
        assert_eq!(status, Code::Internal as i32);
        assert!(text.contains("number 7"), "{text}");
    }

    #[test]
    fn a_callback_may_not_call_back() {
        callback(|| {
            let (status, _) = run(|_| panic!("not reached"));
            assert_eq!(status, Code::WrongState as i32);
        });
        assert_eq!(run(|_| Ok(Code::Ok)), (0, String::new()));
    }

    #[test]
    fn done_and_timeout_bring_no_error() {
        assert_eq!(run(|_| Err(Error::timeout())), (Code::Timeout as i32, String::new()));
        assert_eq!(run(|_| Ok(Code::Done)), (Code::Done as i32, String::new()));
    }

    #[test]
    fn outputs_are_cleared_before_anything_else() {
        let mut out = std::ptr::dangling_mut::<c_void>();
        // SAFETY: `out` is a valid place for a pointer.
        let status = unsafe { fallible(std::ptr::null_mut(), [&mut out], |_| Err(Error::busy("taken"))) };
        assert_eq!(status, Code::Busy as i32);
        assert!(out.is_null());
    }
}
