//! The fake model: a state is the hash of every prefix of its tokens.

use std::any::Any;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::heap::FakeHeap;
use super::load::{FakeWeights, Faulty};
use super::numbers;
use super::spec::Place;
use crate::base::event::TokenLogprobs;
use crate::base::info::LayerCacheInfo;
use crate::base::options::{CacheOptions, KvType, Sampling};
use crate::base::{CancelToken, Error, Prompt, Result};
use crate::generate::runtime::{LogprobReport, PendingToken, StepInput, TokenModel, TokenState};

/// Cancellation is looked for that often in a slow prefill, as a real model does between layers.
const CANCEL_SLICE: Duration = Duration::from_millis(1);

pub struct FakeModel {
    faulty: Arc<Faulty>,
    weights: FakeWeights,
}

impl FakeModel {
    pub fn new(faulty: Arc<Faulty>, weights: FakeWeights) -> Self {
        FakeModel { faulty, weights }
    }

    /// Takes the time that a forward of so many tokens takes, and its memory while it runs.
    fn work(&self, tokens: usize, cancel: &CancelToken) -> Result<()> {
        let spec = &self.faulty.spec;
        let workspace = spec.workspace_bytes_per_token * tokens as u64;
        self.weights.heap.allocate(workspace);
        let until = Instant::now() + Duration::from_micros(spec.prefill_micros_per_token * tokens as u64);
        let outcome = loop {
            if let Err(cancelled) = cancel.check() {
                break Err(cancelled);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break Ok(());
            }
            thread::sleep(left.min(CANCEL_SLICE));
        };
        self.weights.heap.free(workspace);
        outcome
    }

    fn scores(&self, context: u64, step: Option<u64>) -> Vec<f32> {
        let spec = &self.faulty.spec;
        let forced = step.and_then(|step| spec.scripted(step));
        numbers::logits(context, spec.vocabulary, &spec.eos, forced)
    }
}

/// Refuses what a fake state cannot be.
pub fn check_cache_options(options: &CacheOptions) -> Result<()> {
    match options.kv_type {
        KvType::Auto => Ok(()),
        _ => Err(Error::unsupported("a fake state has no keys and values").field("kv_type")),
    }
}

impl Drop for FakeModel {
    fn drop(&mut self) {
        if let Err(error) = self.faulty.pass(Place::DropModel) {
            panic!("{error}");
        }
    }
}

impl TokenModel for FakeModel {
    fn new_state(&self, options: &CacheOptions) -> Result<Box<dyn TokenState>> {
        check_cache_options(options)?;
        self.faulty.pass(Place::NewState)?;
        Ok(Box::new(FakeState {
            faulty: Arc::clone(&self.faulty),
            heap: Arc::clone(&self.weights.heap),
            hashes: Vec::new(),
        }))
    }

    fn workspace_bytes(&self, tokens: u64, _end: u64, _state_bytes: u64) -> u64 {
        tokens.saturating_mul(self.faulty.spec.workspace_bytes_per_token)
    }

    fn prefill(&self, state: &mut dyn TokenState, tokens: &Prompt, cancel: &CancelToken) -> Result<()> {
        let state = FakeState::of(state)?;
        self.faulty.pass(Place::Prefill)?;
        self.work(tokens.len(), cancel)?;
        state.extend(tokens);
        Ok(())
    }

    fn logits(&self, state: &mut dyn TokenState, tokens: &Prompt, cancel: &CancelToken) -> Result<Vec<f32>> {
        let state = FakeState::of(state)?;
        self.faulty.pass(Place::Logits)?;
        self.work(tokens.len(), cancel)?;
        state.extend(tokens);
        Ok(self.scores(state.context(), None))
    }

