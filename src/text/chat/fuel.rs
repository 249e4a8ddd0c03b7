//! What a render may cost. The engine counts its own work; here is the same for what it does not see.

use minijinja::{Error, ErrorKind, State};

/// Bytes that one unit of fuel pays for.
const BYTES: u64 = 64;

/// The most bytes that may still be made.
pub(super) fn bytes_left(state: &State) -> usize {
    let left = state.fuel_levels().map_or(u64::MAX, |(_, left)| left.saturating_mul(BYTES));
    usize::try_from(left).unwrap_or(usize::MAX)
}

/// Fails before `bytes` are made that cannot be paid for; the engine charges a result when it is there.
pub(super) fn check(state: &State, bytes: usize) -> Result<(), Error> {
    if bytes <= bytes_left(state) { Ok(()) } else { Err(spent()) }
}

/// The most bytes that may still be written from values, which takes longer than copying does.
pub(super) fn writing_left(state: &State) -> usize {
    bytes_left(state) / 8
}

pub(super) fn spent() -> Error {
    Error::from(ErrorKind::OutOfFuel)
}
