//! The event struct, and the storage that its pointers lead into.

use std::ffi::c_char;

use super::options::{self, versioned};
use super::status::mlxgen_status;
use crate::base::event::{EndReason, Event, ReuseStop, TextEvent};

/// A part of the prompt was read: `prefill_done` of `prefill_total` tokens.
pub const MLXGEN_EVENT_PREFILL: i32 = 1;
/// Text was generated: whole UTF-8 characters and the tokens they came with; either may be empty.
pub const MLXGEN_EVENT_TEXT: i32 = 2;
/// The generation has ended; the last event.
pub const MLXGEN_EVENT_END: i32 = 6;

/// Nothing was cached.
pub const MLXGEN_REUSE_NOTHING_CACHED: i32 = 0;
/// All cached tokens were used.
pub const MLXGEN_REUSE_CACHE_EXHAUSTED: i32 = 1;
/// The cached tokens and the prompt differ there; the rest of the cache was cut off.
pub const MLXGEN_REUSE_DIVERGED: i32 = 2;
/// The cache holds the whole prompt; its last token is read again.
pub const MLXGEN_REUSE_PROMPT_COVERED: i32 = 3;
/// The tokens in common were reduced in precision together with others behind them (kv_start): all are read again.
pub const MLXGEN_REUSE_REDUCED: i32 = 4;

/// An end-of-sequence token was generated.
pub const MLXGEN_END_EOS: i32 = 0;
/// A stop text was generated.
pub const MLXGEN_END_STOP_STRING: i32 = 1;
/// As many tokens as asked for were generated.
pub const MLXGEN_END_MAX_TOKENS: i32 = 2;
/// The grammar allows nothing more.
pub const MLXGEN_END_GRAMMAR: i32 = 3;
/// A cancel handle was asked to stop.
pub const MLXGEN_END_CANCELLED: i32 = 4;
/// The context limit or the cache set's capacity was reached.
pub const MLXGEN_END_CONTEXT_FULL: i32 = 5;

const _: () = assert!(
    ReuseStop::NothingCached as i32 == MLXGEN_REUSE_NOTHING_CACHED
        && ReuseStop::CacheExhausted as i32 == MLXGEN_REUSE_CACHE_EXHAUSTED
        && ReuseStop::Diverged as i32 == MLXGEN_REUSE_DIVERGED
        && ReuseStop::PromptCovered as i32 == MLXGEN_REUSE_PROMPT_COVERED
        && ReuseStop::Reduced as i32 == MLXGEN_REUSE_REDUCED
);
const _: () = assert!(
    EndReason::Eos as i32 == MLXGEN_END_EOS
        && EndReason::StopString as i32 == MLXGEN_END_STOP_STRING
        && EndReason::MaxTokens as i32 == MLXGEN_END_MAX_TOKENS
        && EndReason::GrammarEnd as i32 == MLXGEN_END_GRAMMAR
        && EndReason::Cancelled as i32 == MLXGEN_END_CANCELLED
        && EndReason::ContextFull as i32 == MLXGEN_END_CONTEXT_FULL
);

/// What a generation tells. Fields that do not belong to the event's kind are 0, empty or NULL.
/// What the pointers lead to is borrowed until the next call on the stream. Set it up with
/// mlxgen_event_init.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_event {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// One of the MLXGEN_EVENT_ numbers. Skip events of a kind that you do not know.
    pub kind: i32,
    /// PREFILL: prompt tokens read so far, the reused ones included.
    pub prefill_done: u64,
    /// PREFILL: tokens of the prompt.
    pub prefill_total: u64,
    /// PREFILL: prompt tokens that were taken from the cache set.
    pub prefill_reused: u64,
    /// PREFILL: why not more were reused: one of the MLXGEN_REUSE_ numbers.
    pub reuse_stop: i32,
    /// TEXT: UTF-8, NUL-terminated.
    pub text: *const c_char,
    /// TEXT: bytes of `text`, without the NUL.
    pub text_size: usize,
    /// TEXT: token ids.
    pub tokens: *const u32,
    /// TEXT: number of `tokens`.
    pub token_count: usize,
    /// TEXT: one natural logarithm of the probability for each token, if asked for; else NULL.
    pub logprobs: *const f32,
    /// TEXT: the likeliest tokens, `top_count` for each token, descending; if asked for.
    pub top_tokens: *const u32,
    /// TEXT: the log-probabilities of `top_tokens`.
    pub top_logprobs: *const f32,
    /// TEXT: see `top_tokens`.
    pub top_count: usize,
    /// TEXT: 1 if this was told before, by the generation that a checkpoint interrupted; else 0.
    pub replayed: i32,
    /// END: one of the MLXGEN_END_ numbers.
    pub end_reason: i32,
    /// END with MLXGEN_END_STOP_STRING: the stop text, NUL-terminated.
    pub stop_text: *const c_char,
    /// END: bytes of `stop_text`, without the NUL.
    pub stop_text_size: usize,
    /// END: tokens of the prompt.
    pub prompt_tokens: u64,
    /// END: prompt tokens that were taken from the cache set.
    pub reused_tokens: u64,
    /// END: tokens generated, an end-of-sequence token included.
    pub generated_tokens: u64,
    /// END: seconds from mlxgen_stream_open until work began.
    pub queued_seconds: f64,
    /// END: seconds from then to the first token.
    pub prefill_seconds: f64,
    /// END: seconds from the first token to the end.
    pub decode_seconds: f64,
    /// END: seconds from mlxgen_stream_open to the first token.
    pub first_token_seconds: f64,
}

