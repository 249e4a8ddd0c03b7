//! A row's bits do not depend on what else is in the call, on cuts, on threads or on the instruction set.

use super::*;

const KV_HEADS: usize = 3;

/// The variants that take different ways through the code.
fn variants(sinks: &[f32]) -> Vec<Attention<'_>> {
    let plain = plain(3 * KV_HEADS, KV_HEADS, 64);
    let shape = |key_dims, value_dims, form| KvShape { kv_heads: KV_HEADS, key_dims, value_dims, form };
    vec![
        plain,
        Attention { shape: shape(64, 64, KvForm::F32), ..plain },
        Attention { heads: KV_HEADS, shape: shape(128, 80, KvForm::Bf16), window: Some(70), ..plain },
        Attention { heads: 5 * KV_HEADS, shape: shape(40, 24, KvForm::F16), sinks: Some(sinks), ..plain },
        Attention {
            heads: 8 * KV_HEADS,
            shape: shape(33, 96, KvForm::F16),
            soft_cap: Some(3.0),
            window: Some(300),
            ..plain
        },
        Attention { shape: shape(64, 64, KvForm::Turbo { key_bits: 8, value_bits: 3 }), ..plain },
        Attention {
            heads: 2 * KV_HEADS,
            shape: shape(64, 128, KvForm::Turbo { key_bits: 5, value_bits: 8 }),
            window: Some(70),
            ..plain
        },
        Attention { window: Some(30), keep: 21, ..plain },
        Attention { heads: 2 * KV_HEADS, shape: shape(40, 32, KvForm::Joint(Float::F16)), ..plain },
        Attention {
            heads: KV_HEADS,
            shape: shape(33, 21, KvForm::Joint(Float::F32)),
            window: Some(70),
            ..plain
        },
        Attention { heads: KV_HEADS, shape: shape(16, 16, KvForm::Joint(Float::Bf16)), ..plain },
    ]
}

#[test]
fn paths_threads_and_cuts_give_the_same_bits() {
    let mut random = Random(23);
    let sinks = random.normals(5 * KV_HEADS);
    let pools: Vec<Pool> = (1..=4).map(|threads| Pool::new(threads).unwrap()).collect();
    for attention in variants(&sinks) {
        for (len, queries) in [(1, 1), (16, 1), (257, 1), (600, 1), (600, 8), (300, 33), (530, 100)] {
            let first = 16 * random.within(0, 20);
            let row = Row::random(&mut random, &attention, len, queries, first);
            let rows = std::slice::from_ref(&row);
            let expected = run(Path::Portable, &pools[0], &attention, rows, None);
            assert!(expected.iter().all(|value| value.is_finite()));
            for path in Path::all() {
                for (pool, cut) in pools.iter().zip([Some(3), None, Some(4), Some(5)]) {
                    // The slow path as far as its own arithmetic goes.
                    if path == Path::Portable && pool.threads() > 1 {
                        continue;
                    }
                    let out = run(path, pool, &attention, rows, cut);
                    assert_same(&out, &expected, &format!("{path:?} {} threads", pool.threads()));
                }
            }
        }
    }
}

#[test]
fn any_chunking_of_a_prompt_gives_the_same_bits() {
    let mut random = Random(29);
    let sinks = random.normals(5 * KV_HEADS);
    let pool = Pool::new(2).unwrap();
    for attention in variants(&sinks) {
        // The prompt crosses the end of a block.
        let tokens = 300;
        let mut whole = Row::random(&mut random, &attention, tokens, tokens, 0);
        for masked in [false, true] {
            if masked {
                let allowed = (0..tokens * tokens).map(|_| random.within(0, 4) > 0).collect();
                whole.mask = Some(OwnMask::Allowed(allowed));
            }
            let rows = std::slice::from_ref(&whole);
            let expected = run(Path::best(), &pool, &attention, rows, None);
            for sizes in [&[1][..], &[7, 1, 33], &[64], &[tokens - 1, 1], &[17, 2, 3]] {
                let (mut from, mut out) = (0, Vec::new());
                for size in sizes.iter().cycle() {
                    let to = (from + size).min(tokens);
                    let part = whole.part(&attention, from, to, !masked);
                    out.extend(run(Path::best(), &pool, &attention, &[part], Some(to as u64)));
                    from = to;
                    if from == tokens {
                        break;
                    }
                }
                assert_same(&out, &expected, &format!("chunks of {sizes:?}"));
            }
        }
    }
}

#[test]
fn sequences_do_not_touch_each_other() {
    let mut random = Random(31);
    let sinks = random.normals(5 * KV_HEADS);
    for attention in variants(&sinks) {
        for count in [2, 3, 8, 33] {
            let rows: Vec<Row> = (0..count)
                .map(|_| {
                    let len = random.within(1, 600);
                    let queries = random.one_of(&[1, 1, 1, 4, 30]).min(len);
                    let first = 16 * random.within(0, 30);
                    Row::random(&mut random, &attention, len, queries, first)
                })
                .collect();
            let pool = Pool::new(random.within(1, 4)).unwrap();
            let together = run(Path::best(), &pool, &attention, &rows, Some(9));
            let alone = Pool::new(1).unwrap();
            let apart: Vec<f32> = rows
                .iter()
                .flat_map(|row| run(Path::best(), &alone, &attention, std::slice::from_ref(row), None))
                .collect();
            assert_same(&together, &apart, "together and apart");
        }
    }
}

/// Positions before the window may be there or not.
#[test]
fn what_the_window_hides_may_be_dropped() {
    let mut random = Random(37);
    let attention = Attention { window: Some(100), ..plain(4, 2, 32) };
    let pool = Pool::new(2).unwrap();
    let full = Row::random(&mut random, &attention, 600, 20, 0);
    let expected = run(Path::best(), &pool, &attention, std::slice::from_ref(&full), None);
    let dropped = 16 * 29;
    let short = Row {
        first_position: dropped,
        len: 600 - dropped,
        k: full.k[dropped * 64..].to_vec(),
        v: full.v[dropped * 64..].to_vec(),
        ..full.clone()
    };
    let out = run(Path::best(), &pool, &attention, &[short], Some(3));
    assert_same(&out, &expected, "dropped");
    // Nor do hidden positions matter if they are not numbers.
    let mut spoilt = full;
    spoilt.k[..480 * 64].fill(f32::NAN);
    spoilt.v[..480 * 64].fill(f32::INFINITY);
    let out = run(Path::best(), &pool, &attention, &[spoilt], None);
    assert_same(&out, &expected, "spoilt");
}

/// A token whose key and value are not numbers changes the rows that see it and no other.
#[test]
fn later_tokens_do_not_reach_earlier_ones() {
    let mut random = Random(41);
    let attention = plain(6, 2, 64);
    let pool = Pool::new(2).unwrap();
    let clean = Row::random(&mut random, &attention, 90, 90, 0);
    let expected = run(Path::best(), &pool, &attention, std::slice::from_ref(&clean), None);
    for bad in [0, 1, 15, 16, 50, 89] {
        let mut spoilt = clean.clone();
        spoilt.k[bad * 128..(bad + 1) * 128].fill(f32::NAN);
        spoilt.v[bad * 128..(bad + 1) * 128].fill(f32::NAN);
        for path in Path::all() {
            let out = run(path, &pool, &attention, std::slice::from_ref(&spoilt), None);
            let row = 6 * 64;
            assert_same(&out[..bad * row], &expected[..bad * row], "before");
            assert!(out[bad * row..].iter().all(|value| value.is_nan()), "{path:?} {bad}");
        }
    }
}
