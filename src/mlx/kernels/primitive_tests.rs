//! Kernels as operations: results, memory taken over, failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::chain::apply;
use super::kernel::{Kernel, Output};
use crate::base::{Code, Error, Result};
use crate::mlx::{Array, Dtype, eval, prim};

/// Adds one to every byte, and tells when it is dropped.
struct Increment(Arc<AtomicUsize>);

impl Kernel for Increment {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        for (to, from) in outputs[0].iter_mut().zip(inputs[0]) {
            *to = from.wrapping_add(1);
        }
        Ok(())
    }
}

impl Drop for Increment {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn increment(array: &Array, dropped: &Arc<AtomicUsize>) -> Result<Array> {
    let output = Output { shape: array.shape(), dtype: array.dtype() };
    let [result] = apply(Increment(Arc::clone(dropped)), &[array], [output])?;
    Ok(result)
}

fn bytes(values: &[u8]) -> Array {
    Array::from_slice(values, &[values.len() as i32]).unwrap()
}

#[test]
fn kernels_run_in_the_order_of_the_graph_and_are_dropped_with_it() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let once = increment(&bytes(&[1, 2, 3]), &dropped).unwrap();
    let twice = increment(&once, &dropped).unwrap();
    assert_eq!(twice.to_vec::<u8>().unwrap(), [3, 4, 5]);
    assert_eq!(once.to_vec::<u8>().unwrap(), [2, 3, 4]);
    drop((once, twice));
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
}

#[test]
fn operations_that_are_never_computed_drop_their_kernel() {
    let dropped = Arc::new(AtomicUsize::new(0));
    drop(increment(&bytes(&[1]), &dropped).unwrap());
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn types_that_no_kernel_makes_are_refused() {
    let array = bytes(&[1, 2]);
    let output = Output { shape: &[1], dtype: Dtype::Bool };
    assert!(apply(Halves, &[&array], [output]).is_err());
}

/// Splits its input into two results.
struct Halves;

impl Kernel for Halves {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let middle = inputs[0].len() / 2;
        outputs[0].copy_from_slice(&inputs[0][..middle]);
        outputs[1].copy_from_slice(&inputs[0][middle..]);
        Ok(())
    }
}

#[test]
fn several_results_take_part_in_graphs() {
    let values: Vec<f32> = (0..8).map(|value| value as f32).collect();
    let array = Array::from_slice(&values, &[8]).unwrap();
    let doubled = prim::add(&array, &array).unwrap();
    let [low, high] = apply(Halves, &[&doubled], [Output::float(&[4]), Output::float(&[2, 2])]).unwrap();
    let sum = prim::add(&low, &prim::reshape(&high, &[4]).unwrap()).unwrap();
    assert_eq!(sum.to_vec::<f32>().unwrap(), [8.0, 12.0, 16.0, 20.0]);
    assert_eq!(high.shape(), [2, 2]);
}

#[test]
fn inputs_with_gaps_are_refused() {
    let array = prim::transpose(&Array::from_slice(&[1f32, 2.0, 3.0, 4.0], &[2, 2]).unwrap()).unwrap();
    let [low, _high] = apply(Halves, &[&array], [Output::float(&[2]), Output::float(&[2])]).unwrap();
    let error = low.eval().unwrap_err();
    assert!(error.message().contains("gaps"), "{error}");
}

struct Failing(bool);

impl Kernel for Failing {
    fn run(&self, _inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        outputs[0].fill(0);
        assert!(!self.0, "a panic {}", "x".repeat(2000));
        Err(Error::internal("a failure"))
    }
}

#[test]
fn failures_and_panics_come_back_with_the_evaluation() {
    for (panics, said) in [(false, "a failure"), (true, "a panic xxx")] {
        let [result] = apply(Failing(panics), &[], [Output::float(&[1])]).unwrap();
        let error = eval([&result]).unwrap_err();
        assert_eq!(error.code(), Code::Internal);
        assert!(error.message().contains(said), "{error}");
        // The stream goes on.
        let dropped = Arc::new(AtomicUsize::new(0));
        assert_eq!(increment(&bytes(&[1]), &dropped).unwrap().to_vec::<u8>().unwrap(), [2]);
    }
}

/// Writes 0, once, and tells of it.
struct Count(Arc<AtomicUsize>);

impl Kernel for Count {
    fn run(&self, _inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        outputs.iter_mut().for_each(|output| output.fill(0));
        Ok(())
    }
}

