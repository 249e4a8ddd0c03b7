//! Decoding as a pipeline that takes one token at a time and never looks back.
//!
//! A tokenizer.json describes its decoder as steps over the list of all tokens. Each step that
//! language models use can be run token by token with a bounded memory of what went before, so a
//! stream and a whole decode are the same code and cannot differ.

use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::wordpiece::cleanup;
use tokenizers::normalizers::replace::Replace;
use tokenizers::pre_tokenizers::metaspace::PrependScheme;

use crate::base::{Error, Result};

/// What a tokenizer's decoder does, in the order token steps, joining, text steps.
#[derive(Debug)]
pub(super) struct Pipeline {
    token_steps: Vec<TokenStep>,
    join: Join,
    /// Cuts at the ends of the whole text.
    strips: Vec<Strip>,
}

#[derive(Debug)]
enum TokenStep {
    Replace(Box<Replace>),
    Strip(Strip),
    Metaspace { mark: char, keep_first: bool },
    WordPiece { prefix: String, cleanup: bool },
    Ctc { pad: String, delimiter: String, cleanup: bool },
    WordSuffix(String),
}

/// How tokens become text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Join {
    /// One after another.
    Plain,
    /// One after another, with spaces between: what tokenizers do without a decoder.
    Spaced,
    /// Each character stands for a byte; the bytes are UTF-8.
    Bytes,
    /// Tokens such as `<0x0A>` stand for bytes of UTF-8, others for themselves.
    Fallback,
}

#[derive(Clone, Copy, Debug)]
struct Strip {
    content: char,
    start: usize,
    stop: usize,
}

/// What a pipeline remembers between two tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct DecodeState {
    /// Whether a token was taken.
    started: bool,
    /// CTC: the token before. Word suffixes: the token that waits to learn whether it is the last.
    previous: Option<String>,
    /// Bytes of a character that is not complete: at most 3.
    bytes: Vec<u8>,
    strips: Vec<StripState>,
}

#[derive(Clone, Copy, Debug, Default)]
struct StripState {
    /// Leading characters seen; saturates at the first other character.
    begun: usize,
    /// Trailing characters held back.
    held: usize,
}

impl Pipeline {
    /// UNSUPPORTED for a step that cannot run token by token.
    pub(super) fn new(decoder: Option<&DecoderWrapper>) -> Result<Self> {
        let Some(decoder) = decoder else {
            return Ok(Pipeline { token_steps: Vec::new(), join: Join::Spaced, strips: Vec::new() });
        };
        let mut pipeline = Pipeline { token_steps: Vec::new(), join: Join::Plain, strips: Vec::new() };
        let mut fused = false;
        pipeline.add(decoder, &mut fused)?;
        Ok(pipeline)
    }

    /// The pipeline of a byte-level vocabulary.
    pub(super) fn byte_level() -> Self {
        Pipeline { token_steps: Vec::new(), join: Join::Bytes, strips: Vec::new() }
    }

    fn add(&mut self, decoder: &DecoderWrapper, fused: &mut bool) -> Result<()> {
        let late = |name: &str| {
            Err(Error::unsupported(format!(
                "the tokenizer's decoder has {name} after its tokens were joined"
            ))
            .field("decoder"))
        };
        let joined = *fused || self.join != Join::Plain;
        let after_fallback = !*fused && self.join == Join::Fallback;
        match decoder {
            DecoderWrapper::Sequence(sequence) => {
                for step in sequence.get_decoders() {
                    self.add(step, fused)?;
                }
            }
            DecoderWrapper::Fuse(_) => *fused = true,
            DecoderWrapper::Strip(strip) => {
                let strip = Strip { content: strip.content, start: strip.start, stop: strip.stop };
                if *fused || self.join == Join::Bytes {
                    self.strips.push(strip);
                } else if self.join == Join::Fallback {
                    return late("Strip");
                } else {
                    self.token_steps.push(TokenStep::Strip(strip));
                }
            }
            DecoderWrapper::ByteLevel(_) if joined => return late("ByteLevel"),
            DecoderWrapper::ByteLevel(_) => self.join = Join::Bytes,
            DecoderWrapper::ByteFallback(_) if joined => return late("ByteFallback"),
            DecoderWrapper::ByteFallback(_) => self.join = Join::Fallback,
            // After ByteFallback these see the same tokens as before it, except for marks spelled in bytes.
            DecoderWrapper::Replace(_) if joined && !after_fallback => return late("Replace"),
            DecoderWrapper::Replace(replace) => {
                self.token_steps.push(TokenStep::Replace(Box::new(replace.clone())));
            }
            DecoderWrapper::Metaspace(_) if joined && !after_fallback => return late("Metaspace"),
            DecoderWrapper::Metaspace(metaspace) => self.token_steps.push(TokenStep::Metaspace {
                mark: metaspace.get_replacement(),
                keep_first: metaspace.get_prepend_scheme() == PrependScheme::Never,
            }),
            DecoderWrapper::WordPiece(_) if joined => return late("WordPiece"),
            DecoderWrapper::WordPiece(step) => self
                .token_steps
                .push(TokenStep::WordPiece { prefix: step.prefix.clone(), cleanup: step.cleanup }),
            DecoderWrapper::CTC(_) if joined || !self.token_steps.is_empty() => return late("CTC"),
            DecoderWrapper::CTC(step) => self.token_steps.push(TokenStep::Ctc {
                pad: step.pad_token.clone(),
                delimiter: step.word_delimiter_token.clone(),
                cleanup: step.cleanup,
            }),
            DecoderWrapper::BPE(_) if joined || !self.token_steps.is_empty() => return late("BPEDecoder"),
            DecoderWrapper::BPE(step) => self.token_steps.push(TokenStep::WordSuffix(step.suffix.clone())),
        }
        Ok(())
    }

