//! What a model would take, asked before it is loaded.

use std::path::Path;

use super::budget;
use super::engine_handle::Engine;
use crate::base::info::MemoryEstimate;
use crate::base::options::{CacheOptions, EngineOptions, ModelOptions};
use crate::base::{CancelToken, Result, panics, signals};
use crate::generate::backend::backend;
use crate::generate::estimate::estimate;

/// Reads the model's configuration and the headers of its weights, on this thread, and neither waits for the owner
/// thread nor takes any of an engine's memory. Without an engine its defaults count. `context` 0 stands for the most
/// tokens that there can be, `budget` 0 for the engine's limit.
pub fn estimate_model(
    engine: Option<&Engine>,
    path: &Path,
    options: &ModelOptions,
    cache: &CacheOptions,
    cancel: Option<&CancelToken>,
    context: u64,
    budget: u64,
) -> Result<MemoryEstimate> {
    let defaults = EngineOptions::default();
    let cancel = cancel.cloned().map_or_else(CancelToken::try_new, Ok)?;
    let engine_options = engine.map_or(&defaults, Engine::options);
    let needs = panics::catch("the estimate of a model", || {
        signals::held_back(|| backend().memory_needs(path, engine_options, options, cache, &cancel))
    })?;
    let budget = match (budget, engine) {
        (0, Some(engine)) => engine.budget().limit(),
        (0, None) => budget::default_limit(),
        (budget, _) => budget,
    };
    Ok(estimate(needs.as_ref(), context, budget))
}