#[test]
fn what_nobody_holds_is_not_computed() {
    let (run, other, dropped) = (Arc::default(), Arc::default(), Arc::default());
    let count = |run: &Arc<AtomicUsize>| {
        let [first, second] =
            apply(Count(Arc::clone(run)), &[], [Output::float(&[3]), Output::float(&[0])]).unwrap();
        (first, second)
    };
    // One whose result is used, one whose second result is held, one that nobody wants.
    let (used, _) = count(&run);
    let (_, held) = count(&run);
    drop(count(&other));
    let bytes = prim::astype(&used, Dtype::Uint8).unwrap();
    drop(used);
    let more = increment(&increment(&bytes, &dropped).unwrap(), &dropped).unwrap();
    assert!(!more.is_available().unwrap());
    assert_eq!((held.shape(), held.size(), held.byte_size(), held.dtype()), (&[0][..], 0, 0, Dtype::Float32));
    assert_eq!(more.to_vec::<u8>().unwrap(), [2, 2, 2]);
    held.eval().unwrap();
    assert!(more.is_available().unwrap() && more.clone().is_available().unwrap());
    assert_eq!((run.load(Ordering::SeqCst), other.load(Ordering::SeqCst)), (2, 0));
    drop((more, bytes, held));
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
}

/// Results that are passed on use little memory, and none that is still read.
#[test]
fn long_chains_pass_their_results_on() {
    let dropped = Arc::default();
    let mut values = vec![bytes(&[0, 100])];
    for index in 0..3000 {
        let next = increment(&values[values.len() - 1], &dropped).unwrap();
        if index % 100 != 0 {
            values.pop();
        }
        values.push(next);
    }
    // The newest first, while older ones are not arrays yet.
    for (index, value) in values.iter().enumerate().rev() {
        let count = if index == values.len() - 1 { 3000 } else { index * 100 };
        let expected = [count as u8, (count + 100) as u8];
        assert_eq!(value.to_vec::<u8>().unwrap(), expected, "{index}");
    }
    assert_eq!(values.len(), 31);
}

/// Adds its inputs.
struct Sum;

impl Kernel for Sum {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        for (index, to) in outputs[0].iter_mut().enumerate() {
            *to = inputs.iter().fold(0, |sum: u8, input| sum.wrapping_add(input[index]));
        }
        Ok(())
    }
}

#[test]
fn random_graphs_give_what_their_kernels_give_one_by_one() {
    let mut state = 7u64;
    let mut below = |end: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % end
    };
    for _ in 0..200 {
        let size = [1, 64, 200][below(3)];
        let first: Vec<u8> = (0..size).map(|index| index as u8).collect();
        let mut held = vec![(bytes(&first), first)];
        for _ in 0..60 {
            let chosen: Vec<usize> = (0..1 + below(3)).map(|_| below(held.len())).collect();
            let inputs: Vec<&Array> = chosen.iter().map(|index| &held[*index].0).collect();
            let output = Output { shape: &[size as i32], dtype: Dtype::Uint8 };
            let [result] = apply(Sum, &inputs, [output]).unwrap();
            let expected: Vec<u8> = (0..size)
                .map(|at| chosen.iter().fold(0u8, |sum, index| sum.wrapping_add(held[*index].1[at])))
                .collect();
            held.push((result, expected));
            match below(6) {
                0 => drop(held.swap_remove(below(held.len()))),
                1 => {
                    let (array, expected) = &held[below(held.len())];
                    assert_eq!(&array.to_vec::<u8>().unwrap(), expected);
                }
                2 => {
                    let (array, expected) = &held[below(held.len())];
                    let copy = (array.clone(), expected.clone());
                    held.push(copy);
                }
                _ => {}
            }
            if held.is_empty() {
                break;
            }
        }
        for (array, expected) in &held {
            assert_eq!(&array.to_vec::<u8>().unwrap(), expected);
        }
    }
}

#[test]
fn a_failure_reaches_what_depends_on_it_and_no_later_kernel() {
    let dropped = Arc::new(AtomicUsize::new(0));
    let failing = || apply(Failing(false), &[], [Output { shape: &[1], dtype: Dtype::Uint8 }]).unwrap();
    let [result] = failing();
    let after = increment(&result, &dropped).unwrap();
    assert!(after.eval().unwrap_err().message().contains("a failure"));
    let [result] = failing();
    drop(result);
    assert_eq!(increment(&bytes(&[4]), &dropped).unwrap().to_vec::<u8>().unwrap(), [5]);
    // What was forgotten with the thread's chain is no input of another.
    let [lost] = failing();
    super::chain::clear();
    assert!(apply(Sum, &[&lost], [Output { shape: &[1], dtype: Dtype::Uint8 }]).is_err());
    assert!(lost.eval().is_err() && prim::add(&lost, &lost).is_err() && eval([&lost]).is_err());
    drop(lost);
    let kept = increment(&bytes(&[6]), &dropped).unwrap();
    assert_eq!(kept.to_vec::<u8>().unwrap(), [7]);
}
