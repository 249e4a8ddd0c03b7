//! Headers and tensors that no cache of this library wrote.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde_json::json;

use super::{LOOK, all, field_of, ids, refused};
use crate::base::Code;
use crate::cache::test_support::{Random, plane_columns, planes};
use crate::cache::{Entry, Provider, Tensor};
use crate::mlx::{Array, Dtype, prim};

#[test]
fn lies_are_named() {
    let provider = Provider::built_in();
    let entry = |wanted: &str| {
        let (_, cache) = all().into_iter().find(|(kind, _)| *kind == wanted)?;
        Some(provider.snapshot(&*cache).unwrap())
    };
    let cases = [
        ("kv", "offset", json!(4), "shape"),
        ("kv", "offset", json!(0), "shape"),
        ("kv", "offset", json!(u64::MAX), "offset"),
        ("kv", "offset", json!(5.0), "offset"),
        ("kv", "more", json!(5), "more"),
        ("qkv", "bits", json!(8), "shape"),
        ("qkv", "bits", json!(3), "bits"),
        ("qkv", "bits", json!(1u64 << 32 | 4), "bits"),
        ("qkv", "groupSize", json!(64), "shape"),
        ("qkv", "groupSize", json!(48), "groupSize"),
        ("turboquant", "kBits", json!(3), "kBits"),
        ("turboquant", "kBits", json!(4), "dtype"),
        ("turboquant", "kBits", json!(1u64 << 32 | 8), "kBits"),
        ("turboquant", "vBits", json!(6), "vBits"),
        ("turboquant", "vBits", json!(4), "shape"),
        ("turboquant", "headDim", json!(96), "headDim"),
        ("turboquant", "headDim", json!(128), "shape"),
        ("turboquant", "valueHeadDim", json!(80), "valueHeadDim"),
        ("turboquant", "valueHeadDim", json!(128), "shape"),
        ("turboquant", "dtype", json!("int8"), "dtype"),
        ("turboquant", "dtype", json!(1), "dtype"),
        ("turboquant", "deferred", json!(1), "deferred"),
        ("turboquant", "offset", json!(4), "shape"),
        ("turboquant", "minimumReusableOffset", json!(6), "minimumReusableOffset"),
        ("rotating", "idx", json!(8), ""),
        ("rotating", "idx", json!(9), "idx"),
        ("rotating", "idx", json!(2), "idx"),
        ("rotating", "idx", json!(0), "idx"),
        ("rotating", "offset", json!(7), "idx"),
        ("rotating", "offset", json!(0), "offset"),
        ("rotating", "maxSize", json!(0), "maxSize"),
        ("rotating", "maxSize", json!(9), "offset"),
        ("rotating", "maxSize", json!(7), "idx"),
        ("rotating", "keep", json!(8), "keep"),
        ("rotating", "keep", json!(5), "idx"),
        ("ssm", "slots", json!([true, true]), "tensors"),
        ("ssm", "slots", json!([1, 0]), "slots"),
        ("ssm", "slots", json!(2), "slots"),
        ("mla", "kvLoraRank", json!(9), "shape"),
        ("mla", "ropeHeadDim", json!(0), "ropeHeadDim"),
        ("mla", "dsaHeadDim", json!(6), "dsaHeadDim"),
        ("mla-dsa", "dsaHeadDim", json!(7), "shape"),
        ("mla", "offset", json!(0), "tensors"),
        ("paged", "numBlocks", json!(4), "shape"),
        ("paged", "numBlocks", json!(2), "blockTable"),
        ("paged", "blockTable", json!([0, 1]), "blockTable"),
        ("paged", "blockTable", json!([0, 1, 1]), "blockTable"),
        ("paged", "blockTable", json!([0, 1, 3]), "blockTable"),
        ("paged", "blockSize", json!(0), "blockSize"),
        ("paged", "blockSize", json!(3), "shape"),
        ("paged", "limitTokens", json!(8), "limitTokens"),
        ("paged", "offset", json!(13), "blockTable"),
        ("paged", "bits", json!(8), "groupSize"),
        ("segments", "form", json!("int8"), "form"),
        ("segments", "form", json!("quant:3:64"), "form"),
        ("segments", "form", json!("float32"), "shape"),
        ("segments", "form", json!(16), "form"),
        ("segments", "kvHeads", json!(0), "kvHeads"),
        ("segments", "kvHeads", json!(3), "shape"),
        ("segments", "kvHeads", json!(2_147_483_391u64), "kvHeads"),
        ("segments", "keyDims", json!(0), "keyDims"),
        ("segments", "keyDims", json!(128), "shape"),
        ("segments", "valueDims", json!(32), "shape"),
        ("segments", "segmentTokens", json!(0), "segmentTokens"),
        ("segments", "segmentTokens", json!(24), "segmentTokens"),
        ("segments", "segmentTokens", json!(512), "segmentTokens"),
        ("segments", "segmentTokens", json!(1 << 17), "segmentTokens"),
        ("segments", "window", json!(0), "window"),
        ("segments", "window", json!(134), "absent"),
        ("segments", "window", json!(133), ""),
        ("segments", "keep", json!(257), "absent"),
        ("segments", "absent", json!([256, 512]), "shape"),
        ("segments", "absent", json!([0, 768]), "absent"),
        ("segments", "absent", json!([256, 1024]), "absent"),
        ("segments", "absent", json!([256, 760]), "absent"),
        ("segments", "absent", json!([768, 256]), "absent"),
        ("segments", "absent", json!([256]), "absent"),
        ("segments", "absent", json!(256), "absent"),
        ("segments", "offset", json!(0), "offset"),
        ("segments", "offset", json!(913), "shape"),
        ("segments", "offset", json!(767), "absent"),
        ("segments", "offset", json!(2_147_483_391u64), "shape"),
        ("mla-segments", "role", json!("target"), "tensors"),
        ("mla-segments", "role", json!("mtp"), "tensors"),
        ("mla-segments", "role", json!("draft"), "role"),
        ("mla-segments", "role", json!(1), "role"),
        ("mla-segments", "form", json!("quant:4:64"), "form"),
        ("mla-segments", "form", json!("float32"), "shape"),
        ("mla-segments", "kvLoraRank", json!(0), "kvLoraRank"),
        ("mla-segments", "kvLoraRank", json!(41), "shape"),
        ("mla-segments", "kvLoraRank", json!(u64::MAX >> 1), "kvLoraRank"),
        ("mla-segments", "ropeHeadDim", json!(1u64 << 30), "ropeHeadDim"),
        ("mla-segments", "dsaHeadDim", json!(8), "shape"),
        ("mla-segments", "segmentTokens", json!(24), "segmentTokens"),
        ("mla-segments", "segmentTokens", json!(1 << 17), "segmentTokens"),
        ("mla-segments", "offset", json!(0), "tensors"),
        ("mla-segments", "offset", json!(65), "shape"),
        ("mla-segments", "window", json!(5), "window"),
        ("list", "parts", json!([]), "parts"),
        ("list", "parts", json!([null]), "parts"),
        ("list", "parts", json!([{"kind": "kv", "tensors": -1}]), "parts"),
        ("list", "offset", json!(5), "offset"),
    ];
    for (kind, field, value, named) in cases {
        let Some(mut entry) = entry(kind) else { continue };
        entry.header.insert(field.into(), value.clone());
        if named.is_empty() {
            // A ring may stand at its end, and a window may end where the tokens do that were given up.
            provider.load(&entry).unwrap();
        } else {
            assert_eq!(field_of(&refused(&entry)), named, "{kind}: {field} = {value}");
        }
    }
    let mut missing = entry("rotating").unwrap();
    missing.header.remove("keep");
    assert_eq!(field_of(&refused(&missing)), "keep");
    let mut part = json!({"kind": "ssm", "offset": 0, "slots": [false], "tensors": 0});
    for depth in 1..100 {
        let header = json!({"offset": 0, "parts": [part.clone()]}).as_object().unwrap().clone();
        let list = Entry { kind: "list".into(), header, tensors: Vec::new() };
        match provider.load(&list) {
            Ok(_) => assert!(depth < 10, "{depth}"),
            Err(_) => assert_eq!((field_of(&refused(&list)), depth > 5), ("parts", true), "{depth}"),
        }
        part = json!({"kind": "list", "offset": 0, "parts": [part], "tensors": 0});
    }
    // Tensors of another shape or type.
    let mut other = entry("kv").unwrap();
    let halves = prim::astype(&other.tensors[1].to_array().unwrap(), Dtype::Float16).unwrap();
    other.tensors[1] = Tensor::Array(halves);
    let error = refused(&other);
    assert_eq!((field_of(&error), error.detail().tensor.as_deref()), ("dtype", Some("1")));
    other.tensors.pop();
    assert_eq!(field_of(&refused(&other)), "tensors");
    for (tensor, axis) in [(0, 3), (2, 3), (4, 2), (5, 3)] {
        let mut wide = entry("qkv").unwrap();
        let array = wide.tensors[tensor].to_array().unwrap();
        wide.tensors[tensor] = Tensor::Array(prim::concatenate(&[&array, &array], axis).unwrap());
        let error = refused(&wide);
        assert_eq!(
            (field_of(&error), error.detail().tensor.clone()),
            ("shape", Some(tensor.to_string())),
            "{tensor}"
        );
    }
    let data: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new([0u8; 3]);
    other.tensors.push(Tensor::Bytes { dtype: Dtype::Float32, shape: vec![1, 2, 5, 32], data });
    assert_eq!(field_of(&refused(&other)), "shape");
}

