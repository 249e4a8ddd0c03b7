//! Keeps text that comes from messages from becoming control tokens.
//!
//! Before the template runs, characters of the messages that could take part in a special token's
//! text are replaced by placeholders. Only the template's own special tokens are then found in
//! what it renders. Behind the place where the tokenizer looks for them the placeholders become
//! what they stand for, so that words are split as if the whole were plain text.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer};

use crate::base::{Error, Result};

/// The texts of a tokenizer's special tokens.
#[derive(Debug, Default)]
pub(super) struct SpecialTexts {
    /// Sorted, so that a text's continuations follow it.
    texts: Vec<String>,
    /// The same, each from its last character to its first; sorted.
    reversed: Vec<String>,
    /// Under each first character: the texts' lengths in bytes.
    lengths: BTreeMap<char, BTreeSet<usize>>,
    longest: usize,
}

impl SpecialTexts {
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let texts: BTreeSet<&str> = texts.filter(|text| !text.trim().is_empty()).collect();
        let reversed: BTreeSet<String> = texts.iter().map(|text| text.chars().rev().collect()).collect();
        let mut lengths: BTreeMap<char, BTreeSet<usize>> = BTreeMap::new();
        for text in &texts {
            if let Some(first) = text.chars().next() {
                lengths.entry(first).or_default().insert(text.len());
            }
        }
        SpecialTexts {
            longest: texts.iter().map(|text| text.len()).max().unwrap_or(0),
            texts: texts.into_iter().map(str::to_owned).collect(),
            reversed: reversed.into_iter().collect(),
            lengths,
        }
    }

    /// Whether a special text begins at byte `at`, where `first` stands.
    fn begins(&self, text: &str, at: usize, first: char) -> bool {
        let known = |part: &str| self.texts.binary_search_by(|known| known.as_str().cmp(part)).is_ok();
        self.lengths
            .get(&first)
            .is_some_and(|lengths| lengths.iter().any(|length| text.get(at..at + length).is_some_and(known)))
    }

    /// Whether a special text goes on after `part`.
    fn continues(&self, part: &str) -> bool {
        continues(&self.texts, part)
    }

    /// Whether a special text has something before `part`, its end.
    fn ends(&self, part: &str) -> bool {
        continues(&self.reversed, &part.chars().rev().collect::<String>())
    }

    /// The characters of `text` to replace, with their byte offsets: the first of each special
    /// text in it; the first of one that its end cuts off and the last of one that was begun
    /// before it, because the template may join it with another piece of text, trimmed.
    fn spots(&self, text: &str) -> Vec<(usize, char)> {
        let begins = |&(at, character): &(usize, char)| self.begins(text, at, character);
        let mut spots: Vec<(usize, char)> = text.char_indices().filter(begins).collect();
        let trimmed = text.trim();
        let start = text.len() - text.trim_start().len();
        let in_text = |(at, character)| (start + at, character);
        let near_end = trimmed.char_indices().rev().take_while(|(at, _)| trimmed.len() - at < self.longest);
        spots.extend(near_end.filter(|(at, _)| self.continues(&trimmed[*at..])).map(in_text));
        let after = |(at, character): &(usize, char)| at + character.len_utf8();
        let near_start = trimmed.char_indices().take_while(|spot| after(spot) < self.longest);
        spots.extend(near_start.filter(|spot| self.ends(&trimmed[..after(spot)])).map(in_text));
        spots.sort_unstable();
        spots.dedup();
        spots
    }
}

/// Whether one of the sorted texts is longer than `part` and begins with it.
fn continues(texts: &[String], part: &str) -> bool {
    let next = texts.partition_point(|text| text.as_str() <= part);
    texts.get(next).is_some_and(|text| text.starts_with(part))
}

/// Rare ideographs: letters, printable, without case, so that templates treat them as plain text.
const POOL: std::ops::RangeInclusive<u32> = 0x20000..=0x2A6DF;

/// Placeholders and the characters that they stand for.
#[derive(Debug, Default)]
pub(super) struct Placeholders {
    /// `(placeholder, character)`.
    pairs: Vec<(char, char)>,
    next: u32,
}

/// What occurs in the texts that placeholders must differ from.
#[derive(Default)]
struct Taken {
    characters: HashSet<char>,
    /// Texts with JSON escapes of characters beyond the basic plane.
    escapes: Vec<String>,
}

impl Taken {
    fn add(&mut self, text: &str) {
        self.characters.extend(text.chars().filter(|c| POOL.contains(&(*c as u32))));
        if text.contains("\\ud8") {
            self.escapes.push(text.to_owned());
        }
    }

