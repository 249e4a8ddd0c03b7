//! What a method of generation keeps beside a model's caches, such as a drafter's own caches. It belongs to the method;
//! whoever stores it does not look inside.

use serde_json::{Map, Value};

use super::LayerCache;
use super::codec::{Entry, Header, Provider, Tensor};
use crate::base::{Code, Error, Result, quote};
use crate::mlx::eval;

const CODECS: &str = "cacheCodecs";
const HEADERS: &str = "cacheHeaders";

/// Companion state of exactly the tokens that it was captured at: it cannot be cut to fewer.
#[derive(Clone, Debug)]
pub struct Attachments {
    /// Names what the state means.
    pub schema: String,
    /// Texts, numbers, true and false.
    metadata: Map<String, Value>,
    /// They never change; a clone shares their memory.
    pub tensors: Vec<Tensor>,
}

impl Attachments {
    /// INVALID_ARGUMENT for metadata that is a list, an object or null.
    pub fn new(
        schema: impl Into<String>,
        metadata: Map<String, Value>,
        tensors: Vec<Tensor>,
    ) -> Result<Self> {
        let scalar = |value: &Value| !matches!(value, Value::Null | Value::Array(_) | Value::Object(_));
        if let Some((name, _)) = metadata.iter().find(|(_, value)| !scalar(value)) {
            return Err(Error::invalid_argument(format!(
                "the metadata {} is neither text nor number nor true nor false",
                quote::quote(name)
            ))
            .field("metadata"));
        }
        Ok(Attachments { schema: schema.into(), metadata, tensors })
    }

    pub fn metadata(&self) -> &Map<String, Value> {
        &self.metadata
    }

    /// Bytes of the tensors.
    pub fn bytes(&self) -> usize {
        self.tensors.iter().map(Tensor::byte_size).sum()
    }

    /// Adds companion caches, as the provider stores them; empty ones take nothing. Their tensors share the caches'
    /// memory. On failure nothing is added. WRONG_STATE if there are caches already.
    pub fn capture(&mut self, caches: &[&dyn LayerCache], provider: &Provider) -> Result<()> {
        if self.metadata.contains_key(CODECS) || self.metadata.contains_key(HEADERS) {
            return Err(Error::wrong_state("companion caches were captured already"));
        }
        let (mut headers, mut tensors) = (Vec::new(), Vec::new());
        for &cache in caches {
            if provider.is_empty(cache)? {
                headers.push(Value::Null);
                continue;
            }
            let entry = provider.snapshot(cache)?;
            let first = self.tensors.len() + tensors.len();
            let indices: Vec<usize> = (first..first + entry.tensors.len()).collect();
            let mut header = entry.header;
            header.insert("kind".into(), entry.kind.into());
            header.insert("tensors".into(), indices.into());
            headers.push(Value::Object(header));
            tensors.extend(entry.tensors);
        }
        self.metadata.insert(CODECS.into(), provider.identity().into());
        self.metadata.insert(HEADERS.into(), Value::Array(headers).to_string().into());
        self.tensors.extend(tensors);
        Ok(())
    }

    /// The companion caches: `fresh` ones, in the order of the capture, each replaced if something was captured of it.
    /// They may share memory with the tensors. INCOMPATIBLE_CHECKPOINT for what was captured of other caches, by another
    /// provider or not at all.
    pub fn restore(
        &self,
        fresh: Vec<Box<dyn LayerCache>>,
        provider: &Provider,
    ) -> Result<Vec<Box<dyn LayerCache>>> {
        let text = |field| {
            let text = self.metadata.get(field).and_then(Value::as_str);
            text.ok_or_else(|| {
                wrong(field, format!("the attachment {} has no {field}", quote::quote(&self.schema)))
            })
        };
        provider.check_identity(text(CODECS)?).map_err(|error| error.field(CODECS))?;
        let headers: Vec<Option<Header>> = serde_json::from_str(text(HEADERS)?).map_err(|error| {
            wrong(HEADERS, format!("{HEADERS} of an attachment: {}", quote::json_fault(&error)))
        })?;
        if headers.len() != fresh.len() {
            return Err(wrong(
                HEADERS,
                format!("{} companion caches were captured, not {}", headers.len(), fresh.len()),
            ));
        }
        let restored = |(header, fresh): (Option<Header>, _)| match header {
            None => Ok(fresh),
            Some(header) => provider.load(&self.entry(header)?),
        };
        headers.into_iter().zip(fresh).map(restored).collect()
    }

    /// The entry whose tensors are these attachments'.
    fn entry(&self, mut header: Header) -> Result<Entry> {
        let kind = header.remove("kind").and_then(|kind| kind.as_str().map(str::to_owned));
        let kind = kind.ok_or_else(|| wrong(HEADERS, "a companion cache has no kind"))?;
        let indices = header.remove("tensors");
        let tensor = |index: &Value| self.tensors.get(usize::try_from(index.as_u64()?).ok()?).cloned();
        let tensors: Option<Vec<Tensor>> =
            indices.as_ref().and_then(Value::as_array).and_then(|list| list.iter().map(tensor).collect());
        let tensors =
            tensors.ok_or_else(|| wrong(HEADERS, "a companion cache has tensors that are not there"))?;
        Ok(Entry { kind, header, tensors })
    }
}

fn wrong(field: &str, message: impl Into<String>) -> Error {
    Error::new(Code::IncompatibleCheckpoint, message).field(field)
}

/// Whether what is stored of a row can be cut to fewer tokens: only without attachments, and if every cache can.
/// Errors as of `Provider::load`.
pub fn trimmable<'a>(
    caches: impl IntoIterator<Item = (&'a str, &'a Header)>,
    attachments: Option<&Attachments>,
    provider: &Provider,
) -> Result<bool> {
    if attachments.is_some() {
        return Ok(false);
    }
    for (kind, header) in caches {
        if !provider.header_trimmable(kind, header)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Computes the states of caches, and tensors of snapshots and attachments, all at once. To be done before a store keeps
/// them: what has not been computed holds what it is computed from.
pub fn materialize<'a>(
    caches: impl IntoIterator<Item = &'a dyn LayerCache>,
    tensors: impl IntoIterator<Item = &'a Tensor>,
) -> Result<()> {
    let mut arrays = Vec::new();
    for cache in caches {
        arrays.extend(cache.state()?);
    }
    let lazy = tensors.into_iter().filter_map(|tensor| match tensor {
        Tensor::Array(array) => Some(array.clone()),
        Tensor::Bytes { .. } => None,
    });
    arrays.extend(lazy);
    eval(&arrays)
}
