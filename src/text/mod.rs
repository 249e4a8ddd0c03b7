//! Tokenizer, streaming decoder, chat template. Host only; any thread.

/// Placeholder until the room is filled.
pub struct Tokenizer;
