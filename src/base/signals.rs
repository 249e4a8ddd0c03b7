//! Signals belong to the host: no handler of its may run on a thread of ours, whose stack and
//! locks it does not know.

use std::mem::MaybeUninit;

/// What a thread does to itself. Held back they would end the process without the handler that a
/// host, or the run-time library, has for them.
const OF_THE_THREAD: [libc::c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS, libc::SIGABRT];

/// Runs `work` with all signals held back on this thread, except those of its own faults. A thread
/// started in `work` holds them back for ever: a new thread has the mask of the one that made it,
/// from its first instruction on.
pub fn held_back<T>(work: impl FnOnce() -> T) -> T {
    let _restored = Restored(hold_back());
    work()
}

/// Puts the mask back, also when `work` panics.
struct Restored(Option<libc::sigset_t>);

impl Drop for Restored {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            // SAFETY: `before` is a mask that the system gave; the old one is not asked for.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
        }
    }
}

/// The mask before; `None` if it could not be changed.
fn hold_back() -> Option<libc::sigset_t> {
    let (mut held, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    // SAFETY: `sigfillset` makes `held` a set, which the other calls may then change and read;
    // `before` is a set when `pthread_sigmask` has succeeded.
    unsafe {
        libc::sigfillset(held.as_mut_ptr());
        for signal in OF_THE_THREAD {
            libc::sigdelset(held.as_mut_ptr(), signal);
        }
        let status = libc::pthread_sigmask(libc::SIG_SETMASK, held.as_ptr(), before.as_mut_ptr());
        (status == 0).then(|| before.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_held(signal: libc::c_int) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: with no new mask the call only writes the present one.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn a_thread_started_inside_keeps_the_mask_and_this_one_does_not() {
        let inside = held_back(|| {
            assert!(is_held(libc::SIGUSR1));
            std::thread::spawn(|| [libc::SIGUSR1, libc::SIGTERM, libc::SIGSEGV].map(is_held))
        });
        assert_eq!(inside.join().unwrap(), [true, true, false]);
        assert!(!is_held(libc::SIGUSR1));
        let panicked = std::panic::catch_unwind(|| held_back(|| panic!("inside")));
        assert!(panicked.is_err() && !is_held(libc::SIGTERM));
    }
}
