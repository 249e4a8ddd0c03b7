//! A request becomes events.

pub mod runtime;
