//! One request's row: prefill, pipelined decode, events, end.
//!
//! Which tokens are kept. After any end, and at any pause, the sequence covers the prompt and all
//! generated tokens except the last one; an ending EOS counts as generated. A last token has never
//! been forwarded where nothing runs ahead, so the rule holds for states that cannot be cut, and
//! where a step did run ahead its token is cut off again. A row that ended inside its prompt
//! covers whole chunks of it.

use std::rc::Rc;
use std::time::Instant;

use super::plan::{PrefillPlan, PrefillUnit};
use super::request::Request;
use super::row::{Advance, Outbox, Row};
use super::runtime::{PendingToken, StepInput};
use super::sequence::Sequence;
use super::stop::Stopped;
use super::surroundings::Surroundings;
use crate::base::event::{EndEvent, EndReason, Event, ReuseStop, TextEvent, Timings, TokenLogprobs, Usage};
use crate::base::{CancelToken, Code, Error, Prompt, Result};

/// Freed buffers are given back after so many tokens.
const RELIEF_TOKENS: u64 = 256;

/// What the next forward takes.
enum Current {
    /// Prompt tokens; the sequence tells from where on.
    Prompt,
    /// A sampled token that nobody read yet.
    Unread(Box<dyn PendingToken>),
    /// A sampled token that was read and sent but not forwarded.
    Read(u32),
    Ended,
}

pub struct GenerationRow<O: Outbox> {
    sequence: Sequence,
    request: Request,
    outbox: O,
    /// The consumer's token and the stream's own.
    stop: CancelToken,
    current: Current,
    /// Whether steps may run ahead: only where their token can be cut off again.
    pipelined: bool,
    reused: u64,
    reuse_stop: ReuseStop,
    /// Tokens read.
    generated: u64,
    /// The latest of them: it is committed when the next one is read.
    last: Option<u32>,
    opened: Instant,
    served: Option<Instant>,
    first_token: Option<Instant>,
}

impl<O: Outbox> GenerationRow<O> {
    /// Reuses what `sequence` shares with the prompt and cuts off the rest. WRONG_STATE naming the
    /// layer when it cannot be cut; the sequence then comes back unchanged.
    pub fn new(
        mut sequence: Sequence,
        request: Request,
        outbox: O,
        close: &CancelToken,
        opened: Instant,
    ) -> std::result::Result<Self, (Sequence, Error)> {
        let stop = match &request.cancel {
            Some(cancel) => CancelToken::linked(&[cancel, close]),
            None => CancelToken::linked(&[close]),
        };
        let stop = match sequence.check().and(stop) {
            Ok(stop) => stop,
            Err(error) => return Err((sequence, error)),
        };
        let (keep, reuse_stop) = reusable(&sequence, &request.prompt);
        if let Err(error) = sequence.truncate(keep) {
            return Err((sequence, error));
        }
        let pipelined = sequence.can_run_ahead();
        Ok(GenerationRow {
            sequence,
            request,
            outbox,
            stop,
            current: Current::Prompt,
            pipelined,
            reused: keep as u64,
            reuse_stop,
            generated: 0,
            last: None,
            opened,
            served: None,
            first_token: None,
        })
    }

    fn unit(&mut self, pause: &CancelToken, surroundings: &mut dyn Surroundings) -> Result<Advance> {
        if self.stop.is_requested() {
            return Ok(self.end(EndReason::Cancelled, None));
        }
        if pause.is_requested() {
            return Ok(Advance::Paused);
        }
        if !self.outbox.has_room() {
            return Ok(Advance::Blocked);
        }
        if self.served.is_none() {
            self.served = Some(Instant::now());
            self.send_prefill();
        }
        match std::mem::replace(&mut self.current, Current::Ended) {
            Current::Prompt => {
                self.current = Current::Prompt;
                self.prefill(pause, surroundings)
            }
            Current::Unread(token) if self.pipelined && self.generated > 0 => {
                self.overlapped(token, surroundings)
            }
            // The first token is delivered before its own forward.
            Current::Unread(token) => self.read(token.as_ref(), surroundings),
            Current::Read(token) => {
                self.dispatch(StepInput::Read(&Prompt::of_tokens(&[token])), self.generated, surroundings)?;
                match std::mem::replace(&mut self.current, Current::Ended) {
                    Current::Unread(token) if !self.pipelined => self.read(token.as_ref(), surroundings),
                    current => {
                        self.current = current;
                        Ok(Advance::Moved)
                    }
                }
            }
            Current::Ended => Ok(Advance::Ended),
        }
    }

