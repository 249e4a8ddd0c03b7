//! Columns of the latest tokens, and of some first ones, in planes that are written round and round.
//!
//! One token at a time replaces the oldest that is not kept. Several at once are written behind the others in the order
//! of time, so that the first of them still sees a whole window; the next single token cuts what is too much.

use super::planes::{self, STEP};
use crate::base::{Code, Error, Result};
use crate::mlx::{Array, Dtype, Mask, prim};

/// Any number of planes with the same tokens.
#[derive(Clone, Debug)]
pub struct Ring {
    planes: Vec<Array>,
    /// Tokens that there have been.
    offset: usize,
    /// Where the next token goes, if nothing has to make room for it before.
    index: usize,
    /// Tokens that the next one may attend, itself and the kept ones included.
    window: usize,
    /// First tokens that stay for ever.
    keep: usize,
}

impl Ring {
    /// INVALID_ARGUMENT unless `keep < window`.
    pub fn new(window: usize, keep: usize) -> Result<Self> {
        if window == 0 || window > planes::MOST {
            return Err(Error::invalid_argument(format!(
                "a window of tokens has at least 1 and at most {}, not {window}",
                planes::MOST
            ))
            .field("window"));
        }
        if keep >= window {
            return Err(Error::invalid_argument(format!(
                "a window of {window} tokens has no room for others if it keeps the first {keep}"
            ))
            .field("keep"));
        }
        Ok(Ring { planes: Vec::new(), offset: 0, index: 0, window, keep })
    }

    /// The ring with other planes, which have the same columns in the same order; none if this has none.
    pub fn with_planes(&self, planes: Vec<Array>) -> Self {
        Ring { planes, ..*self }
    }

    /// The state of a ring with these planes. INCOMPATIBLE_CHECKPOINT, naming the field, if no ring can be in it.
    pub fn restored(
        window: usize,
        keep: usize,
        offset: usize,
        index: usize,
        planes: Vec<Array>,
    ) -> Result<Self> {
        let ring = Ring::new(window, keep)?;
        let length = planes::length(&planes);
        let wrong = |field: &str| {
            Err(Error::new(
                Code::IncompatibleCheckpoint,
                format!(
                    "no window of {window} tokens that keeps {keep} has {length} columns and goes on at {index} \
                     after {offset} tokens"
                ),
            )
            .field(field))
        };
        // There is room behind the tokens, or there are exactly these, or some have gone.
        let possible = match offset {
            0 => false,
            _ if offset < length => length <= window,
            _ if offset == length => true,
            _ => length >= window && offset <= planes::MOST,
        };
        if !possible {
            return wrong("offset");
        }
        let wrapped = offset > length && length == window && index > keep && index < length;
        if index != offset.min(length) && !wrapped {
            return wrong("idx");
        }
        Ok(Ring { planes, offset, index, ..ring })
    }

    pub fn offset(&self) -> usize {
        self.offset
    }

    pub fn index(&self) -> usize {
        self.index
    }

    pub fn window(&self) -> usize {
        self.window
    }

    pub fn keep(&self) -> usize {
        self.keep
    }

    /// All columns as they lie.
    pub fn planes(&self) -> &[Array] {
        &self.planes
    }

    pub fn bytes(&self) -> usize {
        planes::bytes(&self.planes)
    }

    /// Appends the columns of the next tokens and returns those that these may attend, in no order; `mask` tells which
    /// of them.
    pub fn append(&mut self, new: &[Array]) -> Result<Vec<Array>> {
        let tokens = planes::tokens_of(new, &self.planes)?;
        let end = planes::end(self.offset, tokens)?;
        let (staged, index) = if tokens == 1 { self.replaced(new)? } else { self.extended(new)? };
        let cut = |plane: &Array| {
            if end < plane.dim(2) as usize { planes::columns(plane, 0, end) } else { Ok(plane.clone()) }
        };
        let views: Vec<Array> = staged.iter().map(cut).collect::<Result<_>>()?;
        (self.planes, self.offset, self.index) = (staged, end, index);
        Ok(views)
    }

    /// The planes with one token more in the place of the oldest, and the index behind it.
    fn replaced(&self, new: &[Array]) -> Result<(Vec<Array>, usize)> {
        let (length, window, keep) = (planes::length(&self.planes), self.window, self.keep);
        let grow = self.offset >= length && length < window;
        let too_many = length.saturating_sub(window);
        let mut index = match () {
            () if grow => self.offset,
            () if too_many > 0 => window,
            () => self.index,
        };
        if index == window {
            index = keep;
        }
        let mut staged = Vec::with_capacity(new.len());
        for (at, update) in new.iter().enumerate() {
            let plane = match self.planes.get(at) {
                Some(plane) if grow => {
                    planes::joined(&[plane.clone(), planes::zeros(update, STEP.min(window - length))?])?
                }
                Some(plane) => self.without_oldest(plane, too_many)?,
                None => planes::zeros(update, STEP.min(window))?,
            };
            staged.push(planes::written(&plane, update, index)?);
        }
        Ok((staged, index + 1))
    }

