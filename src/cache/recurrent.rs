//! States that each step replaces: of convolutions and of linear recurrences.

use std::any::Any;

use super::{LayerCache, Signature};
use crate::base::{Error, Result};
use crate::mlx::{Array, Mask};

/// `ssm`: a number of slots that a layer fills as it likes; a gated delta layer has its convolution's last inputs
/// `[1, kernel - 1, channels]` and its recurrent state, float32 `[1, value heads, value dims, key dims]`.
///
/// What a token has done to a state cannot be taken out again, so nothing can be forgotten.
#[derive(Clone, Debug)]
pub struct RecurrentCache {
    slots: Vec<Option<Array>>,
    offset: usize,
}

impl RecurrentCache {
    /// Empty slots.
    pub fn new(slots: usize) -> Self {
        RecurrentCache { slots: vec![None; slots], offset: 0 }
    }

    pub(super) fn with_slots(slots: Vec<Option<Array>>, offset: usize) -> Self {
        RecurrentCache { slots, offset }
    }

    pub fn slots(&self) -> &[Option<Array>] {
        &self.slots
    }

    /// Replaces what a slot holds. INTERNAL if there is no such slot.
    pub fn set(&mut self, slot: usize, state: Array) -> Result<()> {
        let count = self.slots.len();
        let place = self
            .slots
            .get_mut(slot)
            .ok_or_else(|| Error::internal(format!("slot {slot} of a recurrent cache with {count}")))?;
        *place = Some(state);
        Ok(())
    }

    /// Counts tokens that the slots cover now.
    pub fn advance(&mut self, tokens: usize) {
        self.offset += tokens;
    }
}

impl LayerCache for RecurrentCache {
    fn offset(&self) -> usize {
        self.offset
    }

    fn mask(&self, _queries: usize, _window: Option<usize>) -> Result<Mask> {
        Ok(Mask::None)
    }

    fn state(&self) -> Result<Vec<Array>> {
        Ok(self.slots.iter().flatten().cloned().collect())
    }

    fn can_forget(&self, tokens: usize) -> bool {
        tokens == 0
    }

    fn always_forgets(&self) -> bool {
        false
    }

    fn forget(&mut self, _tokens: usize) -> usize {
        0
    }

    fn signature(&self) -> Signature {
        Signature::Recurrent
    }

    fn bytes(&self) -> usize {
        self.slots.iter().flatten().map(Array::byte_size).sum()
    }

    fn fork(&self) -> Box<dyn LayerCache> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
