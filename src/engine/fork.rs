//! Forks of the process while the owner thread works.
//!
//! A child has none of our threads and possibly locks that nobody will ever release, so every call
//! there is refused and every release does nothing. The parent's fork is made while nothing runs:
//! a BLAS ends its threads before a fork, and some hang when it happens in the middle of a product.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Once, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::gate::Gate;
use super::{os, owner};
use crate::base::{CancelToken, Result, panics};

/// Longest time that a fork waits for work in progress.
const FORK_BOUND: Duration = Duration::from_secs(2);

/// Not for longer at once: the owner thread may rest, or end instead.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

static FORKED: AtomicBool = AtomicBool::new(false);
/// Shut while a fork is made.
static GATE: OnceLock<Gate> = OnceLock::new();
static STATE: Mutex<State> = Mutex::new(State { forks: 0, resting: false });
static CHANGED: Condvar = Condvar::new();

struct State {
    /// Forks being made.
    forks: u32,
    /// The owner thread waits for their end and nothing of it is in flight.
    resting: bool,
}

/// Whether this process is a forked child of one that used the library.
pub fn in_forked_child() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Notices forks from now on in the child alone: without an owner thread nothing has to rest, but handles
/// and locks may exist already.
pub fn notice() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| os::on_fork_in_child(forked));
}

/// Rests during forks from now on. To be called after the back end's libraries are there: handlers run
/// before a fork in the reverse order of their registration, and ours has to be first.
pub fn install() -> Result<()> {
    let gate = Gate::new()?;
    if GATE.set(gate).is_ok() {
        os::on_fork(before_fork, after_fork, forked);
    }
    Ok(())
}

/// Requested when a fork waits for the owner thread.
pub fn pause_token() -> Option<CancelToken> {
    GATE.get().map(Gate::own_pause_token)
}

/// On the owner thread, between units: rests while a fork is made.
pub fn rest(synchronize: impl FnOnce() -> Result<()>) {
    if !GATE.get().is_some_and(Gate::is_shut) {
        return;
    }
    if let Err(error) = synchronize() {
        log::warn!("before a fork: {error}");
    }
    let mut state = STATE.lock();
    state.resting = true;
    CHANGED.notify_all();
    while state.forks > 0 {
        CHANGED.wait(&mut state);
    }
    state.resting = false;
}

/// Whether the handlers have nothing to do: the owner thread cannot wait for itself.
fn is_exempt() -> bool {
    in_forked_child() || owner::on_owner_thread()
}

extern "C" fn before_fork() {
    if is_exempt() {
        return;
    }
    panics::quietly("the preparation of a fork", || {
        let until = Instant::now() + FORK_BOUND;
        STATE.lock().forks += 1;
        if let Some(gate) = GATE.get() {
            gate.shut();
        }
        while Instant::now() < until {
            // Asked first: a thread that rests may be waited for by whoever has the lock that the
            // question below needs.
            if STATE.lock().resting || !owner::is_running_within(LOOK_AGAIN) {
                break;
            }
            let mut state = STATE.lock();
            if !state.resting {
                CHANGED.wait_for(&mut state, LOOK_AGAIN);
            }
        }
    });
}

extern "C" fn after_fork() {
    if is_exempt() {
        return;
    }
    panics::quietly("the end of a fork", || {
        let mut state = STATE.lock();
        state.forks = state.forks.saturating_sub(1);
        if state.forks == 0
            && let Some(gate) = GATE.get()
            && let Err(error) = gate.open()
        {
            log::error!("after a fork: {error}");
        }
        CHANGED.notify_all();
    });
}

extern "C" fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}
