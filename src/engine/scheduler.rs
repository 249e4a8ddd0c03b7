//! Rows of all models take turns.

use std::collections::HashMap;
use std::sync::Arc;

use super::budget::{Allowance, Budget};
use super::gate::Gate;
use super::slab::{Key, Slab};
use crate::base::{Error, Result};
use crate::generate::group::{Round, RowGroup, RowId};
use crate::generate::row::Row;
use crate::generate::runtime::Runtime;
use crate::generate::sequence::Sequence;

/// A cache set on the owner thread.
pub struct CacheSlot {
    /// `None` while a row has it, or after it was lost in a failure.
    sequence: Option<Sequence>,
}

impl CacheSlot {
    pub fn new(sequence: Sequence) -> Self {
        CacheSlot { sequence: Some(sequence) }
    }

    pub fn sequence(&mut self) -> Result<&mut Sequence> {
        self.sequence.as_mut().ok_or_else(lost)
    }

    pub fn lend(&mut self) -> Result<Sequence> {
        self.sequence.take().ok_or_else(lost)
    }

    pub fn give_back(&mut self, sequence: Sequence) {
        self.sequence = Some(sequence);
    }
}

fn lost() -> Error {
    Error::internal("the cache set was lost in an earlier failure")
}

/// The rows, in one group for each model.
#[derive(Default)]
pub struct Scheduler {
    groups: Vec<ModelRows>,
    /// Which cache set each row's sequence goes back to.
    homes: HashMap<RowId, Key>,
    next_id: RowId,
    /// Which group's turn of prefill it is.
    turn: usize,
}

struct ModelRows {
    model: Key,
    budget: Arc<Budget>,
    gate: Arc<Gate>,
    rows: RowGroup,
}

/// Where a row belongs.
pub struct Place {
    pub model: Key,
    pub cache: Key,
    pub budget: Arc<Budget>,
    pub gate: Arc<Gate>,
}

impl Scheduler {
    pub fn add(&mut self, place: Place, row: Box<dyn Row>) -> RowId {
        let id = self.next_id;
        self.next_id += 1;
        self.homes.insert(id, place.cache);
        let index = self.groups.iter().position(|group| group.model == place.model).unwrap_or_else(|| {
            let Place { model, budget, gate, .. } = place;
            self.groups.push(ModelRows { model, budget, gate, rows: RowGroup::default() });
            self.groups.len() - 1
        });
        self.groups[index].rows.add(id, row);
        id
    }

    /// One token for every decoding row and one unit of prefill among all others. True when the
    /// next round can do more right away.
    pub fn round(&mut self, slab: &mut Slab, runtime: &mut dyn Runtime) -> bool {
        let mut round = Round::default();
        for group in &mut self.groups {
            if group.gate.is_shut() {
                round.absorb(group.rows.poll_cancel());
                continue;
            }
            let mut allowance = Allowance { budget: &group.budget, runtime };
            round.absorb(group.rows.decode(&group.gate.pause_token(), &mut allowance));
        }
        for offset in 0..self.groups.len() {
            let index = (self.turn + offset) % self.groups.len();
            let group = &mut self.groups[index];
            if group.gate.is_shut() || !group.rows.has_preparing() {
                continue;
            }
            let mut allowance = Allowance { budget: &group.budget, runtime };
            let prepared = group.rows.prepare(&group.gate.pause_token(), &mut allowance);
            let moved = prepared.moved;
            round.absorb(prepared);
            if moved {
                self.turn = index + 1;
                break;
            }
        }
        let moved = round.moved;
        self.settle_finished(round, slab);
        moved
    }

    /// Nothing of the gate's engine is in flight afterwards.
    pub fn settle(&mut self, gate: &Arc<Gate>, slab: &mut Slab, runtime: &mut dyn Runtime) {
        let mut round = Round::default();
        for group in self.groups.iter_mut().filter(|group| Arc::ptr_eq(&group.gate, gate)) {
            let mut allowance = Allowance { budget: &group.budget, runtime };
            round.absorb(group.rows.settle(&mut allowance));
        }
        self.settle_finished(round, slab);
    }

    /// Ends the rows whose cancellation was asked for, without a turn for the others.
    pub fn poll_cancel(&mut self, slab: &mut Slab) {
        let mut round = Round::default();
        for group in &mut self.groups {
            round.absorb(group.rows.poll_cancel());
        }
        self.settle_finished(round, slab);
    }

    /// Ends every row: cancelled where it listens to that, else with `error`.
    pub fn end_all(&mut self, slab: &mut Slab, error: &Error) {
        self.poll_cancel(slab);
        let mut round = Round::default();
        for group in &mut self.groups {
            round.absorb(group.rows.fail(error));
        }
        self.settle_finished(round, slab);
    }

    fn settle_finished(&mut self, round: Round, slab: &mut Slab) {
        for finished in round.finished {
            let Some(home) = self.homes.remove(&finished.id) else { continue };
            if let (Ok(slot), Some(sequence)) = (slab.get_mut::<CacheSlot>(home), finished.sequence) {
                slot.give_back(sequence);
            }
        }
        self.groups.retain(|group| !group.rows.is_empty());
    }
}
