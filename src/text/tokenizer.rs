//! The tokenizer: encoding, decoding, and what it knows of its tokens.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::OnceLock;

use tokenizers::{AddedVocabulary, Encoding, Model, OffsetType, PostProcessor, PreTokenizer};

use super::chat::{self, ChatOptions, ChatTemplates, RenderedChat};
use super::decode::{DecodeState, Pipeline};
use super::guard::unpanicked;
use super::protect::{Placeholders, SpecialTexts};
use crate::base::quote::{brief, quote};
use crate::base::{Error, Result};

/// Ids and texts that a tokenizer's files give special roles.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles {
    pub(super) bos: Option<u32>,
    /// Ids that end a generation.
    pub(super) eos: BTreeSet<u32>,
    pub(super) unk: Option<u32>,
    pub(super) pad: Option<u32>,
    /// What a chat template sees: `bos_token`, `eos_token`, …
    pub(super) names: Vec<(String, String)>,
}

/// Turns text into token ids and back; renders the model's chat template.
///
/// Immutable: one tokenizer serves all threads at once.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pipeline: Pipeline,
    roles: Roles,
    eos: Vec<u32>,
    table_size: u32,
    templates: ChatTemplates,
    special_texts: SpecialTexts,
    /// Matches added tokens but no special ones; made when first needed.
    without_special: OnceLock<AddedVocabulary>,
    /// As the tokenizer's own, except that no special token is sought in normalised text.
    raw_special: OnceLock<AddedVocabulary>,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("table_size", &self.table_size).field("roles", &self.roles).finish()
    }
}

impl Tokenizer {
    pub(super) fn assemble(
        inner: tokenizers::Tokenizer,
        pipeline: Pipeline,
        roles: Roles,
        templates: ChatTemplates,
    ) -> Result<Self> {
        Self::assemble_sized(inner, pipeline, roles, templates, 0)
    }

    /// `least_size`: the table has at least that many ids, though the last ones may have no token.
    pub(super) fn assemble_sized(
        mut inner: tokenizers::Tokenizer,
        pipeline: Pipeline,
        roles: Roles,
        templates: ChatTemplates,
        least_size: usize,
    ) -> Result<Self> {
        // Padding and truncation belong to training; a prompt is never cut silently.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| Error::invalid_model(format!("tokenizer: {e}")))?;
        let table_size = table_size(&inner)?.max(u32::try_from(least_size).unwrap_or(u32::MAX));
        let special_texts = SpecialTexts::new(
            inner
                .get_added_vocabulary()
                .get_added_tokens_decoder()
                .values()
                .filter(|t| t.special)
                .map(|t| t.content.as_str()),
        );
        let eos = roles.eos.iter().copied().collect();
        Ok(Tokenizer {
            inner,
            pipeline,
            roles,
            eos,
            table_size,
            templates,
            special_texts,
            without_special: OnceLock::new(),
            raw_special: OnceLock::new(),
        })
    }

