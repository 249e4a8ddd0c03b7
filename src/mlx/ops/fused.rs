//! Whole steps of a layer as single operations, for results that need not be MLX's to the bit.
//!
//! Activations and accumulation are float32, and a row's result depends on that row alone: not on the rows beside it
//! nor on the number of threads. A weight that no kernel takes has not been packed; its step is then composed of
//! MLX's operations.

use super::linear::{Linear, Weight};
use super::packed::PackedWeight;
use super::pointwise::{add, gated};
use crate::base::{Error, Result};
use crate::mlx::kernels::activation::Activation;
use crate::mlx::kernels::arena::Stored;
use crate::mlx::kernels::bytes::{floats, floats_mut, words};
use crate::mlx::kernels::chain::apply;
use crate::mlx::kernels::kernel::{Kernel, Output};
use crate::mlx::kernels::linear::{Layout, Matrix, multiply, multiply_gated};
use crate::mlx::kernels::norm::{layer_norm, rms_norm};
use crate::mlx::kernels::{rows, scratch, threads, vocabulary};
use crate::mlx::{Array, Dtype, prim};

/// A normalisation of rows; gain and bias are float32 `[features]`.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    pub kind: NormKind,
    pub gain: &'a Array,
    pub bias: Option<&'a Array>,
    pub eps: f32,
}

/// By what rows are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    RootMeanSquare,
    /// The standard deviation, once the mean is taken away.
    Layer,
}

impl<'a> Norm<'a> {
    pub(super) fn form(self) -> NormForm {
        NormForm { kind: self.kind, biased: self.bias.is_some(), eps: self.eps }
    }

    pub(super) fn inputs(self) -> impl Iterator<Item = &'a Array> {
        [Some(self.gain), self.bias].into_iter().flatten()
    }
}

/// A norm as a kernel knows it; gain and, if there is one, bias are inputs.
#[derive(Clone, Copy)]
pub(super) struct NormForm {
    kind: NormKind,
    biased: bool,
    eps: f32,
}

impl NormForm {
    /// The norms of rows of `width` numbers, and the inputs behind gain and bias.
    pub(super) fn run<'a>(
        self,
        x: &[f32],
        width: usize,
        inputs: &'a [&'a [u8]],
        out: &mut [f32],
    ) -> Result<&'a [&'a [u8]]> {
        let (gain, rest) = inputs.split_first().ok_or_else(wrong_count)?;
        let gain = floats(gain)?;
        let (bias, rest) = match rest.split_first() {
            Some((bias, rest)) if self.biased => (Some(floats(bias)?), rest),
            _ => (None, rest),
        };
        let norm = |row: usize, out: &mut [f32]| {
            let x = &x[row * width..][..width];
            match self.kind {
                NormKind::RootMeanSquare => rms_norm(x, Some(gain), self.eps, out),
                NormKind::Layer => layer_norm(x, Some(gain), bias, self.eps, out),
            }
        };
        rows::each(&*threads::pool()?, out, width, &norm)?;
        Ok(rest)
    }
}

/// A product as a kernel knows it.
struct Product {
    layout: Layout,
    data: Stored,
    biased: bool,
}

impl Product {
    fn new(packed: &PackedWeight, biased: bool) -> Self {
        Product { layout: packed.layout(), data: packed.data().clone(), biased }
    }
}

/// What the kernels take of linear layers, and the biases as inputs.
fn products<'a>(linears: &[&'a Linear]) -> Option<(Vec<Product>, Vec<&'a Array>)> {
    let mut products = Vec::with_capacity(linears.len());
    let mut inputs = Vec::new();
    for linear in linears {
        let Weight::Packed(packed) = &linear.weight else { return None };
        products.push(Product::new(packed, linear.bias.is_some()));
        inputs.extend(&linear.bias);
    }
    Some((products, inputs))
}

