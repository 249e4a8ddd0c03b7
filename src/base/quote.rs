//! Texts from files inside messages.

/// The most bytes of a text that a message shows.
const MOST: usize = 200;

/// A name or text from a file, for a message: in quotes, escaped, and cut where it is long.
pub fn quote(text: &str) -> String {
    format!("\"{}\"", name(text))
}

/// As [`quote`], without the quotes, for names such as those of tensors.
pub fn name(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        let escaped = character.escape_debug();
        if out.len() + escaped.len() * 4 + 6 > MOST {
            out.push('…');
            break;
        }
        out.extend(escaped);
    }
    out
}

/// Another library's words, which may repeat what a file says: on one line, and cut where they are long.
pub fn brief(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        if out.len() + 4 > MOST {
            out.push('…');
            break;
        }
        if character.is_control() { out.extend(character.escape_default()) } else { out.push(character) }
    }
    out
}

/// What is wrong with a JSON text.
pub fn json_fault(fault: &serde_json::Error) -> String {
    let text = fault.to_string();
    if text.contains("recursion limit exceeded") {
        return format!("nested too deeply (line {}, column {})", fault.line(), fault.column());
    }
    brief(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_cut() {
        assert_eq!(quote("a\"b\n\u{1b}[31mé"), "\"a\\\"b\\n\\u{1b}[31mé\"");
        assert_eq!(quote(""), "\"\"");
        for long in ["x".repeat(1 << 20), "\u{1b}".repeat(1000), "🙂".repeat(1000)] {
            assert!(quote(&long).len() <= MOST, "{}", quote(&long).len());
            assert!(quote(&long).ends_with("…\""));
            assert!(brief(&long).len() <= MOST + 8);
        }
        let deep = "[".repeat(1000);
        let fault = serde_json::from_str::<serde_json::Value>(&deep).unwrap_err();
        assert!(json_fault(&fault).starts_with("nested too deeply"));
    }
}
