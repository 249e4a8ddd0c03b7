//! Weights of one step of a block as float32, `[inputs][32]`.

use super::few::{load, number};
use super::layout::{BLOCK, WORDS};
use crate::mlx::kernels::float::Float;
use crate::mlx::kernels::sixteen::{LANES, Lanes};

/// Writes the `inputs` numbers of each output of a group as floats. Those of 2, 4 and 8 bits are
/// multiplied by the power of two of their place, see [`super::arrange`].
///
/// # Safety
/// `words` points to the group's words: `inputs * bits / 32` lines. `panel` has room.
#[inline(always)]
pub unsafe fn unpack<S: Lanes>(s: S, bits: u32, words: *const u8, inputs: usize, panel: *mut f32) {
    // SAFETY: the caller's promise.
    unsafe {
        match bits {
            2 => unpack_in_place::<S, 2>(s, words, inputs, panel),
            4 => unpack_in_place::<S, 4>(s, words, inputs, panel),
            8 => unpack_in_place::<S, 8>(s, words, inputs, panel),
            _ => unpack_stream(s, bits as usize, words, inputs, panel),
        }
    }
}

/// # Safety
/// As [`unpack`].
#[inline(always)]
unsafe fn unpack_in_place<S: Lanes, const BITS: u32>(s: S, words: *const u8, inputs: usize, panel: *mut f32) {
    let word_inputs = (32 / BITS) as usize;
    let count = inputs / word_inputs;
    // SAFETY: the caller's promise; the words are some of the group's.
    unsafe {
        if count.is_multiple_of(4) {
            for word in (0..count).step_by(4) {
                let panel = panel.add(word * word_inputs * BLOCK);
                unpack_words_of::<S, BITS, 4>(s, words.add(word * WORDS), panel);
            }
        } else {
            for word in 0..count {
                let panel = panel.add(word * word_inputs * BLOCK);
                unpack_words_of::<S, BITS, 1>(s, words.add(word * WORDS), panel);
            }
        }
    }
}

/// Unpacks `COUNT` lines of words, two vectors at a time where there are registers for them.
///
/// # Safety
/// As [`unpack_words`].
#[inline(always)]
unsafe fn unpack_words_of<S: Lanes, const BITS: u32, const COUNT: usize>(
    s: S,
    words: *const u8,
    panel: *mut f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if S::WIDE {
            unpack_words::<S, BITS, COUNT, 2>(s, words, panel);
        } else {
            unpack_words::<S, BITS, COUNT, 1>(s, words, panel);
        }
    }
}

/// Unpacks `COUNT` lines of words, `VECTORS` vectors at a time. They are loaded before anything is stored: a load waits for stores
/// that it follows, if they are to the same place in another page, and the panel is a page.
///
/// # Safety
/// There are as many lines at `words`, and `panel` has room.
#[inline(always)]
unsafe fn unpack_words<S: Lanes, const BITS: u32, const COUNT: usize, const VECTORS: usize>(
    s: S,
    words: *const u8,
    panel: *mut f32,
) {
    let word_inputs = (32 / BITS) as usize;
    for column in (0..BLOCK).step_by(VECTORS * LANES) {
        let mut bits = [[s.splat_word(0); VECTORS]; COUNT];
        for (word, bits) in bits.iter_mut().enumerate() {
            for (vector, bits) in bits.iter_mut().enumerate() {
                let at = words.wrapping_add(word * WORDS + (column + vector * LANES) * 4);
                // SAFETY: the caller's promise.
                *bits = s.load_words(unsafe { &*at.cast() });
            }
        }
        for (word, bits) in bits.into_iter().enumerate() {
            for (vector, mut bits) in bits.into_iter().enumerate() {
                for half in 0..2 {
                    for place in 0..16 / BITS {
                        let input = word * word_inputs + (half * 16 / BITS + place) as usize;
                        let to = panel.wrapping_add(input * BLOCK + column + vector * LANES);
                        // SAFETY: the input is one of the panel's.
                        s.store(number::<S, BITS>(s, bits, place), unsafe { &mut *to.cast() });
                    }
                    bits = s.shr(bits, 16);
                }
            }
        }
    }
}

/// Numbers that may begin in one word and end in the next.
///
/// # Safety
/// As [`unpack`].
#[inline(always)]
unsafe fn unpack_stream<S: Lanes>(s: S, bits: usize, words: *const u8, inputs: usize, panel: *mut f32) {
    let mask = s.splat_word((1 << bits) - 1);
    for input in 0..inputs {
        let (word, shift) = (input * bits / 32, input * bits % 32);
        for column in (0..BLOCK).step_by(LANES) {
            // SAFETY: the number's first bit is in a word of the group. If its last bit is not in the
            // same word, the next one is the group's too, which ends with a whole number.
            let number = unsafe {
                let low = s.shr(s.load_words(&*words.add(word * WORDS + column * 4).cast()), shift as u32);
                if shift + bits > 32 {
                    let high = s.load_words(&*words.add((word + 1) * WORDS + column * 4).cast());
                    s.or(low, s.shl(high, 32 - shift as u32))
                } else {
                    low
                }
            };
            // SAFETY: the input is one of the panel's.
            let to = unsafe { &mut *panel.add(input * BLOCK + column).cast() };
            s.store(s.to_float(s.and(number, mask)), to);
        }
    }
}

/// Writes `count` elements as float32.
///
/// # Safety
/// `from` has `count` elements, `to` room for as many floats, and `count` is a multiple of 32.
#[inline(always)]
pub unsafe fn widen<S: Lanes>(s: S, float: Float, from: *const u8, count: usize, to: *mut f32) {
    for index in (0..count).step_by(LANES) {
        // SAFETY: the caller's promise; the lanes divide 32.
        unsafe { s.store(load(s, float, from.add(index * float.size())), &mut *to.add(index).cast()) };
    }
}
