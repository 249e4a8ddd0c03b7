//! Reading and converting what a plan keeps, piece by piece.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use super::file::{reserved, zeroed};
use super::files::WeightFiles;
use super::kernel::Kernel;
use super::plan::Job;
use super::types::RowOrder;
use crate::base::{Error, Result};

/// Bytes of a piece, unless a single row or head is larger.
const PIECE_BYTES: usize = 2 << 20;
/// Bytes that a worker reads and converts at once: they stay in its cache.
const CHUNK_BYTES: usize = 128 << 10;
/// Bytes that make another worker worth its start.
const WORKER_BYTES: usize = 256 << 10;
/// Pieces that may wait at once; bounds the memory beside the weights.
const MOST_WORKERS: usize = 8;

/// Consecutive bytes of one kept tensor.
#[derive(Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index in the plan's table of kept tensors.
    pub tensor: usize,
    /// Byte offset in the kept tensor.
    pub offset: usize,
    pub bytes: Vec<u8>,
    /// File bytes read to make it, for progress.
    pub file_bytes: u64,
}

/// Hands out the pieces of all kept tensors, in the order of the plan. Pieces of one tensor come
/// in order and without gaps. Reading ends with a check that no file changed meanwhile.
#[derive(Debug)]
pub struct PieceReader {
    files: Arc<WeightFiles>,
    jobs: Vec<Job>,
    threads: usize,
    /// The job and its first unit that was not converted yet.
    next: (usize, usize),
    ready: VecDeque<Piece>,
}

/// Bytes that reading needs beside the kept tensors, at most.
pub(crate) fn transient_bytes(jobs: &[Job], threads: usize) -> u64 {
    let largest_unit = jobs.iter().map(|job| Layout::of(job).unit_output).max().unwrap_or(0);
    ((PIECE_BYTES.max(largest_unit) + 4 * CHUNK_BYTES.max(largest_unit)) * threads.clamp(1, MOST_WORKERS))
        as u64
}

impl PieceReader {
    pub(crate) fn new(files: Arc<WeightFiles>, jobs: Vec<Job>, threads: usize) -> Self {
        let threads = threads.clamp(1, MOST_WORKERS);
        PieceReader { files, jobs, threads, next: (0, 0), ready: VecDeque::new() }
    }

    /// The next piece; `None` when all is read.
    pub fn next_piece(&mut self) -> Result<Option<Piece>> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            let Some(job) = self.jobs.get(self.next.0) else {
                self.files.check_unchanged()?;
                return Ok(None);
            };
            let layout = Layout::of(job);
            if self.next.1 >= layout.units {
                self.next = (self.next.0 + 1, 0);
                continue;
            }
            let ranges = shares(&layout, self.next.1, self.threads);
            let end = ranges.last().map_or(layout.units, |range| range.end);
            let converted = convert_all(&self.files, job, &layout, &ranges)?;
            for (range, outputs) in ranges.into_iter().zip(converted) {
                let mut file_bytes = (range.len() * layout.unit_input) as u64;
                for (stream, bytes) in outputs.into_iter().enumerate().take(job.targets.len()) {
                    let offset = range.start * layout.unit_groups * job.kernel.output_bytes()[stream];
                    let file_bytes = std::mem::take(&mut file_bytes);
                    self.ready.push_back(Piece { tensor: job.targets[stream], offset, bytes, file_bytes });
                }
            }
            self.next.1 = end;
        }
    }
}

/// A job in units: the smallest parts that can be converted alone. That is a group, or a head
/// where rows change places within one.
struct Layout {
    units: usize,
    unit_groups: usize,
    /// Bytes of a unit, all streams together.
    unit_input: usize,
    unit_output: usize,
}

impl Layout {
    fn of(job: &Job) -> Self {
        let unit_groups = match job.rows {
            RowOrder::Natural => 1,
            RowOrder::InterleavedHalves { head_dim } => head_dim * job.row_groups,
        };
        let total = |bytes: [usize; 3]| unit_groups * bytes.iter().sum::<usize>();
        Layout {
            units: job.groups.checked_div(unit_groups).unwrap_or(0),
            unit_groups,
            unit_input: total(job.kernel.input_bytes()),
            unit_output: total(job.kernel.output_bytes()),
        }
    }
}

/// The units that each worker converts next.
fn shares(layout: &Layout, start: usize, threads: usize) -> Vec<Range<usize>> {
    let rest = layout.units - start;
    let workers = (rest * layout.unit_output).div_ceil(WORKER_BYTES).clamp(1, threads);
    let share = rest.div_ceil(workers).min((PIECE_BYTES / layout.unit_output).max(1));
    (0..workers)
        .map(|worker| {
            let from = (start + worker * share).min(layout.units);
            from..(from + share).min(layout.units)
        })
        .filter(|range| !range.is_empty())
        .collect()
}

