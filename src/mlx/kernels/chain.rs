//! Small kernels one after the other as one operation of MLX's.
//!
//! An operation costs MLX time, most of it for memory of its own: for few rows more than some kernels take. So those are not
//! given to MLX one by one. A thread gathers them, and gives away all together
//! when MLX, or somebody who waits, needs one of the results. Only what is held by somebody then becomes an array; other
//! results pass from kernel to kernel in memory that is used again. What nobody holds any more is not computed, as with
//! MLX's own operations.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::{Rc, Weak};

use super::kernel::{Kernel, Output};
use super::{primitive, scratch};
use crate::base::{Error, Result};
use crate::mlx::{Array, Dtype};

/// Results of more bytes than this are arrays of MLX's at once: their memory counts.
const SMALL: usize = 64 << 10;

/// Most kernels of a chain.
const MOST: usize = 1024;

/// Where results begin in memory that kernels pass on.
const LINE: usize = 64;

/// A result of a kernel that MLX does not know of yet, or did not when it was made.
pub(in crate::mlx) struct Later {
    shape: Vec<i32>,
    dtype: Dtype,
    /// The kernel's number in the chain, and the result's among the kernel's.
    place: (usize, usize),
    /// Whether the kernel is in the chain that the thread is gathering.
    gathered: Cell<bool>,
    made: OnceCell<Array>,
}

impl Later {
    pub fn shape(&self) -> &[i32] {
        &self.shape
    }

    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub fn bytes(&self) -> usize {
        bytes(&self.shape, self.dtype)
    }

    pub fn made(&self) -> Option<&Array> {
        self.made.get()
    }

    /// The array of MLX's, made now with all others if it is not yet.
    pub fn array(&self) -> Result<&Array> {
        if self.made.get().is_none() {
            flush()?;
        }
        self.made.get().ok_or_else(failed)
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if !self.gathered.get() {
            return;
        }
        // Without a thread's own variables there is no chain any more either.
        let _at_its_end = OPEN.try_with(|open| {
            let mut chain = open.borrow_mut();
            chain.held = chain.held.saturating_sub(1);
            // Nobody waits for anything: what kernels hold is given back.
            let steps = if chain.held == 0 { std::mem::take(&mut chain.steps) } else { Vec::new() };
            drop(chain);
            drop(steps);
        });
    }
}

fn failed() -> Error {
    Error::internal("the kernels that this is a result of were not given to MLX")
}

fn bytes(shape: &[i32], dtype: Dtype) -> usize {
    shape.iter().map(|size| *size as usize).product::<usize>() * dtype.size()
}

/// Where a kernel's input comes from.
enum Source {
    Array(Array),
    /// A kernel's number in the chain, and the result's among the kernel's.
    Result(usize, usize),
}

struct Step {
    kernel: Box<dyn Kernel>,
    inputs: Vec<Source>,
    results: Vec<Weak<Later>>,
    /// Of the results.
    sizes: Vec<usize>,
}

#[derive(Default)]
struct Chain {
    steps: Vec<Step>,
    /// Results that somebody holds.
    held: usize,
}

thread_local! {
    static OPEN: RefCell<Chain> = RefCell::default();
}

