//! Room `sample`.
