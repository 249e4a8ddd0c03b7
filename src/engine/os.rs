//! The few calls into the C library that have no safe form.

/// Has `before` called before each `fork` of the process, then `parent` in it and `child` in the
/// child, which may only do what a signal handler may.
pub fn on_fork(before: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: the handlers are functions without captured state and live as long as the process;
    // an error (no memory) leaves forks unnoticed, as before the call.
    unsafe {
        libc::pthread_atfork(Some(before), Some(parent), Some(child));
    }
}

/// Has `child` called in every child process that is forked from now on.
pub fn on_fork_in_child(child: extern "C" fn()) {
    // SAFETY: as above.
    unsafe {
        libc::pthread_atfork(None, None, Some(child));
    }
}

/// Has `handler` called when the process exits, before all handlers registered so far.
pub fn at_exit(handler: extern "C" fn()) {
    // SAFETY: as above; the library is linked so that it is never unloaded, so the function's code
    // is there at exit.
    unsafe {
        libc::atexit(handler);
    }
}

/// Bytes of memory of the machine.
#[cfg(target_vendor = "apple")]
pub fn physical_memory() -> Option<u64> {
    let mut bytes: u64 = 0;
    let mut size = size_of::<u64>();
    // SAFETY: the name is NUL-terminated; `bytes` has room for `size` bytes, and `hw.memsize` is
    // a 64-bit number.
    let status = unsafe {
        libc::sysctlbyname(
            c"hw.memsize".as_ptr(),
            (&raw mut bytes).cast(),
            &raw mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    (status == 0 && size == size_of::<u64>()).then_some(bytes)
}

/// Bytes that the machine can give without swapping.
#[cfg(target_vendor = "apple")]
#[allow(deprecated, reason = "the replacement is a crate of its own for one call")]
pub fn available_memory() -> Option<u64> {
    // SAFETY: all-zero bytes are a valid value of this struct of integers.
    let mut statistics: libc::vm_statistics64 = unsafe { std::mem::zeroed() };
    let mut count = libc::HOST_VM_INFO64_COUNT;
    // SAFETY: `statistics` has the room that `count`, in 32-bit words, says; the page size is a
    // plain variable of the C library.
    let (status, page) = unsafe {
        let host = libc::mach_host_self();
        let into = (&raw mut statistics).cast();
        (libc::host_statistics64(host, libc::HOST_VM_INFO64, into, &raw mut count), libc::vm_page_size)
    };
    let pages = u64::from(statistics.free_count)
        + u64::from(statistics.inactive_count)
        + u64::from(statistics.purgeable_count);
    (status == libc::KERN_SUCCESS).then_some(pages * page as u64)
}