    fn prefill(&mut self, pause: &CancelToken, surroundings: &mut dyn Surroundings) -> Result<Advance> {
        let stop = CancelToken::linked(&[&self.stop, pause])?;
        let plan = PrefillPlan {
            length: self.request.prompt.len() as u64,
            chunk: self.sequence.chunk(self.request.chunk),
            last: self.sequence.model().final_width(),
            snapshot_at: None,
        };
        let position = self.sequence.len();
        let (end, last) = match plan.unit(position as u64)? {
            PrefillUnit::Drain { end, .. } => (end as usize, false),
            PrefillUnit::Final { end } => (end as usize, true),
        };
        let nothing_may_follow = self.end_by_count();
        if last && nothing_may_follow.is_none() {
            let part = self.request.prompt.part(position..end);
            self.sequence.admit(part.len() as u64, end as u64, surroundings)?;
            self.dispatch(StepInput::Read(&part), 0, surroundings)?;
            self.sequence.commit_part(&part);
            self.sequence.refresh();
            self.send_prefill();
            return Ok(Advance::Moved);
        }
        match self.sequence.prefill(&self.request.prompt.part(position..end), &stop, surroundings) {
            Ok(()) => {}
            Err(error) if error.code() == Code::Cancelled && self.stop.is_requested() => {
                return Ok(self.end(EndReason::Cancelled, None));
            }
            Err(error) if error.code() == Code::Cancelled && pause.is_requested() => {
                return Ok(Advance::Paused);
            }
            Err(error) => return Err(error),
        }
        surroundings.relieve();
        self.send_prefill();
        match nothing_may_follow {
            Some(reason) if last => Ok(self.end(reason, None)),
            _ => Ok(Advance::Moved),
        }
    }

    /// Builds and dispatches the step whose sampled token has the index `step`.
    fn dispatch(
        &mut self,
        input: StepInput<'_>,
        step: u64,
        surroundings: &mut dyn Surroundings,
    ) -> Result<()> {
        self.sequence.admit_step(self.request.limit, surroundings)?;
        let model = Rc::clone(self.sequence.model());
        let token = model.step(
            self.sequence.state_mut(),
            input,
            &self.request.sampling,
            self.request.report,
            step,
        )?;
        self.current = Current::Unread(token);
        Ok(())
    }

    /// The pipelined unit: the next step runs while this token is read and sent.
    fn overlapped(
        &mut self,
        token: Box<dyn PendingToken>,
        surroundings: &mut dyn Surroundings,
    ) -> Result<Advance> {
        let ahead = if self.end_after(self.generated + 1).is_none() {
            self.dispatch(StepInput::Pending(token.as_ref()), self.generated + 1, surroundings)
        } else {
            Ok(())
        };
        let (id, logprobs) = token.read()?;
        if let Some(ended) = self.take(id, logprobs, surroundings) {
            return Ok(ended);
        }
        // A failed step is reported only after the token that it would have followed.
        ahead.map(|()| Advance::Moved)
    }

    /// Reads and sends a token; in a pipeline, also dispatches the step that forwards it.
    fn read(&mut self, token: &dyn PendingToken, surroundings: &mut dyn Surroundings) -> Result<Advance> {
        let (id, logprobs) = token.read()?;
        if let Some(ended) = self.take(id, logprobs, surroundings) {
            return Ok(ended);
        }
        self.current = Current::Read(id);
        if self.pipelined {
            self.dispatch(StepInput::Read(&Prompt::of_tokens(&[id])), self.generated, surroundings)?;
        }
        Ok(Advance::Moved)
    }

    /// A sampled token was read: count it, send it, and see whether it is the end.
    fn take(
        &mut self,
        id: u32,
        logprobs: Option<TokenLogprobs>,
        surroundings: &mut dyn Surroundings,
    ) -> Option<Advance> {
        if let Some(before) = self.last.replace(id) {
            self.sequence.commit(before);
        }
        self.generated += 1;
        if self.first_token.is_none() {
            self.first_token = Some(Instant::now());
            surroundings.relieve();
        } else if self.generated.is_multiple_of(RELIEF_TOKENS) {
            surroundings.relieve();
        }
        if self.request.eos.binary_search(&id).is_ok() {
            return Some(self.flush_and_end(EndReason::Eos));
        }
        let piece = self.request.decoder.as_mut().map(|decoder| decoder.push(id)).unwrap_or_default();
        let (text, stop) = match self.request.stops.push(&piece) {
            Stopped::No(text) => (text, None),
            Stopped::Yes { text, stop } => (text, Some(stop)),
        };
        self.send(Event::Text(TextEvent {
            text,
            tokens: vec![id],
            logprobs: logprobs.into_iter().collect(),
            replayed: false,
        }));
        if stop.is_some() {
            return Some(self.end(EndReason::StopString, stop));
        }
        self.end_by_count().map(|reason| self.flush_and_end(reason))
    }

    fn end_by_count(&self) -> Option<EndReason> {
        self.end_after(self.generated)
    }

