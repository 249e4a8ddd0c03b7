//! What is stored does not depend on threads.

use super::*;

#[test]
fn threads_store_the_same_bytes() {
    let mut random = Random(59);
    let pools: Vec<Pool> = (1..=3).map(|threads| Pool::new(threads).unwrap()).collect();
    let affine = KvForm::Affine { bits: 4, group: 32 };
    for form in [KvForm::F32, KvForm::F16, KvForm::Bf16, affine, KvForm::Joint(Float::F16)] {
        let shape = KvShape { kv_heads: 3, key_dims: 64, value_dims: 32, form };
        for (capacity, at, tokens) in
            [(64, 0, 64), (208, 5, 203), (208, 65, 40), (1024, 300, 512), (80, 7, 3)]
        {
            // Keys and values lie in rows that hold more than them, as products do.
            let rows = random.normals(tokens * 300);
            let new =
                NewTokens { keys: &rows, key_stride: 300, values: &rows[200..], value_stride: 300, tokens };
            let store_with = |pool: Option<&Pool>| {
                let mut keys = vec![0x55; shape.key_bytes(capacity) + 1];
                let mut values = vec![0x55; shape.value_bytes(capacity) + 1];
                match pool {
                    None => store(&shape, &mut keys, &mut values, capacity, at, &new),
                    Some(pool) => {
                        store_on(pool, &shape, &mut keys, &mut values, capacity, at, &new).unwrap();
                    }
                }
                (keys, values)
            };
            let expected = store_with(None);
            for pool in &pools {
                assert!(store_with(Some(pool)) == expected, "{form:?} {capacity} {at} {tokens}");
            }
        }
    }
}
