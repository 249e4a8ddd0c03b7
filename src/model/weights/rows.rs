//! Matrices that are read and converted by rows, for whoever puts them where they will stay.

use std::ops::Range;
use std::sync::Arc;

use super::file::zeroed;
use super::files::WeightFiles;
use super::kernel::Kernel;
use super::plan::{Job, PlannedLinear};
use super::types::RowOrder;
use crate::base::{Error, Result};

/// A matrix of the plan that its tensors' conversions make row by row. Any thread.
#[derive(Clone, Debug)]
pub struct MatrixRows {
    linear: PlannedLinear,
    files: Arc<WeightFiles>,
    parts: Vec<RowsOf>,
}

/// One conversion, and which of the matrix's tensors it makes.
#[derive(Clone, Debug)]
struct RowsOf {
    job: Job,
    /// Places in [`PlannedLinear::tensors`], one for each target of the job.
    places: Vec<usize>,
}

/// Room for stored bytes, kept from call to call.
#[derive(Debug, Default)]
pub struct RowBuffers([Vec<u8>; 3]);

impl MatrixRows {
    /// Of the jobs whose targets are the matrix's tensors.
    pub(super) fn new(linear: PlannedLinear, files: Arc<WeightFiles>, jobs: Vec<Job>) -> Self {
        let tensors = linear.tensors();
        let place = |target: &usize| tensors.iter().position(|tensor| tensor == target);
        let part = |job: Job| RowsOf { places: job.targets.iter().filter_map(place).collect(), job };
        MatrixRows { linear, files, parts: jobs.into_iter().map(part).collect() }
    }

    pub fn linear(&self) -> &PlannedLinear {
        &self.linear
    }

    /// Bytes in the files.
    pub fn file_bytes(&self) -> u64 {
        let sources = self.parts.iter().flat_map(|part| &part.job.sources);
        sources.map(|source| self.files.tensors()[*source].bytes).sum()
    }

    /// Reads whole rows from row `from` on into a buffer for each of the matrix's tensors, which hold equally many;
    /// further buffers are left alone.
    pub fn read(&self, from: usize, mut tensors: [&mut [u8]; 3], stored: &mut RowBuffers) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.read(&self.files, from, &mut tensors, stored))
    }
}

impl RowsOf {
    fn read(
        &self,
        files: &WeightFiles,
        from: usize,
        tensors: &mut [&mut [u8]; 3],
        stored: &mut RowBuffers,
    ) -> Result<()> {
        let job = &self.job;
        let bytes_of_row = |bytes: [usize; 3]| bytes.map(|bytes| bytes * job.row_groups);
        let (input_row, output_row) =
            (bytes_of_row(job.kernel.input_bytes()), bytes_of_row(job.kernel.output_bytes()));
        let mut outputs: [&mut [u8]; 3] = Default::default();
        for (index, tensor) in tensors.iter_mut().enumerate() {
            if let Some(target) = self.places.iter().position(|place| *place == index) {
                outputs[target] = tensor;
            }
        }
        let rows = outputs[0].len().checked_div(output_row[0]).unwrap_or(0);
        let whole = outputs.iter().zip(output_row).all(|(output, row)| output.len() == rows * row);
        if !whole || rows == 0 || self.places.len() != job.targets.len() {
            return Err(Error::internal("buffers that do not hold whole rows of a matrix"));
        }
        if let (Kernel::Copy { .. }, RowOrder::Natural, &[source]) =
            (job.kernel, job.rows, job.sources.as_slice())
        {
            return files.read_into(&files.tensors()[source], (from * input_row[0]) as u64, outputs[0]);
        }
        let span = span(job.rows, from..from + rows);
        for ((buffer, source), row) in stored.0.iter_mut().zip(&job.sources).zip(input_row) {
            let size = span.len() * row;
            if buffer.len() < size {
                *buffer = zeroed(size)?;
            }
            files.read_into(&files.tensors()[*source], (span.start * row) as u64, &mut buffer[..size])?;
        }
        let input = |rows: Range<usize>| -> [&[u8]; 3] {
            let mut inputs: [&[u8]; 3] = Default::default();
            for (index, buffer) in stored.0.iter().enumerate().take(job.sources.len()) {
                inputs[index] = &buffer[rows.start * input_row[index]..rows.end * input_row[index]];
            }
            inputs
        };
        if job.rows == RowOrder::Natural {
            job.kernel.run(input(0..rows), outputs);
            return Ok(());
        }
        for row in 0..rows {
            let place = job.rows.stored_row(from + row) - span.start;
            let mut index = 0;
            let output = outputs.each_mut().map(|output| {
                let bytes = output_row[index];
                index += 1;
                &mut output[row * bytes..(row + 1) * bytes]
            });
            job.kernel.run(input(place..place + 1), output);
        }
        Ok(())
    }
}

/// The stored rows among which the given ones are.
fn span(order: RowOrder, rows: Range<usize>) -> Range<usize> {
    let stored = || rows.clone().map(|row| order.stored_row(row));
    match order {
        RowOrder::Natural => rows,
        RowOrder::InterleavedHalves { .. } => {
            stored().min().unwrap_or(0)..stored().max().map_or(0, |last| last + 1)
        }
    }
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
