//! A loaded model: forwards, scores and pipelined steps.

use std::rc::Rc;

use super::cache_forms::CacheForms;
use super::pace::{CancelPace, Speed};
use super::pending::MlxPending;
use super::state::MlxState;
use crate::base::options::{CacheOptions, Sampling};
use crate::base::{CancelToken, Error, Prompt, Result};
use crate::generate::runtime::{LogprobReport, PendingToken, StepInput, TokenModel, TokenState};
use crate::mlx::{self, Array, DeviceKind, Dtype, ops, prim};
use crate::model::footprint::Footprint;
use crate::model::graph::{CausalGraph, Unpaced};
use crate::model::tensors::Arithmetic;
use crate::sample::{self, Precision};

pub(super) struct MlxModel {
    pub(super) graph: Box<dyn CausalGraph>,
    pub(super) footprint: Footprint,
    pub(super) context_limit: u64,
    pub(super) device: DeviceKind,
    /// Of activations.
    pub(super) activation: Dtype,
    /// How it computes and what its caches keep.
    pub(super) forms: CacheForms,
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

    /// What the first layer takes for tokens and embeddings: `[1, positions, hidden]`.
    fn embedded(&self, prompt: &Prompt) -> Result<Array> {
        if prompt.embedded().is_empty() {
            return self.graph.embed(&self.ids(prompt.ids())?);
        }
        let mut parts = Vec::new();
        let mut next = 0;
        for piece in prompt.embedded() {
            if piece.start > next {
                parts.push(self.graph.embed(&self.ids(&prompt.ids()[next..piece.start])?)?);
            }
            let shape = [1, piece.rows as i32, piece.width() as i32];
            let rows = Array::from_slice(piece.values(), &shape)?;
            parts.push(prim::astype(&rows, self.activation)?);
            next = piece.start + piece.rows;
        }
        if next < prompt.len() {
            parts.push(self.graph.embed(&self.ids(&prompt.ids()[next..])?)?);
        }
        prim::concatenate(&parts.iter().collect::<Vec<_>>(), 1)
    }

    fn precision(&self) -> Precision {
        match self.forms.arithmetic {
            Arithmetic::Kernels => Precision::Kernels,
            Arithmetic::Exact | Arithmetic::Blas => Precision::Exact,
        }
    }

    /// The scores after the last of the hidden values: `[1, vocabulary]`.
    fn last_scores(&self, hidden: &Array) -> Result<Array> {
        let scores = self.graph.scores(&ops::last_row(hidden)?)?;
        prim::reshape(&scores, &[1, -1])
    }
}

/// Positions that the state covers once all of the prompt is read of which `part` comes next.
fn horizon(state: &MlxState, part: &Prompt) -> usize {
    state.offset() as usize + part.len() + part.following()
}

impl TokenModel for MlxModel {
    fn new_state(&self, options: &CacheOptions) -> Result<Box<dyn TokenState>> {
        let capacity = match options.capacity {
            0 => self.context_limit,
            capacity => capacity.min(self.context_limit),
        };
        let scheme = self.forms.scheme(options, &self.graph.cache_needs())?;
        let caches = scheme.caches()?;
        Ok(Box::new(MlxState { caches, model: self.id, capacity, scheme: Rc::new(scheme), lost: false }))
    }

    fn workspace_bytes(&self, tokens: u64, end: u64, state_bytes: u64) -> u64 {
        self.footprint.workspace_bytes(tokens, end, state_bytes)
    }

    fn final_width(&self) -> u64 {
        match self.forms.arithmetic {
            // No bit changes, and a short prompt is read in one pass over the weights. Longer ones are cancelled sooner.
            Arithmetic::Kernels => 64,
            Arithmetic::Exact | Arithmetic::Blas => 1,
        }
    }

    fn prefill(&self, state: &mut dyn TokenState, tokens: &Prompt, cancel: &CancelToken) -> Result<()> {
        cancel.check()?;
        let state = self.open(state)?;
        let x = self.embedded(tokens)?;
        let mut pace = CancelPace::new(cancel, &self.speed, horizon(state, tokens));
        state.transaction(tokens.len(), |state| {
            self.graph.extend(&x, &mut state.caches, &mut pace)?;
            state.evaluate()?;
            cancel.check()
        })?;
        state.maintain()
    }

    fn logits(&self, state: &mut dyn TokenState, tokens: &Prompt, cancel: &CancelToken) -> Result<Vec<f32>> {
        cancel.check()?;
        let state = self.open(state)?;
        let x = self.embedded(tokens)?;
        let mut pace = CancelPace::new(cancel, &self.speed, horizon(state, tokens));
        state.transaction(tokens.len(), |state| {
            let hidden = self.graph.hidden(&x, &mut state.caches, &mut pace)?;
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
        let mut pace = Unpaced { horizon: 0 };
        let x = match input {
            StepInput::Read(tokens) => {
                pace.horizon = horizon(state, tokens);
                self.embedded(tokens)?
            }
            StepInput::Pending(pending) => {
                let pending = pending
                    .as_any()
                    .downcast_ref::<MlxPending>()
                    .ok_or_else(|| Error::internal("a token of another back end"))?;
                self.graph.embed(&prim::reshape(&pending.token, &[1, 1])?)?
            }
        };
        let tokens = x.dim(1) as usize;
        state.step(tokens, |state| {
            let hidden = self.graph.hidden(&x, &mut state.caches, &mut pace)?;
            let sampled = sample::sample(&self.last_scores(&hidden)?, sampling, step, self.precision())?;
            let logprobs = if report.chosen || report.top > 0 {
                Some(prim::astype(&sampled.logprobs, Dtype::Float32)?)
            } else {
                None
            };
            let sample::Sampled { token, sound, .. } = sampled;
            mlx::async_eval([Some(&token), Some(&sound), logprobs.as_ref()].into_iter().flatten())?;
            Ok(Box::new(MlxPending { token, sound, logprobs, report }) as Box<dyn PendingToken>)
        })
    }
}
