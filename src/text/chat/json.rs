//! JSON as Python's `json.dumps` writes it.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::Arguments;
use super::{fuel, python};

struct Style {
    /// The most bytes to write.
    most: usize,
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

impl Default for Style {
    fn default() -> Self {
        Style {
            most: usize::MAX,
            ascii: false,
            indent: None,
            item_separator: ", ".into(),
            key_separator: ": ".into(),
            sort_keys: false,
        }
    }
}

/// The `tojson` filter: `json.dumps`, by default without escapes for characters beyond ASCII.
pub(super) fn tojson(
    state: &State,
    value: &Value,
    positional: Rest<Value>,
    named: Kwargs,
) -> Result<String, Error> {
    let arguments = Arguments::of(&positional, named);
    let mut style = Style { most: fuel::writing_left(state), ..Style::default() };
    if let Some(ascii) = arguments.get(0, "ensure_ascii")? {
        style.ascii = ascii.is_true();
    }
    if let Some(indent) = arguments.get(1, "indent")? {
        style.indent = Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => {
                let width = usize::try_from(i64::try_from(indent)?).unwrap_or(0);
                fuel::check(state, width)?;
                " ".repeat(width)
            }
        });
        style.item_separator = ",".into();
    }
    if let Some(separators) = arguments.get(2, "separators")? {
        let mut texts = separators.try_iter()?.map(|s| s.to_str().map(|s| s.to_string()));
        let (Some(Some(item)), Some(Some(key)), None) = (texts.next(), texts.next(), texts.next()) else {
            return Err(Error::new(ErrorKind::InvalidOperation, "separators must be two strings"));
        };
        (style.item_separator, style.key_separator) = (item, key);
    }
    if let Some(sort) = arguments.get(3, "sort_keys")? {
        style.sort_keys = sort.is_true();
    }
    arguments.finish(4)?;
    let mut out = String::new();
    style.write(value, 0, &mut out)?;
    Ok(out)
}

/// `json.dumps(value, ensure_ascii=False)` of plain JSON.
pub(super) fn text(value: &serde_json::Value) -> String {
    let mut out = String::new();
    // Plain JSON has only what JSON can hold.
    match Style::default().write(&super::environment::value(value), 0, &mut out) {
        Ok(()) => out,
        Err(_) => value.to_string(),
    }
}

impl Style {
    fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), Error> {
        python::check_depth(depth)?;
        self.check(out)?;
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&number(f64::try_from(value.clone())?)),
            ValueKind::String => self.write_string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.write_all(items.iter(), ('[', ']'), depth, out, |item, out| {
                    self.write(item, depth + 1, out)
                })?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.write_all(keys.iter(), ('{', '}'), depth, out, |key, out| {
                    self.write_key(key, out)?;
                    out.push_str(&self.key_separator);
                    self.write(&value.get_item(key)?, depth + 1, out)
                })?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::BadSerialization,
                    format!("a value of kind {kind} is not JSON"),
                ));
            }
        }
        Ok(())
    }

    /// Fails when too much was written.
    fn check(&self, out: &str) -> Result<(), Error> {
        if out.len() <= self.most { Ok(()) } else { Err(fuel::spent()) }
    }

    fn write_all<'v>(
        &self,
        items: impl ExactSizeIterator<Item = &'v Value>,
        (open, close): (char, char),
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let break_line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                for _ in 0..depth {
                    self.check(out)?;
                    out.push_str(indent);
                }
            }
            self.check(out)
        };
        out.push(open);
        let empty = items.len() == 0;
        for (index, item) in items.enumerate() {
            if index > 0 {
                out.push_str(&self.item_separator);
            }
            break_line(depth + 1, out)?;
            write(item, out)?;
        }
        if !empty {
            break_line(depth, out)?;
        }
        out.push(close);
        Ok(())
    }

    fn write_key(&self, key: &Value, out: &mut String) -> Result<(), Error> {
        if let Some(text) = key.as_str() {
            self.write_string(text, out);
            return Ok(());
        }
        if matches!(key.kind(), ValueKind::Number | ValueKind::Bool | ValueKind::None) {
            out.push('"');
            self.write(key, 0, out)?;
            out.push('"');
            return Ok(());
        }
        Err(Error::new(ErrorKind::BadSerialization, "keys must be str, int, float, bool or None"))
    }

    fn write_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", character as u32)),
                ' '..='~' => out.push(character),
                _ if self.ascii => {
                    let mut units = [0; 2];
                    for unit in character.encode_utf16(&mut units) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

fn number(number: f64) -> String {
    if number.is_nan() {
        "NaN".into()
    } else if number.is_infinite() {
        if number < 0.0 { "-Infinity".into() } else { "Infinity".into() }
    } else {
        python::float(number)
    }
}