const EMPTY: mlxgen_event = mlxgen_event {
    struct_size: 0,
    kind: 0,
    prefill_done: 0,
    prefill_total: 0,
    prefill_reused: 0,
    reuse_stop: 0,
    text: std::ptr::null(),
    text_size: 0,
    tokens: std::ptr::null(),
    token_count: 0,
    logprobs: std::ptr::null(),
    top_tokens: std::ptr::null(),
    top_logprobs: std::ptr::null(),
    top_count: 0,
    replayed: 0,
    end_reason: 0,
    stop_text: std::ptr::null(),
    stop_text_size: 0,
    prompt_tokens: 0,
    reused_tokens: 0,
    generated_tokens: 0,
    queued_seconds: 0.0,
    prefill_seconds: 0.0,
    decode_seconds: 0.0,
    first_token_seconds: 0.0,
};

versioned!(
    mlxgen_event, "event", 192,
    {
        kind: 8, prefill_done: 16, prefill_total: 24, prefill_reused: 32, reuse_stop: 40, text: 48,
        text_size: 56, tokens: 64, token_count: 72, logprobs: 80, top_tokens: 88, top_logprobs: 96,
        top_count: 104, replayed: 112, end_reason: 116, stop_text: 120, stop_text_size: 128,
        prompt_tokens: 136, reused_tokens: 144, generated_tokens: 152, queued_seconds: 160,
        prefill_seconds: 168, decode_seconds: 176, first_token_seconds: 184
    },
    first_token_seconds: f64,
    EMPTY
);

/// The storage behind the pointers of the event that was told last.
#[derive(Default)]
pub(super) struct LastEvent {
    /// Text or stop text, with a terminator.
    text: Vec<u8>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    top_tokens: Vec<u32>,
    top_logprobs: Vec<f32>,
}

impl LastEvent {
    /// Takes an event in, and gives its C form, which points into this storage.
    pub(super) fn keep(&mut self, event: Event) -> mlxgen_event {
        match event {
            Event::Prefill { done, total, reused, reuse_stop } => mlxgen_event {
                kind: MLXGEN_EVENT_PREFILL,
                prefill_done: done,
                prefill_total: total,
                prefill_reused: reused,
                reuse_stop: reuse_stop as i32,
                ..EMPTY
            },
            Event::Text(event) => self.keep_text(event),
            Event::End(end) => {
                let (stop_text, stop_text_size) = match end.stop {
                    Some(stop) => self.keep_chars(stop),
                    None => (std::ptr::null(), 0),
                };
                mlxgen_event {
                    kind: MLXGEN_EVENT_END,
                    end_reason: end.reason as i32,
                    stop_text,
                    stop_text_size,
                    prompt_tokens: end.usage.prompt_tokens,
                    reused_tokens: end.usage.reused_tokens,
                    generated_tokens: end.usage.generated_tokens,
                    queued_seconds: end.timings.queued,
                    prefill_seconds: end.timings.prefill,
                    decode_seconds: end.timings.decode,
                    first_token_seconds: end.timings.first_token,
                    ..EMPTY
                }
            }
        }
    }

    fn keep_chars(&mut self, text: String) -> (*const c_char, usize) {
        let size = text.len();
        self.text = text.into_bytes();
        self.text.push(0);
        (self.text.as_ptr().cast(), size)
    }

    fn keep_text(&mut self, event: TextEvent) -> mlxgen_event {
        let (text, text_size) = self.keep_chars(event.text);
        self.tokens = event.tokens;
        // All tokens report equally many rivals; should one report fewer, none are shown.
        let top_count = event.logprobs.iter().map(|token| token.top.len()).min().unwrap_or(0);
        self.logprobs.clear();
        self.top_tokens.clear();
        self.top_logprobs.clear();
        for token in &event.logprobs {
            self.logprobs.push(token.chosen);
            for (id, logprob) in token.top.iter().take(top_count) {
                self.top_tokens.push(*id);
                self.top_logprobs.push(*logprob);
            }
        }
        mlxgen_event {
            kind: MLXGEN_EVENT_TEXT,
            text,
            text_size,
            tokens: array(&self.tokens),
            token_count: self.tokens.len(),
            logprobs: array(&self.logprobs),
            top_tokens: array(&self.top_tokens),
            top_logprobs: array(&self.top_logprobs),
            top_count,
            replayed: i32::from(event.replayed),
            ..EMPTY
        }
    }
}

/// NULL for an empty array.
fn array<T>(elements: &[T]) -> *const T {
    if elements.is_empty() { std::ptr::null() } else { elements.as_ptr() }
}

/// Clears an event. Pass `sizeof(mlxgen_event)` as `struct_size`.
///
/// Threads: any thread.
/// Ownership: `struct_size` bytes at `event` are written.
/// Codes: OK, INVALID_ARGUMENT (`event` is NULL, or `struct_size` is not that of this struct in any
/// version).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_event_init(event: *mut mlxgen_event, struct_size: usize) -> mlxgen_status {
    // SAFETY: the header asks that `struct_size` bytes are writable.
    unsafe { options::init(event, struct_size) }
}
