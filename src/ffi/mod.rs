//! Room `ffi`.
