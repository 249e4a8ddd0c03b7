//! The header of a safetensors file.
//!
//! The file is: header length (u64, little endian), header (JSON: name → dtype, shape, offsets
//! into the data), data. Nothing that it declares is believed before it is checked against the
//! file's size, and nothing is allocated from a declared size.
//!
//! The `safetensors` crate knows the element types; its own header reader takes the whole file
//! as a slice, keeps the last of two entries with one name and does not say which entry is
//! wrong, so the entries are read here.

use std::fmt;

use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess, Visitor};

use super::file::{WeightFile, zeroed};
use super::types::{ElementType, Encoding, RowOrder, Tensor, checked_elements};
use crate::base::{Error, Result, json, quote};

/// The format's own limit of the header's length.
const HEADER_LIMIT: u64 = 100_000_000;
/// More tensors than any file has: each costs some hundred bytes while it is known.
const TENSORS_LIMIT: usize = 1 << 18;
/// More axes than any model has.
const AXES_LIMIT: usize = 16;
const METADATA_KEY: &str = "__metadata__";

/// An entry as declared.
#[derive(Debug)]
struct Declared {
    name: String,
    dtype: safetensors::Dtype,
    shape: Vec<u64>,
    /// Bytes, relative to the data.
    begin: u64,
    end: u64,
}

/// Reads and validates the header; `file_index` becomes the tensors' `file`.
pub(crate) fn read_header(file: &WeightFile, file_index: usize) -> Result<Vec<Tensor>> {
    let size = file.size();
    let head = file.head(256)?;
    if let Some(error) = file.impostor(&head) {
        return Err(error);
    }
    let Some((length, _)) = head.split_first_chunk::<8>() else {
        return Err(file
            .invalid(format!("has {size} bytes; a safetensors file begins with a length of 8 bytes"))
            .position(size));
    };
    let length = u64::from_le_bytes(*length);
    let available = size - 8;
    if length > available {
        return Err(file
            .invalid(format!(
                "declares a header of {length} bytes, so expected at least {} bytes, but the file has {size} bytes: \
                 it is truncated or no safetensors file",
                length.saturating_add(8)
            ))
            .position(0));
    }
    if !(2..=HEADER_LIMIT).contains(&length) {
        return Err(file
            .invalid(format!("declares a header of {length} bytes; from 2 to {HEADER_LIMIT} are possible"))
            .position(0));
    }
    let mut header = zeroed(length as usize)?;
    file.read_at(8, &mut header)?;
    let declared = parse(file, &header)?;
    drop(header);
    validate(file, file_index, declared, 8 + length)
}

/// The entries in the header's order.
fn parse(file: &WeightFile, header: &[u8]) -> Result<Vec<Declared>> {
    let mut entries = Vec::new();
    let mut current = String::new();
    let mut json = serde_json::Deserializer::from_slice(header);
    HeaderSeed { entries: &mut entries, current: &mut current }
        .deserialize(&mut json)
        .and_then(|()| json.end())
        .map_err(|error| header_error(file, header, &current, &error))?;
    Ok(entries)
}

/// Turns a JSON error into one that names the file, the entry and the byte.
fn header_error(file: &WeightFile, header: &[u8], entry: &str, error: &serde_json::Error) -> Error {
    let position = 8 + json::position(header, error).unwrap_or(0);
    let text = error.to_string();
    let reason = match error.classify() {
        serde_json::error::Category::Data => text.split(" at line ").next().unwrap_or_default(),
        _ if text.contains("recursion limit") => "it is nested too deeply",
        _ => "it is not valid JSON",
    };
    let mut what = format!("has a bad safetensors header: {}", quote::brief(reason));
    if !entry.is_empty() {
        what.push_str(&format!(" (in the entry of tensor {})", quote::name(entry)));
    }
    let error = file.invalid(what).position(position);
    if entry.is_empty() { error } else { error.tensor(entry) }
}