/// The reverse of `products`.
fn matrices<'a>(products: &'a [Product], mut inputs: &[&'a [u8]]) -> Result<Vec<Matrix<'a>>> {
    let mut next = || match inputs.split_first() {
        Some((first, rest)) => {
            inputs = rest;
            Ok(*first)
        }
        None => Err(Error::internal("a kernel was given too few inputs")),
    };
    let mut matrices = Vec::with_capacity(products.len());
    for product in products {
        let bias = if product.biased { Some(floats(next()?)?) } else { None };
        matrices.push(Matrix { layout: &product.layout, data: product.data.bytes(), bias });
    }
    Ok(matrices)
}

/// `x` `[.., features]` with another number of features.
fn with_features(x: &Array, features: usize) -> Result<Vec<i32>> {
    let mut shape = x.shape().to_vec();
    match (shape.last_mut(), i32::try_from(features)) {
        (Some(last), Ok(features)) => *last = features,
        _ => return Err(Error::internal("a product without features")),
    }
    Ok(shape)
}

fn outputs(linears: &[&Linear]) -> usize {
    linears.iter().map(|linear| linear.weight.outputs() as usize).sum()
}

/// The products of `norm(x)` with each weight, one after the other along the last axis; without a norm, of `x`.
pub fn joined_products(x: &Array, norm: Option<Norm<'_>>, linears: &[&Linear]) -> Result<Array> {
    let Some((products, weights)) = products(linears) else {
        let x = normalized(x, norm)?;
        let products: Result<Vec<Array>> = linears.iter().map(|linear| linear.apply(&x)).collect();
        return prim::concatenate(&products?.iter().collect::<Vec<_>>(), -1);
    };
    let mut inputs = vec![x];
    inputs.extend(norm.into_iter().flat_map(Norm::inputs));
    inputs.extend(weights);
    let shape = with_features(x, outputs(linears))?;
    let [result] =
        apply(JoinedProducts { norm: norm.map(Norm::form), products }, &inputs, [Output::float(&shape)])?;
    Ok(result)
}

struct JoinedProducts {
    /// Its gain and bias come behind the first input.
    norm: Option<NormForm>,
    products: Vec<Product>,
}

impl Kernel for JoinedProducts {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let out = floats_mut(only(outputs)?)?;
        with_normalized(inputs, self.norm, features(&self.products), |x, rows, weights| {
            Ok(multiply(&*threads::pool()?, x, rows, &matrices(&self.products, weights)?, None, out)?)
        })
    }
}

/// `residual + x @ weight.T + bias`, with `residual` as wide as the product.
pub fn product_onto(x: &Array, linear: &Linear, residual: &Array) -> Result<Array> {
    let Some((products, weights)) = products(&[linear]) else {
        return add(residual, &linear.apply(x)?);
    };
    let mut inputs = vec![x, residual];
    inputs.extend(weights);
    let [result] = apply(ProductOnto { products }, &inputs, [Output::float(residual.shape())])?;
    Ok(result)
}

struct ProductOnto {
    products: Vec<Product>,
}

impl Kernel for ProductOnto {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let out = floats_mut(only(outputs)?)?;
        let [x, residual, weights @ ..] = inputs else { return Err(wrong_count()) };
        let (x, residual) = (floats(x)?, floats(residual)?);
        let rows = x.len() / features(&self.products);
        let matrices = matrices(&self.products, weights)?;
        Ok(multiply(&*threads::pool()?, x, rows, &matrices, Some(residual), out)?)
    }
}

/// `activation(norm(x) @ gate.T) * (norm(x) @ up.T)`, biases included.
pub fn gated_products(
    x: &Array,
    norm: Option<Norm<'_>>,
    gate: &Linear,
    up: &Linear,
    activation: Activation,
) -> Result<Array> {
    let Some((products, weights)) = products(&[gate, up]) else {
        let x = normalized(x, norm)?;
        return gated(&gate.apply(&x)?, &up.apply(&x)?, activation);
    };
    let mut inputs = vec![x];
    inputs.extend(norm.into_iter().flat_map(Norm::inputs));
    inputs.extend(weights);
    let shape = with_features(x, gate.weight.outputs() as usize)?;
    let kernel = GatedProducts { norm: norm.map(Norm::form), products, activation };
    let [result] = apply(kernel, &inputs, [Output::float(&shape)])?;
    Ok(result)
}

struct GatedProducts {
    /// Its gain and bias come behind the first input.
    norm: Option<NormForm>,
    /// Gate and up.
    products: Vec<Product>,
    activation: Activation,
}

impl Kernel for GatedProducts {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let out = floats_mut(only(outputs)?)?;
        with_normalized(inputs, self.norm, features(&self.products), |x, rows, weights| {
            let matrices = matrices(&self.products, weights)?;
            let [gate, up] = matrices.as_slice() else { return Err(wrong_count()) };
            Ok(multiply_gated(&*threads::pool()?, x, rows, gate, up, self.activation, out)?)
        })
    }
}

/// The product with a packed weight alone.
pub(super) fn product(x: &Array, packed: &PackedWeight, bias: Option<&Array>) -> Result<Array> {
    let products = vec![Product::new(packed, bias.is_some())];
    let mut inputs = vec![x];
    inputs.extend(bias);
    let shape = with_features(x, packed.outputs())?;
    let [result] = apply(JoinedProducts { norm: None, products }, &inputs, [Output::float(&shape)])?;
    Ok(result)
}

