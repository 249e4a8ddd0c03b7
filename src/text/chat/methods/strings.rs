//! Methods of `str`. Positions count characters.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::super::arguments::{Arguments, text};
use super::super::fuel;
use super::super::python::{is_printable, repr};

/// Bytes that a part of a list of texts takes besides the text.
const PART: usize = 64;

/// The method's result; none if it is not one of these.
pub(super) fn call(
    state: &State,
    string: &str,
    method: &str,
    arguments: &Arguments<'_>,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    let result = match method {
        "strip" | "lstrip" | "rstrip" => {
            let chars = arguments.text(0, "")?;
            arguments.finish(1)?;
            Value::from(trim(string, chars.as_deref(), method != "rstrip", method != "lstrip"))
        }
        "split" | "rsplit" => {
            let separator = arguments.text(0, "sep")?;
            let most = arguments.integer(1, "maxsplit")?.and_then(|most| usize::try_from(most).ok());
            arguments.finish(2)?;
            let gaps = match separator.as_deref() {
                None => string.chars().filter(|c| is_space(*c)).count(),
                Some("") => 0,
                Some(separator) => string.matches(separator).count(),
            };
            fuel::check(state, gaps.saturating_mul(PART))?;
            list(split(string, separator.as_deref(), most.unwrap_or(usize::MAX), method == "rsplit")?)
        }
        "splitlines" => {
            let keep = arguments.flag(0, "keepends")?;
            arguments.finish(1)?;
            fuel::check(state, string.chars().filter(|c| is_space(*c)).count().saturating_mul(PART))?;
            list(split_lines(string, keep))
        }
        "partition" | "rpartition" => {
            let separator = text(arguments.need(0, "")?)?;
            arguments.finish(1)?;
            partition(string, &separator, method == "rpartition")?
        }
        "startswith" | "endswith" => affixed(string, arguments, method == "startswith")?,
        "find" | "rfind" | "index" | "rindex" | "count" => search(string, method, arguments)?,
        "removeprefix" | "removesuffix" => {
            let affix = text(arguments.need(0, "")?)?;
            arguments.finish(1)?;
            let rest = if method == "removeprefix" {
                string.strip_prefix(affix.as_str())
            } else {
                string.strip_suffix(affix.as_str())
            };
            Value::from(rest.unwrap_or(string))
        }
        "replace" => {
            let (old, new) = (text(arguments.need(0, "")?)?, text(arguments.need(1, "")?)?);
            let count = arguments.integer(2, "count")?.and_then(|count| usize::try_from(count).ok());
            arguments.finish(3)?;
            let count = count.unwrap_or(usize::MAX);
            let times = string.matches(&old).count().min(count);
            fuel::check(state, times.saturating_mul(new.len()))?;
            Value::from(string.replacen(&old, &new, count))
        }
        "join" => {
            let items = arguments.need(0, "")?;
            arguments.finish(1)?;
            let mut joined = String::new();
            let left = fuel::bytes_left(state);
            for (index, item) in items.try_iter()?.enumerate() {
                if index > 0 {
                    joined.push_str(string);
                }
                joined.push_str(&text(item)?);
                if joined.len() > left {
                    return Err(fuel::spent());
                }
            }
            Value::from(joined)
        }
        "title" | "swapcase" => {
            arguments.finish(0)?;
            Value::from(if method == "title" { title(string) } else { swap_case(string) })
        }
        "center" | "ljust" | "rjust" => {
            let width = arguments.integer(0, "")?.unwrap_or(0);
            let fill = arguments.text(1, "")?.and_then(|fill| fill.chars().next()).unwrap_or(' ');
            arguments.finish(2)?;
            Value::from(match method {
                "center" => center(string, width, fill),
                "ljust" => format!("{string}{}", padding(string, width, fill)),
                _ => format!("{}{string}", padding(string, width, fill)),
            })
        }
        "zfill" => {
            let width = arguments.integer(0, "")?.unwrap_or(0);
            arguments.finish(1)?;
            let sign = usize::from(string.starts_with(['+', '-']));
            Value::from(format!("{}{}{}", &string[..sign], padding(string, width, '0'), &string[sign..]))
        }
        "expandtabs" => {
            let size = arguments.integer(0, "tabsize")?.unwrap_or(8);
            arguments.finish(1)?;
            Value::from(expand_tabs(string, usize::try_from(size).unwrap_or(0)))
        }
        "format" => {
            check_format(state, string, args)?;
            return Ok(None);
        }
        "isspace" | "isprintable" => {
            arguments.finish(0)?;
            Value::from(match method {
                "isspace" => !string.is_empty() && string.chars().all(is_space),
                _ => string.chars().all(is_printable),
            })
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

/// Fails for widths in a format, or values to be written, that cannot be paid for.
fn check_format(state: &State, format: &str, args: &[Value]) -> Result<(), Error> {
    let fields = format.split('{').skip(1).map(|rest| rest.split('}').next().unwrap_or(rest));
    let numbers = fields.flat_map(|field| field.split(|c: char| !c.is_ascii_digit()));
    let widths =
        numbers.filter(|digits| !digits.is_empty()).map(|digits| digits.parse().unwrap_or(usize::MAX));
    let mut bytes = widths.fold(format.len(), usize::saturating_add);
    fuel::check(state, bytes)?;
    let left = fuel::writing_left(state);
    for value in args {
        if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable | ValueKind::Map) {
            bytes = bytes.saturating_add(repr(value, left)?.len());
            fuel::check(state, bytes)?;
        }
    }
    Ok(())
}

fn list(items: Vec<String>) -> Value {
    items.into_iter().map(Value::from).collect()
}

fn invalid(reason: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// `str.isspace` of one character.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Without the given characters, or space, at the chosen ends.
pub(in crate::text::chat) fn trim<'t>(
    string: &'t str,
    chars: Option<&str>,
    start: bool,
    end: bool,
) -> &'t str {
    let cut = |character: char| chars.map_or_else(|| is_space(character), |chars| chars.contains(character));
    let string = if start { string.trim_start_matches(cut) } else { string };
    if end { string.trim_end_matches(cut) } else { string }
}

