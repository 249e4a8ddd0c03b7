//! Layers that remember in several ways at once.

use std::any::Any;

use super::{LayerCache, Precision, Signature};
use crate::base::{Error, Result};
use crate::mlx::{Array, Mask};

/// `list(…)`: caches in an order that the layer knows. They cover the same tokens.
pub struct CompositeCache {
    parts: Vec<Box<dyn LayerCache>>,
}

impl CompositeCache {
    /// INTERNAL without parts.
    pub fn new(parts: Vec<Box<dyn LayerCache>>) -> Result<Self> {
        if parts.is_empty() {
            return Err(Error::internal("a composite cache has no parts"));
        }
        Ok(CompositeCache { parts })
    }

    pub fn parts(&self) -> &[Box<dyn LayerCache>] {
        &self.parts
    }

    pub fn parts_mut(&mut self) -> &mut [Box<dyn LayerCache>] {
        &mut self.parts
    }
}

impl LayerCache for CompositeCache {
    /// That of the first part.
    fn offset(&self) -> usize {
        self.parts[0].offset()
    }

    /// That of the first part; a layer asks the others itself.
    fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask> {
        self.parts[0].mask(queries, window)
    }

    fn state(&self) -> Result<Vec<Array>> {
        let states: Vec<Vec<Array>> = self.parts.iter().map(|part| part.state()).collect::<Result<_>>()?;
        Ok(states.concat())
    }

    /// Only if all parts can.
    fn can_forget(&self, tokens: usize) -> bool {
        self.parts.iter().all(|part| part.can_forget(tokens))
    }

    fn always_forgets(&self) -> bool {
        self.parts.iter().all(|part| part.always_forgets())
    }

    fn forget(&mut self, tokens: usize) -> usize {
        let tokens = tokens.min(self.offset());
        if !self.can_forget(tokens) {
            return 0;
        }
        for part in &mut self.parts {
            part.forget(tokens);
        }
        tokens
    }

    fn settle(&mut self) {
        self.parts.iter_mut().for_each(|part| part.settle());
    }

    fn signature(&self) -> Signature {
        Signature::Composite(self.parts.iter().map(|part| part.signature()).collect())
    }

    fn minimum_reusable_offset(&self) -> usize {
        self.parts.iter().map(|part| part.minimum_reusable_offset()).max().unwrap_or(0)
    }

    fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.bytes()).sum()
    }

    fn shared_bytes(&self) -> usize {
        self.parts.iter().map(|part| part.shared_bytes()).sum()
    }

    fn fork(&self) -> Box<dyn LayerCache> {
        Box::new(CompositeCache { parts: self.parts.iter().map(|part| part.fork()).collect() })
    }

    /// With those parts reduced that can be; `None` if there are none.
    fn encoded(&self, precision: Precision) -> Result<Option<Box<dyn LayerCache>>> {
        let encoded: Vec<Option<Box<dyn LayerCache>>> =
            self.parts.iter().map(|part| part.encoded(precision)).collect::<Result<_>>()?;
        if encoded.iter().all(Option::is_none) {
            return Ok(None);
        }
        let parts = encoded.into_iter().zip(&self.parts);
        let parts = parts.map(|(encoded, part)| encoded.unwrap_or_else(|| part.fork())).collect();
        Ok(Some(Box::new(CompositeCache { parts })))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
