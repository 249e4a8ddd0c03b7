//! The bounded queue between a row and its consumer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::owner::Owner;
use super::process::{self, ExitStage};
use crate::base::event::Event;
use crate::base::{CancelToken, Code, Error, Result, panics};
use crate::generate::row::Outbox;

/// Called on the owner thread when an event is ready. It may only signal. It is dropped once, when
/// the stream lets go of it.
pub type Wakeup = Box<dyn Fn() + Send + Sync>;

/// The row rests while so many events wait.
const MOST_EVENTS: usize = 64;
/// It goes on when so few are left.
const FEW_EVENTS: usize = 32;

/// How often a waiting consumer looks whether its cancel token was requested: the row may rest,
/// and a token cannot wake it.
const CANCEL_POLL: Duration = Duration::from_millis(20);

#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    ready: Condvar,
    wakeup: Mutex<Option<Arc<Wakeup>>>,
}

#[derive(Default)]
struct State {
    events: VecDeque<Result<Event>>,
    /// The last event, an end or an error, was sent.
    ended: bool,
    /// The row rests until there is room.
    row_rests: bool,
    closed: bool,
}

impl Queue {
    /// The next event; `None` after the last. TIMEOUT when none comes in time.
    pub fn next(
        &self,
        timeout: Option<Duration>,
        cancel: Option<&CancelToken>,
        owner: &Owner,
    ) -> Result<Option<Event>> {
        let mut until = None;
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return Err(Error::wrong_state("the stream is closed"));
            }
            if let Some(event) = state.events.pop_front() {
                let wake_row = state.row_rests && state.events.len() <= FEW_EVENTS;
                state.row_rests &= !wake_row;
                drop(state);
                if wake_row {
                    owner.nudge();
                }
                return event.map(Some);
            }
            if state.ended {
                return Ok(None);
            }
            // Only who has to wait looks at the clock.
            let now = Instant::now();
            if until.is_none() {
                until = timeout.and_then(|timeout| now.checked_add(timeout));
            }
            let left = until.map(|until| until.saturating_duration_since(now));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Error::timeout());
            }
            match (left, cancel) {
                (None, None) => self.ready.wait(&mut state),
                (Some(left), None) => {
                    self.ready.wait_for(&mut state, left);
                }
                (left, Some(cancel)) => {
                    let slice = left.map_or(CANCEL_POLL, |left| left.min(CANCEL_POLL));
                    let timed_out = self.ready.wait_for(&mut state, slice).timed_out();
                    if timed_out && cancel.is_requested() {
                        owner.nudge();
                    }
                }
            }
        }
    }

    /// Ends the waiting of a consumer and drops what nobody will take.
    pub fn close(&self) {
        let dropped = {
            let mut state = self.state.lock();
            state.closed = true;
            std::mem::take(&mut state.events)
        };
        self.ready.notify_all();
        drop(dropped);
    }

    /// The former wake-up closure is dropped, at the latest when the call of it that runs returns.
    /// True if an event is waiting already.
    pub fn set_wakeup(&self, wakeup: Option<Wakeup>) -> bool {
        let former = std::mem::replace(&mut *self.wakeup.lock(), wakeup.map(Arc::new));
        drop_wakeup(former);
        let state = self.state.lock();
        !state.events.is_empty()
    }

    /// Tells the consumer that something can be taken. No lock is held meanwhile.
    pub fn wake(&self) {
        let wakeup = self.wakeup.lock().clone();
        if let Some(wakeup) = wakeup {
            panics::quietly("a wake-up callback", || wakeup());
            drop_wakeup(Some(wakeup));
        }
    }
}

/// What the log may say of a generation's error. Sentences about arguments, and of panics, can quote
/// what a user has written.
pub(super) fn report(error: &Error) -> String {
    match error.code() {
        Code::InvalidArgument | Code::Internal => {
            let field = error.detail().field.as_deref().unwrap_or_default();
            format!("{} {field}", error.code().name())
        }
        _ => error.to_string(),
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        drop_wakeup(self.wakeup.get_mut().take());
    }
}

/// The last share runs foreign code.
fn drop_wakeup(wakeup: Option<Arc<Wakeup>>) {
    if wakeup.is_some() {
        panics::quietly("the drop of a wake-up callback", || drop(wakeup));
    }
}

impl Outbox for Arc<Queue> {
    fn has_room(&self) -> bool {
        let mut state = self.state.lock();
        let room = state.events.len() < MOST_EVENTS;
        state.row_rests = !room;
        room
    }

    fn send(&self, event: Result<Event>) {
        let first_token = matches!(event, Ok(Event::Text(_)));
        match &event {
            Ok(Event::Prefill { .. } | Event::Text(_)) => {}
            Ok(Event::End(end)) => {
                let (reason, usage, times) = (end.reason, &end.usage, &end.timings);
                log::debug!(
                    "a generation ended ({reason:?}): {} tokens of prompt, {} of them reused, {} generated; \
                     {:.3} s waiting, {:.3} s for the prompt, {:.3} s for the rest",
                    usage.prompt_tokens,
                    usage.reused_tokens,
                    usage.generated_tokens,
                    times.queued,
                    times.prefill,
                    times.decode
                );
            }
            Err(error) => log::warn!("a generation failed: {}", report(error)),
        }
        {
            let mut state = self.state.lock();
            state.ended = !matches!(event, Ok(Event::Prefill { .. } | Event::Text(_)));
            if !state.closed {
                state.events.push_back(event);
            }
        }
        self.ready.notify_one();
        if first_token {
            process::register_exit(ExitStage::Token);
        }
        self.wake();
    }
}
