//! The back end itself, and what of it runs on the owner thread.

use std::path::Path;

use super::needs::MlxNeeds;
use super::source::MlxSource;
use crate::base::options::{CacheOptions, EngineOptions, ModelOptions};
use crate::base::{CancelToken, Result};
use crate::generate::estimate::MemoryNeeds;
use crate::generate::runtime::{Backend, DeviceMemory, ModelSource, Runtime};
use crate::mlx;

pub(super) struct MlxBackend;

impl Backend for MlxBackend {
    fn description(&self) -> String {
        let version = mlx::version();
        if mlx::gpu_is_available() {
            return format!("MLX {version}, GPU");
        }
        match mlx::blas_description() {
            Some(blas) => format!("MLX {version}, CPU, {blas}"),
            None => format!("MLX {version}, CPU"),
        }
    }

    fn has_gpu(&self) -> bool {
        mlx::gpu_is_available()
    }

    fn start(&self) -> Result<Box<dyn Runtime>> {
        // Makes the thread's stream, and reports here what is wrong with MLX, if anything is.
        mlx::synchronize()?;
        Ok(Box::new(MlxRuntime))
    }

    fn open_model(
        &self,
        path: &Path,
        engine: &EngineOptions,
        options: &ModelOptions,
        cancel: &CancelToken,
    ) -> Result<Box<dyn ModelSource>> {
        Ok(Box::new(MlxSource::open(path, engine, options, cancel)?))
    }

    fn memory_needs(
        &self,
        path: &Path,
        engine: &EngineOptions,
        options: &ModelOptions,
        cache: &CacheOptions,
        cancel: &CancelToken,
    ) -> Result<Box<dyn MemoryNeeds>> {
        Ok(Box::new(MlxNeeds::open(path, engine, options, cache, cancel)?))
    }
}

struct MlxRuntime;

impl Runtime for MlxRuntime {
    fn memory(&self) -> DeviceMemory {
        DeviceMemory {
            active: mlx::memory::active() as u64,
            pooled: mlx::memory::pooled() as u64,
            peak: mlx::memory::peak() as u64,
        }
    }

    fn reset_peak(&mut self) {
        mlx::memory::reset_peak();
    }

    fn set_pool_limit(&mut self, bytes: u64) -> Result<()> {
        mlx::memory::set_pool_limit(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        Ok(())
    }

    fn trim(&mut self) -> Result<()> {
        mlx::memory::clear_pool()
    }

    fn set_threads(&mut self, threads: u32) -> Result<()> {
        let threads = if threads == 0 { mlx::physical_cores() } else { threads };
        mlx::set_threads(threads)
    }

    fn synchronize(&mut self) -> Result<()> {
        mlx::synchronize()
    }
}

impl Drop for MlxRuntime {
    fn drop(&mut self) {
        mlx::leave();
    }
}
