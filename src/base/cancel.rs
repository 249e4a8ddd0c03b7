//! Cancel tokens: made before the work starts, shared by everything that may stop it.
//!
//! A request may come from a signal handler, and may meet a token that is being dropped. So the
//! flags live in slots that are never freed, each with a generation, and a request is one
//! compare-and-swap that takes no lock and allocates nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::{Error, Result};

const CHUNK_SLOTS: usize = 256;
const CHUNKS: usize = 4096;

/// `word` is generation << 1 | requested.
struct Slot {
    word: AtomicU64,
    references: AtomicU32,
}

static SLOTS: [OnceLock<Box<[Slot]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];
static FREE: Mutex<FreeSlots> = Mutex::new(FreeSlots { unused_from: 0, returned: Vec::new() });

struct FreeSlots {
    unused_from: u32,
    returned: Vec<u32>,
}

/// The identity of a token without a share in it. A later token never has the same identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CancelId {
    pub slot: u32,
    pub generation: u64,
}

impl CancelId {
    fn slot(self) -> Option<&'static Slot> {
        SLOTS.get(self.slot as usize / CHUNK_SLOTS)?.get()?.get(self.slot as usize % CHUNK_SLOTS)
    }

    /// Asks for cancellation, if the token still lives. Async-signal-safe.
    pub fn request(self) -> bool {
        let Some(slot) = self.slot() else {
            return false;
        };
        let quiet = self.generation << 1;
        match slot.word.compare_exchange(quiet, quiet | 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(found) => found == quiet | 1,
        }
    }

    /// Whether cancellation was asked for; `None` once the token is gone.
    pub fn is_requested(self) -> Option<bool> {
        let word = self.slot()?.word.load(Ordering::Acquire);
        (word >> 1 == self.generation).then_some(word & 1 == 1)
    }
}

/// A share in a cancel flag. Once requested it stays so.
#[derive(Debug)]
pub struct CancelToken {
    id: CancelId,
    /// Tokens whose request counts for this one too.
    parents: Option<Arc<[CancelToken]>>,
}

impl CancelToken {
    /// OUT_OF_MEMORY if a million tokens are alive.
    pub fn try_new() -> Result<Self> {
        let index = {
            let mut free = FREE.lock();
            match free.returned.pop() {
                Some(index) => index,
                None => {
                    let index = free.unused_from;
                    let chunk = SLOTS
                        .get(index as usize / CHUNK_SLOTS)
                        .ok_or_else(|| Error::out_of_memory("too many cancel tokens are alive"))?;
                    chunk.get_or_init(|| {
                        (0..CHUNK_SLOTS)
                            .map(|_| Slot { word: AtomicU64::new(0), references: AtomicU32::new(0) })
                            .collect()
                    });
                    free.unused_from += 1;
                    index
                }
            }
        };
        let unclaimed = CancelId { slot: index, generation: 0 };
        let slot = unclaimed.slot().ok_or_else(|| Error::internal("a cancel slot is missing"))?;
        slot.references.store(1, Ordering::Release);
        let generation = slot.word.load(Ordering::Acquire) >> 1;
        Ok(CancelToken { id: CancelId { slot: index, generation }, parents: None })
    }

    /// A token that is requested when it or any of `parents` is. A request to it does not reach
    /// the parents.
    pub fn linked(parents: &[&CancelToken]) -> Result<Self> {
        let mut token = Self::try_new()?;
        token.parents = Some(parents.iter().copied().cloned().collect());
        Ok(token)
    }

    pub fn id(&self) -> CancelId {
        self.id
    }

    pub fn request(&self) {
        self.id.request();
    }

    pub fn is_requested(&self) -> bool {
        self.id.is_requested() == Some(true)
            || self.parents.iter().flat_map(|parents| parents.iter()).any(CancelToken::is_requested)
    }

    /// CANCELLED once requested.
    pub fn check(&self) -> Result<()> {
        if self.is_requested() { Err(Error::cancelled()) } else { Ok(()) }
    }
}

impl Clone for CancelToken {
    fn clone(&self) -> Self {
        if let Some(slot) = self.id.slot() {
            slot.references.fetch_add(1, Ordering::AcqRel);
        }
        CancelToken { id: self.id, parents: self.parents.clone() }
    }
}

impl Drop for CancelToken {
    fn drop(&mut self) {
        let Some(slot) = self.id.slot() else { return };
        if slot.references.fetch_sub(1, Ordering::AcqRel) == 1 {
            slot.word.store((self.id.generation + 1) << 1, Ordering::Release);
            FREE.lock().returned.push(self.id.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reaches_every_share() {
        let token = CancelToken::try_new().unwrap();
        let share = token.clone();
        assert!(share.check().is_ok());
        token.request();
        token.request();
        assert!(share.is_requested());
        assert_eq!(share.check().unwrap_err().code(), crate::base::Code::Cancelled);
    }

    #[test]
    fn a_linked_token_hears_its_parents_and_does_not_speak_to_them() {
        let parents = [CancelToken::try_new().unwrap(), CancelToken::try_new().unwrap()];
        let child = CancelToken::linked(&[&parents[0], &parents[1]]).unwrap();
        let grandchild = CancelToken::linked(&[&child]).unwrap().clone();
        assert!(!grandchild.is_requested());
        child.request();
        assert!(grandchild.is_requested() && !parents[0].is_requested());
        let other = CancelToken::linked(&[&parents[0], &parents[1]]).unwrap();
        parents[1].request();
        assert!(other.is_requested() && !parents[0].is_requested());
    }

    #[test]
    fn a_late_request_does_not_reach_the_next_token_in_the_slot() {
        let first = CancelToken::try_new().unwrap();
        let id = first.id();
        drop(first);
        let others: Vec<_> = (0..64).map(|_| CancelToken::try_new().unwrap()).collect();
        assert!(!id.request());
        assert_eq!(id.is_requested(), None);
        assert!(others.iter().all(|token| !token.is_requested()));
    }

    #[test]
    fn requests_and_drops_race_without_harm() {
        for _ in 0..200 {
            let token = CancelToken::try_new().unwrap();
            let id = token.id();
            let asker = std::thread::spawn(move || id.request());
            drop(token);
            asker.join().unwrap();
            assert_eq!(id.is_requested(), None);
        }
    }
}