fn validate(
    file: &WeightFile,
    file_index: usize,
    mut declared: Vec<Declared>,
    data_start: u64,
) -> Result<Vec<Tensor>> {
    let data_bytes = file.size() - data_start;
    let mut tensors = Vec::with_capacity(declared.len());
    // A stable order by place: every byte of the data belongs to exactly one tensor.
    declared.sort_by_key(|entry| (entry.begin, entry.end));
    for entry in &declared {
        check_extent(file, entry, data_start, data_bytes)?;
    }
    let mut covered = 0;
    for (index, entry) in declared.iter().enumerate() {
        if entry.begin != covered {
            let what = if entry.begin < covered { "overlaps the tensor before it" } else { "leaves a hole" };
            let before = index
                .checked_sub(1)
                .map_or_else(|| "the start".to_owned(), |before| quote::name(&declared[before].name));
            return Err(file
                .invalid(format!(
                    "is damaged: tensor {} begins at byte {} of the data and {what} (expected {covered}, after {before})",
                    quote::name(&entry.name),
                    entry.begin
                ))
                .tensor(&entry.name)
                .position(data_start + entry.begin));
        }
        covered = entry.end;
    }
    if covered != data_bytes {
        return Err(file
            .invalid(format!("has {} bytes, but its header describes {}", file.size(), data_start + covered))
            .position(data_start + covered));
    }
    for entry in declared {
        // Each dimension of a tensor that has bytes fits; one of an empty tensor may not.
        let shape: Option<Vec<usize>> = entry.shape.iter().map(|&axis| usize::try_from(axis).ok()).collect();
        let shape = shape.ok_or_else(|| {
            file.invalid(format!("declares an impossible shape for tensor {}", quote::name(&entry.name)))
                .tensor(&entry.name)
        })?;
        tensors.push(Tensor {
            encoding: encoding(entry.dtype),
            shape,
            file: file_index,
            offset: data_start + entry.begin,
            bytes: entry.end - entry.begin,
            name: entry.name,
            stored_name: None,
            rows: RowOrder::Natural,
        });
    }
    Ok(tensors)
}

/// Shape, type and offsets of one entry agree with each other and lie in the file.
fn check_extent(file: &WeightFile, entry: &Declared, data_start: u64, data_bytes: u64) -> Result<()> {
    let bad = |what: String| {
        file.invalid(format!("is damaged: tensor {} {what}", quote::name(&entry.name))).tensor(&entry.name)
    };
    let at = |error: Error| error.position(data_start.saturating_add(entry.begin));
    let (begin, end) = (entry.begin, entry.end);
    let Some(stored) = end.checked_sub(begin) else {
        return Err(at(bad(format!("has data offsets that run backwards: [{begin}, {end}]"))));
    };
    let bits = checked_elements(&entry.shape)
        .and_then(|elements| elements.checked_mul(entry.dtype.bitsize() as u64))
        .ok_or_else(|| at(bad(format!("has the impossible shape {:?}", entry.shape))))?;
    if bits % 8 != 0 || bits / 8 != stored {
        return Err(at(bad(format!(
            "has {stored} bytes, but {} of shape {:?} needs {}",
            entry.dtype,
            entry.shape,
            bits.div_ceil(8)
        ))));
    }
    if end > data_bytes {
        return Err(at(bad(format!(
            "ends at byte {} of the file, which has only {} bytes: it is truncated",
            data_start.saturating_add(end),
            file.size()
        ))));
    }
    Ok(())
}

fn encoding(dtype: safetensors::Dtype) -> Encoding {
    use safetensors::Dtype;
    Encoding::Plain(match dtype {
        Dtype::BOOL => ElementType::Bool,
        Dtype::U8 => ElementType::U8,
        Dtype::I8 => ElementType::I8,
        Dtype::U16 => ElementType::U16,
        Dtype::I16 => ElementType::I16,
        Dtype::U32 => ElementType::U32,
        Dtype::I32 => ElementType::I32,
        Dtype::U64 => ElementType::U64,
        Dtype::I64 => ElementType::I64,
        Dtype::F16 => ElementType::F16,
        Dtype::BF16 => ElementType::Bf16,
        Dtype::F32 => ElementType::F32,
        Dtype::F4 => return Encoding::Other("F4"),
        Dtype::F6_E2M3 => return Encoding::Other("F6_E2M3"),
        Dtype::F6_E3M2 => return Encoding::Other("F6_E3M2"),
        Dtype::F8_E5M2 => return Encoding::Other("F8_E5M2"),
        Dtype::F8_E4M3 => return Encoding::Other("F8_E4M3"),
        Dtype::F8_E8M0 => return Encoding::Other("F8_E8M0"),
        Dtype::C64 => return Encoding::Other("C64"),
        Dtype::F64 => return Encoding::Other("F64"),
        _ => return Encoding::Other("another element type"),
    })
}

