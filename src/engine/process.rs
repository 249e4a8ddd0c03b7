//! What the process goes through: start and exit. Forks: [`fork`](super::fork).
//!
//! At exit the owner thread is stopped before the back end's static objects are destroyed. Exit
//! handlers run in the reverse order of their registration, and static objects inside functions
//! register when they are first used. So the handler is registered again at each stage after which
//! new ones may exist; it does nothing the second time.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use super::fork::{self, in_forked_child};
use super::{os, owner};
use crate::base::{Error, Result, panics};

/// Longest time that an exit waits for work in progress.
const EXIT_BOUND: Duration = Duration::from_secs(2);

static EXITING: AtomicBool = AtomicBool::new(false);
static REGISTERED: AtomicU8 = AtomicU8::new(0);

/// After what the exit handler is registered again.
#[derive(Clone, Copy, Debug)]
pub enum ExitStage {
    Start = 1,
    Load = 2,
    Token = 4,
}

/// WRONG_STATE in a forked child and while the process exits.
pub fn check_process() -> Result<()> {
    fork::notice();
    if in_forked_child() {
        return Err(Error::wrong_state("the library cannot be used in a forked child process"));
    }
    if is_exiting() {
        return Err(Error::wrong_state("the process is exiting"));
    }
    Ok(())
}

/// Whether the process has begun to exit: the host's code can be gone already.
pub fn is_exiting() -> bool {
    EXITING.load(Ordering::Relaxed)
}

/// Registers the exit handler, once for each stage.
pub fn register_exit(stage: ExitStage) {
    let bit = stage as u8;
    if REGISTERED.load(Ordering::Relaxed) & bit == 0 && REGISTERED.fetch_or(bit, Ordering::Relaxed) & bit == 0
    {
        os::at_exit(exiting);
    }
}

extern "C" fn exiting() {
    // A callback that calls exit() on the owner thread cannot be waited for.
    if in_forked_child() || EXITING.swap(true, Ordering::Relaxed) || owner::on_owner_thread() {
        return;
    }
    panics::quietly("the exit of the process", || {
        // In time or not, the process goes on to end.
        let _late = owner::stop(EXIT_BOUND);
    });
}
