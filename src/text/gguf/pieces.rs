//! SentencePiece vocabularies: pieces with scores, whose best pairs are joined first, and bytes for what has no piece.

use std::cmp::Ordering;

use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence as Decoders;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, BpeBuilder};
use tokenizers::normalizers::{Prepend, Replace, Sequence};
use tokenizers::{DecoderWrapper, NormalizerWrapper};

use super::{GgufTokenizer, kind};
use crate::base::quote::quote;
use crate::base::{Error, Result};
use crate::text::decode::Pipeline;

/// What stands for a space in pieces.
const MARK: &str = "▁";
/// Bytes of a piece that can be joined from others. Every cut of every piece is looked up.
const PIECE_LIMIT: usize = 512;

/// Ids that files leave out where they are the usual ones.
const BOS: u32 = 1;
const EOS: u32 = 2;
const UNKNOWN: u32 = 0;

impl GgufTokenizer {
    /// With the usual ids where the file names none, as far as there are so many tokens.
    pub(super) fn with_usual_ids(mut self) -> Self {
        let count = self.tokens.len();
        for (id, usual) in [(&mut self.bos, BOS), (&mut self.eos, EOS), (&mut self.unk, UNKNOWN)] {
            *id = id.or(Some(usual).filter(|usual| (*usual as usize) < count));
        }
        self
    }

    /// A text begins with a space that is not its own.
    fn prefix(&self) -> bool {
        self.add_space_prefix.unwrap_or(true)
    }

    pub(super) fn piece_model(&self) -> Result<BpeBuilder> {
        let mut builder = BPE::builder()
            .vocab_and_merges(self.vocabulary()?, self.joins()?)
            .cache_capacity(0)
            .byte_fallback(true)
            .fuse_unk(true);
        if let Some(unknown) = self.unk.and_then(|id| self.tokens.get(id as usize)) {
            builder = builder.unk_token(unknown.clone());
        }
        Ok(builder)
    }

    /// All pairs of pieces that are a piece together, best score first; among equals the longest left part first.
    fn joins(&self) -> Result<Vec<(String, String)>> {
        let scores = self.scores()?;
        let vocabulary = self.vocabulary()?;
        let mut joins = Vec::new();
        for (index, token) in self.tokens.iter().enumerate().filter(|(index, _)| self.is_joined(*index)) {
            if token.len() > PIECE_LIMIT {
                return Err(Error::invalid_model(format!(
                    "the token {} has {} bytes; at most {PIECE_LIMIT} are possible",
                    quote(token),
                    token.len()
                ))
                .field("tokenizer.ggml.tokens")
                .position(index as u64));
            }
            let cuts = token.char_indices().skip(1).filter_map(|(at, _)| {
                let (left, right) = token.split_at(at);
                let ids = [*vocabulary.get(left)?, *vocabulary.get(right)?];
                let joined = ids.iter().all(|id| self.is_joined(*id as usize));
                joined.then_some((scores[index], left, right, ids))
            });
            let first = joins.len();
            joins.extend(cuts);
            joins[first..].sort_by_key(|join| join.3);
        }
        let sizes = |left: &str, right: &str| (left.chars().count(), right.chars().count());
        joins.sort_by(|a, b| {
            let scores = b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal);
            scores.then_with(|| sizes(b.1, b.2).cmp(&sizes(a.1, a.2)))
        });
        Ok(joins.into_iter().map(|(_, left, right, _)| (left.to_owned(), right.to_owned())).collect())
    }

    /// Whether a token can be part of a longer one: neither a byte nor one that is sought in whole texts.
    fn is_joined(&self, index: usize) -> bool {
        self.kind(index) == kind::NORMAL
    }

    fn scores(&self) -> Result<&[f32]> {
        let invalid = |what: String| Error::invalid_model(what).field("tokenizer.ggml.scores");
        if self.scores.len() != self.tokens.len() {
            return Err(invalid(format!(
                "there are {} tokens but {} scores",
                self.tokens.len(),
                self.scores.len()
            )));
        }
        match self.scores.iter().position(|score| score.is_nan()) {
            Some(index) => {
                Err(invalid(format!("the score of token {index} is no number")).position(index as u64))
            }
            None => Ok(&self.scores),
        }
    }

    pub(super) fn piece_normalizer(&self) -> Result<NormalizerWrapper> {
        let marks = Replace::new(" ", MARK).map_err(|e| Error::internal(e.to_string()))?;
        let mut steps = Vec::new();
        if self.prefix() {
            steps.push(NormalizerWrapper::Prepend(Prepend::new(MARK.to_owned())));
        }
        steps.push(NormalizerWrapper::Replace(marks));
        Ok(Sequence::new(steps).into())
    }

    pub(super) fn piece_decoder(&self) -> Result<(DecoderWrapper, Pipeline)> {
        let spaces = Replace::new(MARK, " ").map_err(|e| Error::internal(e.to_string()))?;
        let mut steps: Vec<DecoderWrapper> =
            vec![spaces.into(), ByteFallback::new().into(), Fuse::new().into()];
        if self.prefix() {
            steps.push(Strip::new(' ', 1, 0).into());
        }
        let decoder = DecoderWrapper::Sequence(Decoders::new(steps));
        let pipeline = Pipeline::new(Some(&decoder))?;
        Ok((decoder, pipeline))
    }
}
