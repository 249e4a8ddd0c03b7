//! GGUF files, versions 2 and 3, little endian.
//!
//! The file is: magic, version, counts; metadata; the table of tensors; padding; data. Counts
//! and lengths are believed only as far as the file's size allows.

mod cursor;
mod formats;
mod metadata;
mod names;

pub use metadata::GgufMetadata;
pub(crate) use metadata::Value;

use cursor::Cursor;

use super::file::WeightFile;
use super::files::WeightFiles;
use super::types::{Encoding, RowOrder, Tensor, checked_elements};
use crate::base::quote;
use crate::base::{Error, Result};

pub(crate) const MAGIC: &[u8; 4] = b"GGUF";
/// The format's own limit of axes.
const AXES_LIMIT: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
const ALIGNMENT_KEY: &str = "general.alignment";
const ARCHITECTURE_KEY: &str = "general.architecture";
/// More heads than any model has; bounds what is made of a tensor whose rows are the heads'.
const HEADS_LIMIT: u64 = 4096;

/// Reads everything but the data.
pub(crate) fn open(file: WeightFile) -> Result<(GgufMetadata, WeightFiles)> {
    let mut cursor = Cursor::new(&file);
    let version = read_version(&file, &mut cursor)?;
    if !(2..=3).contains(&version) {
        return Err(Error::unsupported(format!(
            "{} is GGUF version {version}; versions 2 and 3 are supported",
            file.path().display()
        ))
        .file(file.path())
        .position(4));
    }
    let tensor_count = cursor.u64("the number of tensors")?;
    let metadata_count = cursor.u64("the number of metadata entries")?;
    let metadata = GgufMetadata::read(file.path(), &mut cursor, metadata_count)?;
    if metadata.size("split.count")?.is_some_and(|count| count > 1) {
        return Err(metadata.unsupported("split.count", "says that the model is split over several files"));
    }
    let alignment = alignment(&metadata)?;
    let mut tensors = read_table(&file, &mut cursor, tensor_count)?;
    let data_start = cursor.position().next_multiple_of(alignment);
    for tensor in &mut tensors {
        place(&file, tensor, data_start, alignment)?;
    }
    check_overlaps(&file, &tensors)?;
    let architecture = metadata.text(ARCHITECTURE_KEY)?.unwrap_or_default();
    let rotation = rotation(&metadata, architecture)?;
    for tensor in &mut tensors {
        if let Some(name) = names::model_name(architecture, &tensor.name) {
            if let Some(head_dim) = rotation.filter(|_| names::is_rotated(architecture, &tensor.name)) {
                tensor.rows = RowOrder::InterleavedHalves { head_dim };
            }
            tensor.stored_name = Some(std::mem::replace(&mut tensor.name, name));
        }
    }
    let tensors = split_heads(&file, tensors)?;
    Ok((metadata, WeightFiles::new(vec![file], tensors)?))
}

fn read_version(file: &WeightFile, cursor: &mut Cursor<'_>) -> Result<u32> {
    let head = file.head(256)?;
    if !head.starts_with(MAGIC) {
        return Err(file.impostor(&head).unwrap_or_else(|| {
            file.invalid(format!("is no GGUF file (it has {} bytes)", file.size())).position(0)
        }));
    }
    cursor.take::<4>("the magic number")?;
    let version = cursor.u32("the version")?;
    if version != 0 && version & 0xffff == 0 {
        return Err(Error::unsupported(format!("{} is a big-endian GGUF file", file.path().display()))
            .file(file.path())
            .position(4));
    }
    Ok(version)
}

fn alignment(metadata: &GgufMetadata) -> Result<u64> {
    match metadata.size(ALIGNMENT_KEY)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(alignment) if alignment.is_power_of_two() && alignment <= 1 << 30 => Ok(alignment as u64),
        Some(other) => Err(metadata.invalid(ALIGNMENT_KEY, format!("is {other}; it must be a power of two"))),
    }
}

