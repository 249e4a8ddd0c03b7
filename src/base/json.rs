//! JSON as the files of models have it: written by Python, which knows numbers that JSON does not, `NaN`, `Infinity`
//! and `-Infinity`, and takes for infinite what a float64 cannot hold, such as `1e999`.
//!
//! Newer files spell them `{"__float__": "NaN"}`. Here each becomes such an object: it does no harm where nobody asks
//! for it, and is no number where someone does.

use std::ops::Range;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Error;

const TAG: &str = "__float__";
const NAMES: [&str; 3] = ["NaN", "Infinity", "-Infinity"];
/// More than any file has; bounds the memory that their objects take.
const MOST: usize = 1 << 16;

/// Reads any value.
pub fn value(text: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(text).or_else(|fault| {
        let odd = odd_numbers(text);
        if odd.is_empty() {
            return Err(fault);
        }
        // Under zeros as wide as they are, other faults lie where they lie in the text.
        serde_json::from_slice::<Value>(&zeroed(text, &odd))?;
        serde_json::from_slice(&tagged(text, &odd))
    })
}

/// Reads a type in which such numbers have no place but in what it leaves out.
pub fn typed<T: DeserializeOwned>(text: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(text).or_else(|fault| {
        let odd = odd_numbers(text);
        if odd.is_empty() { Err(fault) } else { serde_json::from_slice(&zeroed(text, &odd)) }
    })
}

/// Python's name of a value that stands for one of these numbers.
pub fn odd_number(value: &Value) -> Option<&'static str> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    let name = object.get(TAG)?.as_str()?;
    NAMES.into_iter().find(|known| *known == name)
}

/// A whole number, whether it is written as `8` or as `8.0`.
pub fn whole(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        // Beyond 2^53 a fraction cannot tell neighbours apart.
        let number = value.as_f64().filter(|number| number.fract() == 0.0)?;
        (0.0..=9_007_199_254_740_992.0).contains(&number).then_some(number as u64)
    })
}

/// One token id or a list of them, or the value that is none.
///
/// `null` and whole numbers below 0, such as the usual -1, say that there is no id: to mlx-lm and transformers they are
/// ids that no token has. Fractions without a rest are ids as in mlx-lm's sets, where `2.0` is 2.
pub fn token_ids(value: &Value) -> Result<Vec<u32>, &Value> {
    let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let mut ids = Vec::new();
    for item in items {
        let negative = item.as_f64().is_some_and(|number| number < 0.0 && number.fract() == 0.0);
        if !item.is_null() && !negative {
            ids.push(whole(item).and_then(|id| u32::try_from(id).ok()).ok_or(item)?);
        }
    }
    Ok(ids)
}

/// The object that a value is, which one of these numbers is not.
pub fn object(value: Value) -> Option<Map<String, Value>> {
    match value {
        Value::Object(object) if object.len() != 1 || !object.contains_key(TAG) => Some(object),
        _ => None,
    }
}

/// The byte at which a text is at fault, if that is known.
pub fn position(text: &[u8], fault: &serde_json::Error) -> Option<u64> {
    let lines = text.split_inclusive(|byte| *byte == b'\n').take(fault.line().checked_sub(1)?);
    let before: usize = lines.map(<[u8]>::len).sum();
    Some((before + fault.column().saturating_sub(1)).min(text.len()) as u64)
}

/// Adds that byte to an error.
pub fn at_fault(error: Error, text: &[u8], fault: &serde_json::Error) -> Error {
    match position(text, fault) {
        Some(position) => error.position(position),
        None => error,
    }
}

/// Where a text has such numbers, outside of its strings; none if they are too many.
fn odd_numbers(text: &[u8]) -> Vec<(Range<usize>, &'static str)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let end = match text[at] {
            b'"' => end_of_string(text, at),
            byte if is_word(byte) => {
                let end =
                    text[at..].iter().position(|byte| !is_word(*byte)).map_or(text.len(), |size| at + size);
                if let Some(name) = name_of(&text[at..end]) {
                    found.push((at..end, name));
                }
                end
            }
            _ => at + 1,
        };
        at = end;
        if found.len() > MOST {
            return Vec::new();
        }
    }
    found
}

/// Behind the quote that ends the string that begins at `start`.
fn end_of_string(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < text.len() {
        match text[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    text.len()
}

/// Whether literals and numbers are made of it.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.' | b'_')
}

fn name_of(word: &[u8]) -> Option<&'static str> {
    let word = str::from_utf8(word).ok()?;
    if let Some(name) = NAMES.into_iter().find(|name| *name == word) {
        return Some(name);
    }
    // Rust reads more than JSON, such as `inf` and `+1`.
    let digits = word.strip_prefix('-').unwrap_or(word);
    let number =
        digits.starts_with(|first: char| first.is_ascii_digit()).then(|| word.parse::<f64>().ok())??;
    number.is_infinite().then_some(if number > 0.0 { NAMES[1] } else { NAMES[2] })
}

