//! Which files of a model folder hold its weights.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::file::{WeightFile, read_small};
use super::safetensors::read_header;
use super::types::Tensor;
use crate::base::quote::{self, json_fault, quote};
use crate::base::{Error, Result, json, small_file};

const INDEX_NAME: &str = "model.safetensors.index.json";
/// Bytes of an index; a table of a million tensors is smaller.
const INDEX_LIMIT: u64 = 100_000_000;

/// Opens the weight files of `folder` and reads their headers.
///
/// An index decides alone: files and tensors that it does not name are strays. Without one,
/// every `model*.safetensors` counts, or else `weights.safetensors`.
pub(crate) fn open(folder: &Path) -> Result<(Vec<WeightFile>, Vec<Tensor>)> {
    match read_index(&folder.join(INDEX_NAME))? {
        Some(index) => open_indexed(folder, index),
        None => open_plain(folder),
    }
}

fn open_plain(folder: &Path) -> Result<(Vec<WeightFile>, Vec<Tensor>)> {
    let mut files = Vec::new();
    let mut tensors = Vec::new();
    for path in plain_paths(folder)? {
        let file = WeightFile::open(&path)?;
        tensors.extend(read_header(&file, files.len())?);
        files.push(file);
    }
    Ok((files, tensors))
}

fn plain_paths(folder: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = |source: std::io::Error| Error::io(folder, "list", &source);
    let mut models = Vec::new();
    let mut weights = None;
    let mut has_gguf = false;
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        has_gguf |= name.ends_with(".gguf");
        if name.starts_with("model") && name.ends_with(".safetensors") {
            models.push(path);
        } else if name == "weights.safetensors" {
            weights = Some(path);
        }
    }
    models.sort();
    if models.is_empty() {
        models.extend(weights);
    }
    if models.is_empty() {
        let hint = if has_gguf { "; to load a GGUF file, give its own path" } else { "" };
        return Err(Error::not_found(format!(
            "there is no model*.safetensors in {}{hint}",
            folder.display()
        ))
        .file(folder));
    }
    Ok(models)
}

fn open_indexed(folder: &Path, index: Index) -> Result<(Vec<WeightFile>, Vec<Tensor>)> {
    let mut files = Vec::new();
    let mut tensors = Vec::new();
    // Shard of each tensor that was not met yet.
    let mut wanted: HashMap<String, usize> = index.tensors.into_iter().collect();
    for (number, shard) in index.shards.iter().enumerate() {
        let path = folder.join(shard);
        let Some(file) = small_file::optional(&path, WeightFile::open(&path))? else {
            return Err(Error::not_found(format!(
                "{} names the file {}, which is not in the folder",
                index.path.display(),
                quote(shard)
            ))
            .file(path));
        };
        let header = read_header(&file, number)?;
        tensors.extend(header.into_iter().filter(|tensor| {
            let listed = wanted.get(&tensor.name) == Some(&number);
            if listed {
                wanted.remove(&tensor.name);
            }
            listed
        }));
        files.push(file);
    }
    // The first in the order of names, so that the message does not vary.
    if let Some((name, shard)) = wanted.into_iter().min() {
        let shard = folder.join(&index.shards[shard]);
        return Err(Error::invalid_model(format!(
            "{} places tensor {} in {}, which does not hold it",
            index.path.display(),
            quote::name(&name),
            shard.display()
        ))
        .file(shard)
        .tensor(name));
    }
    Ok((files, tensors))
}

#[derive(Debug)]
struct Index {
    path: PathBuf,
    /// File names, in the order of their names.
    shards: Vec<String>,
    /// Tensor name and index of its shard.
    tensors: Vec<(String, usize)>,
}

/// `None` if there is no index.
fn read_index(path: &Path) -> Result<Option<Index>> {
    let Some(text) = small_file::optional(path, read_small(path, INDEX_LIMIT))? else { return Ok(None) };
    let bad = |what: String| Error::invalid_model(format!("{} {what}", path.display())).file(path);
    let IndexFile(map) = json::typed(&text).map_err(|fault| {
        json::at_fault(bad(format!("is no weight index: {}", json_fault(&fault))), &text, &fault)
    })?;
    let mut shards: Vec<String> = map.shards.keys().cloned().collect();
    shards.sort();
    for shard in &shards {
        let plain = Path::new(shard).file_name().is_some_and(|name| name == shard.as_str());
        if !plain || !shard.ends_with(".safetensors") {
            return Err(bad(format!("names {}, which is no safetensors file of the folder", quote(shard)))
                .field("weight_map"));
        }
    }
    if shards.is_empty() {
        return Err(bad("names no files".to_owned()).field("weight_map"));
    }
    // Shards were numbered as they were met.
    let mut sorted = vec![0; shards.len()];
    for (place, shard) in shards.iter().enumerate() {
        sorted[map.shards[shard]] = place;
    }
    let mut tensors = map.tensors;
    for (_, shard) in &mut tensors {
        *shard = sorted[*shard];
    }
    tensors.sort();
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(bad(format!("names tensor {} twice", pair[0].0)).tensor(&pair[0].0).field("weight_map"));
    }
    Ok(Some(Index { path: path.to_owned(), shards, tensors }))
}

struct IndexFile(WeightMap);

#[derive(Default)]
struct WeightMap {
    shards: HashMap<String, usize>,
    tensors: Vec<(String, usize)>,
}

impl<'de> Deserialize<'de> for IndexFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FileVisitor;
        impl<'de> Visitor<'de> for FileVisitor {
            type Value = IndexFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with weight_map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IndexFile, A::Error> {
                use serde::de::Error;
                let mut found = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key == "weight_map" {
                        if found.replace(map.next_value::<WeightMap>()?).is_some() {
                            return Err(A::Error::custom("weight_map stands there twice"));
                        }
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                found.map(IndexFile).ok_or_else(|| A::Error::custom("weight_map is missing"))
            }
        }
        deserializer.deserialize_map(FileVisitor)
    }
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapVisitor;
        impl<'de> Visitor<'de> for MapVisitor {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table from tensor names to file names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut weights = WeightMap::default();
                while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                    let next = weights.shards.len();
                    let shard = *weights.shards.entry(shard).or_insert(next);
                    weights.tensors.push((tensor, shard));
                }
                Ok(weights)
            }
        }
        deserializer.deserialize_map(MapVisitor)
    }
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
