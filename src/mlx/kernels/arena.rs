//! Memory for packed weights, in large pieces that the system may back with large pages.
//!
//! Decoding reads all weights for each token, and with small pages loses time to looking up where they are. MLX's allocator knows no such memory, so this is mapped by us and counted with MLX's.

use std::fmt;
use std::slice;
use std::sync::Arc;

use super::mapping::{self, Mapping};
use crate::base::Result;

/// What weights begin at a multiple of.
const ALIGNMENT: usize = 64;

/// Bytes of address space that are taken at once. What is never written takes no memory.
const MAPPING: usize = 64 << 20;

/// Bytes that `bytes` bytes take.
pub(crate) fn rounded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// Where the weights of a model are put one after the other.
#[derive(Default)]
pub struct Arena {
    mapping: Option<Arc<Mapping>>,
    /// Bytes of the mapping that are handed out.
    used: usize,
}

/// Bytes of an arena that are being written.
pub(crate) struct Room {
    mapping: Arc<Mapping>,
    start: usize,
    bytes: usize,
}

/// Bytes of an arena that never change.
#[derive(Clone)]
pub(crate) struct Stored(Arc<Region>);

struct Region {
    mapping: Arc<Mapping>,
    start: usize,
    bytes: usize,
}

impl Arena {
    pub fn new() -> Self {
        Self::default()
    }

    /// Lends `bytes` bytes to `write`, as `room` gives them, and keeps them.
    #[cfg(test)]
    pub(crate) fn store(
        &mut self,
        bytes: usize,
        write: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Stored> {
        let mut room = self.room(bytes)?;
        write(room.bytes_mut())?;
        Ok(room.keep())
    }

    /// The next `bytes` bytes: zeros at an aligned address.
    pub(crate) fn room(&mut self, bytes: usize) -> Result<Room> {
        let room = rounded(bytes);
        let mapping = match &self.mapping {
            Some(mapping) if mapping.bytes() - self.used >= room => Arc::clone(mapping),
            _ => {
                self.used = 0;
                Arc::clone(self.mapping.insert(Arc::new(Mapping::with_large_pages(room.max(MAPPING))?)))
            }
        };
        let start = self.used;
        self.used += room;
        Ok(Room { mapping, start, bytes })
    }
}

impl Room {
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the range lies in the mapping, is initialised (to zeros, by the system), and belongs to this value
        // alone: the arena hands out each range once, and nothing else refers to it before `keep`.
        unsafe { slice::from_raw_parts_mut(self.mapping.start().add(self.start), self.bytes) }
    }

    /// From here on the bytes stay as they are, and count.
    pub(crate) fn keep(self) -> Stored {
        let Room { mapping, start, bytes } = self;
        mapping::count(rounded(bytes));
        Stored(Arc::new(Region { mapping, start, bytes }))
    }
}

impl Stored {
    pub(crate) fn bytes(&self) -> &[u8] {
        let Region { mapping, start, bytes } = &*self.0;
        // SAFETY: the range was written before this value was made, and nobody writes it again; the mapping lives as
        // long as the region.
        unsafe { slice::from_raw_parts(mapping.start().add(*start), *bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        mapping::discount(rounded(self.bytes));
    }
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.bytes)
    }
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;
    use crate::base::Error;

    #[test]
    fn what_is_stored_stays_until_its_last_reference_goes() {
        let mut arena = Arena::new();
        let mut store = |bytes: usize, value: u8| {
            let write = |target: &mut [u8]| {
                assert!(target.iter().all(|byte| *byte == 0));
                target.fill(value);
                Ok(())
            };
            arena.store(bytes, write).unwrap()
        };
        let kept: Vec<Stored> = (1..20).map(|value| store(value * 37, value as u8)).collect();
        let large = store(MAPPING + 5, 77);
        let last = store(1, 78);
        drop(arena);
        for (index, stored) in kept.iter().enumerate() {
            assert_eq!(stored.bytes().as_ptr() as usize % ALIGNMENT, 0);
            assert_eq!(stored.bytes(), vec![index as u8 + 1; (index + 1) * 37]);
        }
        assert_eq!((large.bytes()[MAPPING + 4], last.bytes()), (77, &[78u8][..]));
        let again = large.clone();
        drop((large, kept, last));
        assert_eq!(again.bytes()[0], 77);
    }

    #[test]
    fn a_failed_write_keeps_nothing() {
        let mut arena = Arena::new();
        assert!(arena.store(100, |_| Err(Error::internal("no"))).is_err());
        let write = |bytes: &mut [u8]| {
            bytes.fill(3);
            Ok(())
        };
        assert_eq!(arena.store(1, write).unwrap().bytes(), [3]);
    }
}
