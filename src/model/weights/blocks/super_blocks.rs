//! Super-blocks of 256 elements ("K-quants"): groups with small whole scales, which one or two float16 of the block
//! multiply.

use half::f16;

use super::BlockFormat;
use super::numbers::pack;
use crate::model::weights::cast::encode;
use crate::model::weights::types::ElementType;

const ELEMENTS: usize = 256;

/// A block of `BYTES` bytes with `GROUPS` groups.
trait Format<const BYTES: usize, const GROUPS: usize> {
    /// Bits of a number in the affine triple.
    const BITS: usize;
    /// What is taken off each number; `None` in formats with minima.
    const ZERO: Option<u8>;

    fn read(block: &[u8; BYTES]) -> Block<GROUPS>;
}

/// What a block says: an element is `scale * (number - ZERO)` or `scale * number - minimum`.
struct Block<const GROUPS: usize> {
    numbers: [u8; ELEMENTS],
    scales: [f32; GROUPS],
    /// Zeros in formats without.
    minima: [f32; GROUPS],
}

/// Runs `$function` for the type of `$format`.
macro_rules! for_format {
    ($format:expr, $function:ident($($argument:expr),*)) => {
        match $format {
            BlockFormat::Q2K => $function::<Q2K, 84, 16>($($argument),*),
            BlockFormat::Q3K => $function::<Q3K, 110, 16>($($argument),*),
            BlockFormat::Q4K => $function::<Q4K, 144, 8>($($argument),*),
            BlockFormat::Q5K => $function::<Q5K, 176, 8>($($argument),*),
            BlockFormat::Q6K => $function::<Q6K, 210, 16>($($argument),*),
            other => debug_assert!(false, "{} has other blocks", other.name()),
        }
    };
}

/// Blocks as elements of the float type `to`.
pub(super) fn dequantize(format: BlockFormat, blocks: &[u8], to: ElementType, output: &mut [u8]) {
    for_format!(format, values_of(blocks, to, output));
}

fn values_of<F: Format<BYTES, GROUPS>, const BYTES: usize, const GROUPS: usize>(
    blocks: &[u8],
    to: ElementType,
    output: &mut [u8],
) {
    let targets = output.chunks_exact_mut(ELEMENTS * to.size());
    for (block, out) in blocks.as_chunks::<BYTES>().0.iter().zip(targets) {
        let Block { numbers, scales, minima } = F::read(block);
        let mut values = [0f32; ELEMENTS];
        let groups = values.chunks_exact_mut(ELEMENTS / GROUPS);
        let groups = groups.zip(numbers.chunks_exact(ELEMENTS / GROUPS)).zip(scales.iter().zip(&minima));
        for ((values, numbers), (scale, minimum)) in groups {
            for (value, number) in values.iter_mut().zip(numbers) {
                *value = match F::ZERO {
                    Some(zero) => scale * f32::from(*number as i8 - zero as i8),
                    None => scale * f32::from(*number) - minimum,
                };
            }
        }
        encode(to, &values, out);
    }
}

/// Blocks as affine triples.
pub(super) fn repack(format: BlockFormat, blocks: &[u8], float: ElementType, outputs: [&mut [u8]; 3]) {
    for_format!(format, triples_of(blocks, float, outputs));
}

fn triples_of<F: Format<BYTES, GROUPS>, const BYTES: usize, const GROUPS: usize>(
    blocks: &[u8],
    float: ElementType,
    [packed, scales, biases]: [&mut [u8]; 3],
) {
    let packed = packed.chunks_exact_mut(ELEMENTS * F::BITS / 8);
    let step = GROUPS * float.size();
    let parameters = scales.chunks_exact_mut(step).zip(biases.chunks_exact_mut(step));
    for (block, (packed, (scales, biases))) in
        blocks.as_chunks::<BYTES>().0.iter().zip(packed.zip(parameters))
    {
        let block = F::read(block);
        match F::BITS {
            2 => pack::<2>(&block.numbers, packed),
            4 => pack::<4>(&block.numbers, packed),
            5 => pack::<5>(&block.numbers, packed),
            6 => pack::<6>(&block.numbers, packed),
            other => debug_assert!(false, "{other} bits"),
        }
        encode(float, &block.scales, scales);
        let offsets = match F::ZERO {
            Some(zero) => block.scales.map(|scale| -f32::from(zero) * scale),
            None => block.minima.map(|minimum| -minimum),
        };
        encode(float, &offsets, biases);
    }
}

#[inline]
fn half_at(block: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([block[offset], block[offset + 1]]).to_f32()
}

/// The parts of `block` from `offset` on, each of `N` bytes.
#[inline]
fn parts<const N: usize>(block: &[u8], offset: usize) -> &[[u8; N]] {
    block[offset..].as_chunks::<N>().0
}

/// Numbers of `BITS` bits, 32 from the lowest bits of 32 bytes, the next 32 from the bits above them, and so on; then the
/// next 32 bytes.
#[inline]
fn layers<const BITS: usize>(packed: &[u8], numbers: &mut [u8; ELEMENTS]) {
    let targets = numbers.chunks_exact_mut(32 * 8 / BITS);
    for (bytes, numbers) in parts::<32>(packed, 0).iter().zip(targets) {
        for (layer, numbers) in numbers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            for (number, byte) in numbers.iter_mut().zip(bytes) {
                *number = byte >> (layer * BITS) & ((1 << BITS) - 1);
            }
        }
    }
}

