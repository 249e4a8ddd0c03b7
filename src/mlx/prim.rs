//! MLX's operations, one function each, with MLX's own shape checks as errors.
//!
//! Model code calls `ops`, not these: a kernel of ours replaces whole operations there.

use std::ffi::c_int;

use mlx_sys as sys;

use super::array::{Array, NULL};
use super::dtype::Dtype;
use super::error::check;
use super::stream::Stream;
use crate::base::Result;

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $function:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(a: &Array) -> Result<Array> {
            let stream = Stream::current();
            // SAFETY: the handles are valid for the call; the result goes to a valid out pointer.
            Array::made_by(|out| unsafe { sys::$function(out, a.raw(), stream) })
        })*
    };
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $function:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(a: &Array, b: &Array) -> Result<Array> {
            let stream = Stream::current();
            // SAFETY: the handles are valid for the call; the result goes to a valid out pointer.
            Array::made_by(|out| unsafe { sys::$function(out, a.raw(), b.raw(), stream) })
        })*
    };
}

unary! {
    negative => mlx_negative;
    erf => mlx_erf;
    exp => mlx_exp;
    floor => mlx_floor;
    /// The natural logarithm.
    log => mlx_log;
    sigmoid => mlx_sigmoid;
    sqrt => mlx_sqrt;
    square => mlx_square;
    tanh => mlx_tanh;
    /// Reverses the axes.
    transpose => mlx_transpose;
}

binary! {
    add => mlx_add;
    subtract => mlx_subtract;
    multiply => mlx_multiply;
    divide => mlx_divide;
    power => mlx_power;
    less => mlx_less;
    greater => mlx_greater;
    greater_equal => mlx_greater_equal;
    logical_and => mlx_logical_and;
    bitwise_and => mlx_bitwise_and;
    left_shift => mlx_left_shift;
    right_shift => mlx_right_shift;
    matmul => mlx_matmul;
    maximum => mlx_maximum;
}

/// `c + a @ b`.
pub fn addmm(c: &Array, a: &Array, b: &Array) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handles are valid for the call; the result goes to a valid out pointer.
    Array::made_by(|out| unsafe { sys::mlx_addmm(out, c.raw(), a.raw(), b.raw(), 1.0, 1.0, stream) })
}

pub fn reshape(a: &Array, shape: &[i32]) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle and the slice are valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_reshape(out, a.raw(), shape.as_ptr(), shape.len(), stream) })
}

pub fn transpose_axes(a: &Array, axes: &[i32]) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle and the slice are valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_transpose_axes(out, a.raw(), axes.as_ptr(), axes.len(), stream) })
}

pub fn expand_dims(a: &Array, axis: i32) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_expand_dims(out, a.raw(), axis, stream) })
}

pub fn astype(a: &Array, dtype: Dtype) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_astype(out, a.raw(), dtype.raw(), stream) })
}

pub fn zeros(shape: &[i32], dtype: Dtype) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the slice is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_zeros(out, shape.as_ptr(), shape.len(), dtype.raw(), stream) })
}

pub fn arange(start: f64, stop: f64, step: f64, dtype: Dtype) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: takes plain numbers.
    Array::made_by(|out| unsafe { sys::mlx_arange(out, start, stop, step, dtype.raw(), stream) })
}

/// The elements in row-major order without gaps; the array itself if they are so already.
pub fn contiguous(a: &Array) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_contiguous(out, a.raw(), false, stream) })
}

/// The block `[start, stop)` in each axis, as a view.
pub fn slice(a: &Array, start: &[i32], stop: &[i32]) -> Result<Array> {
    const ONES: [i32; 8] = [1; 8];
    let stream = Stream::current();
    let steps = &ONES[..start.len().min(ONES.len())];
    // SAFETY: the handle and the slices are valid for the call.
    Array::made_by(|out| unsafe {
        sys::mlx_slice(
            out,
            a.raw(),
            start.as_ptr(),
            start.len(),
            stop.as_ptr(),
            stop.len(),
            steps.as_ptr(),
            steps.len(),
            stream,
        )
    })
}

