//! The runtime on tiny models, against a model written in float64 and against itself.

mod estimates;
mod forward;
mod loading;
mod memory;
mod schemes;
mod states;
mod steps;
mod tiny;
