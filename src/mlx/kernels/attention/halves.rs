//! Half precision that does not overflow: a finite number beyond its range becomes the outermost one, so that a large key
//! or value cannot make attention infinite. Infinities and NaN stay what they are.

use half::f16;
use half::slice::HalfFloatSliceExt;

/// The nearest finite number, ties to even.
#[inline(always)]
pub fn nearest(number: f32) -> f16 {
    within(f16::from_f32(number), number)
}

/// The same for numbers one after the other.
pub fn store_nearest(from: &[f32], to: &mut [f16]) {
    to.convert_from_f32_slice(from);
    if to.iter().any(|half| half.is_infinite()) {
        to.iter_mut().zip(from).for_each(|(half, number)| *half = within(*half, *number));
    }
}

#[inline(always)]
fn within(half: f16, number: f32) -> f16 {
    if half.is_infinite() && number.is_finite() { f16::MAX.copysign(half) } else { half }
}
