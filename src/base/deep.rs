//! Work that needs more stack than the caller may have.

use std::thread;

use super::{Error, Result, panics, signals};

/// Runs `work` on a thread that has `stack` bytes of stack, and waits for it. Of that stack only what is
/// used takes memory. Signals are held back there: they are the host's, for threads of the host.
///
/// OUT_OF_MEMORY if there is no thread to be had; INTERNAL naming `what` if the work panics.
pub fn run<T: Send>(what: &str, stack: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("mlxgen-deep".into()).stack_size(stack);
        let thread = signals::held_back(|| thread.spawn_scoped(scope, || panics::catch(what, work)));
        let thread = thread.map_err(|fault| {
            Error::out_of_memory(format!("no thread with a stack of {stack} bytes for {what}: {fault}"))
        })?;
        thread.join().unwrap_or_else(|_| Err(Error::internal(format!("panic in {what}"))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Code;

    fn dig(depth: usize) -> usize {
        let room = std::hint::black_box([depth; 128]);
        if depth == 0 { 0 } else { dig(depth - 1) + usize::from(room[depth % 128] == depth) }
    }

    #[test]
    fn a_thread_with_little_stack_can_recurse_deeply() {
        let small = thread::Builder::new().stack_size(128 << 10);
        let found = small.spawn(|| run("a test", 64 << 20, || Ok(dig(20_000)))).unwrap().join().unwrap();
        assert_eq!(found.unwrap(), 20_000);
    }

    #[test]
    fn a_panic_and_a_stack_that_cannot_be_had_are_errors() {
        let error = run::<()>("a test", 1 << 20, || panic!("boo")).unwrap_err();
        assert!(error.message().contains("panic in a test: boo"), "{error}");
        let error = run("a test", 1 << 60, || Ok(())).unwrap_err();
        assert_eq!(error.code(), Code::OutOfMemory);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_thread_takes_no_signals_and_the_caller_still_does() {
        fn blocked() -> u64 {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
            u64::from_str_radix(line.trim(), 16).unwrap()
        }
        let before = blocked();
        let inside = run("a test", 1 << 20, || Ok(blocked())).unwrap();
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGUSR1, libc::SIGALRM, libc::SIGCHLD] {
            assert_ne!(inside & 1 << (signal - 1), 0, "signal {signal}");
        }
        assert_eq!(blocked(), before);
    }
}
