//! Keeps text that comes from messages from becoming control tokens.
//!
//! A special token's text inside a message gets its first character replaced by a placeholder
//! before the template runs. The template's own special tokens are then the only ones that the
//! tokenizer can find; the placeholders become ordinary characters again behind the place where
//! it looks for them, so that words are split as if the whole were plain text.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer};

use crate::base::{Error, Result};

/// The texts of a tokenizer's special tokens.
#[derive(Debug, Default)]
pub(super) struct SpecialTexts {
    /// Under each first character: the texts' lengths in bytes, descending.
    lengths: BTreeMap<char, Vec<usize>>,
    texts: HashSet<String>,
    /// Texts without their last character or more, and without their first or more.
    prefixes: HashSet<String>,
    suffixes: HashSet<String>,
    longest: usize,
}

impl SpecialTexts {
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut special = SpecialTexts::default();
        for text in texts.filter(|text| !text.trim().is_empty()) {
            let Some(first) = text.chars().next() else { continue };
            special.lengths.entry(first).or_default().push(text.len());
            special.longest = special.longest.max(text.len());
            for (cut, _) in text.char_indices().skip(1) {
                special.prefixes.insert(text[..cut].to_owned());
                special.suffixes.insert(text[cut..].to_owned());
            }
            special.texts.insert(text.to_owned());
        }
        for lengths in special.lengths.values_mut() {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
        }
        special
    }

    /// Whether a special text begins at byte `at`.
    fn begins(&self, text: &str, at: usize, first: char) -> bool {
        self.lengths.get(&first).is_some_and(|lengths| {
            lengths.iter().any(|length| text.get(at..at + length).is_some_and(|t| self.texts.contains(t)))
        })
    }

    /// The characters of `text`, with their byte offsets, that must not take part in a special token: the
    /// first of each special text in it, the first of one that is cut off by its end, and the last
    /// of one that was begun before it (another piece of text may be put there).
    fn spots(&self, text: &str) -> Vec<(usize, char)> {
        let begins = |&(at, character): &(usize, char)| self.begins(text, at, character);
        let mut spots: Vec<(usize, char)> = text.char_indices().filter(begins).collect();
        let trimmed = text.trim();
        let start = text.len() - text.trim_start().len();
        let near_end = trimmed.char_indices().rev().take_while(|(at, _)| trimmed.len() - at < self.longest);
        spots.extend(
            near_end.filter(|(at, _)| self.prefixes.contains(&trimmed[*at..])).map(|(at, c)| (start + at, c)),
        );
        let near_start = trimmed.char_indices().take_while(|(at, c)| at + c.len_utf8() < self.longest);
        spots.extend(
            near_start
                .filter(|(at, c)| self.suffixes.contains(&trimmed[..at + c.len_utf8()]))
                .map(|(at, c)| (start + at, c)),
        );
        spots.sort_unstable();
        spots.dedup();
        spots
    }
}

/// Placeholders and the characters that they stand for.
#[derive(Debug, Default)]
pub(super) struct Placeholders {
    /// `(placeholder, character)`.
    pairs: Vec<(char, char)>,
    next: u32,
}

/// Rare ideographs: letters, printable, without case, so that templates treat them as plain text.
const POOL: std::ops::RangeInclusive<u32> = 0x20000..=0x2A6DF;

impl Placeholders {
    /// A placeholder for `character` that is not in `taken`; None if every one is.
    fn of(&mut self, character: char, taken: &HashSet<char>) -> Option<char> {
        if let Some((placeholder, _)) = self.pairs.iter().find(|(_, stands_for)| *stands_for == character) {
            return Some(*placeholder);
        }
        let from = *POOL.start() + self.next;
        let placeholder = (from..=*POOL.end()).filter_map(char::from_u32).find(|c| !taken.contains(c))?;
        self.next = placeholder as u32 - POOL.start() + 1;
        self.pairs.push((placeholder, character));
        Some(placeholder)
    }

    fn original(&self, placeholder: char) -> Option<char> {
        if !POOL.contains(&(placeholder as u32)) {
            return None;
        }
        self.pairs.iter().find(|(known, _)| *known == placeholder).map(|(_, character)| *character)
    }

    /// The text with the characters that the placeholders stand for.
    pub(super) fn restore(&self, text: &str) -> String {
        text.chars().map(|c| self.original(c).unwrap_or(c)).collect()
    }

    /// A normaliser that puts the characters back before `next`.
    pub(super) fn before<'a, N: Normalizer>(&'a self, next: Option<&'a N>) -> RestoreThen<'a, N> {
        RestoreThen { placeholders: self, next }
    }
}

/// Replaces, in every string of `data`, the characters that could take part in a special token.
/// None if there are none. `template` is text that placeholders must not occur in, too.
pub(super) fn protect(
    mut data: [&mut Value; 4],
    template: &str,
    special: &SpecialTexts,
) -> Result<Option<Placeholders>> {
    let mut taken = HashSet::new();
    let mut collect = |text: &str| taken.extend(text.chars().filter(|c| POOL.contains(&(*c as u32))));
    collect(template);
    data.iter().for_each(|value| each_string(value, &mut collect));
    let mut placeholders = Placeholders::default();
    let mut exhausted = false;
    for value in &mut data {
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
            let entries = std::mem::take(map);
            for (key, mut item) in entries {
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