/// `a` with the block `[start, stop)` replaced by `update`.
pub fn slice_update(a: &Array, update: &Array, start: &[i32], stop: &[i32]) -> Result<Array> {
    const ONES: [i32; 8] = [1; 8];
    let stream = Stream::current();
    let steps = &ONES[..start.len().min(ONES.len())];
    // SAFETY: the handles and the slices are valid for the call.
    Array::made_by(|out| unsafe {
        sys::mlx_slice_update(
            out,
            a.raw(),
            update.raw(),
            start.as_ptr(),
            start.len(),
            stop.as_ptr(),
            stop.len(),
            steps.as_ptr(),
            steps.len(),
            stream,
        )
    })
}

pub fn concatenate(arrays: &[&Array], axis: i32) -> Result<Array> {
    let stream = Stream::current();
    let list = ArrayList::new(arrays)?;
    // SAFETY: the list is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_concatenate_axis(out, list.raw, axis, stream) })
}

/// The slices of `a` along `axis` at `indices`. Indices are not checked: MLX reads whatever lies
/// there, so they must be in range.
pub fn take(a: &Array, indices: &Array, axis: i32) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handles are valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_take_axis(out, a.raw(), indices.raw(), axis, stream) })
}

pub fn take_along(a: &Array, indices: &Array, axis: i32) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handles are valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_take_along_axis(out, a.raw(), indices.raw(), axis, stream) })
}

pub fn put_along(a: &Array, indices: &Array, values: &Array, axis: i32) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handles are valid for the call.
    Array::made_by(|out| unsafe {
        sys::mlx_put_along_axis(out, a.raw(), indices.raw(), values.raw(), axis, stream)
    })
}

/// `a` where `condition`, else `b`.
pub fn select(condition: &Array, a: &Array, b: &Array) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handles are valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_where(out, condition.raw(), a.raw(), b.raw(), stream) })
}

pub fn sum(a: &Array, axis: i32, keep_dims: bool) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_sum_axis(out, a.raw(), axis, keep_dims, stream) })
}

pub fn max(a: &Array, axis: i32, keep_dims: bool) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_max_axis(out, a.raw(), axis, keep_dims, stream) })
}

pub fn min(a: &Array, axis: i32, keep_dims: bool) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_min_axis(out, a.raw(), axis, keep_dims, stream) })
}

pub fn mean(a: &Array, axis: i32, keep_dims: bool) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_mean_axis(out, a.raw(), axis, keep_dims, stream) })
}

/// To whole numbers, ties to even.
pub fn round(a: &Array) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_round(out, a.raw(), 0, stream) })
}

/// Brings elements below `low` or above `high` there.
pub fn clip(a: &Array, low: &Array, high: &Array) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handles are valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_clip(out, a.raw(), low.raw(), high.raw(), stream) })
}

/// How many elements of the ascending `sorted` are less than each of `values`: uint32.
pub fn count_below(sorted: &Array, values: &Array) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handles are valid for the call; the side is NUL-terminated.
    Array::made_by(|out| unsafe {
        sys::mlx_searchsorted(out, sorted.raw(), values.raw(), c"left".as_ptr(), stream)
    })
}

/// The least index of the greatest element along `axis`: uint32.
pub fn argmax(a: &Array, axis: i32, keep_dims: bool) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_argmax_axis(out, a.raw(), axis, keep_dims, stream) })
}

pub fn logsumexp(a: &Array, axis: i32, keep_dims: bool) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_logsumexp_axis(out, a.raw(), axis, keep_dims, stream) })
}

/// Normalised exponentials along `axis`, with float32 sums.
pub fn softmax(a: &Array, axis: i32) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_softmax_axis(out, a.raw(), axis, true, stream) })
}

/// The product with Hadamard's matrix along the last axis, times one over the root of its size, which makes it its own
/// inverse.
pub fn hadamard_transform(a: &Array) -> Result<Array> {
    let stream = Stream::current();
    let scale = sys::mlx_optional_float { value: 0.0, has_value: false };
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_hadamard_transform(out, a.raw(), scale, stream) })
}

