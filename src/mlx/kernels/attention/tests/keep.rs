//! Positions that stay visible besides the window, and positions without memory.

use super::*;

/// One of the cases that differ in what is kept, what the window covers and what lies between.
fn case(random: &mut Random) -> (Attention<'static>, Row) {
    let attention = Attention {
        causal: random.within(0, 5) > 0,
        window: random.one_of(&[None, Some(1), Some(16), Some(33), Some(100), Some(256), Some(300)]),
        keep: random.one_of(&[1, 4, 16, 21, 100, 256, 257, 300, 1000]),
        ..plain(6, 2, 16)
    };
    let len = random.one_of(&[1, 16, 33, 128, 255, 257, 300, 513, 700]);
    let queries = random.one_of(&[1, 1, 2, 20, 60]).min(len);
    let first = 16 * random.one_of(&[0, 0, 0, 1, 16]);
    (attention, Row::random(random, &attention, len, queries, first))
}

#[test]
fn kept_positions_are_within_the_bound() {
    let mut random = Random(103);
    let pool = Pool::new(2).unwrap();
    let mut worst = 0.0_f64;
    for seed in 0..if cfg!(debug_assertions) { 40 } else { 200 } {
        let (attention, row) = case(&mut random);
        let expected = reference(&attention, &row);
        for path in Path::all() {
            let out = run(path, &pool, &attention, std::slice::from_ref(&row), Some(seed + 1));
            for (out, (expected, bound)) in out.iter().zip(&expected) {
                let error = (f64::from(*out) - expected).abs();
                assert!(error <= *bound, "{path:?}: {out} is not {expected} ± {bound:e}; {attention:?}");
                worst = worst.max(error / bound.max(1e-300));
            }
        }
    }
    assert!(worst > 0.001, "{worst}");
}

#[test]
fn kept_positions_give_the_same_bits_however_the_call_is_cut() {
    let mut random = Random(107);
    let pools: Vec<Pool> = (1..=3).map(|threads| Pool::new(threads).unwrap()).collect();
    for seed in 0..if cfg!(debug_assertions) { 20 } else { 100 } {
        let (attention, row) = case(&mut random);
        let expected = run(Path::Portable, &pools[0], &attention, std::slice::from_ref(&row), None);
        for pool in &pools {
            let out = run(Path::best(), pool, &attention, std::slice::from_ref(&row), Some(seed + 1));
            assert_same(&out, &expected, &format!("{attention:?}"));
        }
        let (mut from, mut out) = (0, Vec::new());
        while from < row.queries {
            let to = row.queries.min(from + random.within(1, 25));
            let part = row.part(&attention, from, to, attention.causal);
            out.extend(run(Path::best(), &pools[1], &attention, &[part], Some(seed + 2)));
            from = to;
        }
        assert_same(&out, &expected, &format!("in chunks; {attention:?}"));
    }
}

/// Attention over a row whose positions `gap` have no memory.
fn run_without(
    path: Path,
    pool: &Pool,
    attention: &Attention<'_>,
    row: &Row,
    gap: std::ops::Range<usize>,
) -> Vec<f32> {
    let shape = &attention.shape;
    let (k, v) = (shape.kv_heads * shape.key_dims, shape.kv_heads * shape.value_dims);
    let part = |from: usize, to: usize| Row {
        first_position: row.first_position + from,
        len: to - from,
        k: row.k[from * k..to * k].to_vec(),
        v: row.v[from * v..to * v].to_vec(),
        ..row.clone()
    };
    let mut random = Random(109);
    let head = Slabs::new(&mut random, shape, &part(0, gap.start), true);
    let tail = Slabs::new(&mut random, shape, &part(gap.end, row.len), true);
    // The gap in two runs, with an empty one between.
    let half = gap.len() / 32 * 16;
    let mut spans = head.spans();
    spans.extend([half, 0, gap.len() - half].map(Span::absent));
    spans.extend(tail.spans());
    let sequence = Sequence {
        queries: row.queries,
        position: row.position,
        spans: &spans,
        first_position: row.first_position,
        mask: row.mask.as_ref().map(OwnMask::borrow),
    };
    let mut out = vec![f32::NAN; row.queries * attention.heads * shape.value_dims];
    attend_on(path, pool, attention, &[sequence], &row.q, &mut out).unwrap();
    out
}

#[test]
fn positions_that_nobody_sees_need_no_memory() {
    let mut random = Random(113);
    let pools: Vec<Pool> = (1..=2).map(|threads| Pool::new(threads).unwrap()).collect();
    let forms = [KvForm::F16, KvForm::F32, KvForm::Turbo { key_bits: 4, value_bits: 3 }];
    for (keep, window, len, queries) in [
        (0, 100, 700, 20),
        (4, 100, 700, 20),
        (16, 16, 300, 1),
        (21, 33, 300, 7),
        (300, 40, 900, 50),
        (256, 1, 530, 2),
    ] {
        for form in forms {
            let attention = Attention { keep, window: Some(window), ..plain(3, 1, 64) };
            let attention = Attention { shape: KvShape { form, ..attention.shape }, ..attention };
            let mut row = Row::random(&mut random, &attention, len, queries, 0);
            if queries == 7 {
                row.mask =
                    Some(OwnMask::Allowed((0..queries * len).map(|_| random.within(0, 4) > 0).collect()));
            }
            // The widest gap that begins and ends at multiples of 16.
            let gap = keep.next_multiple_of(16)..(row.position + 1 - window) / 16 * 16;
            assert!(!gap.is_empty());
            let expected = run(Path::Portable, &pools[0], &attention, std::slice::from_ref(&row), None);
            for path in Path::all() {
                for pool in &pools {
                    let out = run_without(path, pool, &attention, &row, gap.clone());
                    assert_same(&out, &expected, &format!("{path:?} {gap:?} {attention:?}"));
                }
            }
            // What is there and hidden has no influence either.
            let mut spoilt = row.clone();
            spoilt.k[keep * 64..(row.position + 1 - window) * 64].fill(f32::NAN);
            spoilt.v[keep * 64..(row.position + 1 - window) * 64].fill(f32::NAN);
            let out = run(Path::best(), &pools[1], &attention, &[spoilt], Some(7));
            assert_same(&out, &expected, "spoilt");
        }
    }
}

/// A gap at the very end of a window, of the kept positions, or anywhere without a window is refused.
#[test]
fn visible_positions_without_memory_are_refused() {
    let pool = Pool::new(1).unwrap();
    let attention = Attention { keep: 21, window: Some(100), ..plain(2, 1, 8) };
    let row = Row::random(&mut Random(127), &attention, 400, 20, 0);
    // The first query, at 380, sees 281 and later; kept is all below 21.
    let fine = 32..272;
    run_without(Path::best(), &pool, &attention, &row, fine.clone());
    let refused = |attention: &Attention<'_>, gap: std::ops::Range<usize>| {
        let call = || run_without(Path::best(), &pool, attention, &row, gap.clone());
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_err();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a query sees an absent position"));
    };
    refused(&attention, 16..272);
    refused(&attention, 32..288);
    refused(&attention, 0..16);
    refused(&Attention { window: None, ..attention }, fine.clone());
    refused(&Attention { window: Some(110), ..attention }, fine.clone());
    refused(&Attention { keep: 33, ..attention }, fine);
}
