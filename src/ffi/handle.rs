//! Handles: what C holds is a number in the shape of a pointer, never an address.
//!
//! `tag` (4 bits) | `generation` (40) | `slot` (20). Slots are never freed, and a slot's generation
//! grows when its object goes, so a stale, foreign or forged handle meets no object. An object
//! that a call is using lives until that call ends.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::guard;
use crate::base::{Error, Result};

const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 40;
const CHUNK_SLOTS: usize = 256;
const CHUNKS: usize = (1 << SLOT_BITS) / CHUNK_SLOTS;
/// A slot whose generation has got there is not used again.
pub(super) const LAST_GENERATION: u64 = (1 << GENERATION_BITS) - 1;

/// Object types by tag, with their articles. An address in user space has tag 0.
const KINDS: [&str; 9] = [
    "no object",
    "an error",
    "a buffer",
    "a cancel",
    "an engine",
    "a tokenizer",
    "a model",
    "a cache",
    "a stream",
];

static LIVE: AtomicU64 = AtomicU64::new(0);

/// Ends of objects whose last handle was released inside a callback, where an object's drop could
/// meet locks that the caller of the callback holds. The next call outside a callback runs them.
static DEFERRED: Mutex<Vec<Box<dyn FnOnce() + Send>>> = Mutex::new(Vec::new());
static ANY_DEFERRED: AtomicBool = AtomicBool::new(false);

/// A Rust object behind a C handle.
pub(super) trait Object: Send + Sync + Sized + 'static {
    /// The opaque C type.
    type Handle;
    /// Index in `KINDS`.
    const TAG: usize;

    fn table() -> &'static Table<Self>;

    /// Called when the last handle goes, although calls may still be using the object.
    fn last_release(&self) {}
}

/// Implements `Object`.
macro_rules! object {
    ($object:ty, $handle:ty, $tag:literal $(, $last_release:item)?) => {
        impl $crate::ffi::handle::Object for $object {
            type Handle = $handle;
            const TAG: usize = $tag;

            fn table() -> &'static $crate::ffi::handle::Table<Self> {
                static TABLE: $crate::ffi::handle::Table<$object> = $crate::ffi::handle::Table::new();
                &TABLE
            }

            $($last_release)?
        }
    };
}
pub(super) use object;

type Chunk<T> = OnceLock<Box<[Mutex<Slot<T>>]>>;

pub(super) struct Table<T> {
    chunks: [Chunk<T>; CHUNKS],
    free: Mutex<FreeSlots>,
}

struct FreeSlots {
    unused_from: u32,
    returned: Vec<u32>,
}

/// The object is there exactly while `references` is above zero.
struct Slot<T> {
    generation: u64,
    references: u32,
    object: Option<Arc<T>>,
}

pub(super) fn encode<H>(tag: usize, generation: u64, slot: u32) -> *mut H {
    let value = tag << (SLOT_BITS + GENERATION_BITS) | (generation as usize) << SLOT_BITS | slot as usize;
    std::ptr::without_provenance_mut(value)
}

/// Tag, generation and slot.
pub(super) fn decode<H>(handle: *const H) -> (usize, u64, u32) {
    let value = handle.addr();
    let generation = (value >> SLOT_BITS) as u64 & LAST_GENERATION;
    (value >> (SLOT_BITS + GENERATION_BITS), generation, value as u32 & ((1 << SLOT_BITS) - 1))
}

impl<T: Object> Table<T> {
    pub const fn new() -> Self {
        Table {
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(FreeSlots { unused_from: 0, returned: Vec::new() }),
        }
    }

    fn slot(&self, slot: u32) -> Option<&Mutex<Slot<T>>> {
        self.chunks.get(slot as usize / CHUNK_SLOTS)?.get()?.get(slot as usize % CHUNK_SLOTS)
    }

    /// The slot if it holds the object that `handle` names.
    fn locked(&self, handle: *const T::Handle) -> Option<parking_lot::MutexGuard<'_, Slot<T>>> {
        let (tag, generation, slot) = decode(handle);
        let slot = if tag == T::TAG { self.slot(slot)?.lock() } else { return None };
        (slot.generation == generation && slot.object.is_some()).then_some(slot)
    }

    fn insert(&self, object: Arc<T>) -> Result<*mut T::Handle> {
        let index = {
            let mut free = self.free.lock();
            match free.returned.pop() {
                Some(index) => index,
                None => {
                    let index = free.unused_from;
                    let full = || Error::out_of_memory("a million objects of this kind are alive");
                    let empty = || Mutex::new(Slot { generation: 0, references: 0, object: None });
                    let chunk = self.chunks.get(index as usize / CHUNK_SLOTS).ok_or_else(full)?;
                    chunk.get_or_init(|| (0..CHUNK_SLOTS).map(|_| empty()).collect());
                    free.unused_from += 1;
                    index
                }
            }
        };
        let slot = self.slot(index).ok_or_else(|| Error::internal("a handle's slot is missing"))?;
        let mut slot = slot.lock();
        (slot.references, slot.object) = (1, Some(object));
        LIVE.fetch_add(1, Ordering::Relaxed);
        Ok(encode(T::TAG, slot.generation, index))
    }

    /// One reference less; the object if it was the last.
    fn release(&self, handle: *const T::Handle) -> Option<Arc<T>> {
        let mut slot = self.locked(handle)?;
        slot.references -= 1;
        if slot.references > 0 {
            return None;
        }
        slot.generation += 1;
        let reusable = slot.generation < LAST_GENERATION;
        let object = slot.object.take();
        drop(slot);
        if reusable {
            self.free.lock().returned.push(decode(handle).2);
        }
        LIVE.fetch_sub(1, Ordering::Relaxed);
        object
    }
}