/// Every field and every tensor of every kind, changed in many ways: what is not refused must work.
#[test]
fn whatever_a_header_says_nothing_panics() {
    let provider = Provider::built_in();
    let mut random = Random(7);
    let values = [
        json!(null),
        json!(true),
        json!("x"),
        json!([]),
        json!({}),
        json!([0, 1, 2]),
        json!([9_999_999_999u64]),
        json!(-1),
        json!(0.5),
        json!(0),
        json!(1),
        json!(2),
        json!(3),
        json!(4),
        json!(5),
        json!(8),
        json!(9),
        json!(12),
        json!(2_147_483_391u64),
        json!(2_147_483_648u64),
        json!(u64::MAX),
    ];
    let tensors = |like: &Tensor| {
        let array = like.to_array().unwrap();
        let mut shape = array.shape().to_vec();
        let mut changed = vec![
            prim::reshape(&array, &[-1]).unwrap(),
            prim::astype(&array, Dtype::Int8).unwrap(),
            prim::astype(&array, Dtype::Uint32).unwrap(),
            prim::astype(&array, Dtype::Bfloat16).unwrap(),
            prim::concatenate(&[&array, &array], 0).unwrap(),
            prim::slice(&array, &vec![0; shape.len()], &vec![0; shape.len()]).unwrap(),
            Array::scalar(1.0).unwrap(),
        ];
        if shape.len() == 4 {
            for axis in 1..4 {
                changed.push(prim::concatenate(&[&array, &array], axis).unwrap());
            }
            shape.swap(1, 2);
            changed.push(prim::reshape(&array, &shape).unwrap());
        }
        changed.into_iter().map(Tensor::Array).collect::<Vec<_>>()
    };
    let (mut tried, mut loaded) = (0, 0);
    for (kind, cache) in all() {
        let good = provider.snapshot(&*cache).unwrap();
        let mut bad = Vec::new();
        for name in good.header.keys() {
            let mut without = good.clone();
            without.header.remove(name);
            bad.push(without);
            for value in &values {
                let mut changed = good.clone();
                changed.header.insert(name.clone(), value.clone());
                // Two at a time, too.
                let names: Vec<String> = good.header.keys().cloned().collect();
                let mut twice = changed.clone();
                let other = &names[random.below(names.len())];
                twice.header.insert(other.clone(), values[random.below(values.len())].clone());
                bad.extend([changed, twice]);
            }
        }
        for index in 0..good.tensors.len() {
            for tensor in tensors(&good.tensors[index]) {
                let mut changed = good.clone();
                changed.tensors[index] = tensor;
                bad.push(changed);
            }
            let mut fewer = good.clone();
            fewer.tensors.remove(index);
            bad.push(fewer);
            let mut swapped = good.clone();
            swapped.tensors.swap(index, 0);
            bad.push(swapped);
        }
        for entry in bad {
            tried += 1;
            let attempt = catch_unwind(AssertUnwindSafe(|| {
                let trimmable = provider.header_trimmable(&entry.kind, &entry.header);
                let mut cache = match provider.load(&entry) {
                    Ok(cache) => cache,
                    Err(error) => {
                        assert_eq!(error.code(), Code::IncompatibleCheckpoint, "{error}");
                        assert!(error.detail().field.is_some(), "{error}");
                        return false;
                    }
                };
                assert_eq!(trimmable.unwrap(), cache.can_forget(1));
                for tokens in [1, 3] {
                    cache.mask(tokens, None).unwrap();
                    let end = 200 + tokens as u32;
                    if let Ok(read) = cache.append(&LOOK.keys(&ids(200, end)), &LOOK.values(&ids(200, end))) {
                        plane_columns(&planes(&read));
                    }
                }
                cache.forget(2);
                true
            }));
            loaded += usize::from(attempt.unwrap_or_else(|_| panic!("{kind}: {entry:?}")));
        }
    }
    assert!(tried > 1000 && loaded > 10 && loaded < tried / 4, "{loaded} of {tried}");
}