    /// Takes a token and appends the characters that are now certain to `out`.
    pub(super) fn push(&self, state: &mut DecodeState, token: String, out: &mut String) {
        if state.strips.len() != self.strips.len() {
            state.strips = vec![StripState::default(); self.strips.len()];
        }
        let first = !std::mem::replace(&mut state.started, true);
        let Some(token) = self.token_steps(state, token, first) else {
            return;
        };
        let mut text = String::new();
        self.join(state, &token, first, &mut text);
        self.strip_from(state, 0, &text, out);
    }

    /// Appends what was held back; the state is then as new.
    pub(super) fn finish(&self, state: &mut DecodeState, out: &mut String) {
        let mut text = String::new();
        if let (Some(TokenStep::WordSuffix(suffix)), Some(last)) =
            (self.token_steps.first(), state.previous.take())
        {
            let last = last.replace(suffix.as_str(), "");
            self.join(state, &last, false, &mut text);
        }
        match self.join {
            Join::Bytes => text.push_str(&String::from_utf8_lossy(&state.bytes)),
            Join::Fallback => text.extend(state.bytes.iter().map(|_| char::REPLACEMENT_CHARACTER)),
            Join::Plain | Join::Spaced => {}
        }
        self.strip_from(state, 0, &text, out);
        // Held characters are those that the strips cut at the end; they are dropped.
        *state = DecodeState::default();
    }

    /// The bytes that a token adds to a text that has begun.
    pub(super) fn bytes_of(&self, token: String) -> Vec<u8> {
        let mut state = DecodeState { started: true, ..DecodeState::default() };
        let whole = matches!(self.token_steps.first(), Some(TokenStep::WordSuffix(_)));
        let token = if whole { Some(token) } else { self.token_steps(&mut state, token, false) };
        let token = token.unwrap_or_default();
        match self.join {
            Join::Bytes => {
                let bytes: Option<Vec<u8>> = token.chars().map(byte_of).collect();
                bytes.unwrap_or_else(|| token.into_bytes())
            }
            Join::Fallback => fallback_byte(&token).map_or_else(|| token.into_bytes(), |byte| vec![byte]),
            Join::Plain => token.into_bytes(),
            Join::Spaced => format!(" {token}").into_bytes(),
        }
    }

    fn token_steps(&self, state: &mut DecodeState, mut token: String, first: bool) -> Option<String> {
        for step in &self.token_steps {
            token = match step {
                TokenStep::Replace(replace) => apply(replace, token),
                TokenStep::Strip(strip) => strip_token(*strip, &token),
                TokenStep::Metaspace { mark, keep_first } => {
                    let space = if first && !keep_first { "" } else { " " };
                    token.replace(*mark, space)
                }
                TokenStep::WordPiece { prefix, cleanup: clean } => {
                    if !first {
                        token = match token.strip_prefix(prefix.as_str()) {
                            Some(rest) => rest.to_owned(),
                            None => format!(" {token}"),
                        };
                    }
                    if *clean { cleanup(&token) } else { token }
                }
                TokenStep::Ctc { pad, delimiter, cleanup: clean } => {
                    if state.previous.as_deref() == Some(token.as_str()) {
                        return None;
                    }
                    let text = token.replace(pad.as_str(), "");
                    state.previous = Some(token);
                    if *clean { cleanup(&text).replace(delimiter.as_str(), " ") } else { text }
                }
                TokenStep::WordSuffix(suffix) => state.previous.replace(token)?.replace(suffix.as_str(), " "),
            };
        }
        Some(token)
    }

