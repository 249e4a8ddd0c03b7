//! An engine: a budget on the owner thread.

use std::sync::Arc;
use std::time::Duration;

use super::budget::{self, Budget};
use super::gate::Gate;
use super::owner::{self, Owner};
use crate::base::info::MemoryInfo;
use crate::base::options::{Device, EngineOptions};
use crate::base::{Error, Result};
use crate::generate::backend::backend;
use crate::generate::runtime::Runtime;

/// A budget of memory, threads and device. A clone is another share of the same engine. All
/// engines of a process work on one thread; of several engines' thread counts and pool limits the
/// one set last counts.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    owner: Arc<Owner>,
    options: EngineOptions,
    budget: Arc<Budget>,
    gate: Arc<Gate>,
}

impl Engine {
    /// Starts the owner thread if this is the only engine.
    pub fn new(options: &EngineOptions) -> Result<Engine> {
        options.validate()?;
        if options.device == Device::Gpu && !backend().has_gpu() {
            return Err(Error::unsupported("there is no GPU to compute on").field("device"));
        }
        let owner = owner::acquire()?;
        let budget = Arc::new(Budget::new(options.memory_limit, options.pool_limit));
        let threads = options.threads;
        let pool = budget.pool_limit();
        owner.call("the start of an engine", move |context| {
            context.runtime.set_threads(threads)?;
            context.runtime.set_pool_limit(pool)
        })?;
        let gate = Arc::new(Gate::new()?);
        log::debug!("an engine begins: at most {} bytes, {pool} of them kept for reuse", budget.limit());
        Ok(Engine(Arc::new(Inner { owner, options: options.clone(), budget, gate })))
    }

    /// Does not wait for the owner thread.
    pub fn memory(&self) -> Result<MemoryInfo> {
        self.0.owner.check()?;
        let device = self.0.owner.memory();
        let budget = &self.0.budget;
        Ok(MemoryInfo {
            active: device.active,
            pooled: device.pooled,
            peak: device.peak,
            limit: budget.limit(),
            pool_limit: budget.pool_limit(),
            available: budget::available(),
            models: budget.models(),
            caches: budget.caches(),
        })
    }

    /// New limits for what is taken from now on; 0 stands for the default.
    pub fn set_limits(&self, memory_limit: u64, pool_limit: u64) -> Result<()> {
        let budget = Arc::clone(&self.0.budget);
        self.0.owner.call("new limits", move |context| {
            budget.set_limits(memory_limit, pool_limit);
            context.runtime.set_pool_limit(budget.pool_limit())
        })
    }

    /// Gives freed buffers back to the system; how many bytes that were.
    pub fn trim(&self) -> Result<u64> {
        self.0.owner.call("a trim", |context| trim(context.runtime.as_mut()))
    }

    /// When it returns, nothing of this engine runs: rows rest at a committed token, loads and
    /// appends wait, new work is refused with WRONG_STATE, freed buffers are given back. After
    /// TIMEOUT the suspension still comes, at the end of the unit that runs.
    pub fn suspend(&self, timeout: Duration) -> Result<()> {
        self.0.owner.check()?;
        self.0.gate.shut();
        log::debug!("an engine is suspended");
        let gate = Arc::clone(&self.0.gate);
        let reply = self.0.owner.begin("a suspension", move |context| {
            // It may have been resumed before this was reached.
            if gate.is_shut() {
                context.rows.settle(&gate, &mut context.slab, context.runtime.as_mut());
                context.runtime.synchronize()?;
                trim(context.runtime.as_mut())?;
            }
            Ok(())
        })?;
        reply.wait_for(timeout)
    }

    pub fn resume(&self) -> Result<()> {
        self.0.owner.check()?;
        self.0.gate.open()?;
        log::debug!("an engine is resumed");
        self.0.owner.nudge();
        Ok(())
    }

    /// WRONG_STATE when new work is refused: suspended, shut down, in a forked child.
    pub(super) fn check_work(&self) -> Result<()> {
        self.0.owner.check()?;
        self.0.gate.check()
    }

    pub(super) fn owner(&self) -> &Arc<Owner> {
        &self.0.owner
    }

    pub(super) fn options(&self) -> &EngineOptions {
        &self.0.options
    }

    pub(super) fn budget(&self) -> &Arc<Budget> {
        &self.0.budget
    }

    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.0.gate
    }
}

fn trim(runtime: &mut dyn Runtime) -> Result<u64> {
    let before = runtime.memory().pooled;
    runtime.trim()?;
    Ok(before.saturating_sub(runtime.memory().pooled))
}
