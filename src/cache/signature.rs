//! How a cache's state is stored, as a name.

use std::fmt;
use std::str::FromStr;

use crate::base::quote::quote;
use crate::base::{Error, Result};
use crate::mlx::Dtype;

/// Names a layout: equal signatures mean equal layouts. There is no unknown one: every cache kind has its own, and a
/// text that names none is refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Signature {
    /// `kv:plain`
    Plain,
    /// `kv:quant:<bits>:<group>`
    Affine { bits: u32, group: u32 },
    /// `kv:rotating-plain`
    Rotating,
    /// `kv:rotating-quant:<bits>:<group>`
    RotatingAffine { bits: u32, group: u32 },
    /// `kv:turboquant:<key bits>:<value bits>`
    TurboQuant { key_bits: u32, value_bits: u32 },
    /// `kv:paged`, or `kv:paged:<bits>:<group>` with quantised planes
    Paged { quantised: Option<(u32, u32)> },
    /// `ssm`
    Recurrent,
    /// `kv:mla:target`, `kv:mla:target:dsa` with the part that an indexer reads, `kv:mla:mtp`
    Latent(LatentRole),
    /// The same and `:segments:<type>`, or `:pages:<tokens>:<type>`: in the order of the CPU's kernels
    LatentSegments { role: LatentRole, page: Option<u32>, dtype: Dtype },
    /// `kv:segments:<form>`: in the order of the CPU's kernels
    Segments(SegmentForm),
    /// `kv:pages:<tokens>:<form>`: the same in pages of another size
    Pages { page: u32, form: SegmentForm },
    /// `list(<signature>,…)`: a layer with several parts
    Composite(Vec<Signature>),
}

/// Whose compressed latent state a cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LatentRole {
    Target,
    TargetWithIndex,
    Draft,
}

impl fmt::Display for LatentRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LatentRole::Target => "target",
            LatentRole::TargetWithIndex => "target:dsa",
            LatentRole::Draft => "mtp",
        })
    }
}

/// How numbers are stored in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SegmentForm {
    /// `float32`, `float16`, `bfloat16`
    Float(Dtype),
    /// `quant:<bits>:<group>`
    Affine { bits: u32, group: u32 },
    /// `turboquant:<key bits>:<value bits>`
    TurboQuant { key_bits: u32, value_bits: u32 },
}

impl fmt::Display for SegmentForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SegmentForm::Float(dtype) => f.write_str(dtype.name()),
            SegmentForm::Affine { bits, group } => write!(f, "quant:{bits}:{group}"),
            SegmentForm::TurboQuant { key_bits, value_bits } => {
                write!(f, "turboquant:{key_bits}:{value_bits}")
            }
        }
    }
}

impl FromStr for SegmentForm {
    type Err = Error;

    /// INVALID_ARGUMENT for a text that no form has as its name.
    fn from_str(text: &str) -> Result<Self> {
        let words: Vec<&str> = text.split(':').collect();
        parse_form(&words).ok_or_else(|| {
            Error::invalid_argument(format!("no numbers are stored in the form {}", quote(text)))
                .field("form")
        })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Signature::Plain => f.write_str("kv:plain"),
            Signature::Affine { bits, group } => write!(f, "kv:quant:{bits}:{group}"),
            Signature::Rotating => f.write_str("kv:rotating-plain"),
            Signature::RotatingAffine { bits, group } => write!(f, "kv:rotating-quant:{bits}:{group}"),
            Signature::TurboQuant { key_bits, value_bits } => {
                write!(f, "kv:turboquant:{key_bits}:{value_bits}")
            }
            Signature::Paged { quantised: None } => f.write_str("kv:paged"),
            Signature::Paged { quantised: Some((bits, group)) } => write!(f, "kv:paged:{bits}:{group}"),
            Signature::Recurrent => f.write_str("ssm"),
            Signature::Latent(role) => write!(f, "kv:mla:{role}"),
            Signature::LatentSegments { role, page: None, dtype } => {
                write!(f, "kv:mla:{role}:segments:{}", dtype.name())
            }
            Signature::LatentSegments { role, page: Some(page), dtype } => {
                write!(f, "kv:mla:{role}:pages:{page}:{}", dtype.name())
            }
            Signature::Segments(form) => write!(f, "kv:segments:{form}"),
            Signature::Pages { page, form } => write!(f, "kv:pages:{page}:{form}"),
            Signature::Composite(parts) => {
                f.write_str("list(")?;
                for (index, part) in parts.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{part}")?;
                }
                f.write_str(")")
            }
        }
    }
}

