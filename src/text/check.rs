//! What a tokenizer.json may ask for, looked at before the tokenizers crate sees it: that crate
//! believes the sizes that a file states, and panics at references that lead nowhere.

use serde_json::{Map, Value};

use crate::base::quote::quote;
use crate::base::{Error, Result};

/// By how much the steps of a chain may lengthen a text. Those of known models stay below a thousand, where
/// each step is counted as if it met the text that it lengthens most.
const MOST_GROWTH: u64 = 4096;

/// How often a post-processor may repeat the text.
const MOST_REPEATS: usize = 16;

fn invalid(field: &str, what: impl Into<String>) -> Error {
    Error::invalid_model(what).field(field)
}

/// A normalizer or a decoder: INVALID_MODEL for one that makes texts much longer, and for tables that are
/// shorter than they say.
pub(super) fn steps(field: &str, part: Option<&Value>) -> Result<()> {
    let mut growth = 1;
    if let Some(part) = part {
        walk(field, part, &mut growth)?;
    }
    if growth > MOST_GROWTH {
        return Err(invalid(
            field,
            format!("{field} can make a text more than {MOST_GROWTH} times as long, which is not accepted"),
        ));
    }
    Ok(())
}

fn walk(field: &str, part: &Value, growth: &mut u64) -> Result<()> {
    match part {
        Value::Array(items) => items.iter().try_for_each(|item| walk(field, item, growth)),
        Value::Object(map) => {
            *growth = growth.saturating_mul(factor(field, map)?);
            map.values().try_for_each(|item| walk(field, item, growth))
        }
        _ => Ok(()),
    }
}

/// How much longer one step can make a text.
fn factor(field: &str, step: &Map<String, Value>) -> Result<u64> {
    if let Some(Value::String(table)) = step.get("precompiled_charsmap") {
        return precompiled(table)
            .ok_or_else(|| invalid(field, format!("{field} has a precompiled_charsmap that is damaged")));
    }
    if let (Some(Value::String(content)), Some(pattern)) = (step.get("content"), step.get("pattern")) {
        let content = content.len() as u64;
        let least = pattern.get("String").and_then(Value::as_str).map_or(0, str::len) as u64;
        return Ok(if least == 0 { content + 1 } else { content.div_ceil(least).max(1) });
    }
    if let Some(Value::String(text)) = step.get("prepend") {
        return Ok(text.len() as u64 + 1);
    }
    Ok(match step.get("type").and_then(Value::as_str) {
        Some("NFKC" | "NFKD") => 11,
        Some("NFC" | "NFD") => 3,
        Some("ByteLevel" | "BertNormalizer") => 2,
        _ => 1,
    })
}

/// The longest replacement in a table of SentencePiece: the size of a trie, the trie, and texts
/// with a NUL after each.
fn precompiled(table: &str) -> Option<u64> {
    let bytes = from_base64(table)?;
    let (size, rest) = bytes.split_first_chunk::<4>()?;
    let size = usize::try_from(u32::from_le_bytes(*size)).ok()?;
    // The trie has at least its root, and the texts are found behind it.
    if size < 4 || size > rest.len() {
        return None;
    }
    let texts = std::str::from_utf8(rest.get(size / 4 * 4..)?).ok()?;
    texts.split('\0').map(|text| text.len().max(1) as u64).max()
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 3);
    for group in digits.chunks(4) {
        let mut bits = 0;
        for at in 0..4 {
            let value = match group.get(at).copied().unwrap_or(b'A') {
                digit @ b'A'..=b'Z' => digit - b'A',
                digit @ b'a'..=b'z' => digit - b'a' + 26,
                digit @ b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

/// A post-processor: INVALID_MODEL for a special token that it does not define.
pub(super) fn post_processor(part: Option<&Value>) -> Result<()> {
    match part {
        Some(Value::Array(items)) => items.iter().try_for_each(|item| post_processor(Some(item))),
        Some(Value::Object(map)) => {
            template(map)?;
            map.values().try_for_each(|item| post_processor(Some(item)))
        }
        _ => Ok(()),
    }
}

fn template(map: &Map<String, Value>) -> Result<()> {
    let (Some(Value::Array(pieces)), Some(Value::Object(known))) =
        (map.get("single"), map.get("special_tokens"))
    else {
        return Ok(());
    };
    let mut repeats = 0;
    for piece in pieces {
        if let Some(id) = piece.get("SpecialToken").and_then(|token| token.get("id")).and_then(Value::as_str)
            && !known.contains_key(id)
        {
            return Err(invalid(
                "post_processor",
                format!("post_processor uses the special token {}, which it does not define", quote(id)),
            ));
        }
        repeats += usize::from(piece.get("Sequence").is_some());
    }
    if repeats > MOST_REPEATS {
        return Err(invalid("post_processor", format!("post_processor repeats the text {repeats} times")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn base64_is_read() {
        for (text, bytes) in
            [("", ""), ("YQ==", "a"), ("YWI=", "ab"), ("YWJj", "abc"), ("YWJjZA", "abcd"), ("+/+/", "\u{0}")]
        {
            let read = from_base64(text).unwrap();
            assert!(text == "+/+/" && read == [0xfb, 0xff, 0xbf] || read == bytes.as_bytes(), "{text}");
        }
        assert_eq!(from_base64("a b"), None);
    }

    #[test]
    fn the_normalizers_of_known_models_pass() {
        let llama = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
        let albert = json!({"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "``"}, "content": "\""}, {"type": "NFKD"},
            {"type": "StripAccents"}, {"type": "Lowercase"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]});
        for part in [llama, albert] {
            steps("normalizer", Some(&part)).unwrap();
        }
        let step = json!({"type": "Replace", "pattern": {"String": "x"}, "content": "x".repeat(100)});
        steps("decoder", Some(&step)).unwrap();
        let bomb = json!({"type": "Sequence", "normalizers": vec![step; 5]});
        let error = steps("normalizer", Some(&bomb)).unwrap_err();
        assert_eq!(error.detail().field.as_deref(), Some("normalizer"));
    }
}
