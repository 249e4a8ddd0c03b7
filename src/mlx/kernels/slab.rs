//! Memory that operations change one after the other: the keys and values of a sequence.

use std::fmt;
use std::slice;

use super::mapping::{self, Mapping};
use crate::base::Result;

/// A piece of memory, zeros at first.
pub(crate) struct Slab(Mapping);

impl Slab {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let slab = Slab(Mapping::new(bytes.max(1))?);
        mapping::count(slab.0.bytes());
        Ok(slab)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.bytes()
    }

    /// # Safety
    /// While the result lives nobody writes the memory.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is initialised and lives as long as `self`; the rest is the caller's promise.
        unsafe { slice::from_raw_parts(self.0.start(), self.0.bytes()) }
    }

    /// # Safety
    /// While the result lives nobody else reads or writes the memory.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: the memory is initialised and lives as long as `self`; the rest is the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.0.start(), self.0.bytes()) }
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        mapping::discount(self.0.bytes());
    }
}
