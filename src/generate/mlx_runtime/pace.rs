//! Where a long forward looks at its cancel token.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::base::{CancelToken, Result};
use crate::mlx::{Array, eval};
use crate::model::graph::Pace;

/// How long a piece of a forward should take. The time from a request to the end of the forward
/// is at most about the longest piece.
const PIECE: Duration = Duration::from_millis(30);

/// Multiplications per second that a model's forwards reach here, learnt as they run.
#[derive(Debug)]
pub(super) struct Speed(Cell<f64>);

impl Speed {
    /// Begins with the slowest kernels there are, so that the first pieces are short.
    pub(super) fn unknown() -> Self {
        Speed(Cell::new(1e9))
    }

    fn learn(&self, work: f64, time: Duration) {
        let seconds = time.as_secs_f64();
        if work > 0.0 && seconds > 1e-5 {
            // Towards the slower of two estimates at once, towards the faster by and by.
            let seen = work / seconds;
            let known = self.0.get();
            self.0.set(if seen < known { seen } else { 0.75 * known + 0.25 * seen });
        }
    }

    fn seconds(&self, work: f64) -> f64 {
        work / self.0.get()
    }
}

/// Computes a forward in pieces and looks at the cancel token between them.
pub(super) struct CancelPace<'a> {
    cancel: &'a CancelToken,
    speed: &'a Speed,
    /// Work that was built up since the last piece.
    work: f64,
    horizon: usize,
}

impl<'a> CancelPace<'a> {
    pub(super) fn new(cancel: &'a CancelToken, speed: &'a Speed, horizon: usize) -> Self {
        CancelPace { cancel, speed, work: 0.0, horizon }
    }
}

impl Pace for CancelPace<'_> {
    fn horizon(&self) -> usize {
        self.horizon
    }

    fn reached(&mut self, work: f64, arrays: &[&Array]) -> Result<()> {
        self.work += work;
        if self.speed.seconds(self.work) < PIECE.as_secs_f64() / 2.0 {
            return Ok(());
        }
        self.cancel.check()?;
        let start = Instant::now();
        eval(arrays.iter().copied())?;
        self.speed.learn(self.work, start.elapsed());
        self.work = 0.0;
        self.cancel.check()
    }

    fn is_long(&self, work: f64) -> bool {
        self.speed.seconds(work) > PIECE.as_secs_f64()
    }
}