    /// The ids of `text`.
    ///
    /// `add_special` adds what the tokenizer puts around a text; with `parse_special`, texts of
    /// special tokens become those tokens. INVALID_MODEL if the tokenizer's own rules fail on the text.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<u32>> {
        let encoding = unpanicked(|| {
            if parse_special {
                self.inner.encode_fast(text, add_special)
            } else {
                self.run(self.without_special(), self.inner.get_normalizer(), text, add_special)
            }
        });
        ids(encoding)
    }

    /// Encodes a text in which placeholders stand for characters of ordinary text that must not
    /// begin or end a special token.
    pub(super) fn encode_protected(&self, text: &str, placeholders: &Placeholders) -> Result<Vec<u32>> {
        let restoring = placeholders.before(self.inner.get_normalizer());
        ids(unpanicked(|| self.run(self.raw_special(), Some(&restoring), text, false)))
    }

    /// The stages of the tokenizer with another set of added tokens or another normaliser.
    fn run<N: tokenizers::Normalizer>(
        &self,
        added: &AddedVocabulary,
        normalizer: Option<&N>,
        text: &str,
        add_special: bool,
    ) -> tokenizers::Result<Encoding> {
        let mut pieces = added.extract_and_normalize(normalizer, text);
        if let Some(pre_tokenizer) = self.inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces)?;
        }
        self.inner.get_model().tokenize_in_pretokenized(&mut pieces, None)?;
        let encoding = pieces.into_encoding(None, 0, OffsetType::None)?;
        match self.inner.get_post_processor() {
            Some(processor) if add_special => processor.process(encoding, None, true),
            _ => Ok(encoding),
        }
    }

    fn without_special(&self) -> &AddedVocabulary {
        self.without_special.get_or_init(|| {
            let mut added = self.inner.get_added_vocabulary().clone();
            added.set_encode_special_tokens(true);
            added
        })
    }

    fn raw_special(&self) -> &AddedVocabulary {
        self.raw_special.get_or_init(|| {
            let own = self.inner.get_added_vocabulary();
            let mut tokens: Vec<_> = own.get_added_tokens_decoder().iter().collect();
            tokens.sort_by_key(|(id, _)| **id);
            let tokens = tokens.into_iter().map(|(_, token)| {
                let normalized = token.normalized && !token.special;
                token.clone().normalized(normalized)
            });
            let mut added = AddedVocabulary::new();
            // Fails only where the tokenizer's own vocabulary failed at load.
            let made = added.add_tokens(tokens, self.inner.get_model(), self.inner.get_normalizer());
            if made.is_ok() { added } else { own.clone() }
        })
    }

    /// The text of `ids`. Ids in the table that have no token give no text.
    ///
    /// Tokens that stand for single bytes, such as `<0xC3>`, join to characters; a byte that belongs
    /// to none gives U+FFFD. (Python's tokenizers gives up whole runs of bytes for one such byte; a
    /// stream could not, as it has shown the characters before.)
    ///
    /// INVALID_ARGUMENT naming the first position whose id is not below [`table_size`](Self::table_size).
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.check_ids("tokens", ids)?;
        let mut state = DecodeState::default();
        let mut text = String::new();
        for &id in ids {
            self.decode_step(&mut state, id, skip_special, &mut text);
        }
        self.decode_end(&mut state, &mut text);
        Ok(text)
    }

    /// INVALID_ARGUMENT naming `field` and the first position whose id is beyond the table.
    pub fn check_ids(&self, field: &str, ids: &[u32]) -> Result<()> {
        match ids.iter().position(|id| *id >= self.table_size) {
            None => Ok(()),
            Some(position) => Err(Error::invalid_argument(format!(
                "token id {} at position {position} is not below {}, the size of the tokenizer's table",
                ids[position], self.table_size
            ))
            .field(field)
            .position(position as u64)),
        }
    }

    pub(super) fn decode_step(&self, state: &mut DecodeState, id: u32, skip_special: bool, out: &mut String) {
        if skip_special && self.is_special(id) {
            return;
        }
        if let Some(token) = self.inner.id_to_token(id) {
            self.pipeline.push(state, token, out);
        }
    }

    pub(super) fn decode_end(&self, state: &mut DecodeState, out: &mut String) {
        self.pipeline.finish(state, out);
    }

    /// One more than the greatest id. A model's vocabulary may be padded beyond it.
    pub fn table_size(&self) -> u32 {
        self.table_size
    }

    /// A token as the vocabulary spells it, such as `Ġthe` or `▁the`.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token in the vocabulary's spelling.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The bytes that a token adds to a text that goes on: what a grammar needs to know of it.
    ///
    /// None for special tokens and ids without a token.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        if self.is_special(id) {
            return None;
        }
        Some(self.pipeline.bytes_of(self.inner.id_to_token(id)?))
    }

    /// Whether the id is a special (control) token.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner
            .get_added_vocabulary()
            .get_added_tokens_decoder()
            .get(&id)
            .is_some_and(|token| token.special)
    }

    pub fn bos(&self) -> Option<u32> {
        self.roles.bos
    }

    /// Ids that end a generation, ascending: those of every file that names some.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    pub fn unk(&self) -> Option<u32> {
        self.roles.unk
    }

    pub fn pad(&self) -> Option<u32> {
        self.roles.pad
    }

    /// The chat templates, as the files give them; they are compiled when first used.
    pub fn chat_templates(&self) -> &ChatTemplates {
        &self.templates
    }

    /// Whether [`chat_render`](Self::chat_render) has a template that can be compiled when it is asked for
    /// none in particular.
    pub fn has_chat_template(&self) -> bool {
        self.templates.has_default()
    }

    /// Renders a conversation (a JSON array of messages) and encodes it.
    ///
    /// Texts of special tokens in the messages, tools and variables stay text unless
    /// `options.parse_special_in_content` says otherwise: a message cannot end its own turn.
    ///
    /// NOT_FOUND without a chat template. INVALID_MODEL if the template cannot be compiled.
    /// INVALID_ARGUMENT for JSON that is not what it should be, and for a conversation that the
    /// template refuses, with the template's line.
    pub fn chat_render(&self, messages_json: &str, options: &ChatOptions) -> Result<RenderedChat> {
        chat::render(self, messages_json, options)
    }

    pub(super) fn special_names(&self) -> &[(String, String)] {
        &self.roles.names
    }

    pub(super) fn special_texts(&self) -> &SpecialTexts {
        &self.special_texts
    }
}

fn ids(encoding: Result<tokenizers::Result<Encoding>, String>) -> Result<Vec<u32>> {
    // What the rules refer to is the file's; a panic's own words name lines of the crate.
    let failed = |reason: &str| {
        Error::invalid_model(format!("the tokenizer's rules failed on this text: {reason}"))
            .field("tokenizer")
    };
    let encoding = encoding.map_err(|panic| {
        failed(if panic.contains("limit") && panic.contains("Onig") {
            "one of its patterns takes too many steps"
        } else {
            "they refer to something that it does not have"
        })
    })?;
    let encoding = encoding.map_err(|e| failed(&brief(&e.to_string())))?;
    Ok(encoding.get_ids().to_vec())
}

/// INVALID_MODEL when two tokens have the same id.
fn table_size(inner: &tokenizers::Tokenizer) -> Result<u32> {
    let vocabulary = inner.get_vocab(false);
    let added = inner.get_added_vocabulary().get_added_tokens_decoder().keys().copied();
    let greatest = vocabulary.values().copied().chain(added).max();
    let mut names: Vec<Option<&str>> = Vec::new();
    for (token, id) in &vocabulary {
        let index = *id as usize;
        // Ids far beyond the number of tokens would make the table larger than the file deserves.
        if index > vocabulary.len().saturating_mul(64) + 1_000_000 {
            return Err(Error::invalid_model(format!(
                "token {} has the id {id}, beyond any table",
                quote(token)
            ))
            .field("model.vocab"));
        }
        if names.len() <= index {
            names.resize(index + 1, None);
        }
        if let Some(other) = names[index].replace(token) {
            let (first, second) =
                if other < token.as_str() { (other, token.as_str()) } else { (token.as_str(), other) };
            return Err(Error::invalid_model(format!(
                "tokens {} and {} have the same id {id}",
                quote(first),
                quote(second)
            ))
            .field("model.vocab"));
        }
    }
    match greatest {
        Some(greatest) => Ok(greatest.saturating_add(1)),
        None => Err(Error::invalid_model("the tokenizer has no tokens").field("model.vocab")),
    }
}
