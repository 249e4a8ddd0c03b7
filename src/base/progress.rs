//! Progress of long blocking work.

/// What a load is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum LoadPhase {
    /// Configuration, tokenizer and weight headers.
    Open = 0,
    /// Weights: `done` and `total` are bytes of the files.
    Weights = 1,
    /// Evaluation of what the load prepared.
    Finish = 2,
}

/// One report. `done` never decreases within a phase and reaches `total` at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub phase: LoadPhase,
    pub done: u64,
    pub total: u64,
}
