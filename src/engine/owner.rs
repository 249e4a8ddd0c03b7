//! The one thread that touches the back end.
//!
//! It lives from the first [`acquire`] until the last [`Owner`] share is gone, and may then be
//! started again. Jobs come through a queue; between jobs the rows advance.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded, unbounded};
use parking_lot::{Condvar, Mutex};

use super::fork::{self, in_forked_child};
use super::process::{self, ExitStage};
use super::scheduler::Scheduler;
use super::slab::{Key, Slab};
use crate::base::{CancelToken, Error, Result, panics, signals};
use crate::generate::backend::backend;
use crate::generate::runtime::{DeviceMemory, Runtime};

/// How often a waiting call looks whether its cancel token was requested.
const CANCEL_POLL: Duration = Duration::from_millis(20);

thread_local! {
    static IS_OWNER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this is the owner thread: there no call may wait for it.
pub fn on_owner_thread() -> bool {
    IS_OWNER.try_with(Cell::get).unwrap_or(false)
}

/// What lives on the owner thread.
pub struct Context {
    pub slab: Slab,
    pub runtime: Box<dyn Runtime>,
    pub rows: Scheduler,
    shared: Arc<Shared>,
}

impl Context {
    /// Lets the getters see what the work so far did.
    fn publish(&self) {
        *self.shared.memory.lock() = self.runtime.memory();
    }
}

type Job = Box<dyn FnOnce(&mut Context) + Send>;

enum Message {
    Job(Job),
    Drop(Key),
    /// Something outside changed that rows may wait for.
    Nudge,
    Stop,
}

/// A share of the owner thread.
pub struct Owner {
    /// `None` only while this is being dropped. Dropping it ends the thread.
    sender: Option<Sender<Message>>,
    shared: Arc<Shared>,
}

/// What the thread and its shares both see.
struct Shared {
    /// Set when the thread was told to stop.
    closed: AtomicBool,
    /// Requested then: every row hears it.
    abort: CancelToken,
    memory: Mutex<DeviceMemory>,
    finished: Mutex<bool>,
    on_finish: Condvar,
}

struct Global {
    current: Weak<Owner>,
    /// The latest thread, which may still be ending.
    latest: Option<(Arc<Shared>, JoinHandle<()>)>,
}

static GLOBAL: Mutex<Global> = Mutex::new(Global { current: Weak::new(), latest: None });

/// The owner thread, started if there is none.
pub fn acquire() -> Result<Arc<Owner>> {
    process::check_process()?;
    refuse_on_owner_thread()?;
    let mut global = GLOBAL.lock();
    if let Some(owner) = global.current.upgrade().filter(|owner| !owner.is_closed()) {
        return Ok(owner);
    }
    // Two threads must never be in the back end at once.
    if let Some((_, thread)) = global.latest.take() {
        let _panicked = thread.join();
    }
    let (sender, receiver) = unbounded();
    let shared = Arc::new(Shared {
        closed: AtomicBool::new(false),
        abort: CancelToken::try_new()?,
        memory: Mutex::default(),
        finished: Mutex::new(false),
        on_finish: Condvar::new(),
    });
    let (ready_sender, ready) = bounded(1);
    let theirs = Arc::clone(&shared);
    let work = move || {
        let _ = IS_OWNER.try_with(|is_owner| is_owner.set(true));
        panics::quietly("the owner thread", || run(&receiver, &theirs, &ready_sender));
        *theirs.finished.lock() = true;
        theirs.on_finish.notify_all();
    };
    // Threads that the back end starts have the mask of this one.
    let thread = signals::held_back(|| thread::Builder::new().name("mlxgen-owner".into()).spawn(work))
        .map_err(|error| Error::out_of_memory(format!("no thread could be started: {error}")))?;
    global.latest = Some((Arc::clone(&shared), thread));
    ready.recv().unwrap_or_else(|_| Err(Error::internal("the owner thread ended at once")))?;
    let owner = Arc::new(Owner { sender: Some(sender), shared });
    global.current = Arc::downgrade(&owner);
    Ok(owner)
}

/// Cancels all rows, ends the thread and waits for it. Everything made before gives WRONG_STATE
/// afterwards. TIMEOUT when the thread did not end in time; it still will.
pub fn shutdown(timeout: Duration) -> Result<()> {
    process::check_process()?;
    refuse_on_owner_thread()?;
    stop(timeout)
}

/// As [`shutdown`], also while the process exits.
pub fn stop(timeout: Duration) -> Result<()> {
    let until = Instant::now().checked_add(timeout);
    let global = match until {
        Some(until) => GLOBAL.try_lock_until(until).ok_or_else(Error::timeout)?,
        None => GLOBAL.lock(),
    };
    if let Some(owner) = global.current.upgrade() {
        owner.shared.closed.store(true, Ordering::Release);
        owner.shared.abort.request();
        let _ended = owner.send(Message::Stop);
    }
    let Some(shared) = global.latest.as_ref().map(|(shared, _)| Arc::clone(shared)) else { return Ok(()) };
    drop(global);
    let mut finished = shared.finished.lock();
    while !*finished {
        match until {
            None => shared.on_finish.wait(&mut finished),
            Some(until) if Instant::now() >= until => return Err(Error::timeout()),
            Some(until) => {
                shared.on_finish.wait_until(&mut finished, until);
            }
        }
    }
    drop(finished);
    // All that is left of the thread are the destructors of its locals.
    let mut global = GLOBAL.lock();
    if let Some((_, thread)) = global.latest.take_if(|(latest, _)| Arc::ptr_eq(latest, &shared)) {
        let _panicked = thread.join();
    }
    Ok(())
}

/// Whether there may be an owner thread; it then looks at the world again. Somebody who starts or
/// ends one may have the lock for longer than `patience`.
pub fn is_running_within(patience: Duration) -> bool {
    let Some(global) = GLOBAL.try_lock_for(patience) else { return true };
    let Some((shared, _)) = global.latest.as_ref() else { return false };
    if *shared.finished.lock() {
        return false;
    }
    let owner = global.current.upgrade();
    drop(global);
    if let Some(owner) = owner {
        owner.nudge();
    }
    true
}

impl Owner {
    /// WRONG_STATE when calls cannot be served: after a shutdown, in a forked child, on the owner
    /// thread.
    pub fn check(&self) -> Result<()> {
        process::check_process()?;
        refuse_on_owner_thread()?;
        if self.is_closed() { Err(stopped()) } else { Ok(()) }
    }

    fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }

    /// Requested when the thread is told to stop.
    pub fn abort_token(&self) -> &CancelToken {
        &self.shared.abort
    }

    /// Bytes of the back end's arrays, as of the latest unit of work.
    pub fn memory(&self) -> DeviceMemory {
        *self.shared.memory.lock()
    }

    fn send(&self, message: Message) -> Result<()> {
        let sender = self.sender.as_ref().ok_or_else(stopped)?;
        sender.send(message).map_err(|_| stopped())
    }

    /// Posts a job without waiting for it. A panic in it ends there.
    pub fn post(&self, what: &'static str, job: impl FnOnce(&mut Context) + Send + 'static) -> Result<()> {
        self.send(Message::Job(Box::new(move |context| {
            panics::quietly(what, || job(context));
        })))
    }

    pub fn post_drop(&self, key: Key) {
        let _stopped = self.send(Message::Drop(key));
    }

    /// Lets the rows look at the world again.
    pub fn nudge(&self) {
        let _stopped = self.send(Message::Nudge);
    }

    /// Runs a job and waits for its result. A panic in it is INTERNAL and harms nothing else.
    pub fn call<R: Send + 'static>(
        &self,
        what: &'static str,
        job: impl FnOnce(&mut Context) -> Result<R> + Send + 'static,
    ) -> Result<R> {
        self.begin(what, job)?.wait()
    }

    /// As [`call`](Self::call) in two steps.
    pub fn begin<R: Send + 'static>(
        &self,
        what: &'static str,
        job: impl FnOnce(&mut Context) -> Result<R> + Send + 'static,
    ) -> Result<Reply<R>> {
        self.check()?;
        let (sender, receiver) = bounded(1);
        self.send(Message::Job(Box::new(move |context| {
            let result = panics::catch(what, || job(context));
            context.publish();
            let _left = sender.send(result);
        })))?;
        Ok(Reply(receiver))
    }

    /// Waits for what a row will say; while `cancel` is requested, makes the rows look at it even
    /// if they rest.
    pub fn wait_row<R>(&self, receiver: &Receiver<Result<R>>, cancel: &CancelToken) -> Result<R> {
        loop {
            match receiver.recv_timeout(CANCEL_POLL) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Disconnected) => return Err(stopped()),
                Err(RecvTimeoutError::Timeout) if cancel.is_requested() => self.nudge(),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// A result on its way from the owner thread.
pub struct Reply<R>(Receiver<Result<R>>);

impl<R> Reply<R> {
    pub fn wait(self) -> Result<R> {
        self.0.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// TIMEOUT when it does not come in time; the job is done all the same.
    pub fn wait_for(self, timeout: Duration) -> Result<R> {
        match self.0.recv_timeout(timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(Error::timeout()),
            Err(RecvTimeoutError::Disconnected) => Err(stopped()),
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // In a forked child the queue's locks may be held by threads that do not exist there.
        if in_forked_child() {
            std::mem::forget((self.sender.take(), Arc::clone(&self.shared)));
        }
    }
}

fn stopped() -> Error {
    Error::wrong_state("the engine was shut down")
}

fn refuse_on_owner_thread() -> Result<()> {
    if on_owner_thread() {
        return Err(Error::wrong_state("a callback may not call the library"));
    }
    Ok(())
}

fn run(receiver: &Receiver<Message>, shared: &Arc<Shared>, ready: &Sender<Result<()>>) {
    let started = panics::catch("the start of the back end", || {
        let mut runtime = backend().start()?;
        runtime.reset_peak();
        Ok(runtime)
    });
    let runtime = match started {
        Ok(runtime) => runtime,
        Err(error) => {
            let _left = ready.send(Err(error));
            return;
        }
    };
    if let Err(error) = fork::install() {
        let _left = ready.send(Err(error));
        return;
    }
    process::register_exit(ExitStage::Start);
    let _left = ready.send(Ok(()));
    log::info!("the library's thread begins: {}", backend().description());
    let mut context =
        Context { slab: Slab::default(), runtime, rows: Scheduler::default(), shared: Arc::clone(shared) };
    let mut busy = false;
    while serve(receiver, &mut context, busy) {
        fork::rest(|| context.runtime.synchronize());
        busy = context.rows.round(&mut context.slab, context.runtime.as_mut());
        context.publish();
    }
    shared.closed.store(true, Ordering::Release);
    shared.abort.request();
    let Context { mut slab, mut runtime, mut rows, .. } = context;
    rows.end_all(&mut slab, &stopped());
    panics::quietly("the end of the rows", || drop(rows));
    slab.clear();
    panics::quietly("the end of the back end", || {
        if let Err(error) = runtime.trim() {
            log::warn!("{error}");
        }
        drop(runtime);
    });
    *shared.memory.lock() = DeviceMemory::default();
    log::debug!("the library's thread ends");
}

/// Serves the jobs that are waiting now; waits for one unless `busy`. False at the end.
fn serve(receiver: &Receiver<Message>, context: &mut Context, busy: bool) -> bool {
    if !busy {
        let Ok(message) = receiver.recv() else { return false };
        if !handle(message, context) {
            return false;
        }
    }
    // One look more than there are messages, to notice when nobody is left who could send one.
    for _ in 0..=receiver.len() {
        match receiver.try_recv() {
            Ok(message) => {
                if !handle(message, context) {
                    return false;
                }
            }
            Err(TryRecvError::Disconnected) => return false,
            Err(TryRecvError::Empty) => break,
        }
    }
    true
}

fn handle(message: Message, context: &mut Context) -> bool {
    match message {
        Message::Job(job) => job(context),
        Message::Drop(key) => context.slab.discard(key),
        Message::Nudge => {}
        Message::Stop => return false,
    }
    true
}
