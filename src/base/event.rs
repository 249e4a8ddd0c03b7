//! What a generation tells its consumer.

/// Why the reuse of a cache's tokens ended where it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum ReuseStop {
    /// The cache was empty or none was given.
    NothingCached = 0,
    /// The whole cache is a prefix of the prompt.
    CacheExhausted = 1,
    /// The cache and the prompt differ there; the rest of the cache was cut.
    Diverged = 2,
    /// The cache covers the whole prompt; its last token is forwarded again.
    PromptCovered = 3,
    /// The tokens in common were reduced in precision with others behind them, so that they do not stand for
    /// themselves: all are read again.
    Reduced = 4,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum EndReason {
    Eos = 0,
    StopString = 1,
    MaxTokens = 2,
    GrammarEnd = 3,
    Cancelled = 4,
    ContextFull = 5,
}

/// A token's log-probability and its likeliest rivals, from the scores before temperature and filters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    pub chosen: f32,
    /// Descending; equal values by ascending id.
    pub top: Vec<(u32, f32)>,
}

/// Whole UTF-8 characters and the tokens they came with. Either may be empty: a token that
/// completes no character, or held-back text that needs no further token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextEvent {
    pub text: String,
    pub tokens: Vec<u32>,
    /// One per token if asked for, else empty.
    pub logprobs: Vec<TokenLogprobs>,
    pub replayed: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    pub prompt_tokens: u64,
    /// Prompt tokens taken from the cache instead of computed.
    pub reused_tokens: u64,
    /// Sampled tokens, an ending EOS included.
    pub generated_tokens: u64,
}

/// Seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timings {
    /// From `stream_open` until the row was first served.
    pub queued: f64,
    /// Prompt forwards until the first token was read.
    pub prefill: f64,
    /// From the first token to the end.
    pub decode: f64,
    /// From `stream_open` to the first token.
    pub first_token: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EndEvent {
    pub reason: EndReason,
    /// The matched stop text, with `EndReason::StopString`.
    pub stop: Option<String>,
    pub usage: Usage,
    pub timings: Timings,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    Prefill { done: u64, total: u64, reused: u64, reuse_stop: ReuseStop },
    Text(TextEvent),
    End(EndEvent),
}
