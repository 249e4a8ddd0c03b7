//! Suspension of an engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::fork;
use crate::base::{CancelToken, Error, Result};

/// How often somebody who waits for a resumption looks at his cancel token.
const CANCEL_POLL: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Gate {
    shut: AtomicBool,
    /// Requested while shut, so that a unit of work in progress is given up; a new one each time.
    pause: Mutex<CancelToken>,
    opened: Condvar,
}

impl Gate {
    pub fn new() -> Result<Self> {
        let pause = Mutex::new(CancelToken::try_new()?);
        Ok(Gate { shut: AtomicBool::new(false), pause, opened: Condvar::new() })
    }

    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::Acquire)
    }

    pub fn check(&self) -> Result<()> {
        if self.is_shut() { Err(Error::wrong_state("the engine is suspended")) } else { Ok(()) }
    }

    /// What the rows of this engine stop at: its suspension, or a fork.
    pub fn pause_token(&self) -> CancelToken {
        let own = self.own_pause_token();
        let fork = fork::pause_token();
        // Without a free token a fork has to wait for the end of the unit.
        fork.and_then(|fork| CancelToken::linked(&[&own, &fork]).ok()).unwrap_or(own)
    }

    pub fn own_pause_token(&self) -> CancelToken {
        self.pause.lock().clone()
    }

    pub fn shut(&self) {
        let pause = self.pause.lock();
        self.shut.store(true, Ordering::Release);
        pause.request();
    }

    pub fn open(&self) -> Result<()> {
        let mut pause = self.pause.lock();
        if self.is_shut() {
            *pause = CancelToken::try_new()?;
            self.shut.store(false, Ordering::Release);
            self.opened.notify_all();
        }
        Ok(())
    }

    /// Waits while the engine is suspended.
    pub fn wait_open(&self, cancel: &CancelToken) -> Result<()> {
        while self.is_shut() {
            cancel.check()?;
            let mut pause = self.pause.lock();
            if self.is_shut() {
                self.opened.wait_for(&mut pause, CANCEL_POLL);
            }
        }
        cancel.check()
    }
}
