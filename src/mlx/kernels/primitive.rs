//! Kernels as operations of MLX's: lazy, in the order of the graph, run on the stream's thread.
//!
//! `primitive.cpp` is the other half. A kernel is a Rust value that goes with its operation and is
//! dropped with it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::slice;

use mlx_sys as sys;

use super::kernel::{Kernel, Output};
use crate::base::{Error, Result, panics};
use crate::mlx::array::Array;
use crate::mlx::dtype::Dtype;
use crate::mlx::stream::Stream;

/// The results of `kernel`, not computed yet. Inputs must lie in memory without gaps once they are
/// computed; it fails then otherwise.
pub(super) fn apply(
    kernel: Box<dyn Kernel>,
    inputs: &[&Array],
    outputs: &[Output<'_>],
) -> Result<Vec<Array>> {
    let mut specs = Vec::with_capacity(outputs.len());
    for output in outputs {
        specs.push(RawSpec {
            shape: output.shape.as_ptr(),
            rank: output.shape.len(),
            dtype: number_of(output.dtype)?,
        });
    }
    let contexts: Vec<*const c_void> = inputs.iter().map(|array| array.raw().ctx.cast_const()).collect();
    if contexts.iter().any(|context| context.is_null()) {
        return Err(Error::internal("a kernel was given a result of others that failed"));
    }
    let mut results = vec![std::ptr::null_mut::<c_void>(); outputs.len()];
    let mut message = [0 as c_char; 512];
    let stream = Stream::current();
    // SAFETY: the table lives as long as the process; the kernel is given up to the other side, which
    // drops it through the table; all pointers are valid for the call and their counts; the contexts
    // are those of valid handles, and the results become handles that own theirs.
    let code = unsafe {
        mlxgen_kernel_apply(
            &TABLE,
            Box::into_raw(Box::new(kernel)).cast(),
            stream.ctx,
            contexts.as_ptr(),
            contexts.len(),
            specs.as_ptr(),
            specs.len(),
            results.as_mut_ptr(),
            message.as_mut_ptr(),
            message.len(),
        )
    };
    if code != 0 {
        // SAFETY: the other side ends its message with a NUL within the buffer, which began as zeros.
        let text = unsafe { CStr::from_ptr(message.as_ptr()) };
        return Err(Error::internal(text.to_string_lossy().into_owned()));
    }
    results.into_iter().map(|ctx| Array::from_raw(sys::mlx_array { ctx })).collect()
}

/// Whether kernels can make arrays of these types.
pub(super) fn can_make(outputs: &[Output<'_>]) -> bool {
    outputs.iter().all(|output| number_of(output.dtype).is_ok())
}

/// A failed run on the stream's thread comes back with the call that waits for it, as a text.
fn number_of(dtype: Dtype) -> Result<i32> {
    match dtype {
        Dtype::Uint8 => Ok(0),
        Dtype::Uint32 => Ok(1),
        Dtype::Float32 => Ok(2),
        Dtype::Float16 => Ok(3),
        Dtype::Bfloat16 => Ok(4),
        other => Err(Error::internal(format!("no kernel makes arrays of {}", other.name()))),
    }
}

#[repr(C)]
struct RawInput {
    data: *const c_void,
    bytes: usize,
}

#[repr(C)]
struct RawOutput {
    data: *mut c_void,
    bytes: usize,
}

#[repr(C)]
struct RawTable {
    run: unsafe extern "C" fn(
        *const c_void,
        *const RawInput,
        usize,
        *const RawOutput,
        usize,
        *mut c_char,
        usize,
    ) -> c_int,
    drop: unsafe extern "C" fn(*const c_void),
}

#[repr(C)]
struct RawSpec {
    shape: *const i32,
    rank: usize,
    dtype: i32,
}

unsafe extern "C" {
    fn mlxgen_kernel_apply(
        table: *const RawTable,
        kernel: *const c_void,
        stream: *const c_void,
        inputs: *const *const c_void,
        input_count: usize,
        outputs: *const RawSpec,
        output_count: usize,
        results: *mut *mut c_void,
        message: *mut c_char,
        capacity: usize,
    ) -> c_int;
}

static TABLE: RawTable = RawTable { run: run_kernel, drop: drop_kernel };

/// On the thread of MLX's stream. Never unwinds.
unsafe extern "C" fn run_kernel(
    kernel: *const c_void,
    inputs: *const RawInput,
    input_count: usize,
    outputs: *const RawOutput,
    output_count: usize,
    message: *mut c_char,
    capacity: usize,
) -> c_int {
    let done = panics::catch("a kernel", || {
        // SAFETY: the pointer is the one that `apply` gave up and is not dropped before the call ends;
        // kernels may be used from any thread.
        let kernel = unsafe { &*kernel.cast::<Box<dyn Kernel>>() };
        // SAFETY: the other side passes that many entries.
        let (inputs, outputs) = unsafe { (entries(inputs, input_count), entries(outputs, output_count)) };
        let inputs: Vec<&[u8]> = inputs
            .iter()
            // SAFETY: computed arrays, which never change and which MLX keeps until the run ends.
            .map(|input| unsafe { bytes(input.data.cast(), input.bytes) })
            .collect();
        let mut outputs: Vec<&mut [u8]> = outputs
            .iter()
            // SAFETY: buffers that MLX allocated for these results: nothing else reads or writes them until
            // the run ends. Their content is whatever the allocator left there.
            .map(|output| unsafe { bytes_mut(output.data.cast(), output.bytes) })
            .collect();
        kernel.run(&inputs, &mut outputs)
    });
    let Err(error) = done else { return 0 };
    let text = error.message().as_bytes();
    let length = text.len().min(capacity.saturating_sub(1));
    if capacity > 0 {
        // SAFETY: the buffer has room for `capacity` bytes.
        unsafe {
            message.copy_from_nonoverlapping(text.as_ptr().cast(), length);
            *message.add(length) = 0;
        }
    }
    1
}

unsafe extern "C" fn drop_kernel(kernel: *const c_void) {
    panics::quietly("the end of a kernel", || {
        // SAFETY: the pointer came from `Box::into_raw` in `apply`, and the other side drops it once.
        drop(unsafe { Box::from_raw(kernel.cast::<Box<dyn Kernel>>().cast_mut()) });
    });
}

/// # Safety
/// `data` points to `count` entries that live as long as the result.
unsafe fn entries<'a, T>(data: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(data, count) }
}

/// # Safety
/// `data` is null or points to `count` bytes that nobody writes while the result lives.
unsafe fn bytes<'a>(data: *const u8, count: usize) -> &'a [u8] {
    match NonNull::new(data.cast_mut()) {
        // SAFETY: the caller's promise.
        Some(data) if count > 0 => unsafe { slice::from_raw_parts(data.as_ptr(), count) },
        _ => &[],
    }
}

/// # Safety
/// `data` is null or points to `count` bytes that nobody else reads or writes while the result lives.
unsafe fn bytes_mut<'a>(data: *mut u8, count: usize) -> &'a mut [u8] {
    match NonNull::new(data) {
        // SAFETY: the caller's promise.
        Some(data) if count > 0 => unsafe { slice::from_raw_parts_mut(data.as_ptr(), count) },
        _ => &mut [],
    }
}
