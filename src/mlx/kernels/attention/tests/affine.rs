//! Quantisation against MLX's.

use super::super::affine::quantise;

/// Bits, the pattern of the scale and of the bias, and the words of `mx.quantize` for a group of 64 numbers.
struct Known {
    name: &'static str,
    bits: u32,
    scale: u32,
    bias: u32,
    words: &'static [u32],
}

/// From MLX 0.32.2 on a CPU.
#[rustfmt::skip]
const KNOWN: &[Known] = &[
    Known { name: "plain", bits: 4, scale: 0x3e590000, bias: 0xbfd90000, words: &[
        0x7a28c797, 0xa7b28c79, 0x8a8c3937, 0x48a8d494, 0xb58a8d4a, 0x6b5968e5, 0xf6c5968f, 0x807c6968] },
    Known { name: "below zero", bits: 4, scale: 0x3e65b6db, bias: 0xc0490000, words: &[
        0x85d74868, 0x684d7386, 0x8684c6c8, 0xb7583b6b, 0x5b7582b5, 0x94a7971a, 0x094a6971, 0x7f839697] },
    Known { name: "constant", bits: 4, scale: 0xb3d6bf95, bias: 0x3f400000, words: &[
        0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000] },
    Known { name: "zero", bits: 4, scale: 0xb3d6bf95, bias: 0x00000000, words: &[
        0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000] },
    Known { name: "above zero", bits: 4, scale: 0xbde5cccd, bias: 0x3fe5cccd, words: &[
        0xeb3f8dde, 0xce95e7dc, 0xfce86d6e, 0x8fbe67c7, 0xa9ebf58b, 0xb9aebf3a, 0x0c8adbf2, 0xf0d7bccf] },
    Known { name: "plain", bits: 8, scale: 0x3c55a95b, bias: 0xbfd90000, words: &[
        0xc06e9575, 0x77a81d7f, 0x88c77499, 0x9c79b428, 0x33913579, 0x7ea07bc1, 0xcd3e9a3d, 0x4484a47d, 0x7eda48a3, 0xac4b89a7, 0x5e80e753, 0x5eb5528f, 0x946282f3, 0xff69be59, 0x60996584, 0x860074c7] },
    Known { name: "below zero", bits: 8, scale: 0x3c566666, bias: 0xc0490000, words: &[
        0x3f916a8a, 0x8858e280, 0x77388c67, 0x63864bd7, 0xcc6eca86, 0x8160853f, 0x32c165c3, 0xbb7c5c83, 0x8126b75d, 0x54b47658, 0xa17f19ac, 0xa14bad71, 0x6b9e7d0d, 0x009642a6, 0x9f669a7c, 0x7aff8c39] },
    Known { name: "constant", bits: 8, scale: 0xb3d6bf95, bias: 0x3f400000, words: &[
        0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000] },
    Known { name: "zero", bits: 8, scale: 0xb3d6bf95, bias: 0x00000000, words: &[
        0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000, 0x00000000] },
    Known { name: "above zero", bits: 8, scale: 0xbbd9e26b, bias: 0x3fe5cccd, words: &[
        0x85d8d9e6, 0xeab53af9, 0xf377e3d2, 0xcbed9c4f, 0x64e269ed, 0xf8c4f184, 0x6b79d077, 0x85fbbdf4, 0xf8528ebe, 0xad93f1b6, 0xb8fb3aa3, 0xb89ba1e6, 0xdcc0ff21, 0x08ce89af, 0xbdd1c7fb, 0xf800e378] },
];

fn group(name: &str) -> Vec<f32> {
    let plain = (0..64).map(|i| (((i * 37 + 11) % 64) as f32 / 16.0 - 2.0) * (1 + i % 7) as f32 / 8.0);
    match name {
        "plain" => plain.collect(),
        "below zero" => plain.map(|x| -x - 1.5).collect(),
        "constant" => vec![0.75; 64],
        "zero" => vec![0.0; 64],
        _ => plain.map(|x| x.abs() + 0.1).collect(),
    }
}

#[test]
fn quantisation_is_that_of_mlx() {
    for known in KNOWN {
        let mut numbers = [0; 64];
        let (scale, bias) = quantise(&group(known.name), known.bits, &mut numbers);
        let per_word = 32 / known.bits as usize;
        let word = |numbers: &[u32]| {
            numbers.iter().rev().fold(0_u64, |word, n| word << known.bits | u64::from(*n)) as u32
        };
        let words: Vec<u32> = numbers.chunks(per_word).map(word).collect();
        assert_eq!(words, known.words, "{} {}", known.name, known.bits);
        assert_eq!((scale.to_bits(), bias.to_bits()), (known.scale, known.bias), "{}", known.name);
    }
}
