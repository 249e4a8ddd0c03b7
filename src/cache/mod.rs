//! Room `cache`.