/// The results of `kernel`, not computed yet. Inputs must lie in memory without gaps once they are computed; it fails
/// then otherwise.
pub(crate) fn apply<const N: usize>(
    kernel: impl Kernel,
    inputs: &[&Array],
    outputs: [Output<'_>; N],
) -> Result<[Array; N]> {
    let small = outputs.iter().all(|output| bytes(output.shape, output.dtype) <= SMALL);
    if !small || !primitive::can_make(&outputs) {
        let arrays = primitive::apply(Box::new(kernel), inputs, &outputs)?;
        return arrays.try_into().map_err(|_| Error::internal("a kernel lost a result"));
    }
    if OPEN.with_borrow(|chain| chain.steps.len() >= MOST) {
        flush()?;
    }
    OPEN.with_borrow_mut(|chain| {
        let number = chain.steps.len();
        let source = |array: &&Array| match array.later() {
            Some(later) if later.gathered.get() => Ok(Source::Result(later.place.0, later.place.1)),
            Some(_) => Err(failed()),
            None => Ok(Source::Array((*array).clone())),
        };
        let inputs = inputs.iter().map(source).collect::<Result<_>>()?;
        let later = |index: usize| {
            let Output { shape, dtype } = outputs[index];
            Rc::new(Later {
                shape: shape.to_vec(),
                dtype,
                place: (number, index),
                gathered: Cell::new(true),
                made: OnceCell::new(),
            })
        };
        let results: [Rc<Later>; N] = std::array::from_fn(later);
        chain.held += N;
        chain.steps.push(Step {
            kernel: Box::new(kernel),
            inputs,
            results: results.iter().map(Rc::downgrade).collect(),
            sizes: results.iter().map(|later| later.bytes()).collect(),
        });
        Ok(results.map(Array::from_later))
    })
}

/// Results of each kernel that somebody holds.
type Held = Vec<Vec<Option<Rc<Later>>>>;

/// Ends the chain: its kernels, and their results.
fn end() -> (Vec<Step>, Held) {
    let Chain { steps, .. } = OPEN.take();
    let held: Held = steps.iter().map(|step| step.results.iter().map(Weak::upgrade).collect()).collect();
    held.iter().flatten().flatten().for_each(|later| later.gathered.set(false));
    (steps, held)
}

/// Forgets all kernels that were gathered.
pub(in crate::mlx) fn clear() {
    end();
}

/// Gives all kernels that were gathered to MLX.
fn flush() -> Result<()> {
    let (steps, held) = end();
    let needed = needed(&steps, &held);
    let (chained, arrays, results) = plan(steps, &held, &needed);
    let outputs: Vec<Output<'_>> =
        results.iter().map(|later| Output { shape: later.shape(), dtype: later.dtype() }).collect();
    let made = primitive::apply(Box::new(chained), &arrays.iter().collect::<Vec<_>>(), &outputs)?;
    for (later, array) in results.iter().zip(made) {
        // It was empty: each result is in one chain.
        let _was_empty = later.made.set(array);
    }
    Ok(())
}

/// For each kernel whether anything that is held depends on it.
fn needed(steps: &[Step], held: &Held) -> Vec<bool> {
    let mut needed: Vec<bool> = held.iter().map(|results| results.iter().any(Option::is_some)).collect();
    for index in (0..steps.len()).rev() {
        if needed[index] {
            for input in &steps[index].inputs {
                if let Source::Result(step, _) = input {
                    needed[*step] = true;
                }
            }
        }
    }
    needed
}

/// The kernels that are needed as one; the arrays that it takes; and what it makes.
fn plan(steps: Vec<Step>, held: &Held, needed: &[bool]) -> (Chained, Vec<Array>, Vec<Rc<Later>>) {
    let last_use = last_uses(&steps, needed);
    let (mut links, mut arrays, mut results) = (Vec::with_capacity(steps.len()), Vec::new(), Vec::new());
    let mut places: Vec<Vec<Place>> = Vec::with_capacity(steps.len());
    let mut memory = Memory::default();
    for (index, step) in steps.into_iter().enumerate() {
        if !needed[index] {
            places.push(Vec::new());
            continue;
        }
        let inputs = step.inputs.into_iter().map(|input| match input {
            Source::Result(step, result) => places[step][result],
            Source::Array(array) => {
                arrays.push(array);
                Place::Input(arrays.len() - 1)
            }
        });
        let inputs: Vec<Place> = inputs.collect();
        let mut own = Vec::with_capacity(step.sizes.len());
        for (held, size) in held[index].iter().zip(step.sizes) {
            own.push(match held {
                Some(later) => {
                    results.push(Rc::clone(later));
                    Place::Output(results.len() - 1)
                }
                None => memory.take(size),
            });
        }
        // What was read for the last time is free for the results of the next kernel.
        for (step, result) in &last_use[index] {
            memory.give(places.get(*step).unwrap_or(&own)[*result]);
        }
        links.push(Link { kernel: step.kernel, inputs, outputs: own.clone() });
        places.push(own);
    }
    (Chained { links, bytes: memory.end }, arrays, results)
}

/// For each kernel the results, kernel and number, that nobody reads behind it.
fn last_uses(steps: &[Step], needed: &[bool]) -> Vec<Vec<(usize, usize)>> {
    let mut last: Vec<Vec<usize>> =
        steps.iter().enumerate().map(|(index, step)| vec![index; step.sizes.len()]).collect();
    for (index, step) in steps.iter().enumerate().filter(|(index, _)| needed[*index]) {
        for input in &step.inputs {
            if let Source::Result(step, result) = input {
                last[*step][*result] = index;
            }
        }
    }
    let mut uses = vec![Vec::new(); steps.len()];
    for (step, results) in last.iter().enumerate().filter(|(step, _)| needed[*step]) {
        for (result, last) in results.iter().enumerate() {
            uses[*last].push((step, result));
        }
    }
    uses
}

/// Memory that kernels pass on.
#[derive(Default)]
struct Memory {
    end: usize,
    /// Begin and size.
    free: Vec<(usize, usize)>,
}

impl Memory {
    fn take(&mut self, size: usize) -> Place {
        let room = size.next_multiple_of(LINE).max(LINE);
        let begin = match self.free.iter().rposition(|(_, free)| *free == room) {
            Some(index) => self.free.swap_remove(index).0,
            None => {
                self.end += room;
                self.end - room
            }
        };
        Place::Passed { begin, size }
    }

    fn give(&mut self, place: Place) {
        if let Place::Passed { begin, size } = place {
            self.free.push((begin, size.next_multiple_of(LINE).max(LINE)));
        }
    }
}

/// Where the numbers of a kernel lie.
#[derive(Clone, Copy)]
enum Place {
    Input(usize),
    Output(usize),
    /// In memory that kernels pass on.
    Passed {
        begin: usize,
        size: usize,
    },
}

struct Link {
    kernel: Box<dyn Kernel>,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
}

/// Kernels that run one after the other.
struct Chained {
    links: Vec<Link>,
    /// Of the memory that they pass on.
    bytes: usize,
}

impl Kernel for Chained {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let outputs: Vec<(*mut u8, usize)> =
            outputs.iter_mut().map(|output| (output.as_mut_ptr(), output.len())).collect();
        scratch::with(self.bytes / size_of::<f32>(), |passed| {
            let passed = passed.as_mut_ptr().cast::<u8>();
            let (mut read, mut write) = (Vec::<&[u8]>::new(), Vec::<&mut [u8]>::new());
            let memory = |place: Place| match place {
                Place::Input(index) => (inputs[index].as_ptr().cast_mut(), inputs[index].len()),
                Place::Output(index) => outputs[index],
                // SAFETY: `plan` counted the end of all that is passed on.
                Place::Passed { begin, size } => (unsafe { passed.add(begin) }, size),
            };
            for Link { kernel, inputs, outputs } in &self.links {
                read.clear();
                for place in inputs {
                    let (data, size) = memory(*place);
                    // SAFETY: an input, or a result of a kernel before this one. Nothing writes to it while this one
                    // runs: `plan` gives each result memory that is no input's, no other result's that is still read,
                    // and none of this kernel's.
                    read.push(unsafe { std::slice::from_raw_parts(data, size) });
                }
                write.clear();
                for place in outputs {
                    let (data, size) = memory(*place);
                    // SAFETY: the memory of a result of this kernel alone, by the same.
                    write.push(unsafe { std::slice::from_raw_parts_mut(data, size) });
                }
                kernel.run(&read, &mut write)?;
            }
            Ok(())
        })
    }
}
