//! A tokenizer from the metadata of a GGUF file.

use std::collections::{BTreeSet, HashMap};

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, NormalizerWrapper};

use super::Tokenizer;
use super::added::surround;
use super::chat::ChatTemplates;
use super::decode::Pipeline;
use super::guard::unpanicked;
use super::pretokenizers::scheme;
use super::tokenizer::Roles;
use crate::base::quote::{brief, quote};
use crate::base::{Error, Result};

/// What a GGUF file says of its tokenizer, as read; the keys are those after `tokenizer.`.
///
/// `ggml.add_space_prefix` is absent: it says nothing about byte-level vocabularies.
#[derive(Clone, Debug, Default)]
pub struct GgufTokenizer {
    /// `ggml.model`: the kind of vocabulary; only `gpt2`, byte-level BPE, is supported.
    pub model: String,
    /// `ggml.pre`: how words are split.
    pub pre: Option<String>,
    /// `ggml.tokens`.
    pub tokens: Vec<String>,
    /// `ggml.token_type`, one per token, or empty.
    pub token_types: Vec<i32>,
    /// `ggml.merges`: two tokens with a space between.
    pub merges: Vec<String>,
    /// `ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `ggml.padding_token_id`.
    pub pad: Option<u32>,
    /// Further ids that end a generation: `ggml.eot_token_id`, `ggml.eom_token_id`, `ggml.eos_token_ids`.
    pub extra_eos: Vec<u32>,
    /// `ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `ggml.add_eos_token`.
    pub add_eos: Option<bool>,
    /// `chat_template`.
    pub chat_template: Option<String>,
    /// `chat_template.NAME`.
    pub named_templates: Vec<(String, String)>,
}

/// Token types of GGUF that matter here.
mod kind {
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
}

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// UNSUPPORTED for a vocabulary that is not byte-level BPE and for an unknown way of splitting
    /// words; INVALID_MODEL naming the key, and the index where there is one, for contradictions.
    pub fn from_gguf(source: GgufTokenizer) -> Result<Tokenizer> {
        if source.model != "gpt2" {
            return Err(Error::unsupported(format!(
                "the tokenizer kind {} is not supported in GGUF files; only \"gpt2\" is",
                quote(&source.model)
            ))
            .field("tokenizer.ggml.model"));
        }
        let scheme = scheme(source.pre.as_deref())?;
        source.check()?;
        let vocabulary = source.vocabulary()?;
        let merges = source.merges()?;
        let model = unpanicked(|| {
            BPE::builder()
                .vocab_and_merges(vocabulary, merges)
                .ignore_merges(scheme.ignore_merges)
                .cache_capacity(0)
                .build()
        });
        let invalid = |reason: String| Error::invalid_model(reason).field("tokenizer.ggml.merges");
        let model = model
            .map_err(|_| invalid("the tokens and merges of the tokenizer contradict each other".into()))?
            .map_err(|e| invalid(brief(&e.to_string())))?;

        let mut inner = tokenizers::Tokenizer::new(model);
        if scheme.compose {
            let failed = |e: tokenizers::Error| Error::internal(e.to_string());
            inner.with_normalizer(Some(NormalizerWrapper::NFC(NFC))).map_err(failed)?;
        }
        inner.with_pre_tokenizer(Some(scheme.pre_tokenizer()?));
        inner.with_decoder(Some(ByteLevel::default()));
        inner
            .add_tokens(source.added_tokens())
            .map_err(|e| Error::invalid_model(e.to_string()).field("tokenizer.ggml.tokens"))?;
        let before = source.bos.filter(|_| source.add_bos.unwrap_or(scheme.add_bos));
        let after = source.eos.filter(|_| source.add_eos == Some(true));
        if before.is_some() || after.is_some() {
            inner.with_post_processor(Some(surround(before, after)?));
        }
        let roles = source.roles();
        let templates = ChatTemplates::from_parts(source.chat_template, source.named_templates);
        Tokenizer::assemble_sized(inner, Pipeline::byte_level(), roles, templates, source.tokens.len())
    }
}

