//! What a model reads: token ids, and rows of numbers that stand in the place of tokens.

use std::ops::Range;
use std::sync::Arc;

use super::{Error, Result};

/// The id in the place of a row of embeddings. No vocabulary has it.
pub const EMBEDDED: u32 = u32::MAX;

/// Token ids and embeddings in the order in which they are read.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    ids: Vec<u32>,
    embedded: Vec<Embedded>,
    /// Positions of the whole behind this part of it.
    following: usize,
}

/// Consecutive rows of one content in a prompt.
#[derive(Clone, Debug)]
pub struct Embedded {
    /// Position of the first row in the prompt.
    pub start: usize,
    pub rows: usize,
    content: Arc<Content>,
    /// Which row of the content the first one is.
    first: usize,
}

#[derive(Debug)]
struct Content {
    key: Arc<[u8]>,
    /// `[rows, width]`
    values: Vec<f32>,
    width: usize,
}

impl Embedded {
    /// float32 `[rows, width]`
    pub fn values(&self) -> &[f32] {
        let width = self.content.width;
        &self.content.values[self.first * width..(self.first + self.rows) * width]
    }

    pub fn width(&self) -> usize {
        self.content.width
    }
}

impl Prompt {
    pub fn of_tokens(tokens: &[u32]) -> Self {
        Prompt { ids: tokens.to_vec(), ..Prompt::default() }
    }

    pub fn push_tokens(&mut self, tokens: &[u32]) {
        self.ids.extend_from_slice(tokens);
    }

    /// Appends rows of `width` numbers. `key` names the content: rows with equal keys are taken to be equal.
    /// INVALID_ARGUMENT naming the field without rows or a key, or if the numbers do not make up rows.
    pub fn push_embeddings(&mut self, values: &[f32], width: usize, key: &[u8]) -> Result<()> {
        let bad = |text: String, field: &str| Err(Error::invalid_argument(text).field(field));
        if key.is_empty() {
            return bad("embeddings need a key that names their content".to_owned(), "key");
        }
        if width == 0 || values.is_empty() || !values.len().is_multiple_of(width) {
            let text = format!("{} numbers are no rows of {width} embeddings", values.len());
            return bad(text, "embeddings");
        }
        if let Some(position) = values.iter().position(|value| !value.is_finite()) {
            let text = format!("number {position} of the embeddings is not finite");
            return bad(text, "embeddings");
        }
        let rows = values.len() / width;
        let content = Content { key: key.into(), values: values.to_vec(), width };
        self.embedded.push(Embedded { start: self.ids.len(), rows, content: Arc::new(content), first: 0 });
        self.ids.resize(self.ids.len() + rows, EMBEDDED);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// The ids, with `EMBEDDED` where rows of embeddings stand.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Where embeddings stand, in ascending order.
    pub fn embedded(&self) -> &[Embedded] {
        &self.embedded
    }

    /// The part between two positions.
    pub fn part(&self, range: Range<usize>) -> Prompt {
        let mut embedded = Vec::new();
        for piece in &self.embedded {
            let (from, to) = (piece.start.max(range.start), (piece.start + piece.rows).min(range.end));
            if from < to {
                embedded.push(Embedded {
                    start: from - range.start,
                    rows: to - from,
                    content: Arc::clone(&piece.content),
                    first: piece.first + from - piece.start,
                });
            }
        }
        let following = self.following + self.len() - range.end;
        Prompt { ids: self.ids[range].to_vec(), embedded, following }
    }

    /// Positions that follow in the whole of which this is a part.
    pub fn following(&self) -> usize {
        self.following
    }

    /// What was read, without the numbers.
    pub fn record(&self) -> PromptRecord {
        let embedded = self.embedded.iter().map(|piece| Recorded {
            start: piece.start,
            rows: piece.rows,
            key: Arc::clone(&piece.content.key),
            first: piece.first,
        });
        PromptRecord { ids: self.ids.clone(), embedded: embedded.collect() }
    }
}

impl From<&[u32]> for Prompt {
    fn from(tokens: &[u32]) -> Self {
        Prompt::of_tokens(tokens)
    }
}

impl From<&Vec<u32>> for Prompt {
    fn from(tokens: &Vec<u32>) -> Self {
        Prompt::of_tokens(tokens)
    }
}

impl<const N: usize> From<&[u32; N]> for Prompt {
    fn from(tokens: &[u32; N]) -> Self {
        Prompt::of_tokens(tokens)
    }
}

/// Which tokens and which contents were read: what is left of prompts once a state covers them.
#[derive(Clone, Debug, Default)]
pub struct PromptRecord {
    ids: Vec<u32>,
    embedded: Vec<Recorded>,
}

#[derive(Clone, Debug)]
struct Recorded {
    start: usize,
    rows: usize,
    key: Arc<[u8]>,
    first: usize,
}

impl PromptRecord {
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    pub fn push(&mut self, token: u32) {
        self.ids.push(token);
    }

