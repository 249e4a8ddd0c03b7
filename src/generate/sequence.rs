//! A sequence on the owner thread: a model's state and the host's account of it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::mirror::SequenceMirror;
use super::request::Request;
use super::runtime::{TokenModel, TokenState};
use super::surroundings::Surroundings;
use crate::base::options::CacheOptions;
use crate::base::{CancelToken, Error, Prompt, Result};

/// Tokens that a decoding row is given memory for at once.
const GROWTH: u64 = 256;

/// A state and its mirror. Between two calls from outside the state covers exactly the mirror's
/// tokens; while a row decodes it may be ahead, until [`settle`](Self::settle).
pub struct Sequence {
    model: Rc<dyn TokenModel>,
    state: Box<dyn TokenState>,
    mirror: Arc<SequenceMirror>,
    /// The state may grow to so many tokens without asking for memory again.
    admitted: u64,
    /// Why the state can no longer be trusted.
    damage: Option<Error>,
}

impl Sequence {
    pub fn new(model: &Rc<dyn TokenModel>, options: &CacheOptions, total: &Arc<AtomicU64>) -> Result<Self> {
        let mut state = model.new_state(options)?;
        state.count_in(total)?;
        Ok(Self::over(Rc::clone(model), state, total))
    }

    fn over(model: Rc<dyn TokenModel>, state: Box<dyn TokenState>, total: &Arc<AtomicU64>) -> Self {
        let mirror = Arc::new(SequenceMirror::new(Arc::clone(total)));
        let sequence = Sequence { model, state, mirror, admitted: 0, damage: None };
        sequence.refresh();
        sequence
    }

    /// An independent sequence with the same tokens.
    pub fn fork(&self, total: &Arc<AtomicU64>, surroundings: &mut dyn Surroundings) -> Result<Self> {
        self.check()?;
        surroundings.admit("a copy of the cache set", self.state.fork_bytes())?;
        let fork = Self::over(Rc::clone(&self.model), self.state.fork()?, total);
        fork.mirror.extend(&self.mirror.record());
        fork.mirror.set_logits(self.mirror.shared_logits());
        Ok(fork)
    }

    pub fn mirror(&self) -> &Arc<SequenceMirror> {
        &self.mirror
    }

    pub fn model(&self) -> &Rc<dyn TokenModel> {
        &self.model
    }

    /// The state, for a step of the model. The mirror learns of it by [`commit`](Self::commit).
    pub fn state_mut(&mut self) -> &mut dyn TokenState {
        self.state.as_mut()
    }

