//! The threads of the kernels: the caller and some workers that start and end together.
//!
//! A token takes some hundred parallel regions of a few microseconds each, so workers wait for the
//! next one by spinning for a while. Then they sleep until they are woken.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::base::panics::catch;
use crate::base::{Error, Result};

/// How long a worker looks for the next region before it sleeps. Waking one takes about as long.
const SPIN: Duration = Duration::from_micros(50);

/// A part of the work panicked: the message says which and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Panicked(String);

impl fmt::Display for Panicked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Panicked {}

impl From<Panicked> for Error {
    fn from(panicked: Panicked) -> Error {
        Error::internal(panicked.0)
    }
}

/// A value on cache lines of its own: threads that write to it disturb no neighbour.
#[repr(align(128))]
struct Apart<T>(T);

#[derive(Clone, Copy)]
struct Region {
    work: *const (dyn Fn(usize) + Sync),
    parts: usize,
    claiming: bool,
}

struct Shared {
    /// Counts the regions; a change starts the workers.
    epoch: Apart<AtomicU32>,
    /// Workers that have not finished the region.
    remaining: Apart<AtomicUsize>,
    /// The next part to claim.
    next: Apart<AtomicUsize>,
    /// Written by the caller while every worker waits, read by the workers during a region.
    region: UnsafeCell<Region>,
    failure: Mutex<Option<String>>,
    stop: AtomicBool,
    asleep: Vec<Apart<AtomicBool>>,
}

// SAFETY: `region` is the only member that is not Sync by itself. `Pool::run_as` alone writes it, under
// the lock `turn` and while no worker is in a region; the workers read it between the release store of
// `epoch` and their release decrement of `remaining`, which the writer awaits. Its pointer is to a
// `Sync` closure that outlives the region.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Shared {}

/// A group of threads that run the parts of one piece of work together.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held by the thread whose region is running.
    turn: Mutex<()>,
}

impl Pool {
    /// `threads` counts the caller (0 is taken as 1). Fails when a thread cannot be started.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let helpers = threads.max(1) - 1;
        let shared = Arc::new(Shared {
            epoch: Apart(AtomicU32::new(0)),
            remaining: Apart(AtomicUsize::new(0)),
            next: Apart(AtomicUsize::new(0)),
            region: UnsafeCell::new(Region { work: &|_| (), parts: 0, claiming: false }),
            failure: Mutex::new(None),
            stop: AtomicBool::new(false),
            asleep: (0..helpers).map(|_| Apart(AtomicBool::new(false))).collect(),
        });
        let mut pool = Pool { shared, workers: Vec::with_capacity(helpers), turn: Mutex::new(()) };
        for index in 0..helpers {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("mlxgen-kernel-{}", index + 1));
            // On failure the drop of `pool` ends those that were started.
            pool.workers.push(builder.spawn(move || shared.serve(index, helpers + 1))?);
        }
        Ok(pool)
    }

    /// The number of threads, the caller among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `work(part)` for each part in `0..parts` and returns when all are done. Of n threads,
    /// thread t takes the parts from `parts * t / n` to `parts * (t + 1) / n`.
    ///
    /// When a part panics, its thread leaves out its other parts, the other threads finish theirs,
    /// and the first panic's message is returned. The pool stays usable.
    ///
    /// While the pool is at work for another thread, or for the caller itself, the parts run on the
    /// caller alone.
    pub fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) -> std::result::Result<(), Panicked> {
        self.run_as(parts, work, false)
    }

    /// As [`Pool::run`], but each thread claims the next part when it is done with one.
    pub fn run_claiming(
        &self,
        parts: usize,
        work: &(dyn Fn(usize) + Sync),
    ) -> std::result::Result<(), Panicked> {
        self.run_as(parts, work, true)
    }

    fn run_as(
        &self,
        parts: usize,
        work: &(dyn Fn(usize) + Sync),
        claiming: bool,
    ) -> std::result::Result<(), Panicked> {
        if self.workers.is_empty() || parts < 2 {
            return alone(parts, work);
        }
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => turn.into_inner(),
            Err(TryLockError::WouldBlock) => return alone(parts, work),
        };
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is not used after this function, which
        // returns when all workers have finished the region; it does not unwind before that.
        let work = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync + 'static)>(
                work,
            )
        };
        let region = Region { work, parts, claiming };
        // SAFETY: we hold `turn` and the last region is over, so that no thread reads or writes this.
        unsafe { *shared.region.get() = region };
        shared.next.0.store(0, Ordering::Relaxed);
        shared.remaining.0.store(self.workers.len(), Ordering::Relaxed);
        // Sequentially consistent, as is the sleeper's side: either it sees the new epoch or we see
        // that it sleeps.
        shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for (asleep, worker) in shared.asleep.iter().zip(&self.workers) {
            if asleep.0.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        shared.take_part(region, 0, self.threads());
        let mut spins = 0_u32;
        while shared.remaining.0.load(Ordering::Acquire) != 0 {
            // The workers are computing: a wait beyond some microseconds means that one has lost its
            // core, perhaps to us.
            if spins < 10_000 {
                spins += 1;
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
        let mut failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take().map_or(Ok(()), |message| Err(Panicked(message)))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches what its parts do, so it does not panic.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The life of worker `index` among `threads` threads.
    fn serve(&self, index: usize, threads: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait(seen, &self.asleep[index].0);
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            // SAFETY: the new epoch was published after the region was written; it stays as it is
            // until `remaining` reaches zero, and we have not counted ourselves off yet.
            let region = unsafe { *self.region.get() };
            self.take_part(region, index + 1, threads);
            self.remaining.0.fetch_sub(1, Ordering::Release);
        }
    }

    /// Waits until the epoch is no longer `seen`; gives the new one.
    fn wait(&self, seen: u32, asleep: &AtomicBool) -> u32 {
        let start = Instant::now();
        loop {
            for _ in 0..32 {
                let epoch = self.epoch.0.load(Ordering::Acquire);
                if epoch != seen {
                    return epoch;
                }
                std::hint::spin_loop();
            }
            if start.elapsed() > SPIN {
                break;
            }
        }
        asleep.store(true, Ordering::SeqCst);
        let epoch = loop {
            let epoch = self.epoch.0.load(Ordering::SeqCst);
            if epoch != seen {
                break epoch;
            }
            thread::park();
        };
        asleep.store(false, Ordering::Relaxed);
        epoch
    }

    /// Runs what thread `thread` of `threads` has to do in `region`, and notes a panic.
    fn take_part(&self, region: Region, thread: usize, threads: usize) {
        // SAFETY: the closure lives until the region is over, which it is not before we return.
        let work = unsafe { &*region.work };
        let outcome = caught(|| {
            if region.claiming {
                loop {
                    let part = self.next.0.fetch_add(1, Ordering::Relaxed);
                    if part >= region.parts {
                        break;
                    }
                    work(part);
                }
            } else {
                for part in region.parts * thread / threads..region.parts * (thread + 1) / threads {
                    work(part);
                }
            }
        });
        if let Err(Panicked(message)) = outcome {
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(message);
        }
    }
}

fn alone(parts: usize, work: &(dyn Fn(usize) + Sync)) -> std::result::Result<(), Panicked> {
    caught(|| (0..parts).for_each(work))
}

fn caught(work: impl FnOnce()) -> std::result::Result<(), Panicked> {
    let outcome: Result<()> = catch("a kernel", || {
        work();
        Ok(())
    });
    outcome.map_err(|error| Panicked(error.message().to_owned()))
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
