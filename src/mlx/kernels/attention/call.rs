//! A whole call: cutting it into units of work and running them on the pool.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::aligned::Aligned;
use super::shape::{Attention, KvForm, Mask, Sequence};
use super::softmax::{Total, finish, merge};
use super::tile::{Scratch, Tile, Work, sees, tile_queries};
use super::turbo;
use crate::mlx::kernels::cpu::Path;
use crate::mlx::kernels::pool::{Panicked, Pool};
use crate::mlx::kernels::sixteen::{self, Lanes, Task};

/// Tiles with no more rows than this may have their blocks computed by several threads.
const SPLIT_ROWS: usize = 128;

/// Memory for blocks that await their merging, in floats, beyond which tiles are computed whole.
const SPLIT_FLOATS: usize = 2 << 20;

/// Calls with fewer multiplications than this are not worth waking other threads.
const SMALL_CALL: usize = 1 << 15;

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    /// Blocks that await their merging. It belongs to the thread that makes the call.
    static PARTIAL: RefCell<Aligned> = RefCell::default();
}

/// Attention of all queries of all sequences.
///
/// `queries` is `[all queries][heads * key_dims]`, rotated, in the order of the sequences; `out` is
/// `[all queries][heads * value_dims]`. A query that sees nothing gets zeros.
///
/// A row's result depends on its query and on the keys and values that it sees, not on the other rows, on how
/// the positions are cut into spans, on the threads or on the processor's instruction set.
///
/// # Panics
/// When lengths do not fit together, before anything is computed.
pub fn attend(
    pool: &Pool,
    attention: &Attention<'_>,
    sequences: &[Sequence<'_>],
    queries: &[f32],
    out: &mut [f32],
) -> Result<(), Panicked> {
    attend_on(Path::best(), pool, attention, sequences, queries, out)
}

/// [`attend`] with the instructions of `path`.
pub fn attend_on(
    path: Path,
    pool: &Pool,
    attention: &Attention<'_>,
    sequences: &[Sequence<'_>],
    queries: &[f32],
    out: &mut [f32],
) -> Result<(), Panicked> {
    check(attention, sequences, queries, out);
    let starts = starts(sequences);
    let call = Call { path, attention, sequences, starts: &starts, queries, out: Out(out.as_mut_ptr()) };
    let plan = call.plan(pool.threads());
    PARTIAL.with_borrow_mut(|partial| {
        let partial = Out(partial.floats(plan.slot_floats).as_mut_ptr());
        let work = |index: usize| {
            SCRATCH.with_borrow_mut(|scratch| {
                let unit = &plan.units[index];
                let missing = plan.missing.get(unit.tile);
                sixteen::run(
                    path,
                    Run { call: &call, plan: &plan, unit, missing, partial: &partial, scratch },
                );
            });
        };
        if plan.multiplications < SMALL_CALL {
            pool.run(1, &|_| (0..plan.units.len()).for_each(work))
        } else {
            pool.run_claiming(plan.units.len(), &work)
        }
    })
}

fn check(attention: &Attention<'_>, sequences: &[Sequence<'_>], queries: &[f32], out: &[f32]) {
    let shape = &attention.shape;
    shape.check();
    assert!(
        attention.heads > 0 && attention.heads.is_multiple_of(shape.kv_heads),
        "heads do not form groups"
    );
    assert!(attention.sinks.is_none_or(|sinks| sinks.len() == attention.heads), "one sink a head");
    let rows: usize = sequences.iter().map(|sequence| sequence.queries).sum();
    assert_eq!(queries.len(), rows * attention.heads * shape.key_dims, "length of queries");
    assert_eq!(out.len(), rows * attention.heads * shape.value_dims, "length of out");
    for sequence in sequences {
        sequence.check(shape);
        assert!(!sees_absent(attention, sequence), "a query sees an absent position");
        let keys = sequence.end() - sequence.first_position;
        let masked = match sequence.mask {
            None => sequence.queries * keys,
            Some(Mask::Added(added)) => added.len(),
            Some(Mask::Allowed(allowed)) => allowed.len(),
        };
        assert_eq!(masked, sequence.queries * keys, "length of a mask");
    }
}

/// Whether a query sees a position without memory.
fn sees_absent(attention: &Attention<'_>, sequence: &Sequence<'_>) -> bool {
    let (mut start, end) = (sequence.first_position, sequence.end());
    sequence.spans.iter().any(|span| {
        let (first, behind) = (start, start + span.len);
        start = behind;
        span.is_absent()
            && (0..sequence.queries).any(|query| {
                let seen = sees(attention, sequence, end, query);
                seen.iter().any(|(low, high)| first.max(*low) < behind.min(*high))
            })
    })
}

/// Absolute starts of all spans, sequence by sequence.
fn starts(sequences: &[Sequence<'_>]) -> Vec<usize> {
    let mut starts = Vec::with_capacity(sequences.iter().map(|sequence| sequence.spans.len()).sum());
    for sequence in sequences {
        let mut start = sequence.first_position;
        for span in sequence.spans {
            starts.push(start);
            start += span.len;
        }
    }
    starts
}

/// Memory that units write to, each to rows of its own.
struct Out(*mut f32);
// SAFETY: each use says why the floats that it touches are no other unit's at that time.
unsafe impl Sync for Out {}

struct Call<'a> {
    path: Path,
    attention: &'a Attention<'a>,
    sequences: &'a [Sequence<'a>],
    starts: &'a [usize],
    queries: &'a [f32],
    /// `[all queries][heads * value_dims]`, owned by the caller of `attend` for the length of the call.
    out: Out,
}