impl FromStr for Signature {
    type Err = Error;

    /// INVALID_ARGUMENT for a text that no cache of this library has as its signature.
    fn from_str(text: &str) -> Result<Self> {
        parse(text).ok_or_else(|| {
            Error::invalid_argument(format!("there is no kind of cache with the signature {text:?}"))
                .field("signature")
        })
    }
}

fn parse(text: &str) -> Option<Signature> {
    if let Some(list) = text.strip_prefix("list(") {
        let parts: Option<Vec<Signature>> =
            list_parts(list.strip_suffix(')')?)?.into_iter().map(parse).collect();
        return parts.map(Signature::Composite);
    }
    let words: Vec<&str> = text.split(':').collect();
    Some(match words[..] {
        ["ssm"] => Signature::Recurrent,
        ["kv", "plain"] => Signature::Plain,
        ["kv", "quant", bits, group] => Signature::Affine { bits: number(bits)?, group: number(group)? },
        ["kv", "rotating-plain"] => Signature::Rotating,
        ["kv", "rotating-quant", bits, group] => {
            Signature::RotatingAffine { bits: number(bits)?, group: number(group)? }
        }
        ["kv", "turboquant", keys, values] => {
            Signature::TurboQuant { key_bits: number(keys)?, value_bits: number(values)? }
        }
        ["kv", "paged"] => Signature::Paged { quantised: None },
        ["kv", "paged", bits, group] => Signature::Paged { quantised: Some((number(bits)?, number(group)?)) },
        ["kv", "mla", "target", "dsa", ref rest @ ..] => parse_latent(LatentRole::TargetWithIndex, rest)?,
        ["kv", "mla", "target", ref rest @ ..] => parse_latent(LatentRole::Target, rest)?,
        ["kv", "mla", "mtp", ref rest @ ..] => parse_latent(LatentRole::Draft, rest)?,
        ["kv", "segments", ref form @ ..] => Signature::Segments(parse_form(form)?),
        ["kv", "pages", page, ref form @ ..] => {
            Signature::Pages { page: number(page)?, form: parse_form(form)? }
        }
        _ => return None,
    })
}

fn parse_latent(role: LatentRole, words: &[&str]) -> Option<Signature> {
    let float = |words: &[&str]| match parse_form(words)? {
        SegmentForm::Float(dtype) => Some(dtype),
        SegmentForm::Affine { .. } | SegmentForm::TurboQuant { .. } => None,
    };
    Some(match *words {
        [] => Signature::Latent(role),
        ["segments", ref form @ ..] => Signature::LatentSegments { role, page: None, dtype: float(form)? },
        ["pages", page, ref form @ ..] => {
            Signature::LatentSegments { role, page: Some(number(page)?), dtype: float(form)? }
        }
        _ => return None,
    })
}

fn parse_form(words: &[&str]) -> Option<SegmentForm> {
    Some(match *words {
        ["float32"] => SegmentForm::Float(Dtype::Float32),
        ["float16"] => SegmentForm::Float(Dtype::Float16),
        ["bfloat16"] => SegmentForm::Float(Dtype::Bfloat16),
        ["quant", bits, group] => SegmentForm::Affine { bits: number(bits)?, group: number(group)? },
        ["turboquant", keys, values] => {
            SegmentForm::TurboQuant { key_bits: number(keys)?, value_bits: number(values)? }
        }
        _ => return None,
    })
}

