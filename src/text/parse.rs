//! Reads a tokenizer.json.
//!
//! The crate's own reader keeps the vocabulary and the merges of a large tokenizer as generic JSON
//! for a while, which takes seconds and hundreds of MiB; here a BPE model is read straight into
//! its tables.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tokenizers::models::bpe::{BPE, BpeTrainer, Vocab};
use tokenizers::{
    DecoderWrapper, Model, ModelWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Token,
    TokenizerImpl,
};

use super::guard::unpanicked;
use crate::base::{Error, Result};

type BpeTokenizer =
    TokenizerImpl<BpeModel, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// INVALID_MODEL naming the file, and the byte where that is known.
pub(super) fn tokenizer(path: &Path, bytes: &[u8]) -> Result<tokenizers::Tokenizer> {
    let invalid = |reason: String| Error::invalid_model(format!("{}: {reason}", path.display())).file(path);
    let parsed = unpanicked(|| match serde_json::from_slice::<Head>(bytes) {
        Ok(Head { model: Some(ModelHead { kind: Some(kind) }) }) if kind == "BPE" => {
            serde_json::from_slice::<BpeTokenizer>(bytes).map(tokenizers::Tokenizer::from)
        }
        _ => serde_json::from_slice::<tokenizers::Tokenizer>(bytes),
    });
    match parsed {
        Ok(Ok(tokenizer)) => Ok(tokenizer),
        Ok(Err(fault)) => Err(match unknown_kind(bytes) {
            Some((part, kind)) => {
                invalid(format!("{part} has the kind {kind:?}, which is not known")).field(part)
            }
            None => at_fault(invalid(fault.to_string()), bytes, &fault),
        }),
        Err(panic) => Err(invalid(panic)),
    }
}

/// Kinds of models, normalisers, pre-tokenizers, post-processors and decoders.
const KINDS: [&str; 35] = [
    "BPE",
    "BPEDecoder",
    "BertNormalizer",
    "BertPreTokenizer",
    "BertProcessing",
    "ByteFallback",
    "ByteLevel",
    "CTC",
    "CharDelimiterSplit",
    "Digits",
    "FixedLength",
    "Fuse",
    "Lowercase",
    "Metaspace",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Precompiled",
    "Prepend",
    "Punctuation",
    "Replace",
    "RobertaProcessing",
    "Sequence",
    "Split",
    "Strip",
    "StripAccents",
    "TemplateProcessing",
    "UnicodeScripts",
    "Unigram",
    "Whitespace",
    "WhitespaceSplit",
    "WordLevel",
    "WordPiece",
];

/// The first part whose kind the crate does not know: its own message does not say so.
fn unknown_kind(bytes: &[u8]) -> Option<(&'static str, String)> {
    #[derive(Deserialize)]
    struct Parts {
        model: Option<ModelHead>,
        normalizer: Option<Value>,
        pre_tokenizer: Option<Value>,
        post_processor: Option<Value>,
        decoder: Option<Value>,
    }
    fn unknown(part: &Value) -> Option<String> {
        match part {
            Value::Object(map) => match map.get("type") {
                Some(Value::String(kind)) if !KINDS.contains(&kind.as_str()) => Some(kind.clone()),
                _ => map.values().find_map(unknown),
            },
            Value::Array(items) => items.iter().find_map(unknown),
            _ => None,
        }
    }
    let parts: Parts = serde_json::from_slice(bytes).ok()?;
    let model = parts.model.and_then(|model| model.kind).filter(|kind| !KINDS.contains(&kind.as_str()));
    let named = [
        ("normalizer", parts.normalizer),
        ("pre_tokenizer", parts.pre_tokenizer),
        ("post_processor", parts.post_processor),
        ("decoder", parts.decoder),
    ];
    model
        .map(|kind| ("model", kind))
        .or_else(|| named.into_iter().find_map(|(name, part)| unknown(&part?).map(|kind| (name, kind))))
}

/// Adds the byte offset of a JSON fault.
pub(super) fn at_fault(error: Error, bytes: &[u8], fault: &serde_json::Error) -> Error {
    if fault.line() == 0 {
        return error;
    }
    let before: usize = bytes.split_inclusive(|b| *b == b'\n').take(fault.line() - 1).map(<[u8]>::len).sum();
    error.position((before + fault.column().saturating_sub(1)) as u64)
}

#[derive(Deserialize)]
struct Head {
    model: Option<ModelHead>,
}

#[derive(Deserialize)]
struct ModelHead {
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// A BPE model as tokenizer.json writes it.
#[derive(Deserialize)]
struct BpeFile {
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    vocab: Vocab,
    merges: Vec<Merge>,
}

struct Merge(String, String);

/// Two tokens: a list, or in older files one text with a space between.
impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Merge;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("two tokens to merge")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Merge, E> {
                match text.split(' ').collect::<Vec<_>>()[..] {
                    [left, right] => Ok(Merge(left.to_owned(), right.to_owned())),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> std::result::Result<Merge, A::Error> {
                use serde::de::Error as _;
                let left = sequence.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
                let right = sequence.next_element()?.ok_or_else(|| A::Error::invalid_length(1, &self))?;
                match sequence.next_element::<IgnoredAny>()? {
                    None => Ok(Merge(left, right)),
                    Some(_) => Err(A::Error::invalid_length(3, &self)),
                }
            }
        }
        deserializer.deserialize_any(Tokens)
    }
}

/// BPE without dropout, which belongs to training, and without the crate's cache of words: that
/// stays in each thread that ever encoded, even when the tokenizer is gone.
struct BpeModel(BPE);

impl<'de> Deserialize<'de> for BpeModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        use serde::de::Error as _;
        let file = BpeFile::deserialize(deserializer)?;
        let merges = file.merges.into_iter().map(|Merge(left, right)| (left, right)).collect();
        let mut builder = BPE::builder()
            .vocab_and_merges(file.vocab, merges)
            .cache_capacity(0)
            .fuse_unk(file.fuse_unk.unwrap_or(false))
            .byte_fallback(file.byte_fallback.unwrap_or(false))
            .ignore_merges(file.ignore_merges.unwrap_or(false));
        if let Some(token) = file.unk_token {
            builder = builder.unk_token(token);
        }
        if let Some(prefix) = file.continuing_subword_prefix {
            builder = builder.continuing_subword_prefix(prefix);
        }
        if let Some(suffix) = file.end_of_word_suffix {
            builder = builder.end_of_word_suffix(suffix);
        }
        builder.build().map(BpeModel).map_err(D::Error::custom)
    }
}

impl From<BpeModel> for ModelWrapper {
    fn from(model: BpeModel) -> Self {
        ModelWrapper::BPE(model.0)
    }
}

impl Model for BpeModel {
    type Trainer = BpeTrainer;

    fn tokenize(&self, text: &str) -> tokenizers::Result<Vec<Token>> {
        self.0.tokenize(text)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        self.0.save(folder, prefix)
    }

    fn get_trainer(&self) -> BpeTrainer {
        self.0.get_trainer()
    }
}
