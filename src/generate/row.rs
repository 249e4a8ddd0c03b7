//! What the group driver and the engine need of a row.

use super::sequence::Sequence;
use super::surroundings::Surroundings;
use crate::base::event::Event;
use crate::base::{CancelToken, Error, Result};

/// What a unit of work led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advance {
    /// A unit was done and more remain.
    Moved,
    /// The consumer has to take events first.
    Blocked,
    /// `pause` was requested: the unit was given up and will be done again later.
    Paused,
    Ended,
}

/// Work on one sequence, done in units: a chunk of prefill or a decoded token.
pub trait Row {
    /// Whether the next unit is one of prefill.
    fn is_preparing(&self) -> bool;

    /// Does one unit. Errors of the row go to whoever waits for it.
    fn advance(&mut self, pause: &CancelToken, surroundings: &mut dyn Surroundings) -> Advance;

    /// Waits for what is in flight, so that nothing runs until the next unit. `Ended` if that
    /// ended the row.
    fn settle(&mut self, surroundings: &mut dyn Surroundings) -> Advance;

    /// Ends the row if its cancellation was asked for, without doing work.
    fn poll_cancel(&mut self) -> Advance;

    /// Ends the row with an error.
    fn fail(&mut self, error: Error);

    /// As [`fail`](Self::fail) after a panic inside one of the calls above.
    fn fail_after_panic(&mut self, panic: Error);

    /// After the end: tells whoever waits and gives the sequence back.
    fn finish(self: Box<Self>) -> Sequence;
}

/// Where a generation's events go. Called on the owner thread.
pub trait Outbox {
    /// Whether the next unit's events may be sent. After `false` the consumer will wake the engine.
    fn has_room(&self) -> bool;
    /// An event, or the error that ends the row.
    fn send(&self, event: Result<Event>);
}
