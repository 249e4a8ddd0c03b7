//! Tokens appended to a sequence, with the scores after the last.

use super::plan::{PrefillPlan, PrefillUnit};
use super::row::{Advance, Row};
use super::sequence::Sequence;
use super::surroundings::Surroundings;
use crate::base::{CancelToken, Code, Error, Prompt, Result};

pub type AppendReply = Box<dyn FnOnce(Result<()>)>;

/// After an error or a cancellation the sequence covers whole chunks of the tokens.
pub struct AppendRow {
    sequence: Sequence,
    tokens: Prompt,
    done: usize,
    chunk: u64,
    cancel: CancelToken,
    outcome: Option<Result<()>>,
    reply: AppendReply,
}

impl AppendRow {
    pub fn new(
        sequence: Sequence,
        tokens: Prompt,
        chunk: u64,
        cancel: CancelToken,
        reply: AppendReply,
    ) -> Self {
        AppendRow { sequence, tokens, done: 0, chunk, cancel, outcome: None, reply }
    }

    fn unit(&mut self, pause: &CancelToken, surroundings: &mut dyn Surroundings) -> Result<Advance> {
        self.cancel.check()?;
        let stop = CancelToken::linked(&[&self.cancel, pause])?;
        let plan = PrefillPlan {
            length: self.tokens.len() as u64,
            chunk: self.sequence.chunk(self.chunk),
            last: self.sequence.model().final_width(),
            snapshot_at: None,
        };
        let (end, last) = match plan.unit(self.done as u64)? {
            PrefillUnit::Drain { end, .. } => (end as usize, false),
            PrefillUnit::Final { end } => (end as usize, true),
        };
        let tokens = &self.tokens.part(self.done..end);
        let outcome = if last {
            self.sequence.prefill_with_logits(tokens, &stop, surroundings)
        } else {
            self.sequence.prefill(tokens, &stop, surroundings)
        };
        if let Err(error) = outcome {
            let paused = error.code() == Code::Cancelled && pause.is_requested();
            return if paused && !self.cancel.is_requested() { Ok(Advance::Paused) } else { Err(error) };
        }
        self.done = end;
        if last {
            return Ok(self.end(Ok(())));
        }
        surroundings.relieve();
        Ok(Advance::Moved)
    }

    fn end(&mut self, outcome: Result<()>) -> Advance {
        self.sequence.settle();
        self.outcome.get_or_insert(outcome);
        Advance::Ended
    }
}

impl Row for AppendRow {
    fn is_preparing(&self) -> bool {
        true
    }

    fn advance(&mut self, pause: &CancelToken, surroundings: &mut dyn Surroundings) -> Advance {
        match self.unit(pause, surroundings) {
            Ok(advance) => advance,
            Err(error) => self.end(Err(error)),
        }
    }

    fn settle(&mut self, _: &mut dyn Surroundings) -> Advance {
        self.poll_cancel()
    }

    fn poll_cancel(&mut self) -> Advance {
        match self.cancel.check() {
            Ok(()) => Advance::Paused,
            Err(cancelled) => self.end(Err(cancelled)),
        }
    }

    fn fail(&mut self, error: Error) {
        self.end(Err(error));
    }

    fn fail_after_panic(&mut self, panic: Error) {
        self.sequence.settle_after_panic(&panic);
        self.outcome.get_or_insert(Err(panic));
    }

    fn finish(self: Box<Self>) -> Sequence {
        let unfinished = || Err(Error::internal("an append ended without an outcome"));
        (self.reply)(self.outcome.unwrap_or_else(unfinished));
        self.sequence
    }
}
