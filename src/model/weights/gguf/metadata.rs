//! The metadata of a GGUF file: typed values by key.

use std::path::{Path, PathBuf};

use super::cursor::Cursor;
use crate::base::quote;
use crate::base::{Error, Result};

/// Levels of lists within lists; real files have one.
const NESTING_LIMIT: u32 = 8;
/// The format's own limit.
const KEY_LIMIT: u64 = 65_535;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(String),
    Numbers(Numbers),
    Texts(Texts),
    /// A list of lists: checked, not kept, as no key that is used has one.
    Nested,
}

/// A list of numbers or truth values as stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Numbers {
    kind: Scalar,
    bytes: Vec<u8>,
}

/// A list of texts, kept in one piece: a vocabulary has a hundred thousand.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Texts {
    text: String,
    /// Where each one ends in `text`.
    ends: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

enum Kind {
    Scalar(Scalar),
    Text,
    List,
}

impl Kind {
    fn of(number: u32) -> Option<Kind> {
        Some(Kind::Scalar(match number {
            0 => Scalar::U8,
            1 => Scalar::I8,
            2 => Scalar::U16,
            3 => Scalar::I16,
            4 => Scalar::U32,
            5 => Scalar::I32,
            6 => Scalar::F32,
            7 => Scalar::Bool,
            8 => return Some(Kind::Text),
            9 => return Some(Kind::List),
            10 => Scalar::U64,
            11 => Scalar::I64,
            12 => Scalar::F64,
            _ => return None,
        }))
    }
}

impl Scalar {
    const fn size(self) -> usize {
        match self {
            Scalar::U8 | Scalar::I8 | Scalar::Bool => 1,
            Scalar::U16 | Scalar::I16 => 2,
            Scalar::U32 | Scalar::I32 | Scalar::F32 => 4,
            Scalar::U64 | Scalar::I64 | Scalar::F64 => 8,
        }
    }

    /// The value of `size` little-endian bytes; `None` for a truth value that is neither 0 nor 1.
    fn value(self, bytes: &[u8]) -> Option<Value> {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        Some(match self {
            Scalar::U8 | Scalar::U16 | Scalar::U32 | Scalar::U64 => Value::Unsigned(bits),
            Scalar::I8 => Value::Signed(i64::from(bits as i8)),
            Scalar::I16 => Value::Signed(i64::from(bits as i16)),
            Scalar::I32 => Value::Signed(i64::from(bits as i32)),
            Scalar::I64 => Value::Signed(bits as i64),
            Scalar::F32 => Value::Float(f64::from(f32::from_bits(bits as u32))),
            Scalar::F64 => Value::Float(f64::from_bits(bits)),
            Scalar::Bool if bits > 1 => return None,
            Scalar::Bool => Value::Bool(bits == 1),
        })
    }
}

impl Numbers {
    pub(crate) fn iter(&self) -> impl Iterator<Item = Value> + '_ {
        self.bytes.chunks_exact(self.kind.size()).filter_map(|bytes| self.kind.value(bytes))
    }
}

impl Texts {
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.text[start..*end])
    }
}

impl Value {
    /// A whole number of at least 0, whatever the type.
    pub(crate) fn as_u64(&self) -> Option<u64> {
        match self {
            Value::Unsigned(number) => Some(*number),
            Value::Signed(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    pub(crate) fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Unsigned(number) => Some(*number as f64),
            Value::Signed(number) => Some(*number as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        }
    }
}

/// Values by key. Host only; any thread.
#[derive(Clone, Debug)]
pub struct GgufMetadata {
    path: PathBuf,
    /// Ascending by key.
    entries: Vec<(String, Value)>,
}

impl GgufMetadata {
    /// Reads `count` entries.
    pub(super) fn read(path: &Path, cursor: &mut Cursor<'_>, count: u64) -> Result<Self> {
        // A key's length, a type and the smallest value.
        cursor.check_count("metadata entries", count, 8 + 4 + 1)?;
        let mut entries: Vec<(String, Value)> = Vec::new();
        entries
            .try_reserve_exact(count as usize)
            .map_err(|_| Error::out_of_memory("no memory for the metadata of a GGUF file"))?;
        for _ in 0..count {
            let place = cursor.position();
            let key = cursor.text("a metadata key")?;
            if key.len() as u64 > KEY_LIMIT {
                return Err(cursor
                    .invalid("is damaged: it has a metadata key of great length")
                    .position(place));
            }
            let value = read_value(cursor).map_err(|error| match error.detail().field {
                Some(_) => error,
                None => error.field(&key),
            })?;
            entries.push((key, value));
        }
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(cursor
                .invalid(format!("holds the metadata key {} twice", pair[0].0))
                .field(&pair[0].0));
        }
        Ok(GgufMetadata { path: path.to_owned(), entries })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(key, _)| key.as_str())
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        let place = self.entries.binary_search_by(|entry| entry.0.as_str().cmp(key)).ok()?;
        Some(&self.entries[place].1)
    }