/// A number as `Display` writes it: no sign, no zero in front.
fn number(text: &str) -> Option<u32> {
    let number: u32 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// The parts between the commas that are in no inner list.
fn list_parts(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0usize);
    if text.is_empty() {
        return Some(parts);
    }
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    // A list in a list in a list: no layer has one, and parsing goes as deep as the text says.
    if depth > 0 || text.matches('(').count() > 8 {
        return None;
    }
    parts.push(&text[start..]);
    Some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_survives_the_way_through_its_text() {
        let all = [
            Signature::Plain,
            Signature::Affine { bits: 4, group: 64 },
            Signature::Rotating,
            Signature::RotatingAffine { bits: 8, group: 32 },
            Signature::TurboQuant { key_bits: 8, value_bits: 3 },
            Signature::Paged { quantised: None },
            Signature::Paged { quantised: Some((4, 64)) },
            Signature::Recurrent,
            Signature::Latent(LatentRole::Target),
            Signature::Latent(LatentRole::TargetWithIndex),
            Signature::Latent(LatentRole::Draft),
            Signature::LatentSegments { role: LatentRole::Target, page: None, dtype: Dtype::Float32 },
            Signature::LatentSegments {
                role: LatentRole::TargetWithIndex,
                page: Some(16),
                dtype: Dtype::Bfloat16,
            },
            Signature::LatentSegments { role: LatentRole::Draft, page: None, dtype: Dtype::Float16 },
            Signature::Segments(SegmentForm::Float(Dtype::Float32)),
            Signature::Segments(SegmentForm::Float(Dtype::Float16)),
            Signature::Segments(SegmentForm::Float(Dtype::Bfloat16)),
            Signature::Segments(SegmentForm::Affine { bits: 8, group: 64 }),
            Signature::Segments(SegmentForm::TurboQuant { key_bits: 8, value_bits: 3 }),
            Signature::Pages { page: 16, form: SegmentForm::Float(Dtype::Float16) },
            Signature::Composite(vec![]),
            Signature::Composite(vec![Signature::Recurrent, Signature::Plain]),
            Signature::Composite(vec![
                Signature::Composite(vec![Signature::Rotating, Signature::Plain]),
                Signature::Affine { bits: 4, group: 32 },
            ]),
        ];
        let texts: std::collections::HashSet<String> = all.iter().map(Signature::to_string).collect();
        assert_eq!(texts.len(), all.len(), "two kinds with one name");
        for signature in all {
            assert_eq!(signature.to_string().parse::<Signature>().unwrap(), signature);
        }
    }

    #[test]
    fn an_unknown_signature_is_an_error_and_never_a_default() {
        let deep = format!("{}kv:plain{}", "list(".repeat(100_000), ")".repeat(100_000));
        for text in [
            "",
            "kv",
            "kv:",
            "kv:plain:",
            "kv:quant",
            "kv:quant:4",
            "kv:quant:4:x",
            "kv:quant:+4:64",
            "kv:quant:04:64",
            "kv:quant:4:64:1",
            "ssm:",
            "SSM",
            "kv:segments",
            "kv:segments:int8",
            "list",
            "list(",
            "list()x",
            "list(kv:plain",
            "list(kv:plain,)",
            "list(,)",
            "list()kv:plain()",
            "kv:mla",
            "kv:mla:dsa",
            "kv:mla:target:segments",
            "kv:mla:target:segments:quant:4:64",
            "kv:mla:target:pages:float16",
            "kv:mla:mtp:dsa",
            &deep,
        ] {
            let error = text.parse::<Signature>().unwrap_err();
            assert_eq!(error.detail().field.as_deref(), Some("signature"), "{}", &text[..text.len().min(40)]);
        }
    }
}