    /// The planes in the order of time with several tokens behind at most a window's others, and the index behind.
    fn extended(&self, new: &[Array]) -> Result<(Vec<Array>, usize)> {
        let mut staged = Vec::with_capacity(new.len());
        for (at, update) in new.iter().enumerate() {
            let plane = match self.planes.get(at) {
                Some(plane) if self.offset > 0 => {
                    let plane = self.in_time_order(plane)?;
                    let length = plane.dim(2) as usize;
                    let too_many = (length + 1).saturating_sub(self.window);
                    if too_many == length {
                        update.clone()
                    } else {
                        planes::joined(&[self.without_oldest(&plane, too_many)?, update.clone()])?
                    }
                }
                _ => update.clone(),
            };
            staged.push(plane);
        }
        let index = planes::length(&staged);
        Ok((staged, index))
    }

    /// A plane in the order of time without its `count` oldest columns behind those that are kept.
    fn without_oldest(&self, plane: &Array, count: usize) -> Result<Array> {
        if count == 0 {
            return Ok(plane.clone());
        }
        ranges(plane, &[(0, self.keep), (count + self.keep, plane.dim(2) as usize)])
    }

    fn in_time_order(&self, plane: &Array) -> Result<Array> {
        let length = plane.dim(2) as usize;
        if self.index == length {
            Ok(plane.clone())
        } else if self.index < self.offset {
            ranges(plane, &[(0, self.keep), (self.index, length), (self.keep, self.index)])
        } else {
            ranges(plane, &[(0, self.index)])
        }
    }

    /// What has been overwritten does not come back: only until the first token goes.
    pub fn can_forget(&self, tokens: usize) -> bool {
        tokens == 0 || self.offset < self.window
    }

    pub fn forget(&mut self, tokens: usize) -> usize {
        if !self.can_forget(tokens) {
            return 0;
        }
        let dropped = tokens.min(self.offset);
        self.offset -= dropped;
        self.index -= dropped;
        dropped
    }

    /// What the next `queries` tokens may attend among the columns that their append returns: the kept tokens and the
    /// latest ones, `window` together and never more than those of the ring.
    pub fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask> {
        let window = window.unwrap_or(self.window).min(self.window);
        // The latest tokens that a query may attend, itself included, besides those that are kept.
        let latest = window.saturating_sub(self.keep).max(1);
        if queries == 1 {
            return if window < self.window && self.offset >= window {
                self.mask_of_one(latest)
            } else {
                Ok(Mask::None)
            };
        }
        let before = self.offset.min(self.window - 1);
        let end = before + queries;
        if end <= window {
            return Ok(Mask::Causal);
        }
        let row = |from: usize| prim::arange(from as f64, end as f64, 1.0, Dtype::Int32);
        let (rows, keys) = (prim::expand_dims(&row(before)?, 1)?, prim::expand_dims(&row(0)?, 0)?);
        let count = |number: usize| Array::from_slice(&[number as i32], &[]);
        let nearness = if self.keep == 0 {
            keys.clone()
        } else {
            // A kept key is never too far away.
            prim::select(&prim::less(&keys, &count(self.keep)?)?, &count(end)?, &keys)?
        };
        let behind = prim::greater_equal(&rows, &keys)?;
        let near = prim::less(&rows, &prim::add(&nearness, &count(latest)?)?)?;
        Ok(Mask::Array(prim::logical_and(&behind, &near)?))
    }

    /// `[1, columns]` for a single query that sees the kept tokens and the `latest` ones among those in the ring.
    fn mask_of_one(&self, latest: usize) -> Result<Mask> {
        let columns = (self.offset + 1).min(self.window);
        // Where the query's own token goes; what lies behind it, up to the kept ones, is the next oldest.
        let own = if self.index >= self.window { self.keep } else { self.index };
        let behind = columns.saturating_sub(self.keep);
        let seen: Vec<u8> = (0..columns)
            .map(|column| u8::from(column < self.keep || (own + behind - column) % behind < latest))
            .collect();
        Ok(Mask::Array(Array::from_bytes(Dtype::Bool, &[1, columns as i32], &seen)?))
    }
}

/// The columns of these ranges one after another; not all of them are empty.
fn ranges(plane: &Array, ranges: &[(usize, usize)]) -> Result<Array> {
    let filled = ranges.iter().filter(|(from, to)| from < to);
    let parts: Vec<Array> =
        filled.map(|&(from, to)| planes::columns(plane, from, to)).collect::<Result<_>>()?;
    planes::joined(&parts)
}
