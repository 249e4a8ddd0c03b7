//! A panic becomes an error, silently.
//!
//! The default panic hook prints to standard error, which belongs to the host. So the first use
//! here puts a hook before it that keeps quiet for panics that will be caught here; other panics
//! of the process still reach the hook that was there.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

use super::{Error, Result};

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// `file:line` of the latest panic of this thread.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

static HOOK: Once = Once::new();

/// Runs `work`. A panic inside becomes INTERNAL, naming `what` and where it happened.
///
/// What `work` was changing may be half changed afterwards: the caller has to put it right or let
/// nobody use it again.
pub fn catch<T>(what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // A hook cannot be set by a thread that is unwinding.
    if !std::thread::panicking() {
        HOOK.call_once(install);
    }
    // While the thread is being torn down its locals are gone; then panics are caught, not silenced.
    let _ = DEPTH.try_with(|depth| depth.set(depth.get() + 1));
    let outcome = panic::catch_unwind(AssertUnwindSafe(work));
    let _ = DEPTH.try_with(|depth| depth.set(depth.get().saturating_sub(1)));
    outcome.unwrap_or_else(|payload| Err(error(what, payload)))
}

/// As [`catch`] for work without a result, such as a drop: true if it did not panic.
pub fn quietly(what: &str, work: impl FnOnce()) -> bool {
    match catch(what, || {
        work();
        Ok(())
    }) {
        Ok(()) => true,
        Err(error) => {
            log::error!("{error}");
            false
        }
    }
}

fn install() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        if DEPTH.try_with(Cell::get).unwrap_or(0) == 0 {
            before(info);
            return;
        }
        let place = info.location().map(|place| format!("{}:{}", place.file(), place.line()));
        let _ = PLACE.try_with(|slot| {
            if let Ok(mut slot) = slot.try_borrow_mut() {
                *slot = place;
            }
        });
    }));
}

fn error(what: &str, payload: Box<dyn Any + Send>) -> Error {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let text = text.unwrap_or("no reason given").to_owned();
    // A payload's own drop may panic again; such a payload is leaked.
    if let Err(second) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
    let place = PLACE.try_with(|slot| slot.take()).ok().flatten();
    let place = place.map(|place| format!(" ({place})")).unwrap_or_default();
    Error::internal(format!("panic in {what}: {text}{place}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Code;

    #[test]
    fn a_panic_names_its_place() {
        let error = catch::<()>("a test", || panic!("number {}", 7)).unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert!(error.message().contains("panic in a test: number 7"), "{error}");
        assert!(error.message().contains("panics.rs:"), "{error}");
    }

    #[test]
    fn results_pass_and_nesting_counts() {
        assert_eq!(catch("outer", || Ok(1)).unwrap(), 1);
        let inner = catch("outer", || catch::<u8>("inner", || panic!("x"))).unwrap_err();
        assert!(inner.message().contains("inner"));
        assert!(!quietly("drop", || panic!("y")));
        assert_eq!(DEPTH.with(Cell::get), 0);
    }

    #[test]
    fn a_payload_whose_drop_panics_is_survived() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("second");
            }
        }
        let error = catch::<()>("a test", || panic::panic_any(Bomb)).unwrap_err();
        assert!(error.message().contains("no reason given"), "{error}");
    }
}
