//! How a prompt is cut into forwards: a pure function of numbers.

use crate::base::{Error, Result};

/// What has to be prefilled and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillPlan {
    /// Tokens of the prompt.
    pub length: u64,
    /// Most tokens of a forward.
    pub chunk: u64,
    /// Most tokens of the forward whose last position is projected; 1: the last token alone, as mlx-lm does.
    pub last: u64,
    /// Stop there once, so that the state at this position can be kept.
    pub snapshot_at: Option<u64>,
}

/// The next forward, from the position asked about up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefillUnit {
    /// Without the vocabulary head.
    Drain { end: u64, snapshot: bool },
    /// The one whose last position is projected; `end` is the prompt's length.
    Final { end: u64 },
}

impl PrefillPlan {
    /// The unit that begins at `position`. INVALID_ARGUMENT for numbers without a meaning.
    pub fn unit(&self, position: u64) -> Result<PrefillUnit> {
        if self.chunk == 0 {
            return Err(
                Error::invalid_argument("a prefill chunk has at least one token").field("prefill_chunk")
            );
        }
        if position >= self.length {
            return Err(Error::invalid_argument(format!(
                "position {position} is not inside a prompt of {} tokens",
                self.length
            )));
        }
        let chunk_end = position.saturating_add(self.chunk);
        if let Some(snapshot) = self.snapshot_at
            && snapshot > position
            && snapshot < self.length
        {
            let end = chunk_end.min(snapshot);
            return Ok(PrefillUnit::Drain { end, snapshot: end == snapshot });
        }
        let remaining = self.length - position;
        if remaining <= self.last.clamp(1, self.chunk) {
            return Ok(PrefillUnit::Final { end: self.length });
        }
        let drained = self.chunk.min(remaining - 1);
        Ok(PrefillUnit::Drain { end: position + drained, snapshot: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths(plan: PrefillPlan) -> Vec<(u64, bool)> {
        let mut position = 0;
        let mut widths = Vec::new();
        loop {
            match plan.unit(position).unwrap() {
                PrefillUnit::Drain { end, snapshot } => {
                    widths.push((end - position, snapshot));
                    position = end;
                }
                PrefillUnit::Final { end } => {
                    widths.push((end - position, false));
                    return widths;
                }
            }
        }
    }

    fn plan(length: u64, chunk: u64) -> PrefillPlan {
        PrefillPlan { length, chunk, last: 1, snapshot_at: None }
    }

    #[test]
    fn scenario_1_the_last_token_goes_alone() {
        let widths_only = |plan| widths(plan).into_iter().map(|(width, _)| width).collect::<Vec<_>>();
        assert_eq!(widths_only(plan(5000, 2048)), [2048, 2048, 903, 1]);
        assert_eq!(widths_only(plan(1, 2048)), [1]);
        assert_eq!(widths_only(plan(2, 2048)), [1, 1]);
        assert_eq!(widths_only(plan(2049, 2048)), [2048, 1]);
        assert_eq!(widths_only(plan(4, 1)), [1, 1, 1, 1]);
    }

    #[test]
    fn scenario_1_a_snapshot_cuts_a_chunk() {
        let plan = PrefillPlan { snapshot_at: Some(3000), ..plan(5000, 2048) };
        assert_eq!(widths(plan), [(2048, false), (952, true), (1999, false), (1, false)]);
    }

    #[test]
    fn the_last_forward_may_be_wider() {
        let plan = PrefillPlan { last: u64::MAX, ..plan(5000, 2048) };
        assert_eq!(widths(plan), [(2048, false), (2048, false), (904, false)]);
        let even = PrefillPlan { length: 4096, ..plan };
        assert_eq!(widths(even), [(2048, false), (2048, false)]);
    }

    #[test]
    fn numbers_without_meaning_are_refused() {
        assert!(plan(5, 0).unit(0).is_err());
        assert!(plan(5, 1).unit(5).is_err());
        assert!(plan(0, 1).unit(0).is_err());
    }

    #[test]
    fn units_cover_every_prompt_without_gap() {
        for length in 1..70 {
            for chunk in 1..20 {
                for snapshot_at in [None, Some(0), Some(1), Some(7), Some(length), Some(length + 3)] {
                    for last in [1, 5, 100] {
                        let plan = PrefillPlan { length, chunk, last, snapshot_at };
                        let widths = widths(plan);
                        assert_eq!(widths.iter().map(|(width, _)| width).sum::<u64>(), length);
                        assert!(widths.iter().all(|(width, _)| (1..=chunk).contains(width)));
                    }
                }
            }
        }
    }
}
