//! Steps that compute each row of a result by itself.

use std::sync::{Mutex, PoisonError};

use super::pool::{Panicked, Pool};

/// Results of fewer floats than this are not worth waking other threads.
const SMALL: usize = 1 << 14;

/// Parts for each thread: one that has lost its core to another program leaves some of its own to the others.
const PARTS: usize = 4;

/// Runs `work` for each row of `width` floats of `out` with the row's number, on all threads of the pool where there
/// is enough to do.
pub(crate) fn each(
    pool: &Pool,
    out: &mut [f32],
    width: usize,
    work: &(dyn Fn(usize, &mut [f32]) + Sync),
) -> Result<(), Panicked> {
    let rows = out.len().checked_div(width).unwrap_or(0);
    if out.len() < SMALL || pool.threads() == 1 {
        (0..rows).zip(out.chunks_exact_mut(width.max(1))).for_each(|(row, out)| work(row, out));
        return Ok(());
    }
    let of_part = rows.div_ceil(PARTS * pool.threads());
    let parts: Vec<Mutex<&mut [f32]>> = out.chunks_mut(of_part * width).map(Mutex::new).collect();
    pool.run(parts.len(), &|part| {
        let mut out = parts[part].lock().unwrap_or_else(PoisonError::into_inner);
        (part * of_part..).zip(out.chunks_exact_mut(width)).for_each(|(row, out)| work(row, out));
    })
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_computed_once_under_its_number() {
        for threads in 1..=3 {
            let pool = Pool::new(threads).unwrap();
            for (rows, width) in [(0, 5), (1, 7), (40, 576), (41, 400), (SMALL, 1), (3, SMALL), (5, 0)] {
                let mut out = vec![0.0; rows * width];
                each(&pool, &mut out, width, &|row, out| {
                    out.iter_mut().for_each(|value| *value += row as f32 + 1.0);
                })
                .unwrap();
                assert!(
                    (0..out.len()).all(|index| out[index] == (index / width + 1) as f32),
                    "{rows} {width}"
                );
            }
        }
    }
}
