//! Numbers of a few bits: apart in bytes, and together as MLX packs them.

/// Packs numbers below 2^`BITS`: each follows the one before from the lowest bit on, and eight fill `BITS` bytes.
#[inline]
pub(super) fn pack<const BITS: usize>(numbers: &[u8], packed: &mut [u8]) {
    for (eight, packed) in numbers.as_chunks::<8>().0.iter().zip(packed.as_chunks_mut::<BITS>().0) {
        let together = squeeze::<BITS>(u64::from_le_bytes(*eight)).to_le_bytes();
        packed.copy_from_slice(&together[..BITS]);
    }
}

/// The low `BITS` bits of eight bytes, moved together: neighbouring bytes, then pairs, then fours.
#[inline]
pub(super) fn squeeze<const BITS: usize>(eight: u64) -> u64 {
    // `bits` ones at the low end of every `width` bits.
    const fn ones(bits: usize, width: usize) -> u64 {
        u64::MAX / (u64::MAX >> (64 - width)) * (u64::MAX >> (64 - bits))
    }
    let low = const { [ones(BITS, 16), ones(2 * BITS, 32), ones(4 * BITS, 64)] };
    let pairs = eight & low[0] | (eight >> 8 & low[0]) << BITS;
    let fours = pairs & low[1] | (pairs >> 16 & low[1]) << (2 * BITS);
    fours & low[2] | (fours >> 32 & low[2]) << (4 * BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::weights::testing::Noise;

    fn check<const BITS: usize>() {
        let mut noise = Noise(BITS as u64);
        for _ in 0..200 {
            let word = noise.next();
            let mut expected = 0;
            for index in 0..8 {
                expected |= (word >> (8 * index) & ((1 << BITS) - 1)) << (BITS * index);
            }
            assert_eq!(squeeze::<BITS>(word), expected, "{BITS} bits of {word:#x}");
        }
        let numbers = [[0, 1, 2, 3, 3, 2, 1, 0], [3, 0, 3, 0, 1, 1, 2, 2]].concat();
        let mut packed = vec![0xff; 2 * BITS];
        pack::<BITS>(&numbers, &mut packed);
        for (index, number) in numbers.iter().enumerate() {
            let found = (0..BITS).filter(|bit| {
                let place = index * BITS + bit;
                packed[place / 8] >> (place % 8) & 1 == 1
            });
            assert_eq!(found.map(|bit| 1 << bit).sum::<u8>(), *number, "{BITS} bits, {index}");
        }
    }

    #[test]
    fn numbers_follow_each_other_from_the_lowest_bit_on() {
        check::<2>();
        check::<3>();
        check::<4>();
        check::<5>();
        check::<6>();
        check::<8>();
    }
}
