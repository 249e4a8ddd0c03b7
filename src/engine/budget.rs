//! An engine's share of the memory: what may be taken, and what was.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::memory;
use crate::base::{Error, Result};
use crate::generate::runtime::Runtime;
use crate::generate::surroundings::Surroundings;

/// Default bound of the pool of freed buffers.
const POOL: u64 = 256 << 20;

/// Bytes promised to loads of the whole process that they did not take yet. What the system calls
/// available still contains them.
static PROMISED: AtomicU64 = AtomicU64::new(0);

/// Written on the owner thread, but for the limits; read anywhere.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    pool_limit: AtomicU64,
    models: AtomicU64,
    caches: Arc<AtomicU64>,
    loads: AtomicU64,
}

impl Budget {
    pub fn new(limit: u64, pool_limit: u64) -> Self {
        let budget = Budget {
            limit: AtomicU64::new(0),
            pool_limit: AtomicU64::new(0),
            models: AtomicU64::new(0),
            caches: Arc::default(),
            loads: AtomicU64::new(0),
        };
        budget.set_limits(limit, pool_limit);
        budget
    }

    /// 0 stands for the default.
    pub fn set_limits(&self, limit: u64, pool_limit: u64) {
        let limit = if limit == 0 { default_limit() } else { limit };
        let pool_limit = if pool_limit == 0 { POOL.min(limit / 8) } else { pool_limit };
        self.limit.store(limit, Ordering::Relaxed);
        self.pool_limit.store(pool_limit, Ordering::Relaxed);
    }

    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub fn pool_limit(&self) -> u64 {
        self.pool_limit.load(Ordering::Relaxed)
    }

    pub fn models(&self) -> u64 {
        self.models.load(Ordering::Relaxed)
    }

    pub fn caches(&self) -> u64 {
        self.caches.load(Ordering::Relaxed)
    }

    /// The sum that the mirrors of this engine's sequences keep.
    pub fn cache_counter(&self) -> &Arc<AtomicU64> {
        &self.caches
    }

    fn used(&self) -> u64 {
        self.models() + self.caches() + self.loads.load(Ordering::Relaxed)
    }

    /// Asks for `need` bytes more. The pool is given back first where that helps.
    fn admit(&self, what: &str, need: u64, runtime: &mut dyn Runtime) -> Result<()> {
        if need == 0 {
            return Ok(());
        }
        let (used, limit) = (self.used(), self.limit());
        if used.saturating_add(need) > limit {
            return Err(Error::out_of_memory(format!(
                "{what} needs {need} bytes, but {used} of the engine's limit of {limit} bytes are in use"
            ))
            .field("memory_limit"));
        }
        let mut pooled = runtime.memory().pooled;
        if pooled > 0 && used.saturating_add(need).saturating_add(pooled) > limit {
            runtime.trim()?;
            pooled = 0;
        }
        let mut available = available();
        if need > available && pooled > 0 {
            runtime.trim()?;
            available = self::available();
        }
        if need > available {
            return Err(Error::out_of_memory(format!(
                "{what} needs {need} bytes, but the system can give this process only {available} \
                 (the engine uses {used} of its limit of {limit})"
            ))
            .field("available"));
        }
        Ok(())
    }

    /// Sets `bytes` aside for a load.
    pub fn promise(self: &Arc<Self>, what: &str, bytes: u64, runtime: &mut dyn Runtime) -> Result<Promise> {
        self.admit(what, bytes, runtime)?;
        self.loads.fetch_add(bytes, Ordering::Relaxed);
        PROMISED.fetch_add(bytes, Ordering::Relaxed);
        Ok(Promise { budget: Arc::clone(self), bytes, untaken: bytes })
    }

    /// Counts a finished model until the charge is dropped.
    pub fn charge_model(self: &Arc<Self>, bytes: u64) -> ModelCharge {
        self.models.fetch_add(bytes, Ordering::Relaxed);
        ModelCharge { budget: Arc::clone(self), bytes }
    }
}

/// The limit of an engine that asks for none.
pub fn default_limit() -> u64 {
    memory::total() / 4 * 3
}

/// What the system could give, less what is promised.
pub fn available() -> u64 {
    memory::available().saturating_sub(PROMISED.load(Ordering::Relaxed))
}

/// Bytes set aside for a load, until this is dropped.
pub struct Promise {
    budget: Arc<Budget>,
    bytes: u64,
    untaken: u64,
}

impl Promise {
    /// The load took `bytes` of it.
    pub fn take(&mut self, bytes: u64) {
        let taken = bytes.min(self.untaken);
        self.untaken -= taken;
        PROMISED.fetch_sub(taken, Ordering::Relaxed);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        PROMISED.fetch_sub(self.untaken, Ordering::Relaxed);
        self.budget.loads.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A model's bytes in the account of its engine.
pub struct ModelCharge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for ModelCharge {
    fn drop(&mut self) {
        self.budget.models.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// An engine's budget as rows see it.
pub struct Allowance<'a> {
    pub budget: &'a Budget,
    pub runtime: &'a mut dyn Runtime,
}

impl Surroundings for Allowance<'_> {
    fn admit(&mut self, what: &str, bytes: u64) -> Result<()> {
        self.budget.admit(what, bytes, self.runtime)
    }

    fn relieve(&mut self) {
        if let Err(error) = self.runtime.trim() {
            log::warn!("freed memory could not be given back: {error}");
        }
    }
}
