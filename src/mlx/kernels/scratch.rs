//! Memory for values between the steps of a kernel, kept by the thread for the next.

use std::cell::RefCell;

thread_local! {
    static IDLE: RefCell<Vec<Vec<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Buffers larger than this are given back at once: a long prompt must not hold memory for ever.
const KEPT: usize = 4 << 20;

/// Lends `count` floats of any value to `work`. May be nested.
pub(crate) fn with<T>(count: usize, work: impl FnOnce(&mut [f32]) -> T) -> T {
    let mut buffer = IDLE.with(|idle| idle.borrow_mut().pop()).unwrap_or_default();
    if buffer.len() < count {
        buffer.resize(count, 0.0);
    }
    let result = work(&mut buffer[..count]);
    if buffer.len() <= KEPT {
        IDLE.with(|idle| idle.borrow_mut().push(buffer));
    }
    result
}

#[cfg(all(test, not(feature = "mlx")))]
mod tests {
    use super::*;

    #[test]
    fn nested_buffers_are_different() {
        with(4, |outer| {
            outer.fill(1.0);
            with(8, |inner| inner.fill(2.0));
            assert_eq!(outer, [1.0; 4]);
        });
        with(2, |again| assert_eq!(again.len(), 2));
    }
}
