//! Columns of all tokens in planes that grow in steps.
//!
//! MLX writes a plane in place when no one else holds it; a fork or a kept view costs one copy at the next write.

use super::planes::{self, STEP};
use crate::base::Result;
use crate::mlx::{Array, Mask, eval};

/// Any number of planes with the same tokens, of which the first `offset` are there.
#[derive(Clone, Debug, Default)]
pub struct Growing {
    planes: Vec<Array>,
    offset: usize,
}

impl Growing {
    /// Planes as they are, with `offset` columns in use; none for a state without tokens.
    pub fn laid_out(planes: Vec<Array>, offset: usize) -> Self {
        Growing { planes, offset }
    }

    /// Planes that hold exactly the columns in use, with room for the next tokens behind them; computed at once, so
    /// that the next append neither grows nor reads what they came from.
    pub fn restored(used: &[Array]) -> Result<Self> {
        let offset = planes::length(used);
        let room = (offset + 1).next_multiple_of(STEP) - offset;
        let mut grown = Vec::with_capacity(used.len());
        for plane in used {
            grown.push(planes::joined(&[plane.clone(), planes::zeros(plane, room)?])?);
        }
        eval(&grown)?;
        Ok(Growing { planes: grown, offset })
    }

    pub fn offset(&self) -> usize {
        self.offset
    }

    /// All columns, those behind the offset too.
    pub fn planes(&self) -> &[Array] {
        &self.planes
    }

    pub fn bytes(&self) -> usize {
        planes::bytes(&self.planes)
    }

    /// The columns in use, as views.
    pub fn used(&self) -> Result<Vec<Array>> {
        used(&self.planes, self.offset)
    }

    /// Appends the columns of the next tokens and returns those of all.
    pub fn append(&mut self, new: &[Array]) -> Result<Vec<Array>> {
        let tokens = planes::tokens_of(new, &self.planes)?;
        let end = planes::end(self.offset, tokens)?;
        let room = tokens.next_multiple_of(STEP);
        let grow = end > planes::length(&self.planes);
        let mut staged = Vec::with_capacity(new.len());
        for (index, update) in new.iter().enumerate() {
            let plane = match self.planes.get(index) {
                Some(plane) if !grow => plane.clone(),
                Some(plane) => {
                    let kept = if self.offset.is_multiple_of(STEP) {
                        plane.clone()
                    } else {
                        planes::columns(plane, 0, self.offset)?
                    };
                    planes::joined(&[kept, planes::zeros(update, room)?])?
                }
                None => planes::zeros(update, room)?,
            };
            staged.push(planes::written(&plane, update, self.offset)?);
        }
        let views = used(&staged, end)?;
        self.planes = staged;
        self.offset = end;
        Ok(views)
    }

    /// The bytes stay and are overwritten later; nothing past the offset is ever read.
    pub fn forget(&mut self, tokens: usize) -> usize {
        let dropped = tokens.min(self.offset);
        self.offset -= dropped;
        dropped
    }

    /// What the next `queries` tokens may attend.
    pub fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask> {
        let end = self.offset + queries;
        Mask::causal(queries as i32, self.offset as i32, window.map(|window| window.min(end) as i32))
    }
}

fn used(all: &[Array], offset: usize) -> Result<Vec<Array>> {
    let cut = |plane: &Array| {
        if offset < plane.dim(2) as usize { planes::columns(plane, 0, offset) } else { Ok(plane.clone()) }
    };
    all.iter().map(cut).collect()
}