    /// Committed tokens.
    pub fn len(&self) -> usize {
        self.mirror.token_count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether every layer can forget its latest token now and whenever it has more.
    pub fn can_run_ahead(&self) -> bool {
        self.state.can_run_ahead()
    }

    /// Whether the state cut to `tokens` tokens continues as one that these tokens alone have made.
    pub fn is_reusable(&self, tokens: usize) -> bool {
        tokens as u64 >= self.state.minimum_reusable_offset()
    }

    /// INTERNAL if an earlier failure left the state in doubt.
    pub fn check(&self) -> Result<()> {
        match &self.damage {
            None => Ok(()),
            Some(damage) => Err(Error::internal(format!(
                "the cache set cannot be used any more, because of an earlier failure: {}",
                damage.message()
            ))),
        }
    }

    /// Asks for the memory to forward `width` tokens up to position `end`.
    pub fn admit(&self, width: u64, end: u64, surroundings: &mut dyn Surroundings) -> Result<()> {
        let need = self.growth(end).saturating_add(self.workspace(width, end));
        surroundings.admit(&format!("a forward of {width} tokens up to position {end}"), need)
    }

    fn workspace(&self, width: u64, end: u64) -> u64 {
        self.model.workspace_bytes(width, end, self.state.bytes_for(end))
    }

    /// Most tokens of the next forward of a prompt that is read in chunks of `chunk`.
    pub fn chunk(&self, chunk: u64) -> u64 {
        self.state.max_forward().map_or(chunk, |most| chunk.min(most.max(1)))
    }

    /// Bytes that covering `end` tokens takes beyond those that are counted for this sequence.
    fn growth(&self, end: u64) -> u64 {
        let grown = self.state.bytes_for(end).saturating_sub(self.state.bytes().max(self.granted()));
        grown.saturating_add(self.state.copied_bytes())
    }

    /// Asks for the memory that a whole prompt takes, before any of it is forwarded.
    pub fn admit_prompt(&self, request: &Request, surroundings: &mut dyn Surroundings) -> Result<()> {
        let end = request.prompt.len() as u64;
        let workspace = self.workspace(request.chunk.min(end), end);
        surroundings.admit(&format!("a prompt of {end} tokens"), self.growth(end).saturating_add(workspace))
    }

    /// As [`admit`](Self::admit) for steps of one token, in larger strides.
    pub fn admit_step(&mut self, limit: u64, surroundings: &mut dyn Surroundings) -> Result<()> {
        let end = self.state.offset() + 1;
        if end <= self.admitted {
            return Ok(());
        }
        // Near the edge of the memory a full stride may not fit while the step itself does.
        let stride = end.saturating_add(GROWTH - 1).min(limit).max(end);
        self.refresh();
        match self.admit(1, stride, surroundings) {
            Ok(()) => self.admitted = stride,
            Err(_) if stride > end => {
                self.admit(1, end, surroundings)?;
                self.admitted = end;
            }
            Err(error) => return Err(error),
        }
        self.refresh();
        Ok(())
    }

    /// Forwards `tokens` without scores. After an error none of them is covered.
    pub fn prefill(
        &mut self,
        tokens: &Prompt,
        cancel: &CancelToken,
        surroundings: &mut dyn Surroundings,
    ) -> Result<()> {
        self.check()?;
        let width = tokens.len() as u64;
        self.admit(width, self.state.offset() + width, surroundings)?;
        self.model.prefill(self.state.as_mut(), tokens, cancel)?;
        self.mirror.set_logits(None);
        self.mirror.extend(&tokens.record());
        self.refresh();
        Ok(())
    }

    /// Forwards the last tokens of an append and keeps the scores after them.
    pub fn prefill_with_logits(
        &mut self,
        tokens: &Prompt,
        cancel: &CancelToken,
        surroundings: &mut dyn Surroundings,
    ) -> Result<()> {
        self.check()?;
        let width = tokens.len() as u64;
        self.admit(width, self.state.offset() + width, surroundings)?;
        let logits = self.model.logits(self.state.as_mut(), tokens, cancel)?;
        self.mirror.extend(&tokens.record());
        self.mirror.set_logits(Some(Arc::new(logits)));
        self.refresh();
        Ok(())
    }

    /// A token that the state covers since a step is to be kept.
    pub fn commit(&mut self, token: u32) {
        self.mirror.set_logits(None);
        self.mirror.push(token);
    }

    /// A part of a prompt that the state covers since a step is to be kept.
    pub fn commit_part(&mut self, part: &Prompt) {
        self.mirror.set_logits(None);
        self.mirror.extend(&part.record());
    }

    /// Forgets what follows the first `keep` tokens. WRONG_STATE naming the layer that cannot, or whose precision was
    /// reduced with more tokens there: what it keeps of fewer is not what they alone would have made.
    pub fn truncate(&mut self, keep: usize) -> Result<usize> {
        self.check()?;
        let before = self.len();
        if keep >= before {
            return Ok(0);
        }
        if keep > 0 && !self.is_reusable(keep) {
            let layers = self.state.layers();
            let layer =
                layers.iter().position(|layer| layer.minimum_reusable_offset > keep as u64).unwrap_or(0);
            let least = self.state.minimum_reusable_offset();
            return Err(Error::wrong_state(format!(
                "layer {layer} was reduced in precision at {least} tokens and cannot be cut to {keep}; it can be cut to 0"
            ))
            .field("layer")
            .position(layer as u64));
        }
        self.state.truncate(keep as u64)?;
        self.mirror.set_logits(None);
        self.mirror.cut(keep);
        self.admitted = 0;
        self.refresh();
        Ok(before - keep)
    }

    /// Makes the state cover exactly the committed tokens. When it cannot, the sequence is damaged.
    pub fn settle(&mut self) {
        let committed = self.len() as u64;
        if self.damage.is_none() && self.state.offset() != committed {
            let cut = self.state.truncate(committed);
            let covered = self.state.offset();
            self.damage = match cut {
                Err(error) => Some(error),
                Ok(()) if covered != committed => {
                    Some(Error::internal(format!("the state covers {covered} tokens instead of {committed}")))
                }
                Ok(()) => None,
            };
        }
        self.admitted = 0;
        self.refresh();
    }

    /// After a panic inside the model: keep the sequence only if its state answers as it should.
    pub fn settle_after_panic(&mut self, panic: &Error) {
        let outcome = crate::base::panics::catch("the repair of a cache set", || {
            self.settle();
            let committed = self.len() as u64;
            let layers = self.state.layers();
            match layers.iter().all(|layer| layer.offset == committed) {
                true => Ok(()),
                false => Err(panic.clone()),
            }
        });
        if let Err(error) = outcome {
            self.damage.get_or_insert(error);
        }
    }

    /// Bytes of what the state may grow to without asking again.
    fn granted(&self) -> u64 {
        if self.admitted == 0 { 0 } else { self.state.bytes_for(self.admitted) }
    }

    /// Brings the mirror's sizes up to date. Not done at each token: it asks every layer.
    pub fn refresh(&self) {
        let grown = self.granted().saturating_sub(self.state.bytes());
        self.mirror.set_bytes(self.state.own_bytes() + grown);
        self.mirror.set_layers(self.state.layers());
    }
}
