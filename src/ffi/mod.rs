//! The C ABI: the header `include/mlxgen.h` is generated from this room.
//!
//! The helpers (`status`, `error`, `guard`, `handle`, `buffer`, `options`, `log`) hold nearly all
//! the unsafe code; beside them stands one file per C object. The comments on exported functions
//! and types are the header's own text, written for C programmers: `tests/abi_header.rs` checks
//! their form.

#![allow(non_camel_case_types, reason = "exported types bear their C names")]
#![allow(clippy::missing_safety_doc, reason = "the comments are the header's; `guard` states the contract")]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

#[cfg(not(target_pointer_width = "64"))]
compile_error!("handles carry a slot number and a generation in 64 bits");

pub mod buffer;
pub mod error;
pub mod guard;
pub mod handle;
pub mod log;
pub mod options;
pub mod status;

pub mod cache;
pub mod cancel;
pub mod engine;
pub mod estimate;
pub mod event;
pub mod library;
pub mod model;
pub mod prompt;
pub mod stream;
pub mod tokenizer;
