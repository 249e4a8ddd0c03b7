//! `list`: the parts one after another, each with its kind, its header and the number of its tensors.

use serde_json::Value;

use super::fields::{Fields, wrong};
use super::{Codec, Entry, Header, Provider, Tensor, as_kind};
use crate::base::Result;
use crate::cache::{CompositeCache, LayerCache};

pub struct CompositeCodec;

const PARTS: &str = "parts";

/// Lists in lists in lists: no layer has more.
const DEEPEST: usize = 8;

impl Codec for CompositeCodec {
    fn kind(&self) -> &'static str {
        "list"
    }

    fn matches(&self, cache: &dyn LayerCache) -> bool {
        cache.as_any().is::<CompositeCache>()
    }

    fn is_empty(&self, cache: &dyn LayerCache, provider: &Provider) -> Result<bool> {
        let cache: &CompositeCache = as_kind(cache)?;
        let empty = cache.parts().iter().map(|part| provider.is_empty(&**part));
        Ok(!empty.collect::<Result<Vec<bool>>>()?.contains(&false))
    }

    fn snapshot(
        &self,
        cache: &dyn LayerCache,
        header: &mut Header,
        provider: &Provider,
    ) -> Result<Vec<Tensor>> {
        let cache: &CompositeCache = as_kind(cache)?;
        let (mut parts, mut tensors) = (Vec::new(), Vec::new());
        for part in cache.parts() {
            let entry = provider.snapshot(&**part)?;
            let mut header = entry.header;
            header.insert("kind".into(), entry.kind.into());
            header.insert("tensors".into(), entry.tensors.len().into());
            parts.push(Value::Object(header));
            tensors.extend(entry.tensors);
        }
        header.insert(PARTS.into(), parts.into());
        Ok(tensors)
    }

    fn load(
        &self,
        _offset: usize,
        fields: &mut Fields,
        tensors: &[Tensor],
        provider: &Provider,
    ) -> Result<Box<dyn LayerCache>> {
        let (mut parts, mut rest) = (Vec::new(), tensors);
        for (kind, header, count) in parts_of(fields)? {
            let Some((own, others)) = rest.split_at_checked(count) else {
                return Err(wrong("tensors", format!("a part's {count} tensors are not there")));
            };
            rest = others;
            parts.push(provider.load(&Entry { kind, header, tensors: own.to_vec() })?);
        }
        if !rest.is_empty() {
            return Err(wrong("tensors", format!("{} tensors belong to no part", rest.len())));
        }
        Ok(Box::new(CompositeCache::new(parts)?))
    }

    fn header_trimmable(&self, _: usize, fields: &mut Fields, provider: &Provider) -> Result<bool> {
        let mut all = true;
        for (kind, header, _) in parts_of(fields)? {
            all &= provider.header_trimmable(&kind, &header)?;
        }
        Ok(all)
    }
}

/// Kind, header and number of tensors of each part.
fn parts_of(fields: &mut Fields) -> Result<Vec<(String, Header, usize)>> {
    let parts = fields.list(PARTS)?;
    if parts.is_empty() || parts.iter().map(depth).max() > Some(DEEPEST) {
        return Err(wrong(PARTS, "a list of caches is empty, or in too many others"));
    }
    let part = |part: &Value| {
        let mut header = part.as_object().cloned()?;
        let kind = header.remove("kind")?.as_str()?.to_owned();
        let count = usize::try_from(header.remove("tensors")?.as_u64()?).ok()?;
        Some((kind, header, count))
    };
    let parts: Option<Vec<_>> = parts.iter().map(part).collect();
    parts.ok_or_else(|| wrong(PARTS, "a part of a list has no kind or no number of tensors"))
}

/// How many lists of parts are in each other.
fn depth(part: &Value) -> usize {
    let inner = part.get(PARTS).and_then(Value::as_array);
    inner.map_or(0, |parts| 1 + parts.iter().map(depth).max().unwrap_or(0))
}