/// Adds one bit from each layer of 32 bytes, moved to `place`.
#[inline]
fn add_bits(bits: &[u8], place: usize, numbers: &mut [u8; ELEMENTS]) {
    for (layer, numbers) in numbers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (number, byte) in numbers.iter_mut().zip(bits) {
            *number |= (byte >> layer & 1) << place;
        }
    }
}

/// Scales and minima of 6 bits in 12 bytes: the first four of each whole in the low bits of the first eight bytes, the
/// others with their upper two bits in what those have left and their lower four in the last four bytes.
#[inline]
fn scales_and_minima(packed: &[u8]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for index in 0..4 {
        let (scale, minimum, rest) = (packed[index], packed[index + 4], packed[index + 8]);
        scales[index] = scale & 0x3f;
        minima[index] = minimum & 0x3f;
        scales[index + 4] = rest & 0x0f | scale >> 2 & 0x30;
        minima[index + 4] = rest >> 4 | minimum >> 2 & 0x30;
    }
    (scales, minima)
}

struct Q2K;

/// 16 bytes of scales (low) and minima (high), 64 of numbers, two factors.
impl Format<84, 16> for Q2K {
    const BITS: usize = 2;
    const ZERO: Option<u8> = None;

    #[inline]
    fn read(block: &[u8; 84]) -> Block<16> {
        let (scale, minimum) = (half_at(block, 80), half_at(block, 82));
        let mut numbers = [0; ELEMENTS];
        layers::<2>(&block[16..80], &mut numbers);
        let both: [u8; 16] = parts(block, 0)[0];
        Block {
            numbers,
            scales: both.map(|both| scale * f32::from(both & 0x0f)),
            minima: both.map(|both| minimum * f32::from(both >> 4)),
        }
    }
}

struct Q3K;

/// 32 bytes of third bits, 64 of first and second bits, 12 of scales, a factor. A third bit that is not set takes 4 off
/// the number. Of a scale the lower four bits stand in the first eight bytes, as a low and then a high half, and the upper two
/// in the last four, as layers.
impl Format<110, 16> for Q3K {
    const BITS: usize = 4;
    const ZERO: Option<u8> = Some(4);

    #[inline]
    fn read(block: &[u8; 110]) -> Block<16> {
        let factor = half_at(block, 108);
        let mut numbers = [0; ELEMENTS];
        layers::<2>(&block[32..96], &mut numbers);
        add_bits(&block[..32], 2, &mut numbers);
        let (low, high) = (&block[96..104], &block[104..108]);
        let scale = |index: usize| {
            let lower = low[index % 8] >> (index / 8 * 4) & 0x0f;
            let upper = high[index % 4] >> (index / 4 * 2) & 3;
            (lower | upper << 4) as i8 - 32
        };
        Block {
            numbers,
            scales: std::array::from_fn(|index| factor * f32::from(scale(index))),
            minima: [0.0; 16],
        }
    }
}

struct Q4K;

/// Two factors, 12 bytes of scales and minima, 128 of numbers.
impl Format<144, 8> for Q4K {
    const BITS: usize = 4;
    const ZERO: Option<u8> = None;

    #[inline]
    fn read(block: &[u8; 144]) -> Block<8> {
        let mut numbers = [0; ELEMENTS];
        layers::<4>(&block[16..], &mut numbers);
        with_minima(block, numbers)
    }
}

struct Q5K;

/// Two factors, 12 bytes of scales and minima, 32 of fifth bits, 128 of the others.
impl Format<176, 8> for Q5K {
    const BITS: usize = 5;
    const ZERO: Option<u8> = None;

    #[inline]
    fn read(block: &[u8; 176]) -> Block<8> {
        let mut numbers = [0; ELEMENTS];
        layers::<4>(&block[48..], &mut numbers);
        add_bits(&block[16..48], 4, &mut numbers);
        with_minima(block, numbers)
    }
}

/// A block that begins with two factors, scales and minima.
#[inline]
fn with_minima(block: &[u8], numbers: [u8; ELEMENTS]) -> Block<8> {
    let (factor, minimum_factor) = (half_at(block, 0), half_at(block, 2));
    let (scales, minima) = scales_and_minima(&block[4..16]);
    Block {
        numbers,
        scales: scales.map(|scale| factor * f32::from(scale)),
        minima: minima.map(|minimum| minimum_factor * f32::from(minimum)),
    }
}

struct Q6K;

/// 128 bytes of lower four bits, 64 of upper two bits, 16 of scales, a factor. 64 bytes of the former hold 128 elements: in their
/// low halves 64, in their high halves the others.
impl Format<210, 16> for Q6K {
    const BITS: usize = 6;
    const ZERO: Option<u8> = Some(32);

    #[inline]
    fn read(block: &[u8; 210]) -> Block<16> {
        let factor = half_at(block, 208);
        let mut numbers = [0; ELEMENTS];
        layers::<2>(&block[128..192], &mut numbers);
        for (half, numbers) in parts::<64>(&block[..128], 0).iter().zip(numbers.as_chunks_mut::<128>().0) {
            for (layer, numbers) in numbers.as_chunks_mut::<64>().0.iter_mut().enumerate() {
                for (number, byte) in numbers.iter_mut().zip(half) {
                    *number = *number << 4 | byte >> (4 * layer) & 0x0f;
                }
            }
        }
        let scales: [u8; 16] = parts(block, 192)[0];
        Block { numbers, scales: scales.map(|scale| factor * f32::from(scale as i8)), minima: [0.0; 16] }
    }
}
