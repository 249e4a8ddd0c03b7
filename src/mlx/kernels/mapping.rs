//! Memory that we map ourselves, and the account of it.
//!
//! It goes back to the system when it is freed. The C heap, where MLX's buffers on the CPU come from, keeps large
//! blocks once it has seen some.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::{Error, Result};

static HELD: AtomicUsize = AtomicUsize::new(0);

/// Bytes of our own memory in use now.
pub(crate) fn held() -> usize {
    HELD.load(Ordering::Relaxed)
}

pub(super) fn count(bytes: usize) {
    HELD.fetch_add(bytes, Ordering::Relaxed);
}

pub(super) fn discount(bytes: usize) {
    HELD.fetch_sub(bytes, Ordering::Relaxed);
}

/// A mapping of the process's own: zeros at first. Not counted.
pub(super) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory; who reads and writes it when is up to those who ask for its address.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `bytes` must not be 0.
    pub(super) fn new(bytes: usize) -> Result<Self> {
        // SAFETY: asks for fresh memory at an address of the system's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        let base = if base == libc::MAP_FAILED { None } else { NonNull::new(base.cast::<u8>()) };
        match base {
            Some(base) => Ok(Mapping { base, bytes }),
            None => Err(Error::out_of_memory(format!("the system gives no {bytes} bytes"))),
        }
    }

    /// As `new`, with the advice to use large pages.
    pub(super) fn with_large_pages(bytes: usize) -> Result<Self> {
        let mapping = Self::new(bytes)?;
        #[cfg(target_os = "linux")]
        // SAFETY: the range was just mapped. It is only advice, so a refusal does not matter.
        unsafe {
            libc::madvise(mapping.base.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
        }
        Ok(mapping)
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one that was mapped, and nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
