//! A cache set: the tokens of one sequence and their keys and values.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::bounded;

use super::budget::Allowance;
use super::model::{LoadedModel, Model};
use super::owner::Context;
use super::scheduler::{CacheSlot, Place};
use super::slab::{EngineBox, Key, Slab};
use crate::base::info::CacheInfo;
use crate::base::options::CacheOptions;
use crate::base::{CancelToken, Error, Prompt, Result};
use crate::generate::append::AppendRow;
use crate::generate::mirror::SequenceMirror;
use crate::generate::request::{check_prompt, check_room, sequence_limit};
use crate::generate::sequence::Sequence;

/// A clone is another share of the same set. One call at a time changes it; a second gives BUSY,
/// as do all while a stream has the set. What can be asked is answered at any time from the host's
/// account of the committed tokens.
#[derive(Clone)]
pub struct CacheSet(Arc<Inner>);

struct Inner {
    model: Model,
    slot: EngineBox<CacheSlot>,
    mirror: Arc<SequenceMirror>,
    /// Most tokens that it may hold.
    capacity: u64,
    busy: AtomicBool,
}

/// The right to change a cache set, until this is dropped.
pub(super) struct Lease(CacheSet);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.0.busy.store(false, Ordering::Release);
    }
}

impl CacheSet {
    /// An empty set. A capacity above the model's context limit is cut to it.
    pub fn new(model: &Model, options: &CacheOptions) -> Result<CacheSet> {
        model.engine().check_work()?;
        let capacity = sequence_limit(model.info(), options.capacity);
        let options = CacheOptions { capacity, ..options.clone() };
        let gate = Arc::clone(model.engine().gate());
        let budget = Arc::clone(model.engine().budget());
        let key = model.slot().key();
        let made = model.engine().owner().call("a new cache set", move |context| {
            gate.check()?;
            let model = Rc::clone(&context.slab.get::<LoadedModel>(key)?.model);
            let sequence = Sequence::new(&model, &options, budget.cache_counter())?;
            Ok(adoptable(sequence, &mut context.slab))
        })?;
        Ok(CacheSet::adopt(model, made, capacity))
    }

    fn adopt(model: &Model, (key, mirror): (Key, Arc<SequenceMirror>), capacity: u64) -> CacheSet {
        let slot = EngineBox::adopt(model.engine().owner(), key);
        CacheSet(Arc::new(Inner {
            model: model.clone(),
            slot,
            mirror,
            capacity,
            busy: AtomicBool::new(false),
        }))
    }

    /// Forwards tokens after those that are there; the last alone, its scores are kept. After
    /// CANCELLED or another failure the set holds whole chunks of them.
    pub fn append(&self, tokens: impl Into<Prompt>, cancel: Option<&CancelToken>) -> Result<()> {
        let tokens = tokens.into();
        let engine = self.model().engine();
        engine.check_work()?;
        let lease = self.lease()?;
        let info = self.model().info();
        check_prompt(&tokens, info)?;
        check_room(self.0.mirror.token_count() as u64 + tokens.len() as u64, self.0.capacity)?;

        let abort = engine.owner().abort_token();
        let cancel = match cancel {
            Some(cancel) => CancelToken::linked(&[cancel, abort])?,
            None => CancelToken::linked(&[abort])?,
        };
        let (sender, receiver) = bounded(1);
        let reply = Box::new(move |outcome| {
            let _left = sender.send(outcome);
        });
        let chunk = u64::from(info.prefill_chunk.max(1));
        let place = self.place();
        let row_cancel = cancel.clone();
        engine.owner().call("an append", move |context| {
            place.gate.check()?;
            let sequence = context.slab.get_mut::<CacheSlot>(place.cache)?.lend()?;
            let row = AppendRow::new(sequence, tokens, chunk, row_cancel, reply);
            context.rows.add(place, Box::new(row));
            Ok(())
        })?;
        let outcome = engine.owner().wait_row(&receiver, &cancel);
        drop(lease);
        outcome
    }

