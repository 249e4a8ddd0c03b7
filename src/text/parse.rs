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

use super::check;
use super::guard::unpanicked;
use crate::base::json::at_fault;
use crate::base::quote::{json_fault, quote};
use crate::base::{Error, Result, deep};

type BpeTokenizer =
    TokenizerImpl<BpeModel, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// Stack for reading: parts nest, and so do the groups of a pattern, some thousand deep.
const STACK: usize = 32 << 20;

/// INVALID_MODEL naming the file, and the byte where that is known.
pub(super) fn tokenizer(path: &Path, bytes: &[u8]) -> Result<tokenizers::Tokenizer> {
    deep::run("reading a tokenizer", STACK, || read(path, bytes))
}

fn read(path: &Path, bytes: &[u8]) -> Result<tokenizers::Tokenizer> {
    let invalid = |reason: String| Error::invalid_model(format!("{}: {reason}", path.display())).file(path);
    let parts: Parts = serde_json::from_slice(bytes)
        .map_err(|fault| at_fault(invalid(json_fault(&fault)), bytes, &fault))?;
    check::steps("normalizer", parts.normalizer.as_ref())
        .and_then(|()| check::steps("decoder", parts.decoder.as_ref()))
        .and_then(|()| check::post_processor(parts.post_processor.as_ref()))
        .map_err(|error| error.file(path))?;
    let bpe = parts.model.as_ref().is_some_and(|model| model.kind.as_deref() == Some("BPE"));
    let parsed = unpanicked(|| {
        if bpe {
            serde_json::from_slice::<BpeTokenizer>(bytes).map(tokenizers::Tokenizer::from)
        } else {
            serde_json::from_slice::<tokenizers::Tokenizer>(bytes)
        }
    });
    match parsed {
        Ok(Ok(tokenizer)) => Ok(tokenizer),
        Ok(Err(fault)) => Err(match parts.unknown_kind() {
            Some((part, kind)) => {
                invalid(format!("{part} has the kind {}, which is not known", quote(&kind))).field(part)
            }
            None => {
                let text = json_fault(&fault);
                let whole = fault.to_string();
                let error = if whole.contains("out of vocabulary") {
                    invalid(format!("a merge takes or makes a token that is not in the vocabulary: {text}"))
                        .field("model.merges")
                } else if whole.contains("to merge") {
                    invalid(text).field("model.merges")
                } else {
                    invalid(text)
                };
                at_fault(error, bytes, &fault)
            }
        }),
        // The crate's own words name its lines, not the file's.
        Err(_) => Err(invalid("the parts of the tokenizer contradict each other".into()).field("model")),
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

/// The parts of the file but for the model's tables.
#[derive(Deserialize)]
struct Parts {
    model: Option<ModelHead>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
}

impl Parts {
    /// The first part whose kind the crate does not know: its own message does not say so.
    fn unknown_kind(&self) -> Option<(&'static str, String)> {
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
        let model = self
            .model
            .as_ref()
            .and_then(|model| model.kind.clone())
            .filter(|kind| !KINDS.contains(&kind.as_str()));
        let named = [
            ("normalizer", &self.normalizer),
            ("pre_tokenizer", &self.pre_tokenizer),
            ("post_processor", &self.post_processor),
            ("decoder", &self.decoder),
        ];
        model.map(|kind| ("model", kind)).or_else(|| {
            named.into_iter().find_map(|(name, part)| unknown(part.as_ref()?).map(|kind| (name, kind)))
        })
    }
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
        // The crate cuts the prefix off without a look.
        let prefix = file.continuing_subword_prefix.as_deref().unwrap_or_default();
        if let Some(Merge(left, right)) = file.merges.iter().find(|merge| !merge.1.starts_with(prefix)) {
            return Err(D::Error::custom(format_args!(
                "{} and {} are no two tokens to merge: the second lacks the continuing_subword_prefix {}",
                quote(left),
                quote(right),
                quote(prefix)
            )));
        }
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
