//! What follows what: decoding goes through the same products at every token, so a thread that waits for the next one
//! can already ask memory for what it will read there.
//!
//! Between two products of a token are norms, attention and the work of MLX, on one thread or for a short time on
//! several: memory would be idle meanwhile. All of this is a guess that costs nothing but reads: nothing that is
//! computed depends on it, addresses are only ever given to the processor's prefetch, which takes any, and a value
//! that is read while another thread replaces it is one wrong guess.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Products that are remembered, a power of two. A model has some for each of its layers.
const SLOTS: usize = 1024;

/// Bytes that a thread asks for: well within a second-level cache.
const MOST: usize = 256 << 10;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The beginning of what a thread reads of a product: up to two matrices at once, equally many bytes of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beginning {
    /// Addresses; 0 for none.
    pub matrices: [usize; 2],
    pub bytes: usize,
}

#[derive(Default)]
struct Slot {
    matrices: [AtomicUsize; 2],
    bytes: AtomicUsize,
}

/// For each product, what each thread but the caller reads first of the product that came next the last time.
pub struct Routine {
    helpers: usize,
    /// `[slots][helpers]`.
    next: Vec<Slot>,
    /// The slot of the product at hand.
    current: AtomicUsize,
}

impl Routine {
    pub fn new(helpers: usize) -> Routine {
        let next = (0..SLOTS * helpers).map(|_| Slot::default()).collect();
        Routine { helpers, next, current: AtomicUsize::new(0) }
    }

    /// Another product begins: the one whose first matrix lies at `address`. Its `beginning` for each thread but the
    /// caller (1, 2, …) is what follows on the product before it.
    pub fn begins(&self, address: usize, beginning: impl Fn(usize) -> Beginning) {
        // Matrices begin at multiples of a cache line; the upper bits of a multiple of the rest tell them apart.
        let spread = ((address / LINE) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let slot = (spread >> 54) as usize % SLOTS;
        let before = self.current.swap(slot, Ordering::Relaxed);
        for helper in 0..self.helpers {
            let Beginning { matrices, bytes } = beginning(helper + 1);
            let slot = &self.next[before * self.helpers + helper];
            for (to, address) in slot.matrices.iter().zip(matrices) {
                to.store(address, Ordering::Relaxed);
            }
            slot.bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// What thread `helper + 1` will probably read next.
    fn expected(&self, helper: usize) -> Beginning {
        let slot = &self.next[self.current.load(Ordering::Relaxed) * self.helpers + helper];
        let [first, second] = &slot.matrices;
        let matrices = [first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)];
        Beginning { matrices, bytes: slot.bytes.load(Ordering::Relaxed) }
    }
}

/// A waiting thread's way through what it expects.
#[derive(Default)]
pub struct Expectation {
    what: Beginning,
    done: usize,
}

impl Expectation {
    /// Looks what thread `helper + 1` will probably read next. What it has asked for already is not asked for again.
    pub fn look(&mut self, routine: &Routine, helper: usize) {
        let what = routine.expected(helper);
        if what != self.what {
            *self = Expectation { what, done: 0 };
        }
    }

    /// Asks for some lines more; false when there is nothing left to ask for.
    #[inline]
    pub fn fetch_some(&mut self) -> bool {
        let [first, second] = self.what.matrices;
        let (both, lines) = if second == 0 { (1, 4) } else { (2, 2) };
        if first == 0 || self.done >= self.what.bytes.min(MOST / both) {
            return false;
        }
        for line in 0..lines {
            let at = self.done + line * LINE;
            prefetch(first.wrapping_add(at));
            if second != 0 {
                prefetch(second.wrapping_add(at));
            }
        }
        self.done += lines * LINE;
        true
    }
}

/// Asks for a cache line, at whatever address, into the second level.
#[inline(always)]
fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this architecture has the instruction, and it takes any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl2keep, [{at}]", at = in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    fn beginning(address: usize) -> Beginning {
        Beginning { matrices: [address, 0], bytes: 4096 }
    }

    #[test]
    fn what_came_next_is_expected_again() {
        let routine = Routine::new(2);
        let products = [0x10000, 0x20000, 0x30000];
        let mut seen = Vec::new();
        for turn in 0..3 {
            for address in products {
                routine.begins(address, |thread| beginning(address + thread));
                if turn > 0 {
                    seen.push([0, 1].map(|helper| routine.expected(helper).matrices[0]));
                }
            }
        }
        let next = [0x20000, 0x30000, 0x10000].map(|address| [address + 1, address + 2]);
        assert_eq!(seen, [next, next].concat());
    }

    #[test]
    fn a_beginning_is_asked_for_once_and_within_bounds() {
        let routine = Routine::new(1);
        // Nobody owns these addresses.
        for bytes in [0, 1, 4096, usize::MAX] {
            for matrices in [[0, 0], [usize::MAX - 7, 0], [64, usize::MAX]] {
                for _ in 0..2 {
                    routine.begins(64, |_| Beginning { matrices, bytes });
                }
                let mut expectation = Expectation::default();
                expectation.look(&routine, 0);
                let count = (0..1 << 20).take_while(|_| expectation.fetch_some()).count();
                assert!(count <= MOST / (4 * LINE));
                assert_eq!(count > 0, bytes > 0 && matrices[0] != 0);
                expectation.look(&routine, 0);
                assert!(!expectation.fetch_some());
            }
        }
    }
}
