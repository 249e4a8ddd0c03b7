//! A loaded model: forwards, scores and pipelined steps.

use super::pace::{CancelPace, Speed};
use super::pending::MlxPending;
use super::state::MlxState;
use crate::base::options::{CacheOptions, Sampling};
use crate::base::{CancelToken, Error, Result};
use crate::generate::runtime::{LogprobReport, PendingToken, StepInput, TokenModel, TokenState};
use crate::mlx::{self, Array, DeviceKind, Dtype, ops, prim};
use crate::model::footprint::Footprint;
use crate::model::graph::{CausalGraph, Unpaced};
use crate::sample;

pub(super) struct MlxModel {
    pub(super) graph: Box<dyn CausalGraph>,
    pub(super) footprint: Footprint,
    pub(super) context_limit: u64,
    pub(super) device: DeviceKind,
    /// Distinguishes models; states remember it.
    pub(super) id: u64,
    pub(super) speed: Speed,
}

impl MlxModel {
    /// The state as one of this model, on the model's device.
    fn open<'a>(&self, state: &'a mut dyn TokenState) -> Result<&'a mut MlxState> {
        let state = state
            .as_any_mut()
            .downcast_mut::<MlxState>()
            .ok_or_else(|| Error::internal("a state of another back end"))?;
        if state.model != self.id {
            return Err(Error::invalid_argument("the cache belongs to another model").field("cache"));
        }
        self.select_device()?;
        Ok(state)
    }

    fn select_device(&self) -> Result<()> {
        if mlx::device() == self.device { Ok(()) } else { mlx::select_device(self.device) }
    }

    fn ids(&self, tokens: &[u32]) -> Result<Array> {
        if tokens.is_empty() {
            return Err(Error::invalid_argument("there are no tokens to forward").field("tokens"));
        }
        ops::token_ids(tokens, u32::try_from(self.footprint.vocabulary).unwrap_or(u32::MAX))
    }

    /// The scores after the last of the hidden values: `[1, vocabulary]`.
    fn last_scores(&self, hidden: &Array) -> Result<Array> {
        let scores = self.graph.scores(&ops::last_row(hidden)?)?;
        prim::reshape(&scores, &[1, -1])
    }
}

impl TokenModel for MlxModel {
    fn new_state(&self, options: &CacheOptions) -> Result<Box<dyn TokenState>> {
        let capacity = match options.capacity {
            0 => self.context_limit,
            capacity => capacity.min(self.context_limit),
        };
        Ok(Box::new(MlxState { caches: self.graph.new_caches(), model: self.id, capacity, lost: false }))
    }

    fn state_bytes(&self, tokens: u64) -> u64 {
        self.footprint.state_bytes(tokens)
    }

    fn workspace_bytes(&self, tokens: u64, end: u64) -> u64 {
        self.footprint.workspace_bytes(tokens, end)
    }

    fn prefill(&self, state: &mut dyn TokenState, tokens: &[u32], cancel: &CancelToken) -> Result<()> {
        cancel.check()?;
        let state = self.open(state)?;
        let ids = self.ids(tokens)?;
        let mut pace = CancelPace::new(cancel, &self.speed);
        state.transaction(tokens.len(), |state| {
            self.graph.extend(&ids, &mut state.caches, &mut pace)?;
            state.evaluate()?;
            cancel.check()
        })
    }

    fn logits(&self, state: &mut dyn TokenState, tokens: &[u32], cancel: &CancelToken) -> Result<Vec<f32>> {
        cancel.check()?;
        let state = self.open(state)?;
        let ids = self.ids(tokens)?;
        let mut pace = CancelPace::new(cancel, &self.speed);
        state.transaction(tokens.len(), |state| {
            let hidden = self.graph.hidden(&ids, &mut state.caches, &mut pace)?;
            let scores = prim::astype(&self.last_scores(&hidden)?, Dtype::Float32)?;
            let scores = scores.to_vec::<f32>()?;
            state.evaluate()?;
            Ok(scores)
        })
    }

    fn step(
        &self,
        state: &mut dyn TokenState,
        input: StepInput<'_>,
        sampling: &Sampling,
        report: LogprobReport,
        step: u64,
    ) -> Result<Box<dyn PendingToken>> {
        let state = self.open(state)?;
        let ids = match input {
            StepInput::Tokens(tokens) => self.ids(tokens)?,
            StepInput::Pending(pending) => {
                let pending = pending
                    .as_any()
                    .downcast_ref::<MlxPending>()
                    .ok_or_else(|| Error::internal("a token of another back end"))?;
                prim::reshape(&pending.token, &[1, 1])?
            }
        };
        let tokens = ids.dim(1) as usize;
        state.transaction(tokens, |state| {
            let hidden = self.graph.hidden(&ids, &mut state.caches, &mut Unpaced)?;
            let sampled = sample::sample(&self.last_scores(&hidden)?, sampling, step)?;
            let logprobs = if report.chosen || report.top > 0 {
                Some(prim::astype(&sampled.logprobs, Dtype::Float32)?)
            } else {
                None
            };
            mlx::async_eval([Some(&sampled.token), logprobs.as_ref()].into_iter().flatten())?;
            Ok(Box::new(MlxPending { token: sampled.token, logprobs, report }) as Box<dyn PendingToken>)
        })
    }
}