    /// Scores after the last token. WRONG_STATE when the last change was not an append.
    pub fn logits(&self) -> Result<Vec<f32>> {
        self.model().engine().owner().check()?;
        let _lease = self.lease()?;
        self.0.mirror.logits().ok_or_else(|| {
            Error::wrong_state("there are scores only directly after an append to the cache set")
        })
    }

    pub fn token_count(&self) -> Result<usize> {
        self.model().engine().owner().check()?;
        Ok(self.0.mirror.token_count())
    }

    pub fn tokens(&self) -> Result<Vec<u32>> {
        self.model().engine().owner().check()?;
        Ok(self.0.mirror.tokens())
    }

    /// Keeps the first `keep` tokens; how many were dropped. WRONG_STATE naming the layer when it
    /// cannot forget.
    pub fn truncate(&self, keep: usize) -> Result<usize> {
        self.model().engine().check_work()?;
        let _lease = self.lease()?;
        let count = self.0.mirror.token_count();
        if keep > count {
            return Err(Error::invalid_argument(format!(
                "the cache set holds {count} tokens, fewer than {keep}"
            ))
            .field("keep"));
        }
        let place = self.place();
        self.model().engine().owner().call("a truncation", move |context| {
            place.gate.check()?;
            context.slab.get_mut::<CacheSlot>(place.cache)?.sequence()?.truncate(keep)
        })
    }

    /// An independent set with the same tokens.
    pub fn fork(&self) -> Result<CacheSet> {
        self.model().engine().check_work()?;
        let _lease = self.lease()?;
        let place = self.place();
        let made = self.model().engine().owner().call("a fork of a cache set", move |context| {
            place.gate.check()?;
            let Context { slab, runtime, .. } = context;
            let mut allowance = Allowance { budget: &place.budget, runtime: runtime.as_mut() };
            let sequence = slab.get_mut::<CacheSlot>(place.cache)?.sequence()?;
            let fork = sequence.fork(place.budget.cache_counter(), &mut allowance)?;
            Ok(adoptable(fork, slab))
        })?;
        Ok(CacheSet::adopt(self.model(), made, self.0.capacity))
    }

    /// While a stream has the set, sizes and layers are those of its latest chunk of prefill or
    /// the latest growth; the number of tokens is exact.
    pub fn info(&self) -> Result<CacheInfo> {
        self.model().engine().owner().check()?;
        let mirror = &self.0.mirror;
        let layers = mirror.layers();
        let held: u64 = layers.iter().map(|layer| layer.bytes).sum();
        Ok(CacheInfo {
            tokens: mirror.token_count() as u64,
            capacity: self.0.capacity,
            bytes: held.max(mirror.bytes()),
            layers,
        })
    }

    pub fn model(&self) -> &Model {
        &self.0.model
    }

    pub(super) fn capacity(&self) -> u64 {
        self.0.capacity
    }

    /// BUSY while somebody else has the right.
    pub(super) fn lease(&self) -> Result<Lease> {
        let taken = self.0.busy.swap(true, Ordering::Acquire);
        if taken {
            Err(Error::busy("the cache set is in use by a stream or another call"))
        } else {
            Ok(Lease(self.clone()))
        }
    }

    pub(super) fn place(&self) -> Place {
        let engine = self.model().engine();
        Place {
            model: self.model().slot().key(),
            cache: self.0.slot.key(),
            budget: Arc::clone(engine.budget()),
            gate: Arc::clone(engine.gate()),
        }
    }
}

/// Puts a sequence into the slab; its key and mirror make a handle.
fn adoptable(sequence: Sequence, slab: &mut Slab) -> (Key, Arc<SequenceMirror>) {
    let mirror = Arc::clone(sequence.mirror());
    (slab.insert(CacheSlot::new(sequence)), mirror)
}
