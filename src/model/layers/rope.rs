//! From a configuration's rotation to that of the operations.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::base::{Error, Result};
use crate::mlx::ops::{self, Llama3Scaling, Rope, Rotation, YarnScaling};
use crate::model::config::{self, RopeScaling, yarn_scale};

pub fn rope_of(rope: &config::Rope) -> Result<Rope> {
    let size = |size: usize| i32::try_from(size).map_err(|_| Error::invalid_model("the heads are too wide"));
    let (dims, traditional, theta) = (size(rope.dims)?, rope.traditional, rope.theta);
    match &rope.scaling {
        RopeScaling::None => Ok(Rope::plain(dims, traditional, theta, 1.0)),
        RopeScaling::Linear { factor } => Ok(Rope::plain(dims, traditional, theta, 1.0 / factor)),
        RopeScaling::Dynamic { factor, positions } => {
            Ok(Rope::dynamic(dims, traditional, theta, *factor, *positions))
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            Rope::llama3(
                dims,
                traditional,
                theta,
                Llama3Scaling {
                    factor: *factor,
                    low_freq_factor: *low_freq_factor,
                    high_freq_factor: *high_freq_factor,
                    original_max_positions: *original_max_positions,
                },
            )
        }
        RopeScaling::Yarn {
            factor,
            original_max_positions,
            beta_fast,
            beta_slow,
            mscale,
            mscale_all_dim,
        } => Rope::yarn(
            dims,
            traditional,
            theta,
            YarnScaling {
                factor: *factor,
                original_max_positions: *original_max_positions,
                beta_fast: *beta_fast,
                beta_slow: *beta_slow,
                scale: yarn_scale(*factor, *mscale) / yarn_scale(*factor, *mscale_all_dim),
            },
        ),
        RopeScaling::Long(long) => Rope::long(
            dims,
            theta,
            long.original_max_positions,
            (&long.short_factors, long.short_scale),
            (&long.long_factors, long.long_scale),
        ),
        RopeScaling::Proportional { factor, rotated } => {
            Rope::proportional(dims, size(*rotated)?, traditional, theta, *factor)
        }
        RopeScaling::Factors(factors) => Rope::with_factors(dims, traditional, theta, factors),
    }
}

/// The table that the last forward took.
pub struct Last {
    length: usize,
    frequencies: Vec<f64>,
    rotation: Arc<Rotation>,
}

/// The tables of a rotation, for the kernels. Layers share them.
pub enum Rotations {
    One(Arc<Rotation>),
    /// The rotation depends on the length of the sequence; here is the one of the last length.
    ByLength {
        rope: Rope,
        last: RefCell<Option<Last>>,
    },
}

impl Rotations {
    pub fn new(rope: Option<&Rope>) -> Result<Self> {
        match rope {
            Some(rope) if rope.depends_on_length() => {
                Ok(Rotations::ByLength { rope: rope.clone(), last: RefCell::new(None) })
            }
            rope => Ok(Rotations::One(ops::rotation(rope)?)),
        }
    }

    /// The table for a sequence of that many positions.
    pub fn at_length(&self, length: usize) -> Result<Arc<Rotation>> {
        let (rope, last) = match self {
            Rotations::One(rotation) => return Ok(Arc::clone(rotation)),
            Rotations::ByLength { rope, last } => (rope, last),
        };
        if let Some(last) = &*last.borrow()
            && last.length == length
        {
            return Ok(Arc::clone(&last.rotation));
        }
        let rope = rope.at_length(length);
        let (frequencies, _) = rope.frequencies()?;
        let known = last.borrow_mut().take().filter(|last| last.frequencies == frequencies);
        let rotation = match known {
            Some(last) => last.rotation,
            None => ops::rotation(Some(&rope))?,
        };
        *last.borrow_mut() = Some(Last { length, frequencies, rotation: Arc::clone(&rotation) });
        Ok(rotation)
    }
}

/// How queries and keys turn.
#[derive(Clone)]
pub struct Turning {
    /// `None`: positions are left out.
    pub rope: Option<Rope>,
    /// For the kernels.
    pub rotations: Rc<Rotations>,
}

impl Turning {
    pub fn new(rope: Option<Rope>) -> Result<Self> {
        let rotations = Rc::new(Rotations::new(rope.as_ref())?);
        Ok(Turning { rope, rotations })
    }
}
