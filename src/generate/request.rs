//! A checked request for a generation.

use std::ops::Range;
use std::sync::Arc;

use super::runtime::LogprobReport;
use super::stop::StopMatcher;
use crate::base::info::ModelInfo;
use crate::base::options::{GenerateOptions, Sampling};
use crate::base::prompt::EMBEDDED;
use crate::base::{CancelToken, Error, Prompt, Result};
use crate::text::{StreamDecoder, Tokenizer};

/// Most rivals that can be reported with each token.
pub const MAX_TOP_LOGPROBS: u32 = 20;

/// Everything that a row needs to know of its request.
pub struct Request {
    pub prompt: Prompt,
    pub sampling: Sampling,
    pub max_tokens: Option<u64>,
    /// Ids that end the generation, ascending.
    pub eos: Vec<u32>,
    pub report: LogprobReport,
    pub cancel: Option<CancelToken>,
    /// Most tokens of prompt and output together.
    pub limit: u64,
    /// Tokens of a prefill forward.
    pub chunk: u64,
    pub stops: StopMatcher,
    /// `None` when the model has no tokenizer: then events carry ids only.
    pub decoder: Option<StreamDecoder>,
}

impl Request {
    /// `capacity`: most tokens of the cache set, 0 for as many as the model takes.
    pub fn new(
        info: &ModelInfo,
        tokenizer: Option<Arc<Tokenizer>>,
        prompt: Prompt,
        capacity: u64,
        options: &GenerateOptions,
    ) -> Result<Self> {
        options.sampling.validate()?;
        if options.top_logprobs > MAX_TOP_LOGPROBS {
            let text = format!("at most {MAX_TOP_LOGPROBS} rivals can be reported with a token");
            return Err(Error::invalid_argument(text).field("top_logprobs"));
        }
        let stops = StopMatcher::new(&options.stop)?;
        if !options.stop.is_empty() && tokenizer.is_none() {
            let text = "stop texts need a tokenizer, and the model has none";
            return Err(Error::unsupported(text).field("stop"));
        }
        check_ids("extra_eos", &options.extra_eos, info.vocabulary)?;
        check_prompt(&prompt, info)?;
        let limit = sequence_limit(info, capacity);
        check_room(prompt.len() as u64, limit)?;
        let own_eos: &[u32] = if options.ignore_eos { &[] } else { &info.eos };
        let mut eos = [own_eos, &options.extra_eos].concat();
        eos.sort_unstable();
        eos.dedup();
        Ok(Request {
            prompt,
            sampling: options.sampling.clone(),
            max_tokens: options.max_tokens,
            eos,
            report: LogprobReport {
                chosen: options.logprobs || options.top_logprobs > 0,
                top: options.top_logprobs.min(info.vocabulary),
            },
            cancel: options.cancel.clone(),
            limit,
            chunk: u64::from(info.prefill_chunk.max(1)),
            stops,
            decoder: tokenizer.map(|tokenizer| StreamDecoder::new(tokenizer, true)),
        })
    }
}

/// Most tokens of a sequence in a cache set of that capacity (0: no bound of its own).
pub fn sequence_limit(info: &ModelInfo, capacity: u64) -> u64 {
    let limit = if info.context_limit == 0 { u64::MAX } else { info.context_limit };
    if capacity == 0 { limit } else { limit.min(capacity) }
}

/// INVALID_ARGUMENT when there is nothing to read, or naming the first token that the model does not know, or the first
/// position of embeddings of another width.
pub fn check_prompt(prompt: &Prompt, info: &ModelInfo) -> Result<()> {
    let mut next = 0;
    for piece in prompt.embedded() {
        check_ids_from("tokens", prompt.ids(), next..piece.start, info.vocabulary)?;
        if piece.width() != info.hidden as usize {
            let text = format!("embeddings have {} elements, not {}", info.hidden, piece.width());
            return Err(Error::invalid_argument(text).field("embeddings").position(piece.start as u64));
        }
        next = piece.start + piece.rows;
    }
    check_ids_from("tokens", prompt.ids(), next..prompt.len(), info.vocabulary)?;
    if prompt.is_empty() {
        return Err(Error::invalid_argument("at least one token is needed").field("tokens"));
    }
    Ok(())
}

/// CONTEXT_FULL when a sequence of `tokens` tokens passes `limit`.
pub fn check_room(tokens: u64, limit: u64) -> Result<()> {
    if tokens > limit {
        return Err(Error::context_full(format!("{tokens} tokens do not fit into a sequence of {limit}"))
            .field("tokens")
            .position(limit));
    }
    Ok(())
}

fn check_ids(field: &str, tokens: &[u32], vocabulary: u32) -> Result<()> {
    check_ids_from(field, tokens, 0..tokens.len(), vocabulary)
}

fn check_ids_from(field: &str, tokens: &[u32], range: Range<usize>, vocabulary: u32) -> Result<()> {
    let known = |token: u32| token < vocabulary && token != EMBEDDED;
    match range.clone().find(|position| !known(tokens[*position])) {
        None => Ok(()),
        Some(position) => Err(Error::invalid_argument(format!(
            "token {} is outside the vocabulary of {vocabulary}",
            tokens[position]
        ))
        .field(field)
        .position(position as u64)),
    }
}