/// One claim of a thread.
struct Unit {
    tile: usize,
    /// The visit to compute, whose result goes into a slot; or none: all of them and the rows' results.
    visit: Option<usize>,
}

struct Plan {
    /// Each with its first span in `Call::starts`.
    tiles: Vec<(Tile, usize)>,
    units: Vec<Unit>,
    /// For each tile the visits that are not computed yet. Empty if no tile is split.
    missing: Vec<AtomicUsize>,
    /// For each tile the floats before its slots.
    slots_of: Vec<usize>,
    /// Of all slots.
    slot_floats: usize,
    multiplications: usize,
}

impl Call<'_> {
    fn work(&self, tile: Tile, starts: usize) -> Work<'_> {
        let sequence = &self.sequences[tile.sequence];
        let starts = &self.starts[starts..][..sequence.spans.len()];
        let end = match (starts.last(), sequence.spans.last()) {
            (Some(start), Some(span)) => start + span.len,
            _ => sequence.first_position,
        };
        Work {
            path: self.path,
            attention: self.attention,
            sequence,
            starts,
            end,
            tile,
            queries: self.queries,
        }
    }

    fn plan(&self, threads: usize) -> Plan {
        let shape = &self.attention.shape;
        let per_tile = tile_queries(self.attention.heads / shape.kv_heads);
        let mut tiles = Vec::new();
        let (mut offset, mut starts) = (0, 0);
        for (index, sequence) in self.sequences.iter().enumerate() {
            // The last queries see most: they come first, so that no thread is left with a large tile at the end.
            for part in (0..sequence.queries.div_ceil(per_tile)).rev() {
                let query = part * per_tile;
                let queries = per_tile.min(sequence.queries - query);
                let tile = Tile { sequence: index, kv_head: 0, query, queries, offset };
                tiles.extend((0..shape.kv_heads).map(|kv_head| (Tile { kv_head, ..tile }, starts)));
            }
            offset += sequence.queries;
            starts += sequence.spans.len();
        }
        let mut plan = Plan {
            units: Vec::with_capacity(tiles.len()),
            missing: Vec::new(),
            slots_of: Vec::new(),
            slot_floats: 0,
            multiplications: 0,
            tiles,
        };
        let split = threads > 1 && plan.tiles.len() < 8 * threads;
        for (index, &(tile, starts)) in plan.tiles.iter().enumerate() {
            let work = self.work(tile, starts);
            let visits = work.blocks().visits();
            let positions = visits * super::shape::BLOCK;
            let positions = positions.min(work.end - work.sequence.first_position);
            plan.multiplications += work.rows() * positions * (shape.key_dims + shape.value_dims);
            plan.slots_of.push(plan.slot_floats);
            let floats = plan.slot_floats + visits * work.slot_floats();
            let fits = work.rows() <= SPLIT_ROWS && floats <= SPLIT_FLOATS;
            if split && fits && visits > 1 {
                plan.units.extend((0..visits).map(|visit| Unit { tile: index, visit: Some(visit) }));
                plan.slot_floats = floats;
            } else {
                plan.units.push(Unit { tile: index, visit: None });
            }
            if split {
                plan.missing.push(AtomicUsize::new(visits));
            }
        }
        plan
    }
}

