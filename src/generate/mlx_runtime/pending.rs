//! A token that was dispatched and not read yet.

use std::any::Any;

use crate::base::event::TokenLogprobs;
use crate::base::{Error, Result};
use crate::generate::runtime::{LogprobReport, PendingToken};
use crate::mlx::Array;
use crate::sample;

pub(super) struct MlxPending {
    /// uint32 `[1]`
    pub(super) token: Array,
    /// As [`sample::Sampled`] has it.
    pub(super) sound: Array,
    /// float32 `[1, vocabulary]`, if they are to be reported.
    pub(super) logprobs: Option<Array>,
    pub(super) report: LogprobReport,
}

impl PendingToken for MlxPending {
    fn read(&self) -> Result<(u32, Option<TokenLogprobs>)> {
        let token = self.token.item::<u32>()?;
        if !self.sound.item::<f32>()?.is_finite() {
            return Err(Error::invalid_model(
                "the model's scores are not numbers: weights are NaN or infinite, or too large for the type of the computation",
            ));
        }
        let told = match &self.logprobs {
            Some(logprobs) => {
                Some(logprobs.read(|row: &[f32]| sample::report(row, token, self.report.top as usize))?)
            }
            None => None,
        };
        Ok((token, told))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