/// The rows of a packed table at `ids` `[batch, tokens]`.
pub(super) fn packed_rows(ids: &Array, table: &PackedWeight) -> Result<Array> {
    let width = i32::try_from(table.inputs()).map_err(|_| Error::internal("a table is too wide"))?;
    let shape = [ids.dim(0), ids.dim(1), width];
    let kernel = PackedRows { table: Product::new(table, false) };
    let [result] = apply(kernel, &[ids], [Output::float(&shape)])?;
    Ok(result)
}

struct PackedRows {
    table: Product,
}

impl Kernel for PackedRows {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let out = floats_mut(only(outputs)?)?;
        let [ids] = inputs else { return Err(wrong_count()) };
        let Product { layout, data, .. } = &self.table;
        for (id, row) in words(ids)?.iter().zip(out.chunks_exact_mut(layout.inputs())) {
            if *id as usize >= layout.outputs() {
                return Err(Error::internal(format!("there is no row {id} in a table")));
            }
            layout.row(data.bytes(), *id as usize, row);
        }
        Ok(())
    }
}

/// `norm(x)`, or `x` if there is none.
pub fn normalized(x: &Array, norm: Option<Norm<'_>>) -> Result<Array> {
    let Some(norm) = norm else { return Ok(x.clone()) };
    let inputs: Vec<&Array> = [x].into_iter().chain(norm.inputs()).collect();
    let kernel = Normalized { norm: norm.form(), width: width(x) };
    let [result] = apply(kernel, &inputs, [Output::float(x.shape())])?;
    Ok(result)
}

struct Normalized {
    norm: NormForm,
    width: usize,
}

impl Kernel for Normalized {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let out = floats_mut(only(outputs)?)?;
        let (x, rest) = inputs.split_first().ok_or_else(wrong_count)?;
        self.norm.run(floats(x)?, self.width, rest, out)?;
        Ok(())
    }
}

/// As `ops::argmax` for float32 scores `[1, vocabulary]`; and that score `[1]`, or NaN where any is NaN or ∞.
pub fn best(scores: &Array) -> Result<[Array; 2]> {
    apply(Best, &[scores], [Output { shape: &[1], dtype: Dtype::Uint32 }, Output::float(&[1])])
}

struct Best;

impl Kernel for Best {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let [scores] = inputs else { return Err(wrong_count()) };
        let scores = floats(scores)?;
        let [out, largest] = outputs else { return Err(wrong_count()) };
        let mut best = [0];
        vocabulary::argmax(&*threads::pool()?, scores, scores.len(), &mut best, floats_mut(largest)?)?;
        out.copy_from_slice(&best[0].to_ne_bytes());
        Ok(())
    }
}

/// As `ops::log_probabilities` for float32 scores `[1, vocabulary]`.
pub fn normalized_scores(scores: &Array) -> Result<[Array; 2]> {
    apply(NormalizedScores, &[scores], [Output::float(scores.shape()), Output::float(&[1])])
}

struct NormalizedScores;

impl Kernel for NormalizedScores {
    fn run(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let [out, sum] = outputs else { return Err(wrong_count()) };
        let (out, sum) = (floats_mut(out)?, floats_mut(sum)?);
        let [scores] = inputs else { return Err(wrong_count()) };
        let scores = floats(scores)?;
        vocabulary::log_sum_exp(&*threads::pool()?, scores, scores.len(), sum)?;
        for (out, score) in out.iter_mut().zip(scores) {
            *out = score - sum[0];
        }
        Ok(())
    }
}

/// Lends the normalised first input `[rows, features]` and the inputs behind it, gain and bias; without a norm the
/// first input as it is, and the inputs behind it.
fn with_normalized<T>(
    inputs: &[&[u8]],
    norm: Option<NormForm>,
    features: usize,
    work: impl FnOnce(&[f32], usize, &[&[u8]]) -> Result<T>,
) -> Result<T> {
    let (x, rest) = inputs.split_first().ok_or_else(wrong_count)?;
    let x = floats(x)?;
    let rows = x.len() / features;
    let Some(norm) = norm else { return work(x, rows, rest) };
    scratch::with(x.len(), |normal| {
        let rest = norm.run(x, features, rest, normal)?;
        work(normal, rows, rest)
    })
}

/// The length of the rows of `x`.
pub(super) fn width(x: &Array) -> usize {
    x.shape().last().map_or(1, |width| *width as usize)
}

fn features(products: &[Product]) -> usize {
    products.first().map_or(1, |product| product.layout.inputs())
}

pub(super) fn only<'a>(outputs: &'a mut [&mut [u8]]) -> Result<&'a mut [u8]> {
    match outputs {
        [output] => Ok(output),
        _ => Err(wrong_count()),
    }
}

pub(super) fn wrong_count() -> Error {
    Error::internal("a kernel was given another number of arrays than it takes")
}