fn split(string: &str, separator: Option<&str>, most: usize, from_end: bool) -> Result<Vec<String>, Error> {
    let most = most.saturating_add(1);
    let mut parts: Vec<String> = match (separator, from_end) {
        (Some(""), _) => return Err(invalid("empty separator")),
        (Some(separator), false) => string.splitn(most, separator).map(str::to_owned).collect(),
        (Some(separator), true) => string.rsplitn(most, separator).map(str::to_owned).collect(),
        (None, _) => {
            let mut parts = Vec::new();
            let mut rest = trim(string, None, !from_end, from_end);
            while !rest.is_empty() {
                let gap = if from_end { rest.rfind(is_space) } else { rest.find(is_space) };
                let Some(gap) = gap.filter(|_| parts.len() + 1 < most) else {
                    parts.push(rest.to_owned());
                    break;
                };
                let width = rest[gap..].chars().next().map_or(0, char::len_utf8);
                let (before, after) = (&rest[..gap], &rest[gap + width..]);
                let (part, others) = if from_end { (after, before) } else { (before, after) };
                parts.push(part.to_owned());
                rest = trim(others, None, !from_end, from_end);
            }
            parts
        }
    };
    if from_end {
        parts.reverse();
    }
    Ok(parts)
}

fn split_lines(string: &str, keep: bool) -> Vec<String> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = string;
    while !rest.is_empty() {
        let Some(at) = rest.find(ends) else {
            lines.push(rest.to_owned());
            break;
        };
        let after = if rest[at..].starts_with("\r\n") {
            at + 2
        } else {
            at + rest[at..].chars().next().map_or(0, char::len_utf8)
        };
        lines.push(rest[..if keep { after } else { at }].to_owned());
        rest = &rest[after..];
    }
    lines
}

fn partition(string: &str, separator: &str, from_end: bool) -> Result<Value, Error> {
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let parts = if from_end { string.rsplit_once(separator) } else { string.split_once(separator) };
    let parts = match (parts, from_end) {
        (Some((before, after)), _) => [before, separator, after],
        (None, false) => [string, "", ""],
        (None, true) => ["", "", string],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from))))
}

