//! The threads of the kernels: the caller and some workers that start and end together.
//!
//! A token takes some hundred parallel regions of a few microseconds each, so workers wait for the
//! next one by spinning for a while. Then they sleep until they are woken.

use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::routine::{Expectation, Routine};
use crate::base::panics::catch;
use crate::base::{Error, Result, signals};

/// How long a worker looks for the next region before it sleeps. Waking one takes about as long.
const SPIN: Duration = Duration::from_micros(50);

/// How long the caller looks for the end of the last parts before it offers its core to others.
const PATIENCE: Duration = Duration::from_micros(30);

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
    /// All threads take from one queue; else each has its own.
    shared: bool,
}

struct Shared {
    /// The region's number times `REGION`, whether it can be joined, and how many workers are in it.
    gate: Apart<AtomicU64>,
    /// For each thread, its next part; the end of its parts follows from their number.
    next: Vec<Apart<AtomicUsize>>,
    /// Written by the caller while no worker can join, read by the workers that have joined.
    region: UnsafeCell<Region>,
    failure: Mutex<Option<String>>,
    stop: AtomicBool,
    routine: Routine,
    asleep: Vec<Apart<AtomicBool>>,
}

/// In the gate: the region can be joined.
const OPEN: u64 = 1 << 16;
/// In the gate: one region more.
const REGION: u64 = 1 << 17;

// SAFETY: `region` is the only member that is not Sync by itself. `Pool::run_as` alone writes it, under
// the lock `turn`, while the gate is shut and no worker is inside; a worker reads it after it has joined
// and until it leaves, both of which the gate orders. Its pointer is to a `Sync` closure that outlives the
// region.
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
            gate: Apart(AtomicU64::new(0)),
            next: (0..=helpers).map(|_| Apart(AtomicUsize::new(0))).collect(),
            region: UnsafeCell::new(Region { work: &|_| (), parts: 0, shared: false }),
            failure: Mutex::new(None),
            stop: AtomicBool::new(false),
            routine: Routine::new(helpers),
            asleep: (0..helpers).map(|_| Apart(AtomicBool::new(false))).collect(),
        });
        let mut pool = Pool { shared, workers: Vec::with_capacity(helpers), turn: Mutex::new(()) };
        for index in 0..helpers {
            let shared = Arc::clone(&pool.shared);
            let builder = thread::Builder::new().name(format!("mlxgen-kernel-{}", index + 1));
            // On failure the drop of `pool` ends those that were started.
            let serve = move || shared.serve(index, helpers + 1);
            pool.workers.push(signals::held_back(|| builder.spawn(serve))?);
        }
        Ok(pool)
    }

    /// The number of threads, the caller among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// What products follow each other here: threads that wait prepare for the next one.
    pub fn routine(&self) -> &Routine {
        &self.shared.routine
    }

    /// Runs `work(part)` for each part in `0..parts` and returns when all are done. Of n threads,
    /// thread t takes the parts from `parts * t / n` to `parts * (t + 1) / n` in order, and then what
    /// is left of the others': a thread that has lost its core to another program holds nobody up,
    /// except for a part that it has begun.
    ///
    /// When a part panics, its thread leaves out its other parts, the other threads finish theirs,
    /// and the first panic's message is returned. The pool stays usable.
    ///
    /// While the pool is at work for another thread, or for the caller itself, the parts run on the
    /// caller alone.
    pub fn run(&self, parts: usize, work: &(dyn Fn(usize) + Sync)) -> std::result::Result<(), Panicked> {
        self.run_as(parts, work, false)
    }

    /// As [`Pool::run`], but all threads take the parts in order, each the next one when it is done
    /// with one.
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
        let region = Region { work, parts, shared: claiming };
        // SAFETY: we hold `turn`, and the last region was shut and left by all workers.
        unsafe { *shared.region.get() = region };
        let threads = self.threads();
        for (thread, next) in shared.next.iter().enumerate() {
            next.0.store(if claiming { 0 } else { parts * thread / threads }, Ordering::Relaxed);
        }
        let number = shared.gate.0.load(Ordering::Relaxed) / REGION;
        // Sequentially consistent, as is the sleeper's side: either it sees the new region or we see
        // that it sleeps.
        shared.gate.0.store((number + 1) * REGION + OPEN, Ordering::SeqCst);
        for (asleep, worker) in shared.asleep.iter().zip(&self.workers) {
            if asleep.0.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        shared.take_parts(region, 0, threads);
        // Workers that have not come yet find nothing to do any more.
        let mut inside = shared.gate.0.fetch_and(!OPEN, Ordering::AcqRel) % OPEN;
        let mut start = None;
        while inside != 0 {
            // A worker is at its last part. If that takes long, it may have lost its core, perhaps to us.
            if start.get_or_insert_with(Instant::now).elapsed() < PATIENCE {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
            inside = shared.gate.0.load(Ordering::Acquire) % OPEN;
        }
        let mut failure = shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.take().map_or(Ok(()), |message| Err(Panicked(message)))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
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
        let mut expectation = Expectation::default();
        while let Some(number) = self.join(index, seen, &mut expectation) {
            seen = number;
            // SAFETY: the gate was opened after the region was written, and we are inside: it stays as it
            // is until we leave.
            let region = unsafe { *self.region.get() };
            self.take_parts(region, index + 1, threads);
            self.gate.0.fetch_sub(1, Ordering::Release);
            expectation.look(&self.routine, index);
        }
    }

    /// Worker `index` waits for a region other than `seen`, joins it and gives its number; none when the pool ends.
    fn join(&self, index: usize, seen: u64, expectation: &mut Expectation) -> Option<u64> {
        let asleep = &self.asleep[index].0;
        let mut start = Instant::now();
        loop {
            for _ in 0..32 {
                let gate = self.gate.0.load(Ordering::Acquire);
                if gate / REGION != seen && gate & OPEN != 0 {
                    let joined = self.gate.0.compare_exchange_weak(
                        gate,
                        gate + 1,
                        Ordering::AcqRel,
                        Ordering::Relaxed,
                    );
                    if joined.is_ok() {
                        return Some(gate / REGION);
                    }
                }
                if !expectation.fetch_some() {
                    std::hint::spin_loop();
                }
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            if start.elapsed() > SPIN {
                asleep.store(true, Ordering::SeqCst);
                while !self.stop.load(Ordering::SeqCst) {
                    let gate = self.gate.0.load(Ordering::SeqCst);
                    if gate / REGION != seen && gate & OPEN != 0 {
                        break;
                    }
                    thread::park();
                }
                asleep.store(false, Ordering::Relaxed);
                start = Instant::now();
            }
        }
    }

    /// Runs what thread `thread` of `threads` finds to do in `region`, and notes a panic.
    fn take_parts(&self, region: Region, thread: usize, threads: usize) {
        // SAFETY: the closure lives until the region is over, which it is not before we return.
        let work = unsafe { &*region.work };
        let outcome = caught(|| {
            // Its own parts first, then those of the others, in turn.
            for owner in (thread..threads).chain(0..thread) {
                let (next, end) = match region.shared {
                    true => (&self.next[0].0, region.parts),
                    false => (&self.next[owner].0, region.parts * (owner + 1) / threads),
                };
                while next.load(Ordering::Relaxed) < end {
                    let part = next.fetch_add(1, Ordering::Relaxed);
                    if part >= end {
                        break;
                    }
                    work(part);
                }
                if region.shared {
                    break;
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

#[cfg(all(test, not(feature = "mlx")))]
#[path = "pool_tests.rs"]
mod tests;