impl GgufTokenizer {
    fn check(&self) -> Result<()> {
        let count = self.tokens.len();
        if !self.token_types.is_empty() && self.token_types.len() != count {
            return Err(Error::invalid_model(format!(
                "there are {count} tokens but {} token types",
                self.token_types.len()
            ))
            .field("tokenizer.ggml.token_type"));
        }
        let named = [("bos", self.bos), ("eos", self.eos), ("unknown", self.unk), ("padding", self.pad)];
        let named = named.into_iter().filter_map(|(name, id)| id.map(|id| (name, id)));
        for (name, id) in named.chain(self.extra_eos.iter().map(|id| ("eot", *id))) {
            if id as usize >= count {
                return Err(Error::invalid_model(format!(
                    "the {name} token has the id {id} of {count} tokens"
                ))
                .field(format!("tokenizer.ggml.{name}_token_id")));
            }
        }
        Ok(())
    }

    fn kind(&self, index: usize) -> i32 {
        self.token_types.get(index).copied().unwrap_or(1)
    }

    /// All tokens but the unused ones, which pad the table.
    fn vocabulary(&self) -> Result<tokenizers::models::bpe::Vocab> {
        let mut seen: HashMap<&str, usize> = HashMap::with_capacity(self.tokens.len());
        for (index, token) in
            self.tokens.iter().enumerate().filter(|(index, _)| self.kind(*index) != kind::UNUSED)
        {
            if let Some(first) = seen.insert(token, index) {
                return Err(Error::invalid_model(format!(
                    "token {} has the ids {first} and {index}",
                    quote(token)
                ))
                .field("tokenizer.ggml.tokens")
                .position(index as u64));
            }
        }
        Ok(seen.into_iter().map(|(token, index)| (token.to_owned(), index as u32)).collect())
    }

    fn merges(&self) -> Result<Vec<(String, String)>> {
        let pairs = self.merges.iter().enumerate().map(|(index, merge)| {
            // A token may itself begin with a space.
            let split = merge.char_indices().skip(1).find(|(_, c)| *c == ' ');
            match split {
                Some((at, _)) => Ok((merge[..at].to_owned(), merge[at + 1..].to_owned())),
                None => {
                    Err(Error::invalid_model(format!("the merge {} does not name two tokens", quote(merge)))
                        .field("tokenizer.ggml.merges")
                        .position(index as u64))
                }
            }
        });
        pairs.collect()
    }

    /// Control tokens are special; user-defined ones are found in texts, but stay text.
    fn added_tokens(&self) -> Vec<AddedToken> {
        let roles = [self.bos, self.eos];
        let added = self.tokens.iter().enumerate().filter_map(|(index, token)| {
            let named = roles.contains(&Some(index as u32)) || self.extra_eos.contains(&(index as u32));
            match self.kind(index) {
                kind::CONTROL | kind::UNKNOWN => Some(AddedToken::from(token, true)),
                kind::UNUSED => None,
                _ if named => Some(AddedToken::from(token, true)),
                kind::USER_DEFINED => Some(AddedToken::from(token, false).normalized(false)),
                _ => None,
            }
        });
        added.collect()
    }

    fn roles(&self) -> Roles {
        let mut eos: BTreeSet<u32> = self.extra_eos.iter().copied().collect();
        eos.extend(self.eos);
        let ids = [
            ("bos_token", self.bos),
            ("eos_token", self.eos),
            ("unk_token", self.unk),
            ("pad_token", self.pad),
        ];
        let name =
            |(name, id): (&str, Option<u32>)| Some((name.to_owned(), self.tokens.get(id? as usize)?.clone()));
        Roles {
            bos: self.bos,
            eos,
            unk: self.unk,
            pad: self.pad,
            names: ids.into_iter().filter_map(name).collect(),
        }
    }
}