type Outputs = [Vec<u8>; 3];

/// Converts each range on a thread of its own; the first one, and those for which the system
/// gives no thread, on this one.
fn convert_all(
    files: &WeightFiles,
    job: &Job,
    layout: &Layout,
    ranges: &[Range<usize>],
) -> Result<Vec<Outputs>> {
    std::thread::scope(|scope| {
        let others: Vec<_> = ranges
            .iter()
            .skip(1)
            .map(|range| {
                std::thread::Builder::new()
                    .name("mlxgen-weights".to_owned())
                    .spawn_scoped(scope, move || convert(files, job, layout, range.clone()))
                    .map_err(|_| range)
            })
            .collect();
        let first = ranges.iter().take(1).map(|range| convert(files, job, layout, range.clone()));
        let first: Vec<_> = first.collect();
        let others = others.into_iter().map(|other| match other {
            Ok(worker) => worker
                .join()
                .unwrap_or_else(|_| Err(Error::internal("a thread that converts weights panicked"))),
            Err(range) => convert(files, job, layout, range.clone()),
        });
        first.into_iter().chain(others).collect()
    })
}

/// Reads and converts the units of `range`.
fn convert(files: &WeightFiles, job: &Job, layout: &Layout, range: Range<usize>) -> Result<Outputs> {
    let kernel = job.kernel;
    let (input_bytes, output_bytes) = (kernel.input_bytes(), kernel.output_bytes());
    let groups = range.len() * layout.unit_groups;
    let mut outputs: Outputs = Default::default();
    for (output, bytes) in outputs.iter_mut().zip(output_bytes) {
        *output = reserved(groups * bytes)?;
    }
    let chunk_units = (CHUNK_BYTES / layout.unit_input.max(layout.unit_output)).clamp(1, range.len());
    let chunk_groups = chunk_units * layout.unit_groups;
    let buffers = |bytes: [usize; 3]| -> Result<Outputs> {
        let [first, second, third] = bytes.map(|bytes| zeroed(chunk_groups * bytes));
        Ok([first?, second?, third?])
    };
    let (mut inputs, mut converted) = (buffers(input_bytes)?, buffers(output_bytes)?);
    let mut unit = range.start;
    while unit < range.end {
        let count = chunk_units.min(range.end - unit);
        let groups = count * layout.unit_groups;
        for (stream, &source) in job.sources.iter().enumerate() {
            let start = unit * layout.unit_groups * input_bytes[stream];
            let buffer = &mut inputs[stream][..groups * input_bytes[stream]];
            files.read_into(&files.tensors()[source], start as u64, buffer)?;
        }
        match (job.rows, kernel) {
            (RowOrder::Natural, Kernel::Copy { size }) => {
                outputs[0].extend_from_slice(&inputs[0][..groups * size]);
            }
            (RowOrder::Natural, _) => {
                let input = std::array::from_fn(|stream| &inputs[stream][..groups * input_bytes[stream]]);
                kernel.run(input, slices(&mut converted, 0..groups, output_bytes));
                append(&mut outputs, &converted, groups, output_bytes);
            }
            (RowOrder::InterleavedHalves { .. }, _) => {
                convert_rows(job, &inputs, &mut converted, groups / job.row_groups);
                append(&mut outputs, &converted, groups, output_bytes);
            }
        }
        unit += count;
    }
    Ok(outputs)
}

/// Converts whole heads row by row, each from where it is stored. Only kernels with one input
/// stream have rows that change places.
fn convert_rows(job: &Job, inputs: &Outputs, converted: &mut Outputs, rows: usize) {
    let input_row = job.row_groups * job.kernel.input_bytes()[0];
    for row in 0..rows {
        let stored = job.rows.stored_row(row) * input_row;
        let input: [&[u8]; 3] = [&inputs[0][stored..stored + input_row], &[], &[]];
        let groups = row * job.row_groups..(row + 1) * job.row_groups;
        job.kernel.run(input, slices(converted, groups, job.kernel.output_bytes()));
    }
}

fn slices(buffers: &mut Outputs, groups: Range<usize>, bytes: [usize; 3]) -> [&mut [u8]; 3] {
    let mut bytes = bytes.into_iter();
    buffers.each_mut().map(|buffer| {
        let bytes = bytes.next().unwrap_or(0);
        &mut buffer[groups.start * bytes..groups.end * bytes]
    })
}

fn append(outputs: &mut Outputs, converted: &Outputs, groups: usize, bytes: [usize; 3]) {
    for ((output, converted), bytes) in outputs.iter_mut().zip(converted).zip(bytes) {
        output.extend_from_slice(&converted[..groups * bytes]);
    }
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
