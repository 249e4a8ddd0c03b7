//! What a fake model would take: what its file says.

use std::path::Path;

use super::load::{Faulty, chunk_of, context_limit_of};
use super::model::check_cache_options;
use super::spec::{FakeSpec, Place};
use crate::base::Result;
use crate::base::options::{CacheOptions, ModelOptions};
use crate::generate::estimate::MemoryNeeds;

pub struct FakeNeeds {
    spec: FakeSpec,
    context_limit: u64,
    chunk: u64,
}

impl FakeNeeds {
    pub fn open(path: &Path, options: &ModelOptions, cache: &CacheOptions) -> Result<Self> {
        let faulty = Faulty::new(FakeSpec::read(path)?);
        faulty.pass(Place::Open)?;
        check_cache_options(cache)?;
        let spec = faulty.spec;
        let context_limit = context_limit_of(&spec, options).min(cache.most_tokens());
        let chunk = u64::from(chunk_of(&spec, options));
        Ok(FakeNeeds { spec, context_limit, chunk })
    }
}

impl MemoryNeeds for FakeNeeds {
    fn weight_bytes(&self) -> u64 {
        self.spec.weight_bytes
    }

    fn file_bytes(&self) -> u64 {
        self.spec.weight_bytes
    }

    fn load_bytes(&self) -> u64 {
        self.spec.load_bytes.unwrap_or(self.spec.weight_bytes)
    }

    fn context_limit(&self) -> u64 {
        self.context_limit
    }

    fn chunk(&self) -> u64 {
        self.chunk
    }

    fn cache_bytes_per_token(&self) -> u64 {
        self.spec.cache_bytes_per_token
    }

    fn cache_bytes(&self, tokens: u64) -> u64 {
        tokens.saturating_mul(self.spec.cache_bytes_per_token)
    }

    fn workspace_bytes(&self, tokens: u64, _end: u64, _state_bytes: u64) -> u64 {
        tokens.saturating_mul(self.spec.workspace_bytes_per_token)
    }
}