    /// INVALID_MODEL: "`key` `what`".
    pub(crate) fn invalid(&self, key: &str, what: impl AsRef<str>) -> Error {
        Error::invalid_model(format!("{} in {} {}", quote::name(key), self.path.display(), what.as_ref()))
            .file(&self.path)
            .field(key)
    }

    /// UNSUPPORTED: "`key` `what`, which is not supported".
    pub(crate) fn unsupported(&self, key: &str, what: impl AsRef<str>) -> Error {
        Error::unsupported(format!(
            "{} in {} {}, which is not supported",
            quote::name(key),
            self.path.display(),
            what.as_ref()
        ))
        .file(&self.path)
        .field(key)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => {
                read(value).map(Some).ok_or_else(|| self.invalid(key, format!("must be {wanted}")))
            }
        }
    }

    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a text", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |value| value.as_f64().filter(|number| number.is_finite()))
    }

    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a whole number of at least 0", |value| {
            value.as_u64().and_then(|number| usize::try_from(number).ok())
        })
    }

    pub fn token_id(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "a token id", |value| value.as_u64().and_then(|number| u32::try_from(number).ok()))
    }

    /// A list of texts.
    pub fn texts(&self, key: &str) -> Result<Option<impl ExactSizeIterator<Item = &str>>> {
        let texts = self.typed(key, "a list of texts", |value| match value {
            Value::Texts(texts) => Some(texts),
            _ => None,
        })?;
        Ok(texts.map(|texts| Counted { left: texts.len(), texts: texts.iter() }))
    }

    /// A list of numbers.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.typed(key, "a list of numbers", |value| match value {
            Value::Numbers(numbers) => {
                numbers.iter().map(|number| number.as_f64().map(|number| number as f32)).collect()
            }
            _ => None,
        })
    }

    /// A list of whole numbers.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>> {
        self.typed(key, "a list of whole numbers", |value| match value {
            Value::Numbers(numbers) => numbers
                .iter()
                .map(|number| match number {
                    Value::Unsigned(number) => i64::try_from(number).ok(),
                    Value::Signed(number) => Some(number),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }
}

struct Counted<I> {
    left: usize,
    texts: I,
}

impl<'a, I: Iterator<Item = &'a str>> Iterator for Counted<I> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        self.left = self.left.saturating_sub(1);
        self.texts.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<'a, I: Iterator<Item = &'a str>> ExactSizeIterator for Counted<I> {}

fn read_kind(cursor: &mut Cursor<'_>) -> Result<Kind> {
    let number = cursor.u32("the type of a metadata value")?;
    Kind::of(number).ok_or_else(|| cursor.invalid(format!("is damaged: there is no metadata type {number}")))
}

fn read_value(cursor: &mut Cursor<'_>) -> Result<Value> {
    match read_kind(cursor)? {
        Kind::Scalar(scalar) => {
            let mut bytes = Vec::with_capacity(8);
            cursor.append("a metadata value", scalar.size() as u64, &mut bytes)?;
            scalar.value(&bytes).ok_or_else(|| cursor.invalid("is damaged: a truth value is neither 0 nor 1"))
        }
        Kind::Text => cursor.text("a metadata text").map(Value::Text),
        Kind::List => read_list(cursor, NESTING_LIMIT),
    }
}

fn read_list(cursor: &mut Cursor<'_>, levels: u32) -> Result<Value> {
    let kind = read_kind(cursor)?;
    let count = cursor.u64("the length of a list")?;
    match kind {
        Kind::Scalar(kind) => {
            cursor.check_count("list elements", count, kind.size() as u64)?;
            let mut bytes = Vec::new();
            cursor.append("a list", count * kind.size() as u64, &mut bytes)?;
            if kind == Scalar::Bool && bytes.iter().any(|byte| *byte > 1) {
                return Err(cursor.invalid("is damaged: a truth value is neither 0 nor 1"));
            }
            Ok(Value::Numbers(Numbers { kind, bytes }))
        }
        Kind::Text => {
            cursor.check_count("texts", count, 8)?;
            let mut text = Vec::new();
            let mut ends = Vec::new();
            ends.try_reserve_exact(count as usize)
                .map_err(|_| Error::out_of_memory("no memory for a list of texts"))?;
            for _ in 0..count {
                let length = cursor.u64("the length of a text")?;
                cursor.append("a text in a list", length, &mut text)?;
                ends.push(text.len());
            }
            // Each text alone must be UTF-8, so that none begins or ends within a character.
            let whole = String::from_utf8(text)
                .ok()
                .filter(|text| ends.iter().all(|&end| text.is_char_boundary(end)));
            let text = whole.ok_or_else(|| cursor.invalid("is damaged: a text in a list is not UTF-8"))?;
            Ok(Value::Texts(Texts { text, ends }))
        }
        Kind::List => {
            if levels == 0 {
                return Err(cursor.invalid("is damaged: lists stand in lists without end"));
            }
            cursor.check_count("lists", count, 4 + 8)?;
            for _ in 0..count {
                read_list(cursor, levels - 1)?;
            }
            Ok(Value::Nested)
        }
    }
}
