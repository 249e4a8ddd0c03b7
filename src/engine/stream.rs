//! A stream: the events of one generation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::budget::Allowance;
use super::cache_set::{CacheSet, Lease};
use super::fork::in_forked_child;
use super::model::Model;
use super::owner::{Context, Owner, on_owner_thread};
use super::process;
use super::queue::{Queue, Wakeup, report};
use super::scheduler::CacheSlot;
use crate::base::event::Event;
use crate::base::options::{CacheOptions, GenerateOptions};
use crate::base::{CancelToken, Error, Prompt, Result};
use crate::generate::generation::GenerationRow;
use crate::generate::request::Request;

/// A clone is another share of the same stream. Any thread; one `next` at a time.
///
/// After the end, whatever its reason, the cache set holds the prompt and all generated tokens
/// except the last one, where an ending EOS counts as generated: after EOS that is exactly what
/// was delivered. A generation that ended inside its prompt leaves whole chunks of the prompt.
///
/// A stop text is never delivered, but the ids of its tokens are, as they came.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    cache: CacheSet,
    lease: Mutex<Option<Lease>>,
    queue: Arc<Queue>,
    close: CancelToken,
    cancel: Option<CancelToken>,
    /// A `next` is running.
    taken: AtomicBool,
}

impl Stream {
    /// Reuses what the cache set has of the prompt and begins with the rest. Without a set the
    /// stream makes its own. The set is the stream's alone until it is closed.
    pub fn open(
        model: &Model,
        cache: Option<&CacheSet>,
        prompt: impl Into<Prompt>,
        options: &GenerateOptions,
    ) -> Result<Stream> {
        let prompt = prompt.into();
        log::debug!("a generation begins: a prompt of {} tokens", prompt.len());
        Stream::open_untold(model, cache, prompt, options)
            .inspect_err(|error| log::warn!("a generation could not begin: {}", report(error)))
    }

    fn open_untold(
        model: &Model,
        cache: Option<&CacheSet>,
        prompt: Prompt,
        options: &GenerateOptions,
    ) -> Result<Stream> {
        let opened = Instant::now();
        let engine = model.engine();
        engine.check_work()?;
        if cache.is_some_and(|cache| !cache.model().is_same(model)) {
            return Err(Error::invalid_argument("the cache set belongs to another model").field("cache"));
        }
        let lease = cache.map(CacheSet::lease).transpose()?;
        let capacity = cache.map_or(0, CacheSet::capacity);
        let request = Request::new(model.info(), model.tokenizer(), prompt, capacity, options)?;
        let close = CancelToken::linked(&[engine.owner().abort_token()])?;
        let (cache, lease) = match (cache, lease) {
            (Some(cache), Some(lease)) => (cache.clone(), lease),
            _ => {
                let cache = CacheSet::new(model, &CacheOptions::default())?;
                let lease = cache.lease()?;
                (cache, lease)
            }
        };
        let stream = Stream(Arc::new(Inner {
            cache,
            lease: Mutex::new(Some(lease)),
            queue: Arc::default(),
            close: close.clone(),
            cancel: options.cancel.clone(),
            taken: AtomicBool::new(false),
        }));
        let place = stream.0.cache.place();
        let outbox = Arc::clone(&stream.0.queue);
        engine.owner().call("the opening of a stream", move |context| {
            place.gate.check()?;
            let Context { slab, runtime, rows, .. } = context;
            let slot = slab.get_mut::<CacheSlot>(place.cache)?;
            let mut allowance = Allowance { budget: &place.budget, runtime: runtime.as_mut() };
            slot.sequence()?.admit_prompt(&request, &mut allowance)?;
            match GenerationRow::new(slot.lend()?, request, outbox, &close, opened) {
                Ok(row) => {
                    rows.add(place, Box::new(row));
                    Ok(())
                }
                Err((sequence, error)) => {
                    slot.give_back(sequence);
                    Err(error)
                }
            }
        })?;
        Ok(stream)
    }

    /// Waits for the next event; `None` is for ever. `Ok(None)` after the last. An error that
    /// ended the generation comes once.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<Event>> {
        process::check_process()?;
        if on_owner_thread() {
            return Err(Error::wrong_state("a callback may not call the library"));
        }
        if self.0.taken.swap(true, Ordering::Acquire) {
            return Err(Error::busy("another thread waits for the stream's next event"));
        }
        let event = self.0.queue.next(timeout, self.0.cancel.as_ref(), self.owner());
        self.0.taken.store(false, Ordering::Release);
        event
    }

    /// What is to be called when an event is ready; on the owner thread.
    pub fn set_wakeup(&self, wakeup: Option<Wakeup>) -> Result<()> {
        self.owner().check().or_else(|error| if self.is_closed() { Ok(()) } else { Err(error) })?;
        if self.is_closed() {
            return Err(Error::wrong_state("the stream is closed"));
        }
        if self.0.queue.set_wakeup(wakeup) {
            let queue = Arc::clone(&self.0.queue);
            // After a shutdown nobody is left to call it; then a `next` does not have to wait.
            let _stopped = self.owner().post("a wake-up callback", move |_| queue.wake());
        }
        Ok(())
    }

    /// Cancels the row and waits until the engine has let go of it: the cache set is free again
    /// and no wake-up closure runs. A `next` that waits gives WRONG_STATE. May be called again.
    pub fn close(&self) -> Result<()> {
        process::check_process()?;
        if on_owner_thread() {
            return Err(Error::wrong_state("a callback may not call the library"));
        }
        self.0.close();
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.0.lease.lock().is_none()
    }

    fn owner(&self) -> &Owner {
        self.0.cache.model().engine().owner()
    }
}

impl Inner {
    fn close(&self) {
        self.close.request();
        self.queue.close();
        let owner = self.cache.model().engine().owner();
        // An owner thread that was stopped has let go already.
        let _stopped = owner.call("the close of a stream", |context| {
            context.rows.poll_cancel(&mut context.slab);
            Ok(())
        });
        self.queue.set_wakeup(None);
        *self.lease.lock() = None;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if in_forked_child() {
            // Tokens return to a list whose lock may never be released here.
            std::mem::forget((self.close.clone(), self.cancel.clone(), Arc::clone(&self.queue)));
            return;
        }
        if !on_owner_thread() {
            return self.close();
        }
        self.close.request();
        self.queue.close();
        let lease = self.lease.lock().take();
        let queue = Arc::clone(&self.queue);
        let owner = self.cache.model().engine().owner();
        let _stopped = owner.post("the close of a stream", move |context| {
            context.rows.poll_cancel(&mut context.slab);
            queue.set_wakeup(None);
            drop(lease);
        });
    }
}
