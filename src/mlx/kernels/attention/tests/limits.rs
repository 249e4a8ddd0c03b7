//! Extremes: rows that see nothing, infinite numbers, calls that do not fit together.

use super::*;

#[test]
fn a_row_that_sees_nothing_is_zero() {
    let mut random = Random(43);
    let pool = Pool::new(2).unwrap();
    let attention = plain(3, 1, 32);
    let mut row = Row::random(&mut random, &attention, 300, 2, 0);
    let mut allowed = vec![true; 600];
    allowed[..300].fill(false);
    row.mask = Some(OwnMask::Allowed(allowed));
    let sinks = [1.0, -2.0, f32::NEG_INFINITY];
    for sinks in [None, Some(&sinks[..])] {
        let attention = Attention { sinks, ..attention };
        for path in Path::all() {
            let out = run(path, &pool, &attention, std::slice::from_ref(&row), None);
            assert!(out[..96].iter().all(|value| value.to_bits() == 0));
            assert!(out[96..].iter().all(|value| *value != 0.0 && value.is_finite()));
        }
    }
    // The same by an added mask, and with nothing stored.
    row.mask = Some(OwnMask::Added(vec![f32::NEG_INFINITY; 600]));
    assert!(
        run(Path::best(), &pool, &attention, std::slice::from_ref(&row), None)
            .iter()
            .all(|value| *value == 0.0)
    );
    let empty = Row { len: 0, position: 0, k: vec![], v: vec![], mask: None, ..row };
    assert!(run(Path::best(), &pool, &attention, &[empty], None).iter().all(|value| *value == 0.0));
}

#[test]
fn a_block_without_visible_positions_changes_nothing() {
    let mut random = Random(47);
    let pool = Pool::new(2).unwrap();
    let attention = plain(3, 1, 32);
    let mut row = Row::random(&mut random, &attention, 700, 1, 0);
    // Only the middle block is visible; the first has all its scores at -∞.
    row.mask = Some(OwnMask::Allowed((0..700).map(|t| t / BLOCK == 1).collect()));
    let expected = reference(&attention, &row);
    let out = run(Path::best(), &pool, &attention, &[row], None);
    for (out, (expected, bound)) in out.iter().zip(expected) {
        assert!((f64::from(*out) - expected).abs() <= bound);
    }
}

#[test]
fn infinities_and_not_a_number_spread() {
    let mut random = Random(53);
    let pool = Pool::new(1).unwrap();
    let attention =
        Attention { shape: KvShape { form: KvForm::F32, ..plain(1, 1, 16).shape }, ..plain(1, 1, 16) };
    let row = Row::random(&mut random, &attention, 300, 1, 0);
    for path in Path::all() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut query = row.clone();
            query.q[3] = bad;
            assert!(run(path, &pool, &attention, &[query], None).iter().all(|value| value.is_nan()));
            let mut value = row.clone();
            value.v[20 * 16 + 5] = bad;
            let out = run(path, &pool, &attention, &[value], None);
            assert!(!out[5].is_finite() && out[4].is_finite());
        }
    }
}

#[test]
fn scores_at_the_ends_of_float32_are_weighed() {
    let pool = Pool::new(1).unwrap();
    let attention = Attention { scale: 1.0, ..plain(1, 1, 8) };
    for (size, wins) in [(1e30_f32, 0), (-1e30, 1)] {
        let mut k = vec![0.0; 16];
        k[0] = 2.0;
        k[8] = 1.0;
        let mut q = vec![0.0; 8];
        q[0] = size;
        let v = (0..16).map(|i| i as f32).collect();
        let row = Row { queries: 1, position: 1, first_position: 0, len: 2, q, k, v, mask: None };
        let out = run(Path::best(), &pool, &attention, &[row], None);
        assert_eq!(out, (0..8).map(|i| (wins * 8 + i) as f32).collect::<Vec<_>>());
    }
}

#[test]
fn no_queries_and_no_sequences_are_fine() {
    let pool = Pool::new(2).unwrap();
    let attention = plain(2, 1, 8);
    attend(&pool, &attention, &[], &[], &mut []).unwrap();
    let sequence = Sequence { queries: 0, position: 0, spans: &[], first_position: 0, mask: None };
    attend(&pool, &attention, &[sequence], &[], &mut []).unwrap();
}

#[test]
#[should_panic(expected = "slab of keys")]
fn a_short_slab_is_refused() {
    let attention = plain(1, 1, 8);
    let bytes = attention.shape.value_bytes(16);
    let (keys, values) = (vec![0; bytes - 1], vec![0; bytes]);
    let spans = [Span { keys: &keys, values: &values, capacity: 16, first: 0, len: 1 }];
    let sequence = Sequence { queries: 1, position: 0, spans: &spans, first_position: 0, mask: None };
    let _ = attend(&Pool::new(1).unwrap(), &attention, &[sequence], &[0.0; 8], &mut [0.0; 8]);
}

/// B79: large keys and values do not overflow where they are stored in half precision.
#[test]
fn b79_numbers_beyond_half_precision_stay_finite() {
    let mut random = Random(59);
    let pool = Pool::new(2).unwrap();
    for form in [KvForm::F16, KvForm::Affine { bits: 4, group: 16 }, KvForm::Affine { bits: 8, group: 32 }] {
        let attention = Attention { shape: KvShape { form, ..plain(2, 1, 32).shape }, ..plain(2, 1, 32) };
        for size in [1e5, 3e8, f32::MAX] {
            let mut row = Row::random(&mut random, &attention, 300, 2, 0);
            for index in [0, 37, 5000] {
                row.k[index] = size;
                row.v[index] = -size;
            }
            for path in Path::all() {
                let out = run(path, &pool, &attention, std::slice::from_ref(&row), None);
                assert!(out.iter().all(|value| value.is_finite()), "{form:?} {size}");
            }
        }
    }
}
