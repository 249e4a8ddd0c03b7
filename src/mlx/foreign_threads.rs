//! The names of threads that libraries start for themselves.
//!
//! On Linux a thread begins with the name of the one that starts it. MLX's and the BLAS's never end, and under a name of
//! ours they would look like threads of ours that a shutdown has forgotten.

/// Runs `work`; a thread that it starts is called `name`, of which the system takes 15 bytes.
#[cfg(target_os = "linux")]
pub(super) fn called<R>(name: &std::ffi::CStr, work: impl FnOnce() -> R) -> R {
    let mut own = [0_u8; 16];
    // SAFETY: stores the calling thread's name, at most 16 bytes with the NUL, in the buffer.
    let known = unsafe { libc::prctl(libc::PR_GET_NAME, own.as_mut_ptr()) } == 0;
    if known {
        // SAFETY: the name ends with a NUL; only the calling thread's is set.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    }
    let result = work();
    if known {
        // SAFETY: as above, with the name that the system has told.
        unsafe { libc::prctl(libc::PR_SET_NAME, own.as_ptr()) };
    }
    result
}

/// Elsewhere they have none.
#[cfg(not(target_os = "linux"))]
pub(super) fn called<R>(_name: &std::ffi::CStr, work: impl FnOnce() -> R) -> R {
    work()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::called;

    #[test]
    fn threads_of_the_work_have_the_name_and_the_caller_keeps_its_own() {
        let own = || std::fs::read_to_string("/proc/thread-self/comm").unwrap();
        let before = own();
        let theirs = called(c"somebody", || std::thread::spawn(own).join().unwrap());
        assert_eq!((theirs.as_str(), own()), ("somebody\n", before));
    }
}