    fn step(
        &self,
        state: &mut dyn TokenState,
        input: StepInput<'_>,
        sampling: &Sampling,
        report: LogprobReport,
        step: u64,
    ) -> Result<Box<dyn PendingToken>> {
        let state = FakeState::of(state)?;
        self.faulty.pass(Place::Step)?;
        let begin = match input {
            StepInput::Read(tokens) => {
                state.extend(tokens);
                Instant::now()
            }
            StepInput::Pending(pending) => {
                let pending = pending
                    .as_any()
                    .downcast_ref::<FakePending>()
                    .ok_or_else(|| Error::internal("a token of another back end"))?;
                state.extend(&Prompt::of_tokens(&[pending.id]));
                pending.ready.max(Instant::now())
            }
        };
        let scores = self.scores(state.context(), Some(step));
        let id = numbers::sample(&scores, sampling, step);
        Ok(Box::new(FakePending {
            id,
            logprobs: numbers::logprobs(&scores, id, report),
            ready: begin + self.faulty.spec.step_time(),
            faulty: Arc::clone(&self.faulty),
        }))
    }
}

struct FakePending {
    id: u32,
    logprobs: Option<TokenLogprobs>,
    ready: Instant,
    faulty: Arc<Faulty>,
}

impl PendingToken for FakePending {
    fn read(&self) -> Result<(u32, Option<TokenLogprobs>)> {
        thread::sleep(self.ready.saturating_duration_since(Instant::now()));
        self.faulty.pass(Place::Read)?;
        Ok((self.id, self.logprobs.clone()))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct FakeState {
    faulty: Arc<Faulty>,
    heap: Arc<FakeHeap>,
    /// The hash after each token.
    hashes: Vec<u64>,
}

impl FakeState {
    fn of(state: &mut dyn TokenState) -> Result<&mut FakeState> {
        state.as_any_mut().downcast_mut().ok_or_else(|| Error::internal("a state of another back end"))
    }

    fn context(&self) -> u64 {
        self.hashes.last().copied().unwrap_or(0)
    }

    fn extend(&mut self, tokens: &Prompt) {
        let before = self.bytes();
        // The numbers of embeddings stand for themselves.
        let mut stand_ins = tokens.ids().to_vec();
        for piece in tokens.embedded() {
            let rows = piece.values().chunks(piece.width().max(1));
            for (place, row) in stand_ins[piece.start..].iter_mut().zip(rows) {
                *place = row.iter().fold(0, |sum: u32, value| sum.rotate_left(5) ^ value.to_bits());
            }
        }
        for token in stand_ins {
            self.hashes.push(numbers::extend(self.context(), token));
        }
        self.heap.allocate(self.bytes() - before);
    }
}

impl Drop for FakeState {
    fn drop(&mut self) {
        self.heap.free(self.bytes());
        if let Err(error) = self.faulty.pass(Place::DropState) {
            panic!("{error}");
        }
    }
}

impl TokenState for FakeState {
    fn offset(&self) -> u64 {
        self.hashes.len() as u64
    }

    fn truncate(&mut self, keep: u64) -> Result<()> {
        self.faulty.pass(Place::Truncate)?;
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        if keep >= self.hashes.len() {
            return Ok(());
        }
        if !self.faulty.spec.trimmable {
            return Err(Error::wrong_state("layer 0 (fake) cannot forget tokens").field("layer").position(0));
        }
        let before = self.bytes();
        self.hashes.truncate(keep);
        self.heap.free(before - self.bytes());
        Ok(())
    }

    fn fork(&self) -> Result<Box<dyn TokenState>> {
        self.faulty.pass(Place::Fork)?;
        self.heap.allocate(self.bytes());
        Ok(Box::new(FakeState {
            faulty: Arc::clone(&self.faulty),
            heap: Arc::clone(&self.heap),
            hashes: self.hashes.clone(),
        }))
    }

    fn bytes(&self) -> u64 {
        self.offset() * self.faulty.spec.cache_bytes_per_token
    }

    fn bytes_for(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.faulty.spec.cache_bytes_per_token)
    }

    fn layers(&self) -> Vec<LayerCacheInfo> {
        let layers = u64::from(self.faulty.spec.layers.max(1));
        (0..layers)
            .map(|_| LayerCacheInfo {
                signature: "fake".into(),
                offset: self.offset(),
                bytes: self.bytes() / layers,
                shared_bytes: 0,
                trimmable: self.faulty.spec.trimmable,
                minimum_reusable_offset: 0,
            })
            .collect()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