/// Reads the table of tensors in order and tells, through `current`, which entry it is in.
struct HeaderSeed<'a> {
    entries: &'a mut Vec<Declared>,
    current: &'a mut String,
}

impl<'de> DeserializeSeed<'de> for HeaderSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for HeaderSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            self.current.clone_from(&name);
            if name == METADATA_KEY {
                map.next_value::<TextTable>()?;
            } else {
                if self.entries.len() == TENSORS_LIMIT {
                    let text = format_args!("it lists more than {TENSORS_LIMIT} tensors");
                    return Err(<A::Error as serde::de::Error>::custom(text));
                }
                let DeclaredBody { dtype, shape, begin, end } = map.next_value()?;
                self.entries.push(Declared { name, dtype, shape, begin, end });
            }
            self.current.clear();
        }
        Ok(())
    }
}

/// Free metadata: texts by name. Checked, not kept.
struct TextTable;

impl<'de> Deserialize<'de> for TextTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextTableVisitor;
        impl<'de> Visitor<'de> for TextTableVisitor {
            type Value = TextTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<TextTable, A::Error> {
                while map.next_entry::<String, String>()?.is_some() {}
                Ok(TextTable)
            }
        }
        deserializer.deserialize_map(TextTableVisitor)
    }
}

struct DeclaredBody {
    dtype: safetensors::Dtype,
    shape: Vec<u64>,
    begin: u64,
    end: u64,
}

impl<'de> Deserialize<'de> for DeclaredBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BodyVisitor;
        impl<'de> Visitor<'de> for BodyVisitor {
            type Value = DeclaredBody;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("dtype, shape and data_offsets")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DeclaredBody, A::Error> {
                use serde::de::Error;
                let (mut dtype, mut shape, mut offsets) = (None, None, None);
                while let Some(key) = map.next_key::<String>()? {
                    let repeated = match key.as_str() {
                        "dtype" => dtype.replace(map.next_value::<String>()?).is_some(),
                        "shape" => shape.replace(map.next_value::<Numbers<AXES_LIMIT>>()?.0).is_some(),
                        "data_offsets" => offsets.replace(map.next_value::<Numbers<2>>()?.0).is_some(),
                        _ => {
                            map.next_value::<IgnoredAny>()?;
                            false
                        }
                    };
                    if repeated {
                        return Err(A::Error::custom(format_args!("{key} stands there twice")));
                    }
                }
                let missing = |key: &str| A::Error::custom(format_args!("{key} is missing"));
                let dtype = dtype.ok_or_else(|| missing("dtype"))?;
                let name: StrDeserializer<'_, A::Error> = dtype.as_str().into_deserializer();
                let dtype = safetensors::Dtype::deserialize(name)
                    .map_err(|_| A::Error::custom(format_args!("unknown dtype {}", quote::quote(&dtype))))?;
                let offsets = offsets.ok_or_else(|| missing("data_offsets"))?;
                let &[begin, end] = offsets.as_slice() else {
                    return Err(A::Error::custom("data_offsets must be two numbers"));
                };
                Ok(DeclaredBody { dtype, shape: shape.ok_or_else(|| missing("shape"))?, begin, end })
            }
        }
        deserializer.deserialize_map(BodyVisitor)
    }
}

/// At most `LIMIT` whole numbers of at least zero.
struct Numbers<const LIMIT: usize>(Vec<u64>);

impl<'de, const LIMIT: usize> Deserialize<'de> for Numbers<LIMIT> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumbersVisitor<const LIMIT: usize>;
        impl<'de, const LIMIT: usize> Visitor<'de> for NumbersVisitor<LIMIT> {
            type Value = Numbers<LIMIT>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {LIMIT} whole numbers of at least 0")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                use serde::de::Error;
                let mut numbers = Vec::new();
                while let Some(number) = list.next_element::<u64>()? {
                    if numbers.len() == LIMIT {
                        return Err(A::Error::invalid_length(LIMIT + 1, &self));
                    }
                    numbers.push(number);
                }
                Ok(Numbers(numbers))
            }
        }
        deserializer.deserialize_seq(NumbersVisitor::<LIMIT>)
    }
}

#[cfg(test)]
#[path = "safetensors_tests.rs"]
mod tests;
