//! Kernels as operations: results, memory taken over, failures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::kernel::{Kernel, Output};
use super::primitive::apply;
use crate::base::{Code, Error, Result};
use crate::mlx::{Array, Dtype, eval, prim};

/// Adds one to every byte, and tells when it is dropped.
struct Increment(Arc<AtomicUsize>);

impl Kernel for Increment {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        for (to, from) in outputs[0].iter_mut().zip(inputs[0]) {
            *to = from + 1;
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
