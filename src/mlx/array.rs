//! The array handle: an immutable, lazily computed value.

use std::ffi::c_int;
use std::fmt;
use std::rc::Rc;
use std::slice;

use mlx_sys as sys;

use super::dtype::{Dtype, Element};
use super::error::{self, check};
use super::kernels::chain::Later;
use crate::base::{Error, Result};

/// A handle to an MLX array. Cloning copies the handle, not the data.
///
/// Not `Send`: arrays are lazy graphs bound to their thread's stream.
///
/// ```compile_fail
/// fn sendable<T: Send>() {}
/// sendable::<mlxgen::mlx::Array>();
/// ```
pub struct Array {
    value: Value,
}

enum Value {
    /// A handle of MLX's, which this value owns.
    Made(sys::mlx_array),
    /// A result of a kernel that MLX does not know of yet.
    Later(Rc<Later>),
}

/// What operations without a result in this place get.
pub(super) const NULL: sys::mlx_array = sys::mlx_array { ctx: std::ptr::null_mut() };

impl Array {
    /// Runs a function of mlx-c that stores its result through the pointer.
    #[inline]
    pub(super) fn made_by(make: impl FnOnce(*mut sys::mlx_array) -> c_int) -> Result<Array> {
        let mut raw = NULL;
        let code = make(&mut raw);
        // Owned before the code is looked at.
        let array = Array { value: Value::Made(raw) };
        check(code)?;
        Ok(array)
    }

    pub(super) fn from_raw(raw: sys::mlx_array) -> Result<Array> {
        if raw.ctx.is_null() { Err(error::take()) } else { Ok(Array { value: Value::Made(raw) }) }
    }

    pub(super) fn from_later(later: Rc<Later>) -> Array {
        Array { value: Value::Later(later) }
    }

    /// What MLX does not know of yet, if it is that.
    pub(super) fn later(&self) -> Option<&Rc<Later>> {
        match &self.value {
            Value::Later(later) if later.made().is_none() => Some(later),
            Value::Later(_) | Value::Made(_) => None,
        }
    }

    /// MLX's handle, which is made now if there is none yet. Empty if that fails: MLX refuses it.
    #[inline]
    pub(super) fn raw(&self) -> sys::mlx_array {
        match &self.value {
            Value::Made(raw) => *raw,
            Value::Later(later) => later.array().map_or(NULL, Array::raw),
        }
    }

    /// Copies `bytes`, in row-major order.
    pub fn from_bytes(dtype: Dtype, shape: &[i32], bytes: &[u8]) -> Result<Array> {
        error::init();
        let wanted = byte_size(dtype, shape)?;
        if wanted != bytes.len() {
            return Err(Error::internal(format!(
                "{} bytes were given for an array {shape:?} of {}, which takes {wanted}",
                bytes.len(),
                dtype.name()
            )));
        }
        // SAFETY: shape and bytes are valid for their lengths, and the bytes are exactly those of
        // the shape; MLX copies them before it returns.
        let raw = unsafe {
            sys::mlx_array_new_data(bytes.as_ptr().cast(), shape.as_ptr(), rank(shape), dtype.raw())
        };
        Array::from_raw(raw)
    }