/// The text with a zero and spaces in the place of each.
fn zeroed(text: &[u8], odd: &[(Range<usize>, &str)]) -> Vec<u8> {
    let mut plain = text.to_vec();
    for (range, _) in odd {
        plain[range.clone()].fill(b' ');
        plain[range.start] = b'0';
    }
    plain
}

/// The text with an object in the place of each.
fn tagged(text: &[u8], odd: &[(Range<usize>, &str)]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut from = 0;
    for (range, name) in odd {
        out.extend_from_slice(&text[from..range.start]);
        out.extend_from_slice(format!("{{\"{TAG}\":\"{name}\"}}").as_bytes());
        from = range.end;
    }
    out.extend_from_slice(&text[from..]);
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn number(name: &str) -> Value {
        json!({ TAG: name })
    }

    #[test]
    fn numbers_that_only_python_knows_become_objects() {
        let text = br#"{"a": NaN, "b":[Infinity,-Infinity , 1e999,-2.5E+400], "c": 1, "e": -Infinity}"#;
        let wanted = json!({
            "a": number("NaN"),
            "b": [number("Infinity"), number("-Infinity"), number("Infinity"), number("-Infinity")],
            "c": 1,
            "e": number("-Infinity"),
        });
        let read = value(text).unwrap();
        assert_eq!(read, wanted);
        // As newer files spell them.
        assert_eq!(value(wanted.to_string().as_bytes()).unwrap(), wanted);
        assert_eq!(odd_number(&read["a"]), Some("NaN"));
        for other in [json!(1), json!("NaN"), json!({}), json!({TAG: "nan"}), json!({TAG: "NaN", "b": 1})] {
            assert_eq!(odd_number(&other), None, "{other}");
        }
        assert!(object(value(b"NaN").unwrap()).is_none() && object(json!([])).is_none());
        assert_eq!(object(wanted.clone()).map(Value::Object), Some(wanted));
    }

    #[test]
    fn token_ids_are_read_as_mlx_lm_takes_them() {
        let large = 5_000_000_000_u64;
        for (value, ids) in [
            (json!(2), vec![2]),
            (json!(2.0), vec![2]),
            (json!(0), vec![0]),
            (json!(-0.0), vec![0]),
            (json!([2, 5.0, 2]), vec![2, 5, 2]),
            (json!([-1, 7, null]), vec![7]),
            (json!(-1), vec![]),
            (json!(-1.0), vec![]),
            (json!(null), vec![]),
            (json!([]), vec![]),
            (json!(u32::MAX), vec![u32::MAX]),
        ] {
            assert_eq!(token_ids(&value), Ok(ids), "{value}");
        }
        for bad in
            [json!(2.5), json!(-1.5), json!("2"), json!(true), json!({}), json!(large), number("Infinity")]
        {
            assert_eq!(token_ids(&bad), Err(&bad));
            let list = json!([1, bad]);
            assert_eq!(token_ids(&list), Err(&bad));
        }
        assert_eq!(token_ids(&json!([1, [2]])), Err(&json!([2])));
    }

    #[test]
    fn strings_stay_as_they_are() {
        let text =
            br#"{"NaN": "NaN", "b\"NaN": ["Infinity, NaN", "\\", NaN, "\\\" -Infinity"], "NaN,": Infinity}"#;
        let wanted = json!({
            "NaN": "NaN",
            "b\"NaN": ["Infinity, NaN", "\\", number("NaN"), "\\\" -Infinity"],
            "NaN,": number("Infinity"),
        });
        assert_eq!(value(text).unwrap(), wanted);
    }

    #[test]
    fn other_faults_stay_faults_and_lie_where_they_lay() {
        for text in [
            "[nan]",
            "[+Infinity]",
            "[inf]",
            "[NaNa]",
            "[1NaN]",
            "[-NaN]",
            "NaN NaN",
            "[Infinity",
            "[01e999]x",
            "[\"NaN]",
        ] {
            assert!(value(text.as_bytes()).is_err(), "{text}");
        }
        let text = b"{\"a\": NaN,\n \"b\": Infinity, x}";
        let fault = value(text).unwrap_err();
        let error = at_fault(Error::invalid_model("bad"), text, &fault);
        assert_eq!(error.detail().position, Some(text.len() as u64 - 2));
        assert_eq!(typed::<Value>(text).unwrap_err().to_string(), fault.to_string());
        let many = format!("[{}1]", "NaN,".repeat(MOST + 1));
        assert!(value(many.as_bytes()).is_err());
    }

    #[test]
    fn a_type_has_no_place_for_them_but_in_what_it_leaves_out() {
        #[derive(Debug, serde::Deserialize)]
        struct Named {
            name: Option<String>,
        }
        assert_eq!(typed::<Named>(br#"{"size": NaN, "name": "NaN"}"#).unwrap().name.as_deref(), Some("NaN"));
        assert!(typed::<Named>(br#"{"name": NaN}"#).is_err());
    }
}
