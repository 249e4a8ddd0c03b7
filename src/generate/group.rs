//! The driver of the rows of one model.
//!
//! It steps a group of rows; a request alone is a group of one. Decoding rows advance together, a
//! token each; of the preparing rows one advances by one unit at a time, so a decoding row never
//! waits for more than one chunk of another's prompt.

use super::row::{Advance, Row};
use super::sequence::Sequence;
use super::surroundings::Surroundings;
use crate::base::{CancelToken, Error, panics};

/// Names a row among all rows of the process.
pub type RowId = u64;

#[derive(Default)]
pub struct RowGroup {
    members: Vec<Member>,
    /// Turns of prefill taken: preparing rows take them in rotation.
    turns: usize,
}

struct Member {
    id: RowId,
    row: Box<dyn Row>,
}

/// A row that left its group.
pub struct Finished {
    pub id: RowId,
    /// `None` if even giving the sequence back failed.
    pub sequence: Option<Sequence>,
}

/// What a round led to.
#[derive(Default)]
pub struct Round {
    /// Whether another round can do more right away.
    pub moved: bool,
    pub finished: Vec<Finished>,
}

impl RowGroup {
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn has_preparing(&self) -> bool {
        self.members.iter().any(|member| member.row.is_preparing())
    }

    pub fn add(&mut self, id: RowId, row: Box<dyn Row>) {
        self.members.push(Member { id, row });
    }

    /// Every decoding row advances by one token.
    pub fn decode(&mut self, pause: &CancelToken, surroundings: &mut dyn Surroundings) -> Round {
        let mut round = Round::default();
        let decoding: Vec<RowId> =
            self.members.iter().filter(|member| !member.row.is_preparing()).map(|member| member.id).collect();
        for id in decoding {
            self.step(id, &mut round, |row| row.advance(pause, surroundings));
        }
        round
    }

    /// One preparing row advances by one unit. A row that waits for its consumer is passed over.
    pub fn prepare(&mut self, pause: &CancelToken, surroundings: &mut dyn Surroundings) -> Round {
        let mut round = Round::default();
        let preparing: Vec<RowId> =
            self.members.iter().filter(|member| member.row.is_preparing()).map(|member| member.id).collect();
        for offset in 0..preparing.len() {
            let id = preparing[(self.turns + offset) % preparing.len()];
            self.step(id, &mut round, |row| row.advance(pause, surroundings));
            if round.moved {
                self.turns = self.turns.wrapping_add(offset + 1);
                break;
            }
        }
        round
    }

    /// Waits for everything in flight.
    pub fn settle(&mut self, surroundings: &mut dyn Surroundings) -> Round {
        self.each(|row| row.settle(surroundings))
    }

    /// Ends the rows whose cancellation was asked for; nothing else runs.
    pub fn poll_cancel(&mut self) -> Round {
        self.each(|row| row.poll_cancel())
    }

    /// Ends every row with an error.
    pub fn fail(&mut self, error: &Error) -> Round {
        self.each(|row| {
            row.fail(error.clone());
            Advance::Ended
        })
    }

    fn ids(&self) -> Vec<RowId> {
        self.members.iter().map(|member| member.id).collect()
    }

    fn each(&mut self, mut work: impl FnMut(&mut dyn Row) -> Advance) -> Round {
        let mut round = Round::default();
        for id in self.ids() {
            self.step(id, &mut round, &mut work);
        }
        round
    }

    /// Lets `work` advance a row. A panic inside ends that row alone.
    fn step(&mut self, id: RowId, round: &mut Round, work: impl FnOnce(&mut dyn Row) -> Advance) {
        let Some(index) = self.members.iter().position(|member| member.id == id) else { return };
        let row = self.members[index].row.as_mut();
        let advance = match panics::catch("a row", || Ok(work(row))) {
            Ok(advance) => advance,
            Err(panic) => {
                panics::quietly("the end of a row", || row.fail_after_panic(panic));
                Advance::Ended
            }
        };
        match advance {
            Advance::Moved => round.moved = true,
            Advance::Blocked | Advance::Paused => {}
            Advance::Ended => {
                round.moved = true;
                let Member { id, row } = self.members.remove(index);
                let sequence = panics::catch("the end of a row", || Ok(row.finish())).ok();
                round.finished.push(Finished { id, sequence });
            }
        }
    }
}

impl Round {
    pub fn absorb(&mut self, other: Round) {
        self.moved |= other.moved;
        self.finished.extend(other.finished);
    }
}
