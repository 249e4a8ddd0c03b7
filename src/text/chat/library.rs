//! Filters, tests and functions of jinja2 where the engine's own are absent or differ.

use minijinja::value::{Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::arguments::Arguments;
use super::{json, methods, python, time};

/// Makes them known to an environment.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", python::str);
    environment.add_filter("pprint", pprint);
    for name in ["default", "d"] {
        environment.add_filter(name, default);
    }
    for name in ["escape", "e", "forceescape"] {
        environment.add_filter(name, escape);
    }
    environment.add_filter("trim", trim);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("center", center);
    environment.add_filter("truncate", truncate);
    environment.add_filter("wordcount", |state: &State, value: &Value| {
        Ok::<_, Error>(words(&python::str(state, value)?))
    });
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("sequence", |value: &Value| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::String | ValueKind::Undefined
        )
    });
    environment.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    environment.add_function("namespace", namespace);
    environment.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", time::now);
}

/// The engine's, whose time grows with more than the square of the depth, for what can be written otherwise.
fn pprint(state: &State, value: &Value) -> Result<String, Error> {
    python::str(state, value)?;
    Ok(minijinja::filters::pprint(value))
}

fn raise_exception(state: &State, message: &Value) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, python::str(state, message)?))
}

fn escape(state: &State, value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    for character in python::str(state, value)?.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(character),
        }
    }
    Ok(out)
}

fn default(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let arguments = Arguments::of(&positional, named);
    let fallback = match positional.first() {
        Some(fallback) => fallback.clone(),
        None => arguments.get(0, "default_value")?.unwrap_or_else(|| Value::from("")),
    };
    let falsy_too = arguments.flag(1, "boolean")?;
    arguments.finish(2)?;
    Ok(if value.is_undefined() || (falsy_too && !value.is_true()) { fallback } else { value.clone() })
}

fn trim(state: &State, value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let arguments = Arguments::of(&positional, named);
    let chars = arguments.text(0, "chars")?;
    arguments.finish(1)?;
    Ok(methods::trim(&python::str(state, value)?, chars.as_deref(), true, true).to_owned())
}

fn center(state: &State, value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let arguments = Arguments::of(&positional, named);
    let width = arguments.integer(0, "width")?.unwrap_or(80);
    arguments.finish(1)?;
    Ok(methods::center(&python::str(state, value)?, width, ' '))
}

/// `int(value)`, or the default where Python refuses.
fn int(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let arguments = Arguments::of(&positional, named);
    let fallback = arguments.get(0, "default")?.unwrap_or_else(|| Value::from(0));
    let base = arguments.integer(1, "base")?.and_then(|base| u32::try_from(base).ok()).unwrap_or(10);
    arguments.finish(2)?;
    let whole = |number: f64| number.is_finite().then(|| Value::from(number as i128));
    let converted = match value.as_str() {
        Some(text) => {
            let text = methods::trim(text, None, true, true);
            integer(text, base).map(Value::from).or_else(|| whole(text.replace('_', "").parse().ok()?))
        }
        None if value.is_integer() => Some(value.clone()),
        None => f64::try_from(value.clone())
            .ok()
            .or_else(|| i64::try_from(value.clone()).ok().map(|i| i as f64))
            .and_then(whole),
    };
    Ok(converted.unwrap_or(fallback))
}

fn integer(text: &str, base: u32) -> Option<i128> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        3..=36 => "",
        _ => return None,
    };
    let lower = digits.to_ascii_lowercase().replace('_', "");
    let digits = lower.strip_prefix(prefix).unwrap_or(&lower);
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from_str_radix(digits, base).ok()?;
    Some(if negative { -number } else { number })
}

/// `float(value)`, or the default where Python refuses.
fn float(value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let arguments = Arguments::of(&positional, named);
    let fallback = arguments.get(0, "default")?.unwrap_or_else(|| Value::from(0.0));
    arguments.finish(1)?;
    let converted = match value.as_str() {
        Some(text) => methods::trim(text, None, true, true).replace('_', "").parse::<f64>().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok(),
    };
    Ok(converted.map_or(fallback, Value::from))
}

/// Cut to `length` characters with `end`, at a word's end unless words may be cut; texts that are
/// longer by at most `leeway` stay.
fn truncate(state: &State, value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    let arguments = Arguments::of(&positional, named);
    let length = arguments.integer(0, "length")?.unwrap_or(255);
    let cut_words = arguments.flag(1, "killwords")?;
    let end = arguments.text(2, "end")?.unwrap_or_else(|| "...".into());
    let leeway = arguments.integer(3, "leeway")?.unwrap_or(5);
    arguments.finish(4)?;
    let text = python::str(state, value)?;
    let kept = length - end.chars().count() as i64;
    if kept < 0 || leeway < 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "truncate: the length or leeway is too small"));
    }
    if text.chars().count() as i64 <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let head: String = text.chars().take(usize::try_from(kept).unwrap_or(0)).collect();
    let head = if cut_words { &head } else { head.rsplit_once(' ').map_or(head.as_str(), |(head, _)| head) };
    Ok(format!("{head}{end}"))
}

fn words(text: &str) -> usize {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty()).count()
}

/// `namespace(mapping, **names)`; names that begin with an underscore are refused.
fn namespace(positional: Rest<Value>, named: Kwargs) -> Result<Value, Error> {
    let mut pairs: Vec<(Value, Value)> = Vec::new();
    if let Some(mapping) = positional.first() {
        for key in mapping.try_iter()? {
            pairs.push((key.clone(), mapping.get_item(&key)?));
        }
    }
    if positional.len() > 1 {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let names: Vec<String> = named.args().map(str::to_owned).collect();
    for name in names {
        pairs.push((Value::from(name.as_str()), named.get::<Value>(&name)?));
    }
    if pairs.iter().any(|(key, _)| key.as_str().is_some_and(|name| name.starts_with('_'))) {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "a namespace cannot have names that begin with _",
        ));
    }
    let defaults = Value::from_pairs(pairs);
    minijinja::functions::namespace(Some(ValueOrKwargs::from(defaults)))
}