    pub fn append(&mut self, more: &PromptRecord) {
        let before = self.ids.len();
        self.ids.extend_from_slice(&more.ids);
        self.embedded.extend(
            more.embedded.iter().map(|piece| Recorded { start: before + piece.start, ..piece.clone() }),
        );
    }

    /// Keeps the first `keep` positions.
    pub fn truncate(&mut self, keep: usize) {
        self.ids.truncate(keep);
        self.embedded.retain_mut(|piece| {
            piece.rows = piece.rows.min(keep.saturating_sub(piece.start));
            piece.rows > 0
        });
    }

    /// How many positions at the beginning have the same token, or the same row of the same content.
    pub fn common_prefix(&self, other: &PromptRecord) -> usize {
        let equal_ids = self.ids.iter().zip(&other.ids).take_while(|(ours, theirs)| ours == theirs).count();
        let differs = |position: &usize| self.row(*position) != other.row(*position);
        let embedded = (0..equal_ids).filter(|position| self.ids[*position] == EMBEDDED);
        embedded.clone().find(differs).unwrap_or(equal_ids)
    }

    /// Content and row at a position of embeddings.
    fn row(&self, position: usize) -> Option<(&[u8], usize)> {
        let next = self.embedded.partition_point(|piece| piece.start <= position);
        let piece = self.embedded.get(next.checked_sub(1)?)?;
        (position < piece.start + piece.rows).then(|| (&*piece.key, piece.first + position - piece.start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(key: &[u8]) -> Prompt {
        let mut prompt = Prompt::of_tokens(&[1, 2]);
        prompt.push_embeddings(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 2, key).unwrap();
        prompt.push_tokens(&[7]);
        prompt
    }

    #[test]
    fn parts_keep_the_rows_that_fall_into_them() {
        let whole = prompt(b"a");
        assert_eq!(whole.ids(), [1, 2, EMBEDDED, EMBEDDED, EMBEDDED, 7]);
        let part = whole.part(3..6);
        assert_eq!(part.ids(), [EMBEDDED, EMBEDDED, 7]);
        assert_eq!((part.embedded()[0].start, part.embedded()[0].values()), (0, &[2.0, 3.0, 4.0, 5.0][..]));
        let inner = part.part(1..3);
        assert_eq!(inner.embedded()[0].values(), [4.0, 5.0]);
        assert!(whole.part(0..2).embedded().is_empty() && whole.part(5..6).embedded().is_empty());
    }

    #[test]
    fn prefixes_are_common_while_tokens_and_contents_are() {
        let (a, b) = (prompt(b"a").record(), prompt(b"b").record());
        assert_eq!((a.common_prefix(&a), a.common_prefix(&b)), (6, 2));
        let mut read = PromptRecord::default();
        read.append(&prompt(b"a").part(0..3).record());
        read.append(&prompt(b"a").part(3..5).record());
        assert_eq!(read.common_prefix(&a), 5);
        read.push(8);
        assert_eq!(read.common_prefix(&a), 5);
        read.truncate(4);
        assert_eq!((read.common_prefix(&a), read.ids().len()), (4, 4));
        // The same content, from another row on.
        let mut shifted = PromptRecord::default();
        shifted.append(&prompt(b"a").part(0..2).record());
        shifted.append(&prompt(b"a").part(3..5).record());
        assert_eq!(shifted.common_prefix(&a), 2);
    }

    #[test]
    fn rows_need_a_key_and_have_to_be_whole() {
        let mut prompt = Prompt::default();
        for (values, width, key, field) in [
            (&[1.0, 2.0][..], 2, &b""[..], "key"),
            (&[], 2, b"a", "embeddings"),
            (&[1.0; 3], 2, b"a", "embeddings"),
        ] {
            let refused = prompt.push_embeddings(values, width, key).unwrap_err();
            assert_eq!(refused.detail().field.as_deref(), Some(field));
        }
        assert!(prompt.is_empty());
    }
}
