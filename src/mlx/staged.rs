//! A tensor that is filled in pieces: allocated once at its final size, so that a load never
//! holds two copies of it.

use std::ptr;

use super::array::{Array, byte_size};
use super::dtype::Dtype;
use super::prim;
use crate::base::{Error, Result};

/// A tensor under construction. No handle to it exists until it is finished.
pub struct StagedTensor {
    array: Array,
    bytes: usize,
    /// Bytes written so far; pieces come in order.
    filled: usize,
}

impl StagedTensor {
    pub fn new(dtype: Dtype, shape: &[i32]) -> Result<Self> {
        let bytes = byte_size(dtype, shape)?;
        let array = prim::zeros(shape, dtype)?;
        array.eval()?;
        if !array.is_row_contiguous()? || array.byte_size() != bytes {
            return Err(Error::internal("MLX made an array of zeros in an unexpected layout"));
        }
        Ok(StagedTensor { array, bytes, filled: 0 })
    }

    /// Writes the next piece, which must follow the last without a gap.
    pub fn write(&mut self, offset: usize, piece: &[u8]) -> Result<()> {
        if offset != self.filled || piece.len() > self.bytes - offset {
            return Err(Error::internal(format!(
                "a piece of {} bytes at {offset} does not follow the {} of {} bytes that are there",
                piece.len(),
                self.filled,
                self.bytes
            )));
        }
        if piece.is_empty() {
            return Ok(());
        }
        let start = self.array.data()?.cast_mut();
        // SAFETY: the array was computed by its own `zeros` operation, which allocates a buffer of
        // `bytes` bytes for it alone, and this value holds the only handle: nothing else can read
        // or write the buffer, on this thread or on MLX's. The range was checked above, and a
        // piece in a Rust slice does not overlap MLX's buffer.
        unsafe { ptr::copy_nonoverlapping(piece.as_ptr(), start.add(offset), piece.len()) };
        self.filled += piece.len();
        Ok(())
    }

    pub fn is_complete(&self) -> bool {
        self.filled == self.bytes
    }

    /// The tensor as a value; from here on it never changes.
    pub fn finish(self) -> Result<Array> {
        if !self.is_complete() {
            return Err(Error::internal(format!(
                "a tensor of {} bytes was finished after {}",
                self.bytes, self.filled
            )));
        }
        Ok(self.array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_the_tensor() {
        let mut staged = StagedTensor::new(Dtype::Float32, &[2, 3]).unwrap();
        let values: Vec<u8> = (0..6).flat_map(|value| (value as f32).to_le_bytes()).collect();
        staged.write(0, &values[..10]).unwrap();
        assert!(!staged.is_complete());
        staged.write(10, &values[10..]).unwrap();
        let array = staged.finish().unwrap();
        assert_eq!(array.shape(), [2, 3]);
        assert_eq!(array.to_vec::<f32>().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }

    #[test]
    fn gaps_overlaps_overruns_and_missing_ends_are_refused() {
        let mut staged = StagedTensor::new(Dtype::Uint8, &[4]).unwrap();
        assert!(staged.write(1, &[1]).is_err());
        staged.write(0, &[1, 2]).unwrap();
        assert!(staged.write(0, &[1]).is_err());
        assert!(staged.write(2, &[1, 2, 3]).is_err());
        assert!(staged.finish().is_err());
    }

    #[test]
    fn two_staged_tensors_do_not_share_memory() {
        let mut first = StagedTensor::new(Dtype::Float32, &[1]).unwrap();
        let mut second = StagedTensor::new(Dtype::Float32, &[1]).unwrap();
        first.write(0, &1f32.to_le_bytes()).unwrap();
        second.write(0, &2f32.to_le_bytes()).unwrap();
        assert_eq!(first.finish().unwrap().item::<f32>().unwrap(), 1.0);
        assert_eq!(second.finish().unwrap().item::<f32>().unwrap(), 2.0);
    }
}
