//! The state of one sequence.

use std::any::Any;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::base::info::LayerCacheInfo;
use crate::base::{Error, Result};
use crate::cache::{LayerCache, Scheme};
use crate::generate::runtime::TokenState;
use crate::mlx::eval;

/// One cache per layer, all with the same offset between calls.
pub(super) struct MlxState {
    pub(super) caches: Vec<Box<dyn LayerCache>>,
    /// Which model the state belongs to.
    pub(super) model: u64,
    /// Most tokens it may cover.
    pub(super) capacity: u64,
    /// How the caches were made and when they change.
    pub(super) scheme: Rc<Scheme>,
    /// A computation that wrote the caches failed, and what they hold is unknown.
    pub(super) lost: bool,
}

impl MlxState {
    fn offset_of_caches(&self) -> usize {
        self.caches.first().map_or(0, |cache| cache.offset())
    }

    /// Computes what the caches hold.
    pub(super) fn evaluate(&self) -> Result<()> {
        let mut arrays = Vec::with_capacity(2 * self.caches.len());
        for cache in &self.caches {
            arrays.extend(cache.state()?);
        }
        eval(&arrays)
    }

    /// Reduces the precision of what is due. A failure leaves every layer with all its tokens.
    pub(super) fn maintain(&mut self) -> Result<()> {
        self.scheme.maintenance().run(&mut self.caches)
    }

    /// Runs `work` on the caches. If it fails, they cover the tokens that they covered before.
    pub(super) fn transaction<T>(
        &mut self,
        tokens: usize,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        // Caches that cannot forget are put back. Who holds their arrays makes the next write copy them, which a
        // forward of many tokens does anyway.
        let saved = self.caches.iter().map(|cache| (!cache.always_forgets()).then(|| cache.fork())).collect();
        self.attempt(tokens, saved, work)
    }

    /// The same for a step: caches that cannot forget are lost if it fails.
    pub(super) fn step<T>(&mut self, tokens: usize, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.attempt(tokens, Vec::new(), work)
    }

    fn attempt<T>(
        &mut self,
        tokens: usize,
        saved: Vec<Option<Box<dyn LayerCache>>>,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        self.usable()?;
        let before = self.offset_of_caches();
        if before as u64 + tokens as u64 > self.capacity {
            return Err(Error::context_full(format!(
                "{tokens} tokens do not fit behind {before} of at most {}",
                self.capacity
            )));
        }
        self.maintain()?;
        let result = work(self);
        match result {
            Ok(_) => self.caches.iter_mut().for_each(|cache| cache.settle()),
            Err(_) => self.roll_back(before, saved),
        }
        result
    }

    fn roll_back(&mut self, offset: usize, saved: Vec<Option<Box<dyn LayerCache>>>) {
        for (cache, saved) in self.caches.iter_mut().zip(saved) {
            if let Some(saved) = saved {
                *cache = saved;
            }
        }
        let mut kept = true;
        for cache in &mut self.caches {
            let excess = cache.offset().saturating_sub(offset);
            if excess > 0 {
                kept &= cache.forget(excess) == excess;
            }
        }
        // If it was the computation that failed, the slabs that it should have made are missing.
        self.lost = !kept || self.evaluate().is_err();
    }

    fn usable(&self) -> Result<()> {
        if self.lost {
            return Err(Error::wrong_state("the computation of this state failed; it cannot be continued"));
        }
        Ok(())
    }
}

impl TokenState for MlxState {
    fn offset(&self) -> u64 {
        self.offset_of_caches() as u64
    }

    fn truncate(&mut self, keep: u64) -> Result<()> {
        self.usable()?;
        let offset = self.offset_of_caches();
        let excess = offset.saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX));
        if excess == 0 {
            return Ok(());
        }
        let stuck = self.caches.iter().position(|cache| !cache.can_forget(excess));
        if let Some(layer) = stuck.filter(|_| keep > 0) {
            let signature = self.caches[layer].signature();
            return Err(Error::wrong_state(format!(
                "the cache of layer {layer} ({signature}) cannot forget its last {excess} tokens"
            ))
            .field("layer")
            .position(layer as u64));
        }
        if keep == 0 {
            // Nothing is left of what was reduced or given up.
            self.caches = self.scheme.caches()?;
            return Ok(());
        }
        for cache in &mut self.caches {
            cache.forget(excess);
        }
        Ok(())
    }

    fn fork(&self) -> Result<Box<dyn TokenState>> {
        self.usable()?;
        Ok(Box::new(MlxState {
            caches: self.caches.iter().map(|cache| cache.fork()).collect(),
            model: self.model,
            capacity: self.capacity,
            scheme: Rc::clone(&self.scheme),
            lost: false,
        }))
    }

    fn bytes(&self) -> u64 {
        self.caches.iter().map(|cache| cache.bytes() as u64).sum()
    }

    fn own_bytes(&self) -> u64 {
        self.caches.iter().map(|cache| cache.own_bytes() as u64).sum()
    }

    fn fork_bytes(&self) -> u64 {
        self.caches.iter().map(|cache| cache.fork_bytes() as u64).sum()
    }

    fn copied_bytes(&self) -> u64 {
        self.caches.iter().map(|cache| cache.copied_bytes() as u64).sum()
    }

    fn count_in(&mut self, total: &Arc<AtomicU64>) -> Result<()> {
        self.scheme = Rc::new(self.scheme.counted_in(total));
        self.caches = self.scheme.caches()?;
        Ok(())
    }

    fn bytes_for(&self, tokens: u64) -> u64 {
        self.scheme.bytes_for(tokens)
    }

    fn can_run_ahead(&self) -> bool {
        self.caches.iter().all(|cache| cache.always_forgets())
    }

    fn minimum_reusable_offset(&self) -> u64 {
        self.caches.iter().map(|cache| cache.minimum_reusable_offset() as u64).max().unwrap_or(0)
    }

    fn max_forward(&self) -> Option<u64> {
        self.scheme.maintenance().max_forward(&self.caches)
    }

    fn layers(&self) -> Vec<LayerCacheInfo> {
        self.caches
            .iter()
            .map(|cache| LayerCacheInfo {
                signature: cache.signature().to_string(),
                offset: cache.offset() as u64,
                bytes: cache.bytes() as u64,
                shared_bytes: cache.shared_bytes() as u64,
                minimum_reusable_offset: cache.minimum_reusable_offset() as u64,
                trimmable: cache.can_forget(cache.offset().min(1)),
            })
            .collect()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
