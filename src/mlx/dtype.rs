//! Element types.

use mlx_sys as sys;

/// An element type of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Float16,
    Float32,
    Float64,
    Bfloat16,
}

impl Dtype {
    pub fn size(self) -> usize {
        match self {
            Dtype::Bool | Dtype::Uint8 | Dtype::Int8 => 1,
            Dtype::Uint16 | Dtype::Int16 | Dtype::Float16 | Dtype::Bfloat16 => 2,
            Dtype::Uint32 | Dtype::Int32 | Dtype::Float32 => 4,
            Dtype::Uint64 | Dtype::Int64 | Dtype::Float64 => 8,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Dtype::Float16 | Dtype::Float32 | Dtype::Float64 | Dtype::Bfloat16)
    }

    pub fn name(self) -> &'static str {
        match self {
            Dtype::Bool => "bool",
            Dtype::Uint8 => "uint8",
            Dtype::Uint16 => "uint16",
            Dtype::Uint32 => "uint32",
            Dtype::Uint64 => "uint64",
            Dtype::Int8 => "int8",
            Dtype::Int16 => "int16",
            Dtype::Int32 => "int32",
            Dtype::Int64 => "int64",
            Dtype::Float16 => "float16",
            Dtype::Float32 => "float32",
            Dtype::Float64 => "float64",
            Dtype::Bfloat16 => "bfloat16",
        }
    }

    pub(super) fn raw(self) -> sys::mlx_dtype {
        match self {
            Dtype::Bool => sys::mlx_dtype__MLX_BOOL,
            Dtype::Uint8 => sys::mlx_dtype__MLX_UINT8,
            Dtype::Uint16 => sys::mlx_dtype__MLX_UINT16,
            Dtype::Uint32 => sys::mlx_dtype__MLX_UINT32,
            Dtype::Uint64 => sys::mlx_dtype__MLX_UINT64,
            Dtype::Int8 => sys::mlx_dtype__MLX_INT8,
            Dtype::Int16 => sys::mlx_dtype__MLX_INT16,
            Dtype::Int32 => sys::mlx_dtype__MLX_INT32,
            Dtype::Int64 => sys::mlx_dtype__MLX_INT64,
            Dtype::Float16 => sys::mlx_dtype__MLX_FLOAT16,
            Dtype::Float32 => sys::mlx_dtype__MLX_FLOAT32,
            Dtype::Float64 => sys::mlx_dtype__MLX_FLOAT64,
            Dtype::Bfloat16 => sys::mlx_dtype__MLX_BFLOAT16,
        }
    }

    /// `None` for complex numbers, which nothing here makes.
    pub(super) fn from_raw(raw: sys::mlx_dtype) -> Option<Self> {
        Some(match raw {
            sys::mlx_dtype__MLX_BOOL => Dtype::Bool,
            sys::mlx_dtype__MLX_UINT8 => Dtype::Uint8,
            sys::mlx_dtype__MLX_UINT16 => Dtype::Uint16,
            sys::mlx_dtype__MLX_UINT32 => Dtype::Uint32,
            sys::mlx_dtype__MLX_UINT64 => Dtype::Uint64,
            sys::mlx_dtype__MLX_INT8 => Dtype::Int8,
            sys::mlx_dtype__MLX_INT16 => Dtype::Int16,
            sys::mlx_dtype__MLX_INT32 => Dtype::Int32,
            sys::mlx_dtype__MLX_INT64 => Dtype::Int64,
            sys::mlx_dtype__MLX_FLOAT16 => Dtype::Float16,
            sys::mlx_dtype__MLX_FLOAT32 => Dtype::Float32,
            sys::mlx_dtype__MLX_FLOAT64 => Dtype::Float64,
            sys::mlx_dtype__MLX_BFLOAT16 => Dtype::Bfloat16,
            _ => return None,
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Host numbers that have an element type. Sealed: reads and writes reinterpret bytes, so a type
/// here must have no padding and accept any bit pattern.
pub trait Element: Copy + sealed::Sealed + 'static {
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($host:ty => $dtype:ident),* $(,)?) => {
        $(impl sealed::Sealed for $host {}
        impl Element for $host {
            const DTYPE: Dtype = Dtype::$dtype;
        })*
    };
}

elements! {
    u8 => Uint8, u16 => Uint16, u32 => Uint32, u64 => Uint64,
    i8 => Int8, i16 => Int16, i32 => Int32, i64 => Int64,
    f32 => Float32, f64 => Float64, half::f16 => Float16, half::bf16 => Bfloat16,
}