    fn has(&self, character: char) -> bool {
        self.characters.contains(&character)
            || self.escapes.iter().any(|text| text.contains(&json_escape(character)))
    }
}

impl Placeholders {
    /// A placeholder for `character`; None if every one is taken.
    fn of(&mut self, character: char, taken: &Taken) -> Option<char> {
        if let Some((placeholder, _)) = self.pairs.iter().find(|(_, stands_for)| *stands_for == character) {
            return Some(*placeholder);
        }
        let from = *POOL.start() + self.next;
        let placeholder = (from..=*POOL.end()).filter_map(char::from_u32).find(|c| !taken.has(*c))?;
        self.next = placeholder as u32 - POOL.start() + 1;
        self.pairs.push((placeholder, character));
        Some(placeholder)
    }

    /// The text with the characters that the placeholders stand for.
    pub(super) fn restore(&self, text: &str) -> String {
        let original =
            |c| self.pairs.iter().find(|(placeholder, _)| *placeholder == c).map_or(c, |(_, to)| *to);
        text.chars().map(original).collect()
    }

    /// The text with the placeholders that a template wrote as JSON escapes as characters again.
    pub(super) fn unescape(&self, text: String) -> String {
        if !text.contains("\\ud8") {
            return text;
        }
        self.pairs.iter().fold(text, |text, (placeholder, character)| {
            let plain = if character.is_ascii() { placeholder.to_string() } else { json_escape(*character) };
            text.replace(&json_escape(*placeholder), &plain)
        })
    }

    /// A normaliser that puts the characters back before `next`.
    pub(super) fn before<'a, N: Normalizer>(&'a self, next: Option<&'a N>) -> RestoreThen<'a, N> {
        RestoreThen { placeholders: self, next }
    }
}

fn json_escape(character: char) -> String {
    let mut units = [0; 2];
    character.encode_utf16(&mut units).iter().map(|unit| format!("\\u{unit:04x}")).collect()
}

/// Replaces, in every string of `data`, the characters that could take part in a special token.
/// None if there are none. `template` is text in which placeholders must not occur, too.
pub(super) fn protect(
    data: &mut [Value],
    template: &str,
    special: &SpecialTexts,
) -> Result<Option<Placeholders>> {
    let mut taken = Taken::default();
    taken.add(template);
    data.iter().for_each(|value| each_string(value, &mut |text| taken.add(text)));
    let mut placeholders = Placeholders::default();
    let mut exhausted = false;
    for value in data {
        change_strings(value, &mut |text| {
            let spots = special.spots(text);
            if spots.is_empty() {
                return None;
            }
            let mut changed = String::with_capacity(text.len() + 4 * spots.len());
            let mut done = 0;
            for (at, character) in spots {
                let Some(placeholder) = placeholders.of(character, &taken) else {
                    exhausted = true;
                    return None;
                };
                changed.push_str(&text[done..at]);
                changed.push(placeholder);
                done = at + character.len_utf8();
            }
            changed.push_str(&text[done..]);
            Some(changed)
        });
    }
    if exhausted {
        let reason = "the messages use every character that could stand for a special token's";
        return Err(Error::invalid_argument(reason).field("messages"));
    }
    Ok((!placeholders.pairs.is_empty()).then_some(placeholders))
}

fn each_string(value: &Value, visit: &mut dyn FnMut(&str)) {
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => items.iter().for_each(|item| each_string(item, visit)),
        Value::Object(map) => map.iter().for_each(|(key, item)| {
            visit(key);
            each_string(item, visit);
        }),
        _ => {}
    }
}

fn change_strings(value: &mut Value, change: &mut dyn FnMut(&str) -> Option<String>) {
    match value {
        Value::String(text) => {
            if let Some(changed) = change(text) {
                *text = changed;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| change_strings(item, change)),
        Value::Object(map) => {
            for (key, mut item) in std::mem::take(map) {
                change_strings(&mut item, change);
                let key = change(&key).unwrap_or(key);
                map.insert(key, item);
            }
        }
        _ => {}
    }
}

/// Puts characters back in the place of placeholders, then does what `next` does.
pub(super) struct RestoreThen<'a, N> {
    placeholders: &'a Placeholders,
    next: Option<&'a N>,
}

impl<N: Normalizer> Normalizer for RestoreThen<'_, N> {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        for &(placeholder, character) in &self.placeholders.pairs {
            if text.get().contains(placeholder) {
                text.replace(placeholder, &character.to_string())?;
            }
        }
        self.next.map_or(Ok(()), |next| next.normalize(text))
    }
}
