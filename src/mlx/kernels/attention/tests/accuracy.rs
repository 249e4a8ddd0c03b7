//! Results against the float64 reference.

use super::*;

/// Runs a row on every path and compares with the reference. Gives the largest part of the bound that was used.
fn check(attention: &Attention<'_>, row: &Row, seed: u64) -> f64 {
    let pool = Pool::new(2).unwrap();
    let expected = reference(attention, row);
    let mut worst = 0.0_f64;
    for path in Path::all() {
        let out = run(path, &pool, attention, std::slice::from_ref(row), Some(seed));
        for (i, (&out, &(expected, bound))) in out.iter().zip(&expected).enumerate() {
            let error = (f64::from(out) - expected).abs();
            assert!(error <= bound, "{path:?} {i}: {out} is not {expected} ± {bound:e}; {attention:?}");
            worst = worst.max(error / bound.max(1e-300));
        }
    }
    worst
}

#[test]
fn random_shapes_are_within_the_bound() {
    let mut random = Random(7);
    let mut worst = 0.0_f64;
    for case in 0..200 {
        let kv_heads = random.within(1, 3);
        let heads = kv_heads * random.within(1, 9);
        let sinks = random.normals(heads);
        let quantised = random.within(0, 2) == 0;
        let shape = if quantised {
            let group = random.one_of(&[16, 32, 64]);
            KvShape {
                kv_heads,
                key_dims: group * random.within(1, 2),
                value_dims: group * random.within(1, 3),
                form: KvForm::Affine { bits: random.one_of(&[4, 8]), group },
            }
        } else if random.within(0, 3) == 0 {
            let key_dims = random.one_of(&[8, 16, 24, 40, 72, 96, 7, 33, 192]);
            let form = KvForm::Joint(random.one_of(&[Float::F32, Float::F16, Float::Bf16]));
            KvShape { kv_heads, key_dims, value_dims: random.within(1, key_dims), form }
        } else {
            KvShape {
                kv_heads,
                key_dims: random.one_of(&[8, 16, 24, 40, 64, 80, 96, 128, 7, 33, 192]),
                value_dims: random.one_of(&[8, 16, 24, 48, 64, 80, 128, 5, 33, 256]),
                form: random.one_of(&[KvForm::F32, KvForm::F16, KvForm::Bf16]),
            }
        };
        let attention = Attention {
            heads,
            shape,
            scale: random.one_of(&[0.125, 0.3, 1.0]),
            causal: random.within(0, 5) > 0,
            window: random.one_of(&[None, None, Some(1), Some(17), Some(100), Some(256), Some(300)]),
            keep: 0,
            soft_cap: random.one_of(&[None, None, Some(5.0), Some(50.0)]),
            sinks: random.one_of(&[None, Some(())]).map(|()| &sinks[..]),
        };
        let len = random.one_of(&[1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 300, 511, 512, 513, 600]);
        let queries = random.one_of(&[1, 1, 2, 3, 5, 17, 40]).min(len);
        let first = 16 * random.one_of(&[0, 0, 1, 15, 16, 40]);
        let mut row = Row::random(&mut random, &attention, len, queries, first);
        row.mask = match random.within(0, 3) {
            0 => Some(OwnMask::Allowed((0..queries * len).map(|_| random.within(0, 3) > 0).collect())),
            1 => Some(OwnMask::Added(random.normals(queries * len))),
            _ => None,
        };
        worst = worst.max(check(&attention, &row, 1000 + case));
    }
    // Errors are far below the worst case; a bound that nothing comes near would test nothing.
    assert!(worst > 0.001, "{worst}");
}

/// Values that lie in their keys are weighed as if they lay by themselves.
#[test]
fn joint_values_give_the_bits_of_separate_ones() {
    let mut random = Random(10);
    let pool = Pool::new(2).unwrap();
    let forms = [(Float::F32, KvForm::F32), (Float::F16, KvForm::F16), (Float::Bf16, KvForm::Bf16)];
    for (float, form) in forms {
        for (key_dims, value_dims, heads, queries) in [(40, 32, 5, 1), (33, 7, 1, 3), (17, 17, 14, 2)] {
            let shape = KvShape { kv_heads: 1, key_dims, value_dims, form: KvForm::Joint(float) };
            let joint = Attention { heads, shape, ..plain(1, 1, 64) };
            let separate = Attention { shape: KvShape { form, ..shape }, ..joint };
            assert_eq!((shape.value_bytes(64), shape.key_bytes(64)), (0, separate.shape.key_bytes(64)));
            for len in [queries, 16, 30, 270] {
                let row = Row::random(&mut random, &joint, len, queries, 0);
                let rows = std::slice::from_ref(&row);
                for path in Path::all() {
                    let found = run(path, &pool, &joint, rows, Some(len as u64));
                    let expected = run(path, &pool, &separate, rows, None);
                    assert_same(&found, &expected, &format!("{float:?} {key_dims} {value_dims} {len}"));
                }
            }
        }
    }
}

/// The sizes of the models that have compressed keys and values.
#[test]
fn long_joint_keys_are_within_the_bound() {
    let mut random = Random(9);
    for (heads, float) in [(16, Float::F16), (20, Float::Bf16), (128, Float::F32)] {
        let shape = KvShape { kv_heads: 1, key_dims: 576, value_dims: 512, form: KvForm::Joint(float) };
        let attention = Attention { heads, shape, scale: 192_f32.powf(-0.5), ..plain(1, 1, 1) };
        let mut row = Row::random(&mut random, &attention, 300, 2, 0);
        check(&attention, &row, 3);
        row.mask = Some(OwnMask::Allowed((0..600).map(|_| random.within(0, 2) > 0).collect()));
        check(&attention, &row, 4);
    }
}

#[test]
fn every_context_up_to_600_is_within_the_bound() {
    let mut random = Random(11);
    let attention = plain(3, 1, 16);
    for len in 1..=600 {
        let row = Row::random(&mut random, &attention, len, 1, 0);
        check(&attention, &row, len as u64);
    }
}

#[test]
fn large_scores_are_within_the_bound() {
    let mut random = Random(13);
    let attention = Attention { scale: 30.0, ..plain(4, 2, 64) };
    for len in [5, 300] {
        let row = Row::random(&mut random, &attention, len, 3, 0);
        check(&attention, &row, 5);
    }
}

/// A query that is one of the keys, many times as long, takes that key's value.
#[test]
fn a_sharp_query_takes_the_value_of_its_key() {
    let mut random = Random(17);
    let attention = plain(1, 1, 64);
    let mut row = Row::random(&mut random, &attention, 500, 1, 0);
    let target = 321;
    row.q = row.k[target * 64..][..64].iter().map(|key| 100.0 * key).collect();
    let out = run(Path::best(), &Pool::new(1).unwrap(), &attention, std::slice::from_ref(&row), None);
    let expected = read_back(KvForm::F16, &row.v[target * 64..][..64]);
    assert!(out.iter().zip(expected).all(|(out, expected)| (out - expected).abs() < 1e-6));
}
