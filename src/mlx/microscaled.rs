//! MLX's modes beside affine groups: small floats, whose groups share a scale of 8 bits.

use std::ffi::CStr;

use mlx_sys as sys;

use super::array::{Array, NULL};
use super::dtype::Dtype;
use super::prim::some;
use super::stream::Stream;
use crate::base::Result;

/// A mode of quantisation beside affine groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Microscaled {
    /// E2M1, an E8M0 scale for 32.
    Mxfp4,
    /// E2M1, an E4M3 scale for 16.
    Nvfp4,
    /// E4M3, an E8M0 scale for 32.
    Mxfp8,
}

impl Microscaled {
    fn name(self) -> &'static CStr {
        match self {
            Microscaled::Mxfp4 => c"mxfp4",
            Microscaled::Nvfp4 => c"nvfp4",
            Microscaled::Mxfp8 => c"mxfp8",
        }
    }

    /// Bits of an element.
    pub fn bits(self) -> u32 {
        match self {
            Microscaled::Mxfp4 | Microscaled::Nvfp4 => 4,
            Microscaled::Mxfp8 => 8,
        }
    }

    /// Elements with one scale.
    pub fn group(self) -> u32 {
        match self {
            Microscaled::Mxfp4 | Microscaled::Mxfp8 => 32,
            Microscaled::Nvfp4 => 16,
        }
    }
}

/// `x @ w.T` with `w` in small floats.
pub fn matmul(x: &Array, packed: &Array, scales: &Array, mode: Microscaled) -> Result<Array> {
    let stream = Stream::current();
    // SAFETY: the handles are valid for the call, an empty one stands for no biases; the mode is NUL-terminated.
    Array::made_by(|out| unsafe {
        sys::mlx_quantized_matmul(
            out,
            x.raw(),
            packed.raw(),
            scales.raw(),
            NULL,
            true,
            some(mode.group()),
            some(mode.bits()),
            mode.name().as_ptr(),
            stream,
        )
    })
}

/// The values of small floats: bfloat16, as MLX chooses.
pub fn values(packed: &Array, scales: &Array, mode: Microscaled) -> Result<Array> {
    let stream = Stream::current();
    let dtype = sys::mlx_optional_dtype { value: Dtype::Float32.raw(), has_value: false };
    // SAFETY: the handles are valid for the call, empty ones stand for nothing; the mode is NUL-terminated.
    Array::made_by(|out| unsafe {
        sys::mlx_dequantize(
            out,
            packed.raw(),
            scales.raw(),
            NULL,
            some(mode.group()),
            some(mode.bits()),
            mode.name().as_ptr(),
            NULL,
            dtype,
            stream,
        )
    })
}