/// The table as declared: `offset` still counts from the start of the data.
fn read_table(file: &WeightFile, cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Tensor>> {
    // An empty name's length, the number of axes, the format, the offset.
    cursor.check_count("tensors", count, 8 + 4 + 4 + 8)?;
    let mut tensors = Vec::new();
    tensors
        .try_reserve_exact(count as usize)
        .map_err(|_| Error::out_of_memory("no memory for the tensor table of a GGUF file"))?;
    for _ in 0..count {
        let name = cursor.text("a tensor's name")?;
        tensors.push(read_entry(file, cursor, &name).map_err(|error| error.tensor(&name))?);
    }
    Ok(tensors)
}

fn read_entry(file: &WeightFile, cursor: &mut Cursor<'_>, name: &str) -> Result<Tensor> {
    let axes = cursor.u32("a tensor's number of axes")?;
    if axes > AXES_LIMIT {
        return Err(cursor.invalid(format!("is damaged: tensor {} has {axes} axes", quote::name(name))));
    }
    let mut shape = Vec::with_capacity(axes as usize);
    for _ in 0..axes {
        shape.push(cursor.u64("a tensor's shape")?);
    }
    let row = shape.first().copied().unwrap_or(1);
    // GGUF names the fastest axis first.
    shape.reverse();
    let number = cursor.u32("a tensor's format")?;
    let offset = cursor.u64("a tensor's offset")?;
    let storage = formats::storage(number).ok_or_else(|| {
        Error::unsupported(format!(
            "tensor {} in {} has the format number {number}, which is not known",
            quote::name(name),
            file.path().display()
        ))
        .file(file.path())
        .position(cursor.position())
    })?;
    if row % storage.elements != 0 {
        return Err(cursor.invalid(format!(
            "is damaged: tensor {} has rows of {row} elements, but {} stores {} at a time",
            quote::name(name),
            storage.encoding.name(),
            storage.elements
        )));
    }
    let bytes = checked_elements(&shape)
        .and_then(|elements| (elements / storage.elements).checked_mul(storage.bytes))
        .ok_or_else(|| {
            cursor.invalid(format!(
                "is damaged: tensor {} has the impossible shape {shape:?}",
                quote::name(name)
            ))
        })?;
    let shape: Option<Vec<usize>> = shape.into_iter().map(|axis| usize::try_from(axis).ok()).collect();
    Ok(Tensor {
        name: name.to_owned(),
        stored_name: None,
        encoding: storage.encoding,
        shape: shape.ok_or_else(|| {
            cursor.invalid(format!("is damaged: tensor {} is too large", quote::name(name)))
        })?,
        file: 0,
        offset,
        bytes,
        rows: RowOrder::Natural,
    })
}

/// Turns the offset into one from the start of the file, if the tensor lies in the file.
fn place(file: &WeightFile, tensor: &mut Tensor, data_start: u64, alignment: u64) -> Result<()> {
    let bad = |what: String| {
        file.invalid(format!("is damaged: tensor {} {what}", quote::name(&tensor.name))).tensor(&tensor.name)
    };
    if !tensor.offset.is_multiple_of(alignment) {
        return Err(bad(format!("begins at {}, which is no multiple of {alignment}", tensor.offset)));
    }
    let start = data_start.checked_add(tensor.offset);
    let end = start.and_then(|start| start.checked_add(tensor.bytes));
    match (start, end) {
        (Some(start), Some(end)) if end <= file.size() => {
            tensor.offset = start;
            Ok(())
        }
        (Some(start), Some(end)) => Err(bad(format!(
            "ends at byte {end} of the file, which has only {} bytes: it is truncated",
            file.size()
        ))
        .position(start)),
        _ => Err(bad(format!("has the impossible offset {}", tensor.offset))),
    }
}

fn check_overlaps(file: &WeightFile, tensors: &[Tensor]) -> Result<()> {
    let mut order: Vec<&Tensor> = tensors.iter().filter(|tensor| tensor.bytes > 0).collect();
    order.sort_by_key(|tensor| tensor.offset);
    match order.windows(2).find(|pair| pair[0].offset + pair[0].bytes > pair[1].offset) {
        None => Ok(()),
        Some(pair) => Err(file
            .invalid(format!(
                "is damaged: tensor {} overlaps tensor {}",
                quote::name(&pair[1].name),
                quote::name(&pair[0].name)
            ))
            .tensor(&pair[1].name)
            .position(pair[1].offset)),
    }
}

/// The families have a tensor for each head where the format has one whose rows are the heads'.
fn split_heads(file: &WeightFile, tensors: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let mut split = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let [heads, width] = tensor.shape[..] else {
            split.push(tensor);
            continue;
        };
        if !names::is_by_head(&tensor.name) {
            split.push(tensor);
            continue;
        }
        let path = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
        let row = tensor.bytes.checked_div(heads as u64).unwrap_or(0);
        if heads as u64 > HEADS_LIMIT || row == 0 || !matches!(tensor.encoding, Encoding::Plain(_)) {
            let what = "must hold plain floats, a row for each head";
            return Err(file
                .invalid(format!("is not usable: tensor {} {what}", quote::name(tensor.stored_name())))
                .tensor(tensor.stored_name()));
        }
        split.extend((0..heads).map(|head| Tensor {
            name: format!("{path}.norms.{head}.weight"),
            shape: vec![width],
            offset: tensor.offset + row * head as u64,
            bytes: row,
            ..tensor.clone()
        }));
    }
    Ok(split)
}

/// The head size of an architecture whose q and k rows are stored interleaved.
fn rotation(metadata: &GgufMetadata, architecture: &str) -> Result<Option<usize>> {
    if !names::is_interleaved(architecture) {
        return Ok(None);
    }
    let key = |name: &str| format!("{architecture}.{name}");
    let explicit = metadata.size(&key("attention.key_length"))?;
    let derived = || -> Result<Option<usize>> {
        let hidden = metadata.size(&key("embedding_length"))?;
        // The number for all layers, or the first layer's; that all are equal is checked with the configuration.
        let heads = match metadata.get(&key("attention.head_count")) {
            Some(Value::Numbers(numbers)) => numbers.iter().next().and_then(|heads| heads.as_u64()),
            heads => heads.and_then(Value::as_u64),
        };
        Ok(hidden.zip(heads).and_then(|(hidden, heads)| hidden.checked_div(usize::try_from(heads).ok()?)))
    };
    let head_dim = match explicit {
        Some(size) => Some(size),
        None => derived()?,
    };
    Ok(head_dim.filter(|size| *size > 0 && size % 2 == 0))
}

#[cfg(test)]
mod tests;
