//! `paged`: all blocks of the pool and which of them are in use; no tensors if there is no pool yet.

use super::encodings::{StoredEncoding, affine};
use super::fields::{Fields, arrays, check_planes, wrong};
use super::{Codec, Header, Provider, Tensor, as_kind, tensors};
use crate::base::Result;
use crate::cache::encoding::{Affine, Exact};
use crate::cache::{LayerCache, PagedCache, PagedForm};

pub struct PagedCodec;

impl Codec for PagedCodec {
    fn kind(&self) -> &'static str {
        "paged"
    }

    fn matches(&self, cache: &dyn LayerCache) -> bool {
        cache.as_any().is::<PagedCache>()
    }

    fn stores_empty(&self) -> bool {
        true
    }

    fn snapshot(&self, cache: &dyn LayerCache, header: &mut Header, _: &Provider) -> Result<Vec<Tensor>> {
        let cache: &PagedCache = as_kind(cache)?;
        let form = cache.form();
        header.insert("blockSize".into(), form.block.into());
        header.insert("capacityTokens".into(), form.capacity.into());
        if let Some(limit) = form.limit {
            header.insert("limitTokens".into(), limit.into());
        }
        if let Some(affine) = form.quantised {
            affine.write(header);
        }
        header.insert("numBlocks".into(), cache.pool().blocks().into());
        header.insert("blockTable".into(), cache.table().into());
        Ok(tensors(cache.pool().planes()))
    }

    fn load(
        &self,
        offset: usize,
        fields: &mut Fields,
        tensors: &[Tensor],
        _: &Provider,
    ) -> Result<Box<dyn LayerCache>> {
        let block = fields.number("blockSize")?;
        let capacity = fields.number("capacityTokens")?;
        let limit = fields.optional_number("limitTokens")?;
        let quantised = match (fields.optional_number("bits")?, fields.optional_number("groupSize")?) {
            (None, None) => None,
            (Some(bits), Some(group)) => Some(affine(bits, group)?),
            (None, Some(_)) => return Err(wrong("bits", "the field bits is missing")),
            (Some(_), None) => return Err(wrong("groupSize", "the field groupSize is missing")),
        };
        if block == 0 {
            return Err(wrong("blockSize", "blocks have no tokens"));
        }
        if limit.is_some_and(|limit| limit == 0 || limit < offset) {
            return Err(wrong("limitTokens", format!("there are {offset} tokens, more than there may be")));
        }
        let blocks = fields.number("numBlocks")?;
        let table = fields.numbers("blockTable")?;
        if table.len() != offset.div_ceil(block) {
            return Err(wrong(
                "blockTable",
                format!("{} blocks of {block} hold {offset} tokens", table.len()),
            ));
        }
        let mut used = std::collections::HashSet::new();
        if let Some(number) = table.iter().find(|&&number| number >= blocks || !used.insert(number)) {
            return Err(wrong(
                "blockTable",
                format!("block {number} of {blocks} is used twice or not there"),
            ));
        }
        let form = PagedForm { block, capacity, limit, quantised };
        if blocks == 0 {
            arrays(tensors, 0)?;
            return Ok(Box::new(PagedCache::new(form)?));
        }
        let count = if quantised.is_some() { Affine::PLANES } else { Exact::PLANES };
        let planes = arrays(tensors, count)?;
        check_planes(&planes, Some(blocks), Some(block))?;
        match quantised {
            Some(affine) => affine.check(&planes)?,
            None => Exact.check(&planes)?,
        }
        let table = table.into_iter().map(|number| number as u32).collect();
        Ok(Box::new(PagedCache::restored(form, planes, table, offset)))
    }

    fn header_trimmable(&self, _: usize, _: &mut Fields, _: &Provider) -> Result<bool> {
        Ok(true)
    }
}