/// Ascending.
pub fn sort(a: &Array, axis: i32) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_sort_axis(out, a.raw(), axis, stream) })
}

/// Indices that put the `kth` least element in its place, the lesser before and the greater
/// after it in any order.
pub fn argpartition(a: &Array, kth: i32, axis: i32) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_argpartition_axis(out, a.raw(), kth, axis, stream) })
}

/// Cumulative sum; `reverse` sums from the end, and without `inclusive` an element is not part of
/// its own sum.
pub fn cumsum(a: &Array, axis: i32, reverse: bool, inclusive: bool) -> Result<Array> {
    let stream = Stream::current();
    let dtype = sys::mlx_optional_dtype { value: Dtype::Float32.raw(), has_value: false };
    // SAFETY: the handle is valid for the call.
    Array::made_by(|out| unsafe {
        sys::mlx_cumsum_axis(out, a.raw(), axis, reverse, inclusive, dtype, stream)
    })
}

pub(super) fn some(value: u32) -> sys::mlx_optional_int {
    sys::mlx_optional_int { value: value as c_int, has_value: true }
}

/// `x @ w.T` (or `x @ w`) with `w` in affine groups along its rows.
pub fn quantized_matmul(
    x: &Array,
    packed: &Array,
    scales: &Array,
    biases: &Array,
    transpose: bool,
    group: u32,
    bits: u32,
) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handles are valid for the call; the mode is NUL-terminated.
    Array::made_by(|out| unsafe {
        sys::mlx_quantized_matmul(
            out,
            x.raw(),
            packed.raw(),
            scales.raw(),
            biases.raw(),
            transpose,
            some(group),
            some(bits),
            c"affine".as_ptr(),
            stream,
        )
    })
}

/// The floats that affine groups stand for, in the type of the scales.
pub fn dequantize(packed: &Array, scales: &Array, biases: &Array, group: u32, bits: u32) -> Result<Array> {
    let stream = Stream::current();
    let dtype = sys::mlx_optional_dtype { value: Dtype::Float32.raw(), has_value: false };
    // SAFETY: the handles are valid for the call; the mode is NUL-terminated.
    Array::made_by(|out| unsafe {
        sys::mlx_dequantize(
            out,
            packed.raw(),
            scales.raw(),
            biases.raw(),
            some(group),
            some(bits),
            c"affine".as_ptr(),
            NULL,
            dtype,
            stream,
        )
    })
}

/// Affine groups along the last axis: packed words, scales, biases.
pub fn quantize(w: &Array, group: u32, bits: u32) -> Result<[Array; 3]> {
    let stream = Stream::current();
    let mut list = ArrayList::empty();
    // SAFETY: the handle is valid for the call; the results go to a valid list.
    check(unsafe {
        sys::mlx_quantize(&mut list.raw, w.raw(), some(group), some(bits), c"affine".as_ptr(), NULL, stream)
    })?;
    Ok([list.get(0)?, list.get(1)?, list.get(2)?])
}

/// `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` along the last axis.
pub fn layer_norm(x: &Array, weight: Option<&Array>, bias: Option<&Array>, eps: f32) -> Result<Array> {
    let stream = Stream::current();
    let (weight, bias) = (weight.map_or(NULL, Array::raw), bias.map_or(NULL, Array::raw));
    // SAFETY: the handles are valid for the call; no weight or bias is a null handle.
    Array::made_by(|out| unsafe { sys::mlx_fast_layer_norm(out, x.raw(), weight, bias, eps, stream) })
}

pub fn rms_norm(x: &Array, weight: &Array, eps: f32) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handles are valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_fast_rms_norm(out, x.raw(), weight.raw(), eps, stream) })
}

