//! Ids in, whole characters out.

use std::sync::Arc;

use super::Tokenizer;
use super::decode::DecodeState;

/// Decodes a growing sequence of ids.
///
/// Each call returns the characters that became certain with that id: valid UTF-8, each character
/// once. All returned text together equals [`Tokenizer::decode`] of all ids, whatever the split.
/// The cost of a call does not depend on what came before. A clone continues independently.
#[derive(Clone, Debug)]
pub struct StreamDecoder {
    tokenizer: Arc<Tokenizer>,
    skip_special: bool,
    state: DecodeState,
}

impl StreamDecoder {
    /// `skip_special`: special tokens give no text.
    pub fn new(tokenizer: Arc<Tokenizer>, skip_special: bool) -> Self {
        StreamDecoder { tokenizer, skip_special, state: DecodeState::default() }
    }

    /// The new whole characters. An id without a token gives none.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.push_to(id, &mut text);
        text
    }

    /// As [`push`](Self::push), appending to `out`.
    pub fn push_to(&mut self, id: u32, out: &mut String) {
        self.tokenizer.decode_step(&mut self.state, id, self.skip_special, out);
    }

    /// What was held back, such as U+FFFD for a character that was cut off. The decoder is then as new.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.tokenizer.decode_end(&mut self.state, &mut text);
        text
    }
}