    fn join(&self, state: &mut DecodeState, token: &str, first: bool, out: &mut String) {
        match self.join {
            Join::Plain => out.push_str(token),
            Join::Spaced => {
                if !first {
                    out.push(' ');
                }
                out.push_str(token);
            }
            Join::Bytes => {
                let start = state.bytes.len();
                for character in token.chars() {
                    match byte_of(character) {
                        Some(byte) => state.bytes.push(byte),
                        // One character outside the byte alphabet: the whole token is text.
                        None => {
                            state.bytes.truncate(start);
                            state.bytes.extend_from_slice(token.as_bytes());
                            break;
                        }
                    }
                }
                take_characters(&mut state.bytes, Invalid::OnePerSequence, out);
            }
            Join::Fallback => match fallback_byte(token) {
                Some(byte) => {
                    state.bytes.push(byte);
                    take_characters(&mut state.bytes, Invalid::OnePerByte, out);
                }
                None => {
                    out.extend(state.bytes.drain(..).map(|_| char::REPLACEMENT_CHARACTER));
                    out.push_str(token);
                }
            },
        }
    }

    /// Runs the strips from `index` on over `text`, which follows all text before.
    fn strip_from(&self, state: &mut DecodeState, index: usize, text: &str, out: &mut String) {
        let Some(strip) = self.strips.get(index) else {
            out.push_str(text);
            return;
        };
        let mut kept = String::with_capacity(text.len());
        for character in text.chars() {
            let seen = &mut state.strips[index];
            let matches = character == strip.content;
            if seen.begun < strip.start && matches {
                seen.begun += 1;
                continue;
            }
            seen.begun = strip.start;
            if matches && seen.held < strip.stop {
                seen.held += 1;
                continue;
            }
            if !matches {
                kept.extend(std::iter::repeat_n(strip.content, seen.held));
                seen.held = 0;
            }
            kept.push(character);
        }
        self.strip_from(state, index + 1, &kept, out);
    }
}

fn apply(replace: &Replace, token: String) -> String {
    use tokenizers::Decoder;
    match replace.decode_chain(vec![token.clone()]) {
        Ok(mut tokens) => tokens.pop().unwrap_or_default(),
        Err(_) => token,
    }
}

fn strip_token(strip: Strip, token: &str) -> String {
    let mut rest = token;
    for _ in 0..strip.start {
        rest = rest.strip_prefix(strip.content).unwrap_or(rest);
    }
    for _ in 0..strip.stop {
        rest = rest.strip_suffix(strip.content).unwrap_or(rest);
    }
    rest.to_owned()
}

/// How bytes that are not UTF-8 are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Invalid {
    /// One replacement mark for a cut-off sequence, as `String::from_utf8_lossy`.
    OnePerSequence,
    /// One for each byte.
    OnePerByte,
}

/// Moves everything but a cut-off character at the end from `bytes` to `out`.
fn take_characters(bytes: &mut Vec<u8>, invalid: Invalid, out: &mut String) {
    let mut done = 0;
    while done < bytes.len() {
        match std::str::from_utf8(&bytes[done..]) {
            Ok(text) => {
                out.push_str(text);
                done = bytes.len();
            }
            Err(error) => {
                let valid = done + error.valid_up_to();
                out.push_str(&String::from_utf8_lossy(&bytes[done..valid]));
                done = valid;
                let Some(bad) = error.error_len() else { break };
                let marks = if invalid == Invalid::OnePerByte { bad } else { 1 };
                out.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, marks));
                done += bad;
            }
        }
    }
    bytes.drain(..done);
}

/// The byte that `<0xNN>` stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// The byte that a character of a byte-level vocabulary stands for: printable Latin-1 characters
/// stand for themselves, the 68 other bytes are numbered upwards from U+0100.
pub(super) fn byte_of(character: char) -> Option<u8> {
    let code = character as u32;
    match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7F).ok(),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// The character that stands for a byte in a byte-level vocabulary.
pub(super) fn char_of(byte: u8) -> char {
    let code = match byte {
        0x00..=0x20 => 0x100 + u32::from(byte),
        0x7F..=0xA0 => 0x121 + u32::from(byte) - 0x7F,
        0xAD => 0x143,
        _ => u32::from(byte),
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        for byte in 0..=255 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        let known = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
        assert_eq!(known.len(), 256);
        assert!(known.iter().all(|character| byte_of(*character).is_some()));
    }
}