/// A unit, to be run with some instruction set.
struct Run<'a> {
    call: &'a Call<'a>,
    plan: &'a Plan,
    unit: &'a Unit,
    missing: Option<&'a AtomicUsize>,
    partial: &'a Out,
    scratch: &'a mut Scratch,
}

impl Task for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(mut self, s: S) {
        let (tile, starts) = self.plan.tiles[self.unit.tile];
        let work = self.call.work(tile, starts);
        let rows = work.rows();
        let stride = work.value_stride();
        work.prepare(s, self.scratch);
        let blocks = work.blocks();
        let (visit, stop) = self.unit.visit.map_or((0, blocks.visits()), |visit| (visit, visit + 1));
        for visit in visit..stop {
            work.block(s, blocks.visit(visit), self.scratch);
            if self.unit.visit.is_none() {
                let all = self.scratch.all_values.floats(rows * stride);
                let values = self.scratch.block_values.floats(rows * stride);
                let totals = &self.scratch.block_totals;
                merge(s, &mut self.scratch.all_totals, all, totals, values, stride);
            }
        }
        if let (Some(visit), Some(missing)) = (self.unit.visit, self.missing) {
            self.keep(visit, rows, stride);
            // The last one to finish sees what the others wrote.
            if missing.fetch_sub(1, Ordering::AcqRel) != 1 {
                return;
            }
            self.merge_kept(s, blocks.visits(), rows, stride);
        }
        let all = self.scratch.all_values.floats(rows * stride);
        let dims = self.call.attention.shape.value_dims;
        for (row, values) in all.chunks_exact_mut(stride).enumerate() {
            let (query, head) = work.query_and_head(row);
            let at = (query * self.call.attention.heads + head) * dims;
            // SAFETY: `check` saw that there is room for all queries and heads, and a query's head is a row
            // of one tile, which is finished by one unit.
            let out = unsafe { std::slice::from_raw_parts_mut(self.call.out.0.add(at), dims) };
            let sink = self.call.attention.sinks.map(|sinks| sinks[head]);
            finish(s, self.scratch.all_totals[row], values, sink, out);
            if let KvForm::Turbo { .. } = self.call.attention.shape.form {
                turbo::rotate_back(out);
            }
        }
    }
}

impl Run<'_> {
    /// The slot of a visit of the unit's tile: the rows' weighted values, then their totals.
    #[inline(always)]
    fn slot(&self, visit: usize, size: usize) -> *mut f32 {
        let at = self.plan.slots_of[self.unit.tile] + visit * size;
        assert!(at + size <= self.plan.slot_floats);
        // SAFETY: there is memory for all slots.
        unsafe { self.partial.0.add(at) }
    }

    /// Keeps what was computed at a visit in its slot.
    #[inline(always)]
    fn keep(&mut self, visit: usize, rows: usize, stride: usize) {
        let size = rows * (stride + 2);
        let slot = self.slot(visit, size);
        // SAFETY: `slot` saw that there is room. It is this unit's until the count of missing visits falls.
        let floats = unsafe { std::slice::from_raw_parts_mut(slot, size) };
        let (values, totals) = floats.split_at_mut(rows * stride);
        values.copy_from_slice(self.scratch.block_values.floats(rows * stride));
        for (to, total) in totals.as_chunks_mut::<2>().0.iter_mut().zip(&self.scratch.block_totals) {
            *to = [total.largest, total.sum];
        }
    }

    /// Merges all visits of the tile in order.
    #[inline(always)]
    fn merge_kept<S: Lanes>(&mut self, s: S, visits: usize, rows: usize, stride: usize) {
        let size = rows * (stride + 2);
        for visit in 0..visits {
            // SAFETY: all units of this tile have filled their slots, and none touches them again.
            let floats = unsafe { std::slice::from_raw_parts(self.slot(visit, size), size) };
            let (values, totals) = floats.split_at(rows * stride);
            let all = self.scratch.all_values.floats(rows * stride);
            let mut kept = [Total::EMPTY; SPLIT_ROWS];
            for (block, &[largest, sum]) in kept.iter_mut().zip(totals.as_chunks::<2>().0) {
                *block = Total { largest, sum };
            }
            merge(s, &mut self.scratch.all_totals, all, &kept[..rows], values, stride);
        }
    }
}