/// Makes the first handle of an object.
pub(super) fn hand_out<T: Object>(object: T) -> Result<*mut T::Handle> {
    T::table().insert(Arc::new(object))
}

/// The object behind `handle`, which then lives at least as long as the answer.
pub(super) fn get<T: Object>(handle: *const T::Handle, field: &str) -> Result<Arc<T>> {
    if let Some(object) = find(handle) {
        return Ok(object);
    }
    let wanted = KINDS.get(T::TAG).unwrap_or(&"an object");
    let (tag, ..) = decode(handle);
    let fault = match KINDS.get(tag) {
        _ if handle.is_null() => format!("{field} is NULL instead of {wanted} handle"),
        Some(found) if tag != 0 && tag != T::TAG => {
            format!("{field} is {found} handle instead of {wanted} handle")
        }
        Some(_) if tag == T::TAG => format!("{field} is {wanted} handle that was released"),
        _ => format!("{field} is not a handle of this library"),
    };
    Err(Error::invalid_argument(fault).field(field))
}

/// As `get`; `None` instead of an error.
pub(super) fn find<T: Object>(handle: *const T::Handle) -> Option<Arc<T>> {
    T::table().locked(handle)?.object.clone()
}

/// One more reference; NULL if the handle is not alive.
pub(super) fn retain<T: Object>(handle: *mut T::Handle) -> *mut T::Handle {
    let more = |slot: &mut Slot<T>| {
        slot.references = slot.references.checked_add(1)?;
        Some(handle)
    };
    T::table().locked(handle).and_then(|mut slot| more(&mut slot)).unwrap_or(std::ptr::null_mut())
}

/// One reference less; a handle that is not alive is left alone.
pub(super) fn release<T: Object>(handle: *mut T::Handle) {
    let Some(object) = T::table().release(handle) else { return };
    let end = move || {
        object.last_release();
        drop(object);
    };
    if guard::in_callback() { defer(end) } else { end() }
}

fn defer(end: impl FnOnce() + Send + 'static) {
    DEFERRED.lock().push(Box::new(end));
    ANY_DEFERRED.store(true, Ordering::Release);
}

/// Runs what releases inside callbacks have left.
pub(super) fn drop_deferred() {
    if ANY_DEFERRED.load(Ordering::Acquire) && ANY_DEFERRED.swap(false, Ordering::AcqRel) {
        let ends = std::mem::take(&mut *DEFERRED.lock());
        ends.into_iter().for_each(|end| end());
    }
}

/// Counts handles that are kept outside a `Table`.
pub(super) fn count_live(made: bool) {
    if made {
        LIVE.fetch_add(1, Ordering::Relaxed)
    } else {
        LIVE.fetch_sub(1, Ordering::Relaxed)
    };
}

pub(super) fn live() -> u64 {
    LIVE.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(Arc<()>);
    struct ThingHandle;
    object!(Thing, ThingHandle, 8);

    #[test]
    fn a_handle_is_a_number_that_comes_back() {
        let handle: *mut ThingHandle = encode(8, LAST_GENERATION, (1 << SLOT_BITS) - 1);
        assert_eq!(decode(handle), (8, LAST_GENERATION, (1 << SLOT_BITS) - 1));
        assert_eq!(decode(std::ptr::dangling::<ThingHandle>()).0, 0);
    }

    #[test]
    fn stale_foreign_and_forged_handles_meet_no_object() {
        let life = Arc::new(());
        let first = hand_out(Thing(life.clone())).unwrap();
        assert_eq!(retain::<Thing>(first), first);
        release::<Thing>(first);
        assert!(find::<Thing>(first).is_some(), "one reference is left");
        let user = get::<Thing>(first, "thing").unwrap();
        release::<Thing>(first);
        release::<Thing>(first);
        assert!(Arc::ptr_eq(&user.0, &life), "a call in flight keeps the object");
        drop(user);
        assert_eq!(Arc::strong_count(&life), 1);

        let second = hand_out(Thing(life.clone())).unwrap();
        assert_ne!(first, second, "the slot's next object has another handle");
        let (_, generation, slot) = decode(second);
        let message = |handle: *mut ThingHandle| match get::<Thing>(handle, "thing") {
            Ok(_) => String::new(),
            Err(error) => error.message().to_owned(),
        };
        assert!(message(first).contains("was released"));
        assert_eq!(message(std::ptr::null_mut()), "thing is NULL instead of a stream handle");
        assert_eq!(
            message(encode(6, generation, slot)),
            "thing is a model handle instead of a stream handle"
        );
        for (tag, kind) in KINDS.iter().enumerate().skip(1) {
            let vowel = kind.split(' ').nth(1).unwrap().starts_with(['a', 'e', 'i', 'o', 'u']);
            assert_eq!(kind.starts_with("an "), vowel, "{tag}: {kind}");
        }
        assert!(message(encode(15, generation, slot)).contains("not a handle"));
        assert!(message(std::ptr::dangling_mut()).contains("not a handle"));
        assert!(message(encode(8, generation, slot + CHUNK_SLOTS as u32)).contains("was released"));
        assert!(retain::<Thing>(first).is_null());
        release::<Thing>(second);
    }

    #[test]
    fn what_a_callback_releases_goes_with_the_next_call() {
        let life = Arc::new(());
        let handle = hand_out(Thing(life.clone())).unwrap();
        guard::callback(|| release::<Thing>(handle));
        assert!(find::<Thing>(handle).is_none());
        // Another test's call may have run the deferred end already, so only the end is certain.
        drop_deferred();
        while Arc::strong_count(&life) > 1 {
            std::thread::yield_now();
        }
    }
}