/// Rotates the first `dims` of the last axis by position (second axis from the end, from
/// `offset`). Either `base` or `freqs` gives the frequencies.
pub fn rope(
    x: &Array,
    dims: i32,
    traditional: bool,
    base: Option<f32>,
    scale: f32,
    offset: i32,
    freqs: Option<&Array>,
) -> Result<Array> {
    let stream = Stream::current();
    let base = sys::mlx_optional_float { value: base.unwrap_or(0.0), has_value: base.is_some() };
    let freqs = freqs.map_or(NULL, Array::raw);
    // SAFETY: the handles are valid for the call; an empty one stands for no frequencies.
    Array::made_by(|out| unsafe {
        sys::mlx_fast_rope(out, x.raw(), dims, traditional, base, scale, offset, freqs, stream)
    })
}

/// What a query may attend.
#[derive(Clone, Debug)]
pub enum Mask {
    /// Every key.
    None,
    /// Keys up to its own position; the last query's is the last key.
    Causal,
    /// Booleans or addends, broadcast to `[batch, heads, queries, keys]`.
    Array(Array),
}

/// `softmax(q @ k.T * scale + mask) @ v` for `[batch, heads, tokens, dims]`; queries may have a
/// multiple of the keys' heads.
pub fn scaled_dot_product_attention(
    queries: &Array,
    keys: &Array,
    values: &Array,
    scale: f32,
    mask: &Mask,
) -> Result<Array> {
    let stream = Stream::current();
    let (mode, array) = match mask {
        Mask::None => (c"", NULL),
        Mask::Causal => (c"causal", NULL),
        Mask::Array(array) => (c"", array.raw()),
    };
    // SAFETY: the handles are valid for the call, empty ones stand for nothing, and the mode is
    // NUL-terminated.
    Array::made_by(|out| unsafe {
        sys::mlx_fast_scaled_dot_product_attention(
            out,
            queries.raw(),
            keys.raw(),
            values.raw(),
            scale,
            mode.as_ptr(),
            array,
            NULL,
            false,
            stream,
        )
    })
}

/// A key of MLX's counter-based generator.
pub fn random_key(seed: u64) -> Result<Array> {
    super::error::init();
    // SAFETY: takes a plain number.
    Array::made_by(|out| unsafe { sys::mlx_random_key(out, seed) })
}

/// Draws indices along `axis` with probabilities `softmax(logits)`: uint32.
pub fn random_categorical(logits: &Array, axis: i32, key: &Array) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handles are valid for the call.
    Array::made_by(|out| unsafe { sys::mlx_random_categorical(out, logits.raw(), axis, key.raw(), stream) })
}

/// Computes the arrays and waits for them.
pub fn eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    let list = ArrayList::collect(arrays)?;
    // SAFETY: the list is valid for the call.
    check(unsafe { sys::mlx_eval(list.raw) })
}

/// Dispatches the computation of the arrays without waiting for it.
pub fn async_eval<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<()> {
    let list = ArrayList::collect(arrays)?;
    // SAFETY: the list is valid for the call.
    check(unsafe { sys::mlx_async_eval(list.raw) })
}

/// mlx-c's vector of arrays.
struct ArrayList {
    raw: sys::mlx_vector_array,
}

impl ArrayList {
    fn empty() -> Self {
        super::error::init();
        // SAFETY: takes no argument.
        ArrayList { raw: unsafe { sys::mlx_vector_array_new() } }
    }

    fn new(arrays: &[&Array]) -> Result<Self> {
        Self::collect(arrays.iter().copied())
    }

    fn collect<'a>(arrays: impl IntoIterator<Item = &'a Array>) -> Result<Self> {
        let list = Self::empty();
        for array in arrays {
            // SAFETY: both handles are valid, or MLX says that the array's is empty; the list takes a reference of
            // its own.
            check(unsafe { sys::mlx_vector_array_append_value(list.raw, array.raw()) })?;
        }
        Ok(list)
    }

    fn get(&self, index: usize) -> Result<Array> {
        // SAFETY: the list is valid; MLX checks the index.
        Array::made_by(|out| unsafe { sys::mlx_vector_array_get(out, self.raw, index) })
    }
}

impl Drop for ArrayList {
    fn drop(&mut self) {
        // SAFETY: the list is owned by this value and freed once.
        unsafe { sys::mlx_vector_array_free(self.raw) };
    }
}
