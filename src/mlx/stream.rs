//! Devices and the stream on which a thread's operations run.
//!
//! Each thread that works with arrays has a stream, from its first use on: on macOS with a Metal
//! device on the GPU unless the CPU was chosen, elsewhere on the CPU.
//!
//! MLX never ends the worker thread of a CPU stream, so a stream that every new owner thread made
//! for itself would leave a thread and its heap behind. CPU streams are therefore of the kind that
//! may be used from any thread, and a thread that leaves hands its own to the next.

use std::cell::Cell;
use std::ffi::c_int;

use mlx_sys as sys;
use parking_lot::Mutex;

use super::{error, foreign_threads};
use crate::base::{Error, Result};

/// Where operations run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    Cpu,
    Gpu,
}

/// A thread's stream.
#[derive(Clone, Copy)]
pub(super) struct Stream {
    raw: sys::mlx_stream,
    kind: DeviceKind,
}

thread_local! {
    static CURRENT: Cell<Option<Stream>> = const { Cell::new(None) };
}

/// The handles of CPU streams that no thread uses.
static IDLE: Mutex<Vec<IdleStream>> = Mutex::new(Vec::new());

struct IdleStream(sys::mlx_stream);

// SAFETY: the stream was made for use from any thread, and whoever takes it from the list is its
// only user.
unsafe impl Send for IdleStream {}

impl Stream {
    #[inline]
    pub(super) fn current() -> sys::mlx_stream {
        match CURRENT.get() {
            Some(stream) => stream.raw,
            None => Self::make(default_kind()).raw,
        }
    }

    #[cold]
    fn make(kind: DeviceKind) -> Stream {
        error::init();
        let raw = match kind {
            DeviceKind::Cpu => cpu_stream(),
            // SAFETY: returns a new handle to the thread's default stream of that device; it is
            // kept until the thread chooses another or leaves.
            DeviceKind::Gpu => unsafe { sys::mlx_default_gpu_stream_new() },
        };
        let stream = Stream { raw, kind };
        if let Some(old) = CURRENT.replace(Some(stream)) {
            old.free();
        }
        stream
    }

    fn free(self) {
        match self.kind {
            DeviceKind::Cpu => IDLE.lock().push(IdleStream(self.raw)),
            // SAFETY: the handle came from MLX, is freed once and used by nobody afterwards: copies
            // never outlive the call that they are passed to.
            DeviceKind::Gpu => unsafe {
                sys::mlx_stream_free(self.raw);
            },
        }
    }
}

/// An idle CPU stream or a new one, as this thread's default: evaluations without a stream of
/// their own synchronise on that.
fn cpu_stream() -> sys::mlx_stream {
    let idle = IDLE.lock().pop();
    // SAFETY: the device handle is made and freed here; the stream handle is new or was idle.
    unsafe {
        let raw = idle.map_or_else(
            || {
                let device = sys::mlx_device_new_type(sys::mlx_device_type__MLX_CPU, 0);
                // The thread is there when the first of its work is done.
                let raw = foreign_threads::called(c"mlx-stream", || {
                    let raw = sys::mlx_stream_new_thread_unsafe(device);
                    let _failed_later = sys::mlx_synchronize(raw);
                    raw
                });
                sys::mlx_device_free(device);
                raw
            },
            |stream| stream.0,
        );
        // It fails for a stream that could not be made; then so does the first operation on it.
        let _failed_later = sys::mlx_set_default_stream(raw);
        raw
    }
}

fn default_kind() -> DeviceKind {
    if gpu_is_available() { DeviceKind::Gpu } else { DeviceKind::Cpu }
}

/// Whether this build and machine have a GPU that MLX can use.
pub fn gpu_is_available() -> bool {
    if !cfg!(target_os = "macos") {
        return false;
    }
    error::init();
    let mut available = false;
    // SAFETY: the device handle is made and freed here; the flag is a valid out pointer.
    unsafe {
        let device = sys::mlx_device_new_type(sys::mlx_device_type__MLX_GPU, 0);
        let code = sys::mlx_device_is_available(&mut available, device);
        sys::mlx_device_free(device);
        code == 0 && available
    }
}

/// Chooses where this thread's operations run from now on.
pub fn select_device(kind: DeviceKind) -> Result<()> {
    error::init();
    if CURRENT.get().is_some_and(|stream| stream.kind == kind) {
        return Ok(());
    }
    if kind == DeviceKind::Gpu && !gpu_is_available() {
        return Err(Error::unsupported("this machine has no GPU that MLX can use").field("device"));
    }
    let raw_kind = match kind {
        DeviceKind::Cpu => sys::mlx_device_type__MLX_CPU,
        DeviceKind::Gpu => sys::mlx_device_type__MLX_GPU,
    };
    // MLX picks its default device for the few functions that take no stream.
    // SAFETY: the device handle is made and freed here.
    let code: c_int = unsafe {
        let device = sys::mlx_device_new_type(raw_kind, 0);
        let code = sys::mlx_set_default_device(device);
        sys::mlx_device_free(device);
        code
    };
    error::check(code)?;
    Stream::make(kind);
    Ok(())
}

/// Where this thread's operations run.
pub fn device() -> DeviceKind {
    CURRENT.get().map_or_else(default_kind, |stream| stream.kind)
}

/// Waits until everything dispatched on this thread's stream has run, and reports what failed
/// in it.
pub fn synchronize() -> Result<()> {
    let stream = Stream::current();
    // SAFETY: the handle is this thread's and lives as long as the thread.
    error::check(unsafe { sys::mlx_synchronize(stream) })
}

/// Ends this thread's work with MLX: waits for it and gives its stream up. No array of this thread
/// may be used afterwards.
pub fn leave_thread() {
    super::kernels::chain::clear();
    if let Some(stream) = CURRENT.take() {
        // SAFETY: the handle is this thread's. Failures have no one to go to: whoever needed the
        // results has waited for them before.
        unsafe { sys::mlx_synchronize(stream.raw) };
        stream.free();
        if stream.kind == DeviceKind::Gpu {
            // SAFETY: takes no argument and concerns the calling thread only.
            unsafe { sys::mlx_clear_streams() };
        }
    }
}
