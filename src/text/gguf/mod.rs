//! A tokenizer from the metadata of a GGUF file.

mod pieces;

use std::collections::{BTreeSet, HashMap};

use tokenizers::models::bpe::{BPE, BpeBuilder};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, NormalizerWrapper};

use crate::base::quote::{brief, quote};
use crate::base::{Error, Result};
use crate::text::Tokenizer;
use crate::text::added::surround;
use crate::text::chat::ChatTemplates;
use crate::text::decode::Pipeline;
use crate::text::guard::unpanicked;
use crate::text::pretokenizers::scheme;
use crate::text::tokenizer::Roles;

/// What a GGUF file says of its tokenizer, as read; the keys are those after `tokenizer.`.
#[derive(Clone, Debug, Default)]
pub struct GgufTokenizer {
    /// `ggml.model`: the kind of vocabulary: `gpt2`, byte-level BPE, or `llama`, SentencePiece's.
    pub model: String,
    /// `ggml.pre`: how words are split; SentencePiece's are not.
    pub pre: Option<String>,
    /// `ggml.tokens`.
    pub tokens: Vec<String>,
    /// `ggml.token_type`, one per token, or empty.
    pub token_types: Vec<i32>,
    /// `ggml.merges`: two tokens with a space between; of byte-level vocabularies.
    pub merges: Vec<String>,
    /// `ggml.scores`, one per token; of SentencePiece's vocabularies.
    pub scores: Vec<f32>,
    /// `ggml.add_space_prefix`; of SentencePiece's vocabularies.
    pub add_space_prefix: Option<bool>,
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
    pub(super) const NORMAL: i32 = 1;
    pub(super) const UNKNOWN: i32 = 2;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
}

impl Tokenizer {
    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// UNSUPPORTED for another kind of vocabulary and for an unknown way of splitting words; INVALID_MODEL naming the
    /// key, and the index where there is one, for contradictions.
    pub fn from_gguf(source: GgufTokenizer) -> Result<Tokenizer> {
        match source.model.as_str() {
            "gpt2" => byte_level(&source),
            "llama" => pieces(&source.with_usual_ids()),
            other => Err(Error::unsupported(format!(
                "the tokenizer kind {} is not supported in GGUF files; \"gpt2\" and \"llama\" are",
                quote(other)
            ))
            .field("tokenizer.ggml.model")),
        }
    }
}

fn byte_level(source: &GgufTokenizer) -> Result<Tokenizer> {
    let scheme = scheme(source.pre.as_deref())?;
    source.check()?;
    let model = BPE::builder()
        .vocab_and_merges(source.vocabulary()?, source.merges()?)
        .ignore_merges(scheme.ignore_merges)
        .cache_capacity(0);
    let mut inner = tokenizer(model)?;
    if scheme.compose {
        set_normalizer(&mut inner, NormalizerWrapper::NFC(NFC))?;
    }
    inner.with_pre_tokenizer(Some(scheme.pre_tokenizer()?));
    inner.with_decoder(Some(ByteLevel::default()));
    source.finish(inner, Pipeline::byte_level(), scheme.add_bos)
}

fn pieces(source: &GgufTokenizer) -> Result<Tokenizer> {
    source.check()?;
    let mut inner = tokenizer(source.piece_model()?)?;
    set_normalizer(&mut inner, source.piece_normalizer()?)?;
    let (decoder, pipeline) = source.piece_decoder()?;
    inner.with_decoder(Some(decoder));
    source.finish(inner, pipeline, true)
}

fn tokenizer(model: BpeBuilder) -> Result<tokenizers::Tokenizer> {
    let invalid = |reason: String| Error::invalid_model(reason).field("tokenizer.ggml.merges");
    let model = unpanicked(|| model.build())
        .map_err(|_| invalid("the tokens and merges of the tokenizer contradict each other".into()))?
        .map_err(|e| invalid(brief(&e.to_string())))?;
    Ok(tokenizers::Tokenizer::new(model))
}

fn set_normalizer(inner: &mut tokenizers::Tokenizer, normalizer: NormalizerWrapper) -> Result<()> {
    inner.with_normalizer(Some(normalizer)).map_err(|e| Error::internal(e.to_string()))?;
    Ok(())
}

impl GgufTokenizer {
    /// Adds what does not depend on the kind of vocabulary. `add_bos`: unless the file says so.
    fn finish(
        &self,
        mut inner: tokenizers::Tokenizer,
        pipeline: Pipeline,
        add_bos: bool,
    ) -> Result<Tokenizer> {
        inner
            .add_tokens(self.added_tokens())
            .map_err(|e| Error::invalid_model(e.to_string()).field("tokenizer.ggml.tokens"))?;
        let before = self.bos.filter(|_| self.add_bos.unwrap_or(add_bos));
        let after = self.eos.filter(|_| self.add_eos == Some(true));
        if before.is_some() || after.is_some() {
            inner.with_post_processor(Some(surround(before, after)?));
        }
        let templates = ChatTemplates::from_parts(self.chat_template.clone(), self.named_templates.clone());
        Tokenizer::assemble_sized(inner, pipeline, self.roles(), templates, self.tokens.len())
    }

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
        self.token_types.get(index).copied().unwrap_or(kind::NORMAL)
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