    /// Why no token may follow once `generated` tokens are there.
    fn end_after(&self, generated: u64) -> Option<EndReason> {
        if self.request.max_tokens.is_some_and(|most| generated >= most) {
            return Some(EndReason::MaxTokens);
        }
        let length = self.request.prompt.len() as u64 + generated;
        (length >= self.request.limit).then_some(EndReason::ContextFull)
    }

    /// Sends what the decoder and the stop matcher still hold, then the end.
    fn flush_and_end(&mut self, reason: EndReason) -> Advance {
        let rest = self.request.decoder.as_mut().map(|decoder| decoder.finish()).unwrap_or_default();
        let (text, stop) = match self.request.stops.push(&rest) {
            Stopped::No(text) => (text + &self.request.stops.finish(), None),
            Stopped::Yes { text, stop } => (text, Some(stop)),
        };
        if !text.is_empty() {
            self.send(Event::Text(TextEvent { text, ..TextEvent::default() }));
        }
        let reason = if stop.is_some() { EndReason::StopString } else { reason };
        self.end(reason, stop)
    }

    fn end(&mut self, reason: EndReason, stop: Option<usize>) -> Advance {
        self.current = Current::Ended;
        self.sequence.settle();
        let stop = stop.and_then(|index| self.request.stops.stop_text(index)).map(str::to_owned);
        let usage = Usage {
            prompt_tokens: self.request.prompt.len() as u64,
            reused_tokens: self.reused,
            generated_tokens: self.generated,
        };
        self.send(Event::End(EndEvent { reason, stop, usage, timings: self.timings() }));
        Advance::Ended
    }

    fn timings(&self) -> Timings {
        let now = Instant::now();
        let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        let served = self.served.unwrap_or(now);
        let first = self.first_token.unwrap_or(now);
        Timings {
            queued: seconds(self.opened, served),
            prefill: seconds(served, first),
            decode: seconds(first, now),
            first_token: self.first_token.map_or(0.0, |first| seconds(self.opened, first)),
        }
    }

    fn send(&self, event: Event) {
        self.outbox.send(Ok(event));
    }

    fn send_prefill(&self) {
        self.send(Event::Prefill {
            done: self.sequence.len() as u64,
            total: self.request.prompt.len() as u64,
            reused: self.reused,
            reuse_stop: self.reuse_stop,
        });
    }
}

impl<O: Outbox> Row for GenerationRow<O> {
    fn is_preparing(&self) -> bool {
        matches!(self.current, Current::Prompt)
    }

    fn advance(&mut self, pause: &CancelToken, surroundings: &mut dyn Surroundings) -> Advance {
        match self.unit(pause, surroundings) {
            Ok(advance) => advance,
            Err(error) => {
                self.fail(error);
                Advance::Ended
            }
        }
    }

    fn settle(&mut self, surroundings: &mut dyn Surroundings) -> Advance {
        match std::mem::replace(&mut self.current, Current::Ended) {
            Current::Unread(token) => match token.read() {
                Ok((id, logprobs)) => match self.take(id, logprobs, surroundings) {
                    Some(ended) => ended,
                    None => {
                        self.current = Current::Read(id);
                        self.sequence.settle();
                        Advance::Paused
                    }
                },
                Err(error) => {
                    self.fail(error);
                    Advance::Ended
                }
            },
            current => {
                self.current = current;
                Advance::Paused
            }
        }
    }

    fn poll_cancel(&mut self) -> Advance {
        if self.stop.is_requested() { self.end(EndReason::Cancelled, None) } else { Advance::Paused }
    }

    fn fail(&mut self, error: Error) {
        self.current = Current::Ended;
        self.sequence.settle();
        self.outbox.send(Err(error));
    }

    fn fail_after_panic(&mut self, panic: Error) {
        self.current = Current::Ended;
        self.sequence.settle_after_panic(&panic);
        self.outbox.send(Err(panic));
    }

    fn finish(self: Box<Self>) -> Sequence {
        self.sequence
    }
}

/// How many tokens of the sequence serve the prompt, and why not more.
fn reusable(sequence: &Sequence, prompt: &Prompt) -> (usize, ReuseStop) {
    let cached = sequence.len();
    let common = sequence.mirror().common_prefix(prompt);
    let (keep, stop) = if cached == 0 {
        (0, ReuseStop::NothingCached)
    } else if common == prompt.len() {
        // The scores after the last token are needed, so it is forwarded again.
        (common - 1, ReuseStop::PromptCovered)
    } else if common == cached {
        (common, ReuseStop::CacheExhausted)
    } else {
        (common, ReuseStop::Diverged)
    };
    if keep > 0 && !sequence.is_reusable(keep) { (0, ReuseStop::Reduced) } else { (keep, stop) }
}
