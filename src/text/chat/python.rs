//! How Python writes values: `str`, `repr`, and floats.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::fuel;

/// `str(value)`.
pub(super) fn str(state: &State, value: &Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None if value.is_undefined() => Ok(String::new()),
        None => repr(value, fuel::writing_left(state)),
    }
}

/// `repr(value)`, which may have `most` bytes: a value that holds another twice, and so on, is
/// written longer than it is.
pub(super) fn repr(value: &Value, most: usize) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(value, &mut out, most, 0)?;
    Ok(out)
}

/// An error for what lies deeper than any conversation: a template can nest values without end.
pub(super) fn check_depth(depth: usize) -> Result<(), Error> {
    if depth < 200 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidOperation, "a value is nested too deeply"))
}

fn write_repr(value: &Value, out: &mut String, most: usize, depth: usize) -> Result<(), Error> {
    check_depth(depth)?;
    if out.len() > most {
        return Err(fuel::spent());
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => write_str_repr(value.as_str().unwrap_or_default(), out),
        ValueKind::Number if !value.is_integer() => match f64::try_from(value.clone()) {
            Ok(number) => out.push_str(&float(number)),
            Err(_) => out.push_str(&value.to_string()),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                count += 1;
                write_repr(&item, out, most, depth + 1)?;
            }
            if count == 1 && value.downcast_object_ref::<Tuple>().is_some() {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(&key, out, most, depth + 1)?;
                out.push_str(": ");
                write_repr(&value.get_item(&key)?, out, most, depth + 1)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

/// The shortest digits that read back as the same number, with an exponent below 1e-4 and from 1e16.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number < 0.0 { "-inf".into() } else { "inf".into() };
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = number.to_string();
    if plain.contains('.') { plain } else { plain + ".0" }
}

fn write_str_repr(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            _ if character == quote => {
                out.push('\\');
                out.push(character);
            }
            _ if is_printable(character) => out.push(character),
            _ => {
                let code = character as u32;
                out.push_str(&match code {
                    0..=0xFF => format!("\\x{code:02x}"),
                    0x100..=0xFFFF => format!("\\u{code:04x}"),
                    _ => format!("\\U{code:08x}"),
                });
            }
        }
    }
    out.push(quote);
}

/// Ranges of controls, format characters, spaces other than the blank, separators and private use,
/// in order.
const UNPRINTABLE: [(u32, u32); 36] = [
    (0x00, 0x1F),
    (0x7F, 0xA0),
    (0xAD, 0xAD),
    (0x600, 0x605),
    (0x61C, 0x61C),
    (0x6DD, 0x6DD),
    (0x70F, 0x70F),
    (0x890, 0x891),
    (0x8E2, 0x8E2),
    (0x1680, 0x1680),
    (0x180E, 0x180E),
    (0x2000, 0x200F),
    (0x2028, 0x202F),
    (0x205F, 0x2064),
    (0x2065, 0x206F),
    (0x3000, 0x3000),
    (0xD800, 0xF8FF),
    (0xFDD0, 0xFDEF),
    (0xFEFF, 0xFEFF),
    (0xFFF0, 0xFFFB),
    (0xFFFE, 0xFFFF),
    (0x110BD, 0x110BD),
    (0x110CD, 0x110CD),
    (0x13430, 0x13438),
    (0x1BCA0, 0x1BCA3),
    (0x1D173, 0x1D17A),
    (0x1FFFE, 0x1FFFF),
    (0x2FFFE, 0x2FFFF),
    (0x3FFFE, 0x3FFFF),
    (0x4FFFE, 0x4FFFF),
    (0x5FFFE, 0x5FFFF),
    (0x6FFFE, 0xDFFFF),
    (0xE0000, 0xE00FF),
    (0xE01F0, 0xEFFFF),
    (0xF0000, 0xFFFFF),
    (0x100000, 0x10FFFF),
];

/// `str.isprintable` of one character; unassigned ones count as printable.
pub(super) fn is_printable(character: char) -> bool {
    let code = character as u32;
    let next = UNPRINTABLE.partition_point(|(_, last)| *last < code);
    UNPRINTABLE.get(next).is_none_or(|(first, _)| code < *first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        for (number, text) in [
            (1.0, "1.0"),
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.2345678e-7, "1.2345678e-07"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
            (123_456_789.125, "123456789.125"),
        ] {
            assert_eq!(float(number), text);
        }
    }

    #[test]
    fn strings_are_quoted_as_python_quotes_them() {
        for (text, quoted) in [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("it's \"x\"", "'it\\'s \"x\"'"),
            ("é\u{a0}\u{200b}\u{feff}\u{1f642}", "'é\\xa0\\u200b\\ufeff🙂'"),
            ("\n\t\\\u{7f}\u{1}", "'\\n\\t\\\\\\x7f\\x01'"),
        ] {
            assert_eq!(repr(&Value::from(text), 100).unwrap(), quoted);
        }
    }
}
