//! The cancel handle: it names a slot of `base::cancel`, so that a request needs no table.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::error::mlxgen_error;
use super::guard;
use super::handle::{self, LAST_GENERATION};
use super::status::{MLXGEN_INVALID_ARGUMENT, MLXGEN_OK, MLXGEN_WRONG_STATE, mlxgen_status};
use crate::base::cancel::CancelId;
use crate::base::{CancelToken, Code, Error, Result};
use crate::engine;

/// Asks work to stop. Made before the work starts, given to as much work as you like, and usable
/// once: it stays requested. Any thread; mlxgen_cancel_request also in a signal handler. Release
/// it with mlxgen_cancel_release; work that was given it keeps its own share.
pub struct mlxgen_cancel {
    _opaque: [u8; 0],
}

const TAG: usize = 3;
const CHUNK_SLOTS: usize = 256;
const CHUNKS: usize = 4096;
const COUNT_BITS: u32 = 24;
const COUNT: u64 = (1 << COUNT_BITS) - 1;

/// The references that C holds to the token in the same slot of `base::cancel`.
#[derive(Default)]
struct Held {
    /// Generation << 24 | references. Apart from the token, so that a signal handler can read it.
    word: AtomicU64,
    token: Mutex<Option<CancelToken>>,
}

static HELD: [OnceLock<Box<[Held]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];

fn held(slot: u32) -> Option<&'static Held> {
    HELD.get(slot as usize / CHUNK_SLOTS)?.get()?.get(slot as usize % CHUNK_SLOTS)
}

/// The token that a live handle names. Async-signal-safe.
fn alive(cancel: *const mlxgen_cancel) -> Option<(CancelId, &'static Held)> {
    let (tag, generation, slot) = handle::decode(cancel);
    let held = if tag == TAG { held(slot)? } else { return None };
    let word = held.word.load(Ordering::Acquire);
    let live = word >> COUNT_BITS == generation && word & COUNT > 0;
    live.then_some((CancelId { slot, generation }, held))
}

/// Changes the count of references of a live handle; gives the count before.
fn change(cancel: *const mlxgen_cancel, step: impl Fn(u64) -> Option<u64>) -> Option<u64> {
    let (id, held) = alive(cancel)?;
    let next = |word: u64| match word & COUNT {
        count if count > 0 && word >> COUNT_BITS == id.generation => {
            step(count).map(|count| id.generation << COUNT_BITS | count)
        }
        _ => None,
    };
    held.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, next).ok().map(|word| word & COUNT)
}

fn hand_out(token: CancelToken) -> Result<*mut mlxgen_cancel> {
    let id = token.id();
    if id.generation > LAST_GENERATION {
        return Err(Error::out_of_memory("a cancel slot is used up"));
    }
    let missing = || Error::internal("a cancel slot is missing");
    let chunk = HELD.get(id.slot as usize / CHUNK_SLOTS).ok_or_else(missing)?;
    chunk.get_or_init(|| (0..CHUNK_SLOTS).map(|_| Held::default()).collect());
    let held = held(id.slot).ok_or_else(missing)?;
    *held.token.lock() = Some(token);
    held.word.store(id.generation << COUNT_BITS | 1, Ordering::Release);
    handle::count_live(true);
    Ok(handle::encode(TAG, id.generation, id.slot))
}

/// A share in the token behind a handle; none for NULL.
pub(super) fn share(cancel: *const mlxgen_cancel, field: &str) -> Result<Option<CancelToken>> {
    if cancel.is_null() {
        return Ok(None);
    }
    let token = alive(cancel).and_then(|(id, held)| {
        let token = held.token.lock().clone()?;
        (token.id() == id).then_some(token)
    });
    let refused = || Error::invalid_argument(format!("{field} is not a live cancel handle")).field(field);
    token.map(Some).ok_or_else(refused)
}

/// Makes a cancel handle.
///
/// Threads: any thread.
/// Ownership: `out` receives a handle that you release with mlxgen_cancel_release.
/// Codes: OK, INVALID_ARGUMENT (`out` is NULL), OUT_OF_MEMORY (a million are alive).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cancel_new(
    out: *mut *mut mlxgen_cancel,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks that the outputs are NULL or valid for a write.
    unsafe {
        guard::fallible(out_error, [out.cast()], |call| {
            call.required(out, "out")?;
            call.write(out, hand_out(CancelToken::try_new()?)?);
            Ok(Code::Ok)
        })
    }
}

/// Asks the work that was given this handle to stop. It ends within one group of layers; asking
/// again, or after the work has ended, changes nothing.
///
/// Threads: async-signal-safe: any thread, signal handlers and callbacks.
/// Ownership: nothing changes hands.
/// Codes: OK, INVALID_ARGUMENT (the handle is not alive), WRONG_STATE (in a child made by fork).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cancel_request(cancel: *mut mlxgen_cancel) -> mlxgen_status {
    // Nothing here may lock, allocate or touch a thread's locals, so the usual boundary is not
    // used: what follows is loads and one exchange, and cannot panic.
    if engine::in_forked_child() {
        return MLXGEN_WRONG_STATE;
    }
    match alive(cancel) {
        Some((id, _)) if id.request() => MLXGEN_OK,
        _ => MLXGEN_INVALID_ARGUMENT,
    }
}

/// Tells whether a cancel handle was asked to stop its work: 1 or 0.
///
/// Threads: async-signal-safe: any thread, signal handlers and callbacks.
/// Ownership: nothing changes hands; 0 if the handle is not alive.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cancel_is_requested(cancel: *const mlxgen_cancel) -> i32 {
    i32::from(alive(cancel).and_then(|(id, _)| id.is_requested()).unwrap_or(false))
}

/// Adds a reference to a cancel handle.
///
/// Threads: any thread.
/// Ownership: gives back `cancel`, to be released once more; NULL if it is not alive.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cancel_retain(cancel: *mut mlxgen_cancel) -> *mut mlxgen_cancel {
    let more = |count| (count < COUNT).then_some(count + 1);
    guard::plain(std::ptr::null_mut(), || change(cancel, more).map_or(std::ptr::null_mut(), |_| cancel))
}

/// Gives up a reference to a cancel handle; work that was given it can go on, and can no longer be
/// cancelled through it. NULL and a handle that is not alive are left alone.
///
/// Threads: any thread.
/// Ownership: takes your reference.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_cancel_release(cancel: *mut mlxgen_cancel) {
    guard::plain((), || {
        if change(cancel, |count| Some(count - 1)) == Some(1) {
            handle::count_live(false);
            let token = held(handle::decode(cancel).2).and_then(|held| held.token.lock().take());
            drop(token);
        }
    });
}