/// The part between two positions, which may count from the end, and its first position; none if
/// the first lies behind the text.
fn window(string: &str, start: Option<i64>, end: Option<i64>) -> Option<(usize, &str)> {
    if start.is_none() && end.is_none() {
        return Some((0, string));
    }
    let count = string.chars().count();
    let place = |position: i64| {
        let size = count as i64;
        usize::try_from(if position < 0 { size.saturating_add(position).max(0) } else { position })
            .unwrap_or(0)
    };
    let (start, end) = (start.map_or(0, place), end.map_or(count, place).min(count));
    if start > count || start > end {
        return None;
    }
    let byte = |position: usize| string.char_indices().nth(position).map_or(string.len(), |(at, _)| at);
    Some((start, &string[byte(start)..byte(end)]))
}

fn affixed(string: &str, arguments: &Arguments<'_>, at_start: bool) -> Result<Value, Error> {
    let affix = arguments.need(0, "")?;
    let (start, end) = (arguments.integer(1, "")?, arguments.integer(2, "")?);
    arguments.finish(3)?;
    let affixes: Vec<String> = match affix.kind() {
        ValueKind::String => vec![text(affix)?],
        ValueKind::Seq if affix.is_tuple() => affix.try_iter()?.map(text).collect::<Result<_, _>>()?,
        _ => return Err(invalid("the first argument must be str or a tuple of str")),
    };
    let Some((_, part)) = window(string, start, end) else {
        return Ok(Value::from(false));
    };
    let has = |affix: &String| if at_start { part.starts_with(affix) } else { part.ends_with(affix) };
    Ok(Value::from(affixes.iter().any(has)))
}

fn search(string: &str, method: &str, arguments: &Arguments<'_>) -> Result<Value, Error> {
    let wanted = text(arguments.need(0, "")?)?;
    let (start, end) = (arguments.integer(1, "")?, arguments.integer(2, "")?);
    arguments.finish(3)?;
    let window = window(string, start, end);
    if method == "count" {
        return Ok(Value::from(window.map_or(0, |(_, part)| part.matches(wanted.as_str()).count())));
    }
    let found = window.and_then(|(from, part)| {
        let at = if method.starts_with('r') { part.rfind(&wanted) } else { part.find(&wanted) };
        at.map(|at| from + part[..at].chars().count())
    });
    match found {
        Some(position) => Ok(Value::from(position)),
        None if method.ends_with("find") => Ok(Value::from(-1)),
        None => Err(invalid("substring not found")),
    }
}

fn has_case(character: char) -> bool {
    character.is_lowercase() || character.is_uppercase()
}

fn title(string: &str) -> String {
    let mut out = String::with_capacity(string.len());
    let mut inside = false;
    for character in string.chars() {
        if inside {
            out.extend(character.to_lowercase());
        } else {
            let mut upper = character.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
        inside = has_case(character);
    }
    out
}

fn swap_case(string: &str) -> String {
    let mut out = String::with_capacity(string.len());
    for character in string.chars() {
        if character.is_uppercase() {
            out.extend(character.to_lowercase());
        } else {
            out.extend(character.to_uppercase());
        }
    }
    out
}

/// The widest text that a pad may make: a template asks for it, and templates are not trusted.
const MOST_WIDTH: i64 = 1_000_000;

fn padding(string: &str, width: i64, fill: char) -> String {
    let missing = width.min(MOST_WIDTH).saturating_sub(string.chars().count() as i64);
    std::iter::repeat_n(fill, usize::try_from(missing).unwrap_or(0)).collect()
}

/// `str.center`, which leaves the odd pad on the left only for odd widths.
pub(in crate::text::chat) fn center(string: &str, width: i64, fill: char) -> String {
    let pad = padding(string, width, fill);
    let missing = pad.chars().count();
    let left = missing / 2 + (missing & usize::try_from(width).unwrap_or(0) & 1);
    let before: String = pad.chars().take(left).collect();
    let after: String = pad.chars().skip(left).collect();
    format!("{before}{string}{after}")
}

fn expand_tabs(string: &str, size: usize) -> String {
    let size = size.min(256);
    let mut out = String::with_capacity(string.len());
    let mut column = 0;
    for character in string.chars() {
        match character {
            '\t' => {
                let width = if size == 0 { 0 } else { size - column % size };
                out.extend(std::iter::repeat_n(' ', width));
                column += width;
            }
            '\n' | '\r' => {
                out.push(character);
                column = 0;
            }
            _ => {
                out.push(character);
                column += 1;
            }
        }
    }
    out
}