    /// Copies `values`, in row-major order.
    pub fn from_slice<T: Element>(values: &[T], shape: &[i32]) -> Result<Array> {
        // SAFETY: `Element` is sealed to numbers without padding, so all bytes are initialised.
        let bytes = unsafe { slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) };
        Array::from_bytes(T::DTYPE, shape, bytes)
    }

    /// A float32 scalar.
    pub fn scalar(value: f32) -> Result<Array> {
        error::init();
        // SAFETY: takes a plain number.
        Array::from_raw(unsafe { sys::mlx_array_new_float32(value) })
    }

    pub fn shape(&self) -> &[i32] {
        let raw = match &self.value {
            Value::Made(raw) => *raw,
            Value::Later(later) => return later.shape(),
        };
        // SAFETY: the handle is valid; MLX returns a pointer to `ndim` sizes that lives as long as
        // the array does, and an array's shape never changes.
        unsafe {
            let rank = sys::mlx_array_ndim(raw);
            if rank == 0 {
                return &[];
            }
            slice::from_raw_parts(sys::mlx_array_shape(raw), rank)
        }
    }

    /// The size along `axis`; negative axes count from the end. Zero if there is no such axis.
    pub fn dim(&self, axis: i32) -> i32 {
        let shape = self.shape();
        let index = if axis < 0 { axis + shape.len() as i32 } else { axis };
        usize::try_from(index).ok().and_then(|index| shape.get(index)).copied().unwrap_or(0)
    }

    pub fn dtype(&self) -> Dtype {
        let raw = match &self.value {
            Value::Made(raw) => *raw,
            Value::Later(later) => return later.dtype(),
        };
        // SAFETY: the handle is valid.
        let raw = unsafe { sys::mlx_array_dtype(raw) };
        // Complex arrays are never made here; a byte view is the least wrong answer for one.
        Dtype::from_raw(raw).unwrap_or(Dtype::Uint8)
    }

    /// The number of elements.
    pub fn size(&self) -> usize {
        match &self.value {
            // SAFETY: the handle is valid.
            Value::Made(raw) => unsafe { sys::mlx_array_size(*raw) },
            Value::Later(later) => later.bytes() / later.dtype().size(),
        }
    }

    /// Bytes of the elements.
    pub fn byte_size(&self) -> usize {
        match &self.value {
            // SAFETY: the handle is valid.
            Value::Made(raw) => unsafe { sys::mlx_array_nbytes(*raw) },
            Value::Later(later) => later.bytes(),
        }
    }

    /// Computes the array and waits for it.
    pub fn eval(&self) -> Result<()> {
        if let Value::Later(later) = &self.value {
            later.array()?;
        }
        // SAFETY: the handle is valid, or MLX says that it is empty.
        check(unsafe { sys::mlx_array_eval(self.raw()) })
    }

    /// Whether the value has been computed.
    pub fn is_available(&self) -> Result<bool> {
        if self.later().is_some() {
            return Ok(false);
        }
        let mut available = false;
        // SAFETY: the handle is valid and the flag a valid out pointer.
        check(unsafe { sys::_mlx_array_is_available(&mut available, self.raw()) })?;
        Ok(available)
    }

    /// Whether the elements lie in row-major order without gaps. Only known once computed.
    pub(super) fn is_row_contiguous(&self) -> Result<bool> {
        let mut contiguous = false;
        // SAFETY: the handle is valid and the flag a valid out pointer.
        check(unsafe { sys::_mlx_array_is_row_contiguous(&mut contiguous, self.raw()) })?;
        Ok(contiguous)
    }

    /// The only element of an array of size one, computed if necessary.
    pub fn item<T: Element>(&self) -> Result<T> {
        if self.size() != 1 {
            return Err(Error::internal(format!("an item was asked of an array {:?}", self.shape())));
        }
        self.read(|values| values[0])
    }

    /// All elements in row-major order, computed and made contiguous if necessary.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.read(<[T]>::to_vec)
    }

    /// Lends the elements in row-major order to `reader`.
    pub fn read<T: Element, R>(&self, reader: impl FnOnce(&[T]) -> R) -> Result<R> {
        if self.dtype() != T::DTYPE {
            return Err(Error::internal(format!(
                "{} were asked of an array of {}",
                T::DTYPE.name(),
                self.dtype().name()
            )));
        }
        self.eval()?;
        if self.size() == 0 {
            return Ok(reader(&[]));
        }
        if !self.is_row_contiguous()? {
            let contiguous = super::prim::contiguous(self)?;
            contiguous.eval()?;
            return contiguous.read(reader);
        }
        let data = self.data()?.cast::<T>();
        if data.is_aligned() {
            // SAFETY: the array is computed and row-contiguous, so `size` elements of the checked
            // type start at `data`; MLX never changes a computed array, and `self` keeps it alive.
            Ok(reader(unsafe { slice::from_raw_parts(data, self.size()) }))
        } else {
            // Views may start anywhere that their element size allows; this is for the rest.
            // SAFETY: as above, read without the need of alignment.
            let values: Vec<T> =
                (0..self.size()).map(|index| unsafe { data.add(index).read_unaligned() }).collect();
            Ok(reader(&values))
        }
    }

    /// The bytes of the elements in row-major order. Fails for a view that lies in memory otherwise.
    #[cfg(test)]
    pub(super) fn row_major_bytes(&self) -> Result<&[u8]> {
        self.eval()?;
        if self.size() == 0 {
            return Ok(&[]);
        }
        if !self.is_row_contiguous()? {
            return Err(Error::internal(format!("{self:?} is a view of scattered elements")));
        }
        // SAFETY: the array is computed and row-contiguous, so that many bytes start at `data`; MLX
        // never changes a computed array while a handle to it lives, which `self` is.
        Ok(unsafe { slice::from_raw_parts(self.data()?, self.byte_size()) })
    }

    /// The address of the first element of a computed array.
    pub(super) fn data(&self) -> Result<*const u8> {
        // SAFETY: the handle is valid; MLX returns the address, typed as asked, without a look at
        // the element type.
        let data = unsafe { sys::mlx_array_data_uint8(self.raw()) };
        if data.is_null() { Err(Error::internal("an array has no data")) } else { Ok(data) }
    }
}

impl Clone for Array {
    fn clone(&self) -> Self {
        let raw = match &self.value {
            Value::Made(raw) => *raw,
            Value::Later(later) => return Array::from_later(Rc::clone(later)),
        };
        let mut copy = NULL;
        // SAFETY: the handle is valid; the empty one receives a new reference.
        let code = unsafe { sys::mlx_array_set(&mut copy, raw) };
        // Only an allocation of a few bytes can fail there, which Rust code treats the same way.
        assert!(code == 0, "no memory for an array handle");
        Array { value: Value::Made(copy) }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if let Value::Made(raw) = self.value
            && !raw.ctx.is_null()
        {
            // SAFETY: the handle is owned by this value and freed once.
            unsafe { sys::mlx_array_free(raw) };
        }
    }
}

impl fmt::Debug for Array {
    /// Shape and type; the values may not exist yet.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} {:?})", self.dtype().name(), self.shape())
    }
}

pub(super) fn rank(shape: &[i32]) -> c_int {
    shape.len() as c_int
}

/// Bytes of an array of that shape.
pub(super) fn byte_size(dtype: Dtype, shape: &[i32]) -> Result<usize> {
    shape
        .iter()
        .try_fold(dtype.size(), |bytes, dim| bytes.checked_mul(usize::try_from(*dim).ok()?))
        .ok_or_else(|| Error::internal(format!("no array has the shape {shape:?}")))
}
