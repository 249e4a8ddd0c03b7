//! Rust source as far as the check needs it: code without comments and literals, words, `crate::` paths.

/// The text with comments, and the contents of strings and characters, turned into blanks. Offsets and lines
/// stay as they are.
pub fn code(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if !continues_word(bytes, at) => raw_string_end(bytes, at).unwrap_or(at),
            b'\'' => character_end(bytes, at).unwrap_or(at),
            _ => at,
        };
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    // Only whole literals and comments became blanks, one for each byte.
    String::from_utf8(code).expect("still UTF-8")
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    bytes[at..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |length| at + length)
}

/// Block comments nest.
fn comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// The end of `r"…"` or `r#"…"#`, also as the tail of `br` and `cr`; `None` for another word with an r.
fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..].iter().take_while(|&&byte| byte == b'#').count();
    let start = at + 1 + hashes;
    if bytes.get(start) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &vec![b'#'; hashes]].concat();
    let length = bytes[start + 1..].windows(close.len()).position(|window| window == close)?;
    Some(start + 1 + length + close.len())
}

/// The end of a character literal; `None` for a lifetime.
fn character_end(bytes: &[u8], at: usize) -> Option<usize> {
    let first = *bytes.get(at + 1)?;
    if first == b'\\' {
        // The escaped character may be a quote itself.
        let close = bytes[at + 3..].iter().position(|&byte| byte == b'\'')?;
        return Some(at + 3 + close + 1);
    }
    let length = match first {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    };
    (bytes.get(at + 1 + length) == Some(&b'\'')).then_some(at + 2 + length)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Whether the byte at `at` continues a word; the prefixes b and c of a literal are none.
fn continues_word(bytes: &[u8], at: usize) -> bool {
    match at.checked_sub(1).map(|before| bytes[before]) {
        Some(b'b' | b'c') => at >= 2 && is_word(bytes[at - 2]),
        Some(before) => is_word(before),
        None => false,
    }
}

/// Where `word` stands as a whole word.
pub fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = code.as_bytes();
    code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let end = at + word.len();
        (at == 0 || !is_word(bytes[at - 1])) && (end == bytes.len() || !is_word(bytes[end]))
    })
}

/// The first names of all `crate::…` paths with their places; a group `crate::{a, b::c}` gives each of its.
pub fn crate_paths(code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    for at in words(code, "crate") {
        let Some(rest) = code[at + "crate".len()..].trim_start().strip_prefix("::") else { continue };
        let rest = rest.trim_start();
        let start = code.len() - rest.len();
        if rest.starts_with('{') {
            paths.extend(group(rest).into_iter().map(|(offset, name)| (start + offset, name)));
        } else {
            paths.push((start, first_name(rest)));
        }
    }
    paths.retain(|(_, name)| !name.is_empty() && name != "self");
    paths
}

/// The first names in a brace group, with their places in it.
fn group(text: &str) -> Vec<(usize, String)> {
    let mut names = Vec::new();
    let mut depth = 0;
    let mut expecting = false;
    for (at, character) in text.char_indices() {
        match character {
            '{' => {
                depth += 1;
                expecting = depth == 1;
            }
            '}' => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            ',' => expecting = depth == 1,
            _ if character.is_whitespace() => {}
            _ => {
                if expecting {
                    names.push((at, first_name(&text[at..])));
                }
                expecting = false;
            }
        }
    }
    names
}

/// The identifier at the start, `*` for a glob, without the mark of a raw identifier.
fn first_name(text: &str) -> String {
    let text = text.strip_prefix("r#").unwrap_or(text);
    if text.starts_with('*') {
        return "*".into();
    }
    text.chars().take_while(|&character| character.is_alphanumeric() || character == '_').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_and_lines_stay() {
        let text = "a /* ü\n */ b \"x\ny\" 'ü' c\n";
        let code = code(text);
        assert_eq!(code.len(), text.len());
        assert_eq!(code.matches('\n').count(), text.matches('\n').count());
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn literals_of_every_kind_end_where_they_end() {
        let words = |text| code(text).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(r#"'\'' a '"' b"#), "a b");
        assert_eq!(words(r#"br"\" a"#), "b a");
        assert_eq!(words("r##\"x\"#y\"## a"), "a");
        assert_eq!(words("for_r\"x\" a"), "for_r a");
        assert_eq!(words("fn f<'a>(x: &'static str) {}"), "fn f<'a>(x: &'static str) {}");
        assert_eq!(words("r#fn a"), "r#fn a");
        assert_eq!(words("'\\u{1F600}' a"), "a");
    }

    #[test]
    fn groups_give_their_first_names() {
        let names = |text| crate_paths(text).into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(names("use crate::{a::{b, c}, d as e, r#f::g};"), ["a", "d", "f"]);
        assert_eq!(names("pub(crate) fn f(x: crate::a::B) {} crate::*"), ["a", "*"]);
    }
}
