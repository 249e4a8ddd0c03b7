//! What a model would take: the numbers that a load and its caches are admitted with.

use std::path::Path;

use super::resident::resident_bytes;
use super::source::Settled;
use crate::base::options::{CacheOptions, EngineOptions, ModelOptions};
use crate::base::{CancelToken, Result};
use crate::cache::Scheme;
use crate::generate::estimate::MemoryNeeds;
use crate::model::footprint::Footprint;

pub(super) struct MlxNeeds {
    weight_bytes: u64,
    file_bytes: u64,
    load_bytes: u64,
    context_limit: u64,
    chunk: u64,
    footprint: Footprint,
    scheme: Scheme,
}

impl MlxNeeds {
    /// Reads configuration and headers. Touches no array.
    pub(super) fn open(
        path: &Path,
        engine: &EngineOptions,
        options: &ModelOptions,
        cache: &CacheOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let settled = Settled::open(path, engine, options, cancel)?;
        let scheme = settled.forms.scheme(cache, &settled.family_plan.cache_needs())?;
        Ok(MlxNeeds {
            weight_bytes: resident_bytes(&settled.plan, settled.forms.arithmetic),
            file_bytes: settled.plan.file_bytes(),
            load_bytes: settled.load_bytes(),
            context_limit: settled.context_limit.min(cache.most_tokens()).min(scheme.most_tokens()),
            chunk: settled.forms.chunk,
            footprint: settled.footprint,
            scheme,
        })
    }
}

impl MemoryNeeds for MlxNeeds {
    fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    fn load_bytes(&self) -> u64 {
        self.load_bytes
    }

    fn context_limit(&self) -> u64 {
        self.context_limit
    }

    fn chunk(&self) -> u64 {
        self.chunk
    }

    fn cache_bytes_per_token(&self) -> u64 {
        self.scheme.bytes_per_token()
    }

    fn cache_bytes(&self, tokens: u64) -> u64 {
        self.scheme.expected_bytes(tokens)
    }

    fn workspace_bytes(&self, tokens: u64, end: u64, state_bytes: u64) -> u64 {
        self.footprint.workspace_bytes(tokens, end, state_bytes)
    }
}
