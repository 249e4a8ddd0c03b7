//! Weights that are packed while they are read, by several threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::packed::{PackedWeight, float_of};
use crate::base::{Error, Result};
use crate::mlx::kernels::arena::{self, Arena, Room};
use crate::mlx::kernels::linear::{BLOCK, Format, Layout};
use crate::mlx::{Dtype, kernels};

/// Packed bytes that a thread makes at once, unless a block is larger: what is read for them stays in its cache.
const SHARE: usize = 128 << 10;

/// Form and size of a matrix for which there is a kernel.
#[derive(Clone, Copy, Debug)]
pub struct PackedForm(Layout);

impl PackedForm {
    /// Of floats. `None` if there is no kernel for such.
    pub fn dense(element: Dtype, [outputs, inputs]: [usize; 2]) -> Option<Self> {
        Self::of(Format::Dense(float_of(element)?), outputs, inputs)
    }

    /// Of affine groups.
    pub fn affine(scales: Dtype, bits: u32, group: u32, [outputs, inputs]: [usize; 2]) -> Option<Self> {
        Self::of(Format::Affine { bits, group, scales: float_of(scales)? }, outputs, inputs)
    }

    fn of(format: Format, outputs: usize, inputs: usize) -> Option<Self> {
        Layout::new(format, outputs, inputs).filter(|_| kernels::AVAILABLE).map(PackedForm)
    }

    /// Bytes of memory that the packed matrix takes.
    pub fn bytes(&self) -> usize {
        arena::rounded(self.0.bytes())
    }

    /// Bytes that a thread needs beside that while it packs, for rows in their own order.
    pub fn transient_bytes(&self) -> usize {
        self.share_rows() * self.row_bytes().iter().sum::<usize>()
    }

    /// Bytes of a row in its own order: of elements; or of words, scales and biases.
    fn row_bytes(&self) -> [usize; 3] {
        let inputs = self.0.inputs();
        match self.0.format() {
            Format::Dense(float) => [inputs * float.size(), 0, 0],
            Format::Affine { bits, group, scales } => {
                let parameters = inputs / group as usize * scales.size();
                [inputs * bits as usize / 8, parameters, parameters]
            }
        }
    }

    fn share_blocks(&self) -> usize {
        (SHARE / self.0.block_bytes()).max(1)
    }

    /// Rows that a thread packs at once, at most.
    fn share_rows(&self) -> usize {
        (self.share_blocks() * BLOCK).min(self.0.outputs())
    }

    /// Packs the rows that `read` gives into some whole blocks, from block `first` on.
    fn pack(
        &self,
        first: usize,
        target: &mut [u8],
        buffers: &mut [Vec<u8>; 3],
        read: impl FnOnce(usize, [&mut [u8]; 3]) -> Result<()>,
    ) -> Result<()> {
        let (layout, row_bytes) = (&self.0, self.row_bytes());
        let from = first * BLOCK;
        let rows = (target.len() / layout.block_bytes() * BLOCK).min(layout.outputs() - from);
        for (buffer, row) in buffers.iter_mut().zip(row_bytes) {
            if buffer.len() < rows * row {
                buffer.resize(rows * row, 0);
            }
        }
        let mut sizes = row_bytes.iter().map(|row| rows * row);
        read(from, buffers.each_mut().map(|buffer| &mut buffer[..sizes.next().unwrap_or(0)]))?;
        for (block, target) in target.chunks_exact_mut(layout.block_bytes()).enumerate() {
            let (start, end) = (block * BLOCK, (block * BLOCK + BLOCK).min(rows));
            let part = |stream: usize| &buffers[stream][start * row_bytes[stream]..end * row_bytes[stream]];
            match layout.format() {
                Format::Dense(_) => layout.pack_dense_block(target, end - start, part(0)),
                Format::Affine { .. } => {
                    layout.pack_affine_block(target, end - start, part(0), part(1), part(2));
                }
            }
        }
        Ok(())
    }
}

/// Some blocks of a matrix.
struct Share<'a> {
    matrix: usize,
    first_block: usize,
    target: &'a mut [u8],
}

/// Packs matrices by so many threads while they are read, so that each lies in memory once. A thread calls `reader` for
/// a function of its own, which gets the number of a matrix, a row, and buffers to fill with whole rows from there on:
/// elements; or words, scales and biases.
pub fn pack_rows<R>(
    arena: &mut Arena,
    forms: &[PackedForm],
    threads: usize,
    reader: impl Fn() -> R + Sync,
) -> Result<Vec<PackedWeight>>
where
    R: FnMut(usize, usize, [&mut [u8]; 3]) -> Result<()>,
{
    let mut rooms = forms.iter().map(|form| arena.room(form.0.bytes())).collect::<Result<Vec<_>>>()?;
    let threads = threads.max(1);
    let shares: Vec<_> = neighbours(forms, &mut rooms, threads)
        .into_iter()
        .map(|shares| Mutex::new(shares.into_iter()))
        .collect();
    let failed = AtomicBool::new(false);
    with_threads(threads, &|thread| {
        let mut read = reader();
        let mut buffers = <[Vec<u8>; 3]>::default();
        // Its own shares first, then what is left of the others'.
        for shares in shares[thread..].iter().chain(&shares[..thread]) {
            let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
            while !failed.load(Ordering::Relaxed)
                && let Some(Share { matrix, first_block, target }) = next()
            {
                let read = |row: usize, rows: [&mut [u8]; 3]| read(matrix, row, rows);
                forms[matrix]
                    .pack(first_block, target, &mut buffers, read)
                    .inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            }
        }
        Ok(())
    })?;
    drop(shares);
    let packed = forms.iter().zip(rooms).map(|(form, room)| PackedWeight::new(form.0, room.keep()));
    Ok(packed.collect())
}

/// The shares of the matrices for each thread: neighbours in memory. Fresh memory comes in large pages, and two threads
/// that first touch the same one would both clear a page for it.
fn neighbours<'a>(forms: &[PackedForm], rooms: &'a mut [Room], threads: usize) -> Vec<Vec<Share<'a>>> {
    let total: usize = forms.iter().map(|form| form.0.bytes()).sum();
    let mut shares: Vec<Vec<Share<'_>>> = (0..threads).map(|_| Vec::new()).collect();
    let mut before = 0;
    for (matrix, (form, room)) in forms.iter().zip(rooms).enumerate() {
        let blocks = form.share_blocks();
        let targets = room.bytes_mut().chunks_mut(blocks * form.0.block_bytes());
        for (number, target) in targets.enumerate() {
            let thread = (before as u128 * threads as u128 / total.max(1) as u128) as usize;
            before += target.len();
            shares[thread].push(Share { matrix, first_block: number * blocks, target });
        }
    }
    shares
}

/// Does `work` on so many threads, this one among them, each with its number. Where the system gives fewer, those that
/// there are must do all.
fn with_threads(threads: usize, work: &(impl Fn(usize) -> Result<()> + Sync)) -> Result<()> {
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads)
            .filter_map(|thread| {
                let builder = thread::Builder::new().name("mlxgen-weights".to_owned());
                builder.spawn_scoped(scope, move || work(thread)).ok()
            })
            .collect();
        let mut outcome = work(0);
        for other in others {
            let joined =
                other.join().unwrap_or_else(|_| Err(Error::internal("a thread that packs weights panicked")));
            outcome = outcome.and(joined);
        }
        outcome
    })
}

#[cfg(all(test, cpu_kernels))]
#[path = "packing_tests.rs"]
mod tests;
