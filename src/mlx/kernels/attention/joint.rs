//! Values that are the first dimensions of their keys.
//!
//! Keys lie with sixteen positions interleaved, so that a square of sixteen dimensions is turned to give the values of
//! sixteen positions. All heads of a tile read what was turned once.

use std::marker::PhantomData;

use super::shape::{GROUP, KvShape};
use super::stored::{Element, InPlace, Stored, Values};
use crate::mlx::kernels::sixteen::{LANES, Lanes};

/// Values in keys of this element.
#[derive(Clone, Copy)]
pub struct Joint<E>(PhantomData<E>);

impl<E> Stored for Joint<E> {
    const IN_PLACE: InPlace = InPlace::Never;
}

impl<E: Element> Values for Joint<E> {
    #[inline(always)]
    fn values<S: Lanes>(s: S, shape: &KvShape, from: &[u8], positions: usize, to: &mut [f32], stride: usize) {
        let line = LANES * E::BYTES;
        let groups = from.chunks_exact(shape.key_dims * line).zip(to.chunks_exact_mut(GROUP * stride));
        for (keys, values) in groups.take(positions.div_ceil(GROUP)) {
            let dims = &keys[..shape.value_dims * line];
            for (index, dims) in dims.chunks(LANES * line).enumerate() {
                let mut square = [[0.0; LANES]; LANES];
                for (to, from) in square.iter_mut().zip(dims.chunks_exact(line)) {
                    // SAFETY: a line is sixteen elements.
                    s.store(unsafe { E::load(s, from.as_ptr()) }, to);
                }
                for (position, values) in values.chunks_exact_mut(stride).enumerate() {
                    let values = &mut values[index * LANES..][..LANES];
                    for (to, line) in values.iter_mut().zip(&square) {
                        *to = line[position];
                    }
                }
            }
        }
    }
}
