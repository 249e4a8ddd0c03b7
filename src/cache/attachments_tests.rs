//! Companion state: captured, cloned and restored with the caches' own codecs.

use serde_json::{Map, Value, json};

use super::test_support::{Look, attended};
use super::{
    AffineCache, Attachments, LayerCache, PlainCache, Provider, RecurrentCache, RotatingCache, Tensor,
    materialize, reusable_from, trimmable,
};
use crate::base::Code;
use crate::mlx::Array;

const LOOK: Look = Look { heads: 1, key_dims: 32, value_dims: 32, dtype: crate::mlx::Dtype::Float32 };

fn metadata(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn hidden() -> Tensor {
    Tensor::Array(Array::from_slice(&[1f32, 2.0], &[1, 2]).unwrap())
}

fn caches() -> Vec<Box<dyn LayerCache>> {
    let mut plain = PlainCache::new();
    let mut ring = RotatingCache::new(4, 1).unwrap();
    let mut affine = AffineCache::new(8, 32).unwrap();
    for id in 0..6 {
        LOOK.append(&mut plain, &[id]);
        LOOK.append(&mut ring, &[id]);
        LOOK.append(&mut affine, &[id]);
    }
    let mut recurrent = RecurrentCache::new(2);
    recurrent.set(1, Array::scalar(3.0).unwrap()).unwrap();
    vec![
        Box::new(plain),
        Box::new(PlainCache::new()),
        Box::new(ring),
        reusable_from(Box::new(affine), 5),
        Box::new(recurrent),
    ]
}

fn fresh() -> Vec<Box<dyn LayerCache>> {
    vec![
        Box::new(PlainCache::new()),
        Box::new(PlainCache::new()),
        Box::new(RotatingCache::new(4, 1).unwrap()),
        Box::new(PlainCache::new()),
        Box::new(RecurrentCache::new(2)),
    ]
}

fn captured(caches: &[Box<dyn LayerCache>]) -> Attachments {
    let mut attachments =
        Attachments::new("draft-v1", metadata(json!({"depth": 3, "kind": "x", "on": true})), vec![hidden()])
            .unwrap();
    let caches: Vec<&dyn LayerCache> = caches.iter().map(|cache| &**cache).collect();
    attachments.capture(&caches, &Provider::built_in()).unwrap();
    attachments
}

#[test]
fn companion_caches_come_back_as_they_were() {
    let mut originals = caches();
    let attachments = captured(&originals);
    assert_eq!(attachments.metadata()["cacheCodecs"], "mlxgen-cache-1");
    let headers: Value =
        serde_json::from_str(attachments.metadata()["cacheHeaders"].as_str().unwrap()).unwrap();
    // Tensors are counted from those that were there before.
    assert_eq!(headers[0], json!({"offset": 6, "kind": "kv", "tensors": [1, 2]}));
    assert_eq!(headers[1], Value::Null);
    assert_eq!(headers[3]["minimumReusableOffset"], 5);
    assert_eq!(attachments.tensors.len(), 1 + 2 + 2 + 6 + 1);
    materialize(originals.iter().map(|cache| &**cache), &attachments.tensors).unwrap();
    for tensor in &attachments.tensors {
        let Tensor::Array(array) = tensor else { panic!("{tensor:?} is no array") };
        assert!(array.is_available().unwrap());
    }
    materialize([], []).unwrap();
    let copy = attachments.clone();
    drop(attachments);
    let mut restored = copy.restore(fresh(), &Provider::built_in()).unwrap();
    assert_eq!(restored[3].minimum_reusable_offset(), 5);
    assert_eq!(restored[3].signature(), originals[3].signature());
    assert_eq!(restored[4].state().unwrap()[0].item::<f32>().unwrap(), 3.0);
    for (restored, original) in restored.iter_mut().zip(&mut originals).take(4) {
        for piece in [vec![20], vec![21, 22, 23], vec![24]] {
            assert_eq!(
                attended(&mut **restored, LOOK, &piece, None),
                attended(&mut **original, LOOK, &piece, None)
            );
        }
    }
    // The captured state is what it was.
    let again = copy.restore(fresh(), &Provider::built_in()).unwrap();
    assert_eq!(again[0].offset(), 6);
}

#[test]
fn nothing_is_cut_that_has_attachments() {
    let provider = Provider::built_in();
    let all = caches();
    let plain = provider.snapshot(&*all[0]).unwrap();
    let ring = provider.snapshot(&*all[2]).unwrap();
    let named = |entry: &'static str, header| (entry, header);
    let both = [named("kv", &plain.header), named("rotating", &ring.header)];
    assert!(trimmable([both[0]], None, &provider).unwrap());
    assert!(!trimmable(both, None, &provider).unwrap());
    let attachments = captured(&[]);
    assert!(!trimmable([both[0]], Some(&attachments), &provider).unwrap());
    assert_eq!(attachments.bytes(), 8);
    assert_eq!(attachments.restore(Vec::new(), &provider).unwrap().len(), 0);
}

#[test]
fn what_another_wrote_is_refused() {
    let provider = Provider::built_in();
    let refused = |attachments: &Attachments, fresh, field: &str| {
        let error = attachments.restore(fresh, &provider).err().unwrap();
        assert_eq!(error.code(), Code::IncompatibleCheckpoint, "{error}");
        assert_eq!(error.detail().field.as_deref(), Some(field), "{error}");
    };
    let good = captured(&caches());
    refused(&good, Vec::new(), "cacheHeaders");
    let changed = |name: &str, value: Value| {
        let mut all = good.metadata().clone();
        all.insert(name.into(), value);
        Attachments::new("draft-v1", all, good.tensors.clone()).unwrap()
    };
    refused(&changed("cacheCodecs", json!("mlx-cache-v3")), fresh(), "cacheCodecs");
    refused(&changed("cacheCodecs", json!(1)), fresh(), "cacheCodecs");
    for text in [
        "",
        "{}",
        "[1,null,null,null,null]",
        "[{},null,null,null,null]",
        r#"[{"kind":"kv","offset":6,"tensors":[1,99]},null,null,null,null]"#,
        r#"[{"kind":"kv","offset":6,"tensors":[1,-1]},null,null,null,null]"#,
        r#"[{"kind":"kv","offset":6},null,null,null,null]"#,
        &format!("{}{}", "[".repeat(5000), "]".repeat(5000)),
    ] {
        refused(&changed("cacheHeaders", json!(text)), fresh(), "cacheHeaders");
    }
    let swapped = r#"[{"kind":"kv","offset":6,"tensors":[1,0]},null,null,null,null]"#;
    refused(&changed("cacheHeaders", json!(swapped)), fresh(), "shape");
    let bare = Attachments::new("x", Map::new(), Vec::new()).unwrap();
    refused(&bare, Vec::new(), "cacheCodecs");
    let mut twice = good.clone();
    assert_eq!(twice.capture(&[], &provider).unwrap_err().code(), Code::WrongState);
    for value in [json!(null), json!([]), json!({})] {
        let error = Attachments::new("x", metadata(json!({"a": value})), Vec::new()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
    }
}
