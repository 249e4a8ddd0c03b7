//! A back end without numerics: deterministic, scriptable by a file, quick.
//!
//! The engine and the boundary are tested with it where MLX cannot go: under valgrind and the
//! sanitizers, and for every failure that a real back end shows only when something breaks. A
//! model is a folder with a [`fake-model.json`](spec::FakeSpec).

mod heap;
mod load;
mod model;
mod needs;
mod numbers;
pub mod spec;

use std::path::Path;
use std::sync::Arc;

use self::heap::FakeHeap;
use self::load::FakeSource;
use self::needs::FakeNeeds;
use super::estimate::MemoryNeeds;
use super::runtime::{Backend, DeviceMemory, ModelSource, Runtime};
use crate::base::options::{CacheOptions, EngineOptions, ModelOptions};
use crate::base::{CancelToken, Result};

#[derive(Default)]
pub struct FakeBackend {
    heap: Arc<FakeHeap>,
}

impl Backend for FakeBackend {
    fn description(&self) -> String {
        "fake".into()
    }

    fn has_gpu(&self) -> bool {
        false
    }

    fn start(&self) -> Result<Box<dyn Runtime>> {
        Ok(Box::new(FakeRuntime { heap: Arc::clone(&self.heap) }))
    }

    fn open_model(
        &self,
        path: &Path,
        _engine: &EngineOptions,
        options: &ModelOptions,
        cancel: &CancelToken,
    ) -> Result<Box<dyn ModelSource>> {
        cancel.check()?;
        Ok(Box::new(FakeSource::open(path, options, &self.heap)?))
    }

    fn memory_needs(
        &self,
        path: &Path,
        _engine: &EngineOptions,
        options: &ModelOptions,
        cache: &CacheOptions,
        cancel: &CancelToken,
    ) -> Result<Box<dyn MemoryNeeds>> {
        cancel.check()?;
        Ok(Box::new(FakeNeeds::open(path, options, cache)?))
    }
}

struct FakeRuntime {
    heap: Arc<FakeHeap>,
}

impl Runtime for FakeRuntime {
    fn memory(&self) -> DeviceMemory {
        self.heap.memory()
    }

    fn reset_peak(&mut self) {
        self.heap.reset_peak();
    }

    fn set_pool_limit(&mut self, bytes: u64) -> Result<()> {
        self.heap.set_pool_limit(bytes);
        Ok(())
    }

    fn trim(&mut self) -> Result<()> {
        self.heap.trim();
        Ok(())
    }

    fn set_threads(&mut self, _threads: u32) -> Result<()> {
        Ok(())
    }

    fn synchronize(&mut self) -> Result<()> {
        Ok(())
    }
}
