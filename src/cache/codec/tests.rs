//! What is stored of each kind, what comes back, and what is refused.

mod lies;

use serde_json::{Value, json};

use super::*;
use crate::base::Code;
use crate::cache::test_support::{Look, affine, attended};
use crate::cache::{
    AffineCache, CompositeCache, IndexStep, KvSizes, LatentCache, LatentDims, LatentLayout, PagedCache,
    PagedForm, PlainCache, Precision, RecurrentCache, RotatingAffineCache, RotatingCache, SEGMENT,
    SegmentForm, SegmentedCache, SegmentedLatentCache, of_kind,
};
use crate::mlx::ops::{self, CausalAttention, LatentAttention, Rope, TokenIndexer, Visible};
use crate::mlx::{Array, Dtype, has_cpu_kernels, prim};

const LOOK: Look = Look { heads: 2, key_dims: 64, value_dims: 32, dtype: Dtype::Float32 };

fn ids(from: u32, to: u32) -> Vec<u32> {
    (from..to).collect()
}

fn filled(mut cache: impl LayerCache + 'static, tokens: u32) -> Box<dyn LayerCache> {
    for id in 0..tokens {
        LOOK.append(&mut cache, &[id]);
    }
    Box::new(cache)
}

fn latent(role: LatentRole, tokens: u32) -> Box<dyn LayerCache> {
    let index = (role == LatentRole::TargetWithIndex).then_some(6);
    let mut cache = LatentCache::new(role, LatentDims { latent: 8, rope: 4, index }).unwrap();
    let part = |size: usize| Look { heads: 1, key_dims: size, ..LOOK }.keys(&ids(0, tokens));
    if tokens > 0 {
        cache.append_parts(&part(8), &part(4), index.map(part).as_ref()).unwrap();
    }
    Box::new(cache)
}

fn recurrent() -> Box<dyn LayerCache> {
    let mut cache = RecurrentCache::new(2);
    cache.set(1, Array::from_slice(&[1f32, 2.0, 3.0], &[1, 3]).unwrap()).unwrap();
    cache.advance(4);
    Box::new(cache)
}

fn paged(quantised: Option<Affine>, tokens: u32) -> Box<dyn LayerCache> {
    let form = PagedForm { block: 4, capacity: 8, limit: Some(100), quantised };
    filled(PagedCache::new(form).unwrap(), tokens)
}

fn codes(tokens: u32) -> Box<dyn LayerCache> {
    let look = Look { value_dims: 64, ..LOOK };
    let mut plain = PlainCache::new();
    look.append(&mut plain, &ids(0, tokens));
    let precision = Precision::TurboQuant { key_bits: 8, value_bits: 3, deferred: false };
    plain.encoded(precision).unwrap().unwrap()
}

/// One of each kind that is stored, with its kind's name.
fn all() -> Vec<(&'static str, Box<dyn LayerCache>)> {
    let list = CompositeCache::new(vec![
        recurrent(),
        filled(PlainCache::new(), 4),
        Box::new(CompositeCache::new(vec![filled(RotatingCache::new(3, 1).unwrap(), 4)]).unwrap()),
    ]);
    vec![
        ("kv", filled(PlainCache::new(), 5)),
        ("qkv", filled(AffineCache::new(4, 32).unwrap(), 5)),
        ("turboquant", codes(5)),
        ("rotating", filled(RotatingCache::new(8, 2).unwrap(), 11)),
        ("rotating", filled(RotatingCache::new(8, 0).unwrap(), 5)),
        ("rotating-qkv", filled(RotatingAffineCache::new(8, 0, 8, 32).unwrap(), 20)),
        ("ssm", recurrent()),
        ("mla", latent(LatentRole::Target, 5)),
        ("mla-dsa", latent(LatentRole::TargetWithIndex, 5)),
        ("mtp-mla", latent(LatentRole::Draft, 5)),
        ("paged", paged(None, 9)),
        ("paged", paged(Some(affine(8, 32)), 9)),
        ("list", Box::new(list.unwrap())),
    ]
    .into_iter()
    .chain(segmented())
    .collect()
}

/// Segments exist where our kernels do.
fn segmented() -> Vec<(&'static str, Box<dyn LayerCache>)> {
    if !has_cpu_kernels() {
        return Vec::new();
    }
    let sizes = KvSizes { kv_heads: 2, key_dims: 64, value_dims: 64 };
    let new = |form: SegmentForm, segment: usize, visible: Visible, tokens: i32| {
        let mut cache = SegmentedCache::new(form, sizes, segment, visible, Pools::new(1, None)).unwrap();
        let rope = Rope::plain(64, false, 10000.0, 1.0);
        let attention = CausalAttention::new(2, 2, 64, 0.125, &rope).unwrap();
        let look = Look { heads: 4, key_dims: 64, ..LOOK };
        for from in (0..tokens).step_by(50) {
            let ids = ids(from as u32, tokens.min(from + 50) as u32);
            let kv = prim::reshape(&look.keys(&ids), &[1, ids.len() as i32, 4 * 64]).unwrap();
            cache.store(&kv, &attention).unwrap();
            cache.settle();
        }
        Box::new(cache) as Box<dyn LayerCache>
    };
    let window = Visible { window: Some(40), keep: 4 };
    let latent = |role: LatentRole, tokens: i32| {
        let index = (role == LatentRole::TargetWithIndex).then_some(24);
        let dims = LatentDims { latent: 40, rope: 16, index };
        let layout = LatentLayout { role, dims, dtype: Dtype::Float16, segment: 48 };
        let mut cache = SegmentedLatentCache::new(layout, Pools::new(1, None)).unwrap();
        let rotation = ops::rotation(Some(&Rope::plain(16, true, 10000.0, 1.0))).unwrap();
        let attention =
            LatentAttention { heads: 2, latent: 40, rope: 16, scale: 0.125, rotation: Arc::clone(&rotation) };
        let indexer = TokenIndexer { heads: 1, dims: 24, chosen: 7, rotation };
        let rows =
            |width: i32| Array::from_slice(&vec![0.5f32; (tokens * width) as usize], &[1, tokens, width]);
        let [queries, keys, index_keys, weights] = [112, 56, 24, 1].map(|width| rows(width).unwrap());
        let step =
            IndexStep { queries: &index_keys, keys: &index_keys, weights: &weights, indexer: &indexer };
        if tokens > 0 {
            cache.attend_latent(&queries, &keys, &attention, index.map(|_| step)).unwrap();
        }
        Box::new(cache) as Box<dyn LayerCache>
    };
    vec![
        ("mla-segments", latent(LatentRole::TargetWithIndex, 50)),
        ("mla-segments", latent(LatentRole::Target, 5)),
        ("mla-segments", latent(LatentRole::Draft, 0)),
        ("segments", new(SegmentForm::Float(Dtype::Float16), SEGMENT, window, 900)),
        ("segments", new(SegmentForm::Affine { bits: 4, group: 32 }, 16, Visible::default(), 37)),
        ("segments", new(SegmentForm::TurboQuant { key_bits: 8, value_bits: 3 }, SEGMENT, window, 30)),
    ]
}

fn refused(entry: &Entry) -> Error {
    let error = Provider::built_in().load(entry).err().unwrap_or_else(|| panic!("{entry:?} was loaded"));
    assert_eq!(error.code(), Code::IncompatibleCheckpoint, "{error}");
    error
}

fn field_of(error: &Error) -> &str {
    error.detail().field.as_deref().unwrap()
}

#[test]
fn each_kind_has_one_codec_and_its_name() {
    let provider = Provider::built_in();
    assert_eq!(provider.identity(), "mlxgen-cache-1");
    for (kind, cache) in all() {
        let entry = provider.snapshot(&*cache).unwrap();
        assert_eq!(entry.kind, kind);
        assert_eq!(entry.header["offset"], json!(cache.offset()));
        let loaded = provider.load(&entry).unwrap();
        assert_eq!(
            (loaded.signature(), loaded.offset(), loaded.minimum_reusable_offset()),
            (cache.signature(), cache.offset(), 0)
        );
        let trimmable = provider.header_trimmable(&entry.kind, &entry.header).unwrap();
        assert_eq!(trimmable, cache.can_forget(1), "{kind}");
        let copy = provider.copy(&*cache).unwrap();
        assert_eq!((copy.signature(), copy.offset()), (cache.signature(), cache.offset()));
    }
}

#[test]
fn what_is_stored_is_what_the_kind_needs() {
    let provider = Provider::built_in();
    let shapes = |cache: &dyn LayerCache| -> Vec<Vec<i32>> {
        let entry = provider.snapshot(cache).unwrap();
        entry.tensors.iter().map(|tensor| tensor.shape().to_vec()).collect()
    };
    // The tokens alone, without the room behind them.
    assert_eq!(shapes(&*filled(PlainCache::new(), 5)), [[1, 2, 5, 64], [1, 2, 5, 32]]);
    let affine_shapes = shapes(&*filled(AffineCache::new(4, 32).unwrap(), 5));
    assert_eq!(affine_shapes[0], [1, 2, 5, 8]);
    assert_eq!(affine_shapes[4], [1, 2, 5, 1]);
    // All columns, and where the next token goes.
    let mut ring = filled(RotatingCache::new(8, 2).unwrap(), 11);
    assert_eq!(shapes(&*ring)[0], [1, 2, 8, 64]);
    let entry = provider.snapshot(&*ring).unwrap();
    let wanted = json!({"offset": 11, "idx": 5, "maxSize": 8, "keep": 2});
    assert_eq!(Value::Object(entry.header), wanted);
    LOOK.append(&mut *ring, &ids(20, 23));
    assert_eq!(shapes(&*ring)[0], [1, 2, 10, 64]);
    // All blocks.
    let entry = provider.snapshot(&*paged(Some(affine(8, 32)), 9)).unwrap();
    let wanted = json!({
        "offset": 9, "blockSize": 4, "capacityTokens": 8, "limitTokens": 100, "bits": 8, "groupSize": 32,
        "numBlocks": 3, "blockTable": [0, 1, 2],
    });
    assert_eq!(Value::Object(entry.header), wanted);
    assert_eq!(entry.tensors[0].shape(), [3, 2, 4, 16]);
    let entry = provider.snapshot(&*recurrent()).unwrap();
    assert_eq!(Value::Object(entry.header), json!({"offset": 4, "slots": [false, true]}));
}

#[test]
fn a_loaded_cache_has_room_for_the_next_token() {
    let provider = Provider::built_in();
    for (tokens, capacity) in [(1, 256), (255, 256), (256, 512), (300, 512)] {
        let mut cache = PlainCache::new();
        LOOK.append(&mut cache, &ids(0, tokens));
        let mut loaded = provider.load(&provider.snapshot(&cache).unwrap()).unwrap();
        assert_eq!(loaded.state().unwrap()[0].dim(2), capacity);
        assert!(loaded.state().unwrap()[0].is_available().unwrap());
        assert_eq!(LOOK.append(&mut *loaded, &[7]), LOOK.append(&mut cache, &[7]));
        assert_eq!(loaded.state().unwrap()[0].dim(2), capacity);
    }
}

#[test]
fn snapshots_keep_their_values_when_the_cache_moves_on() {
    let provider = Provider::built_in();
    for (kind, mut cache) in all() {
        if !matches!(kind, "kv" | "qkv" | "rotating" | "rotating-qkv" | "paged") {
            continue;
        }
        let entry = provider.snapshot(&*cache).unwrap();
        let mut twin = provider.copy(&*cache).unwrap();
        LOOK.append(&mut *cache, &[90]);
        cache.forget(1);
        LOOK.append(&mut *cache, &[91]);
        let mut loaded = provider.load(&entry).unwrap();
        for piece in [ids(50, 51), ids(51, 54), ids(54, 55)] {
            let rows = attended(&mut *loaded, LOOK, &piece, None);
            assert_eq!(rows, attended(&mut *twin, LOOK, &piece, None), "{kind}");
        }
    }
}

#[test]
fn empty_caches_are_stored_only_where_there_is_something_to_say() {
    let provider = Provider::built_in();
    let mut forgotten = filled(PlainCache::new(), 3);
    forgotten.forget(3);
    let empty: Vec<Box<dyn LayerCache>> = vec![
        Box::new(PlainCache::new()),
        forgotten,
        Box::new(AffineCache::new(4, 32).unwrap()),
        Box::new(RotatingCache::new(4, 0).unwrap()),
        Box::new(RotatingAffineCache::new(4, 0, 4, 32).unwrap()),
        Box::new(CompositeCache::new(vec![Box::new(PlainCache::new())]).unwrap()),
    ];
    for cache in empty {
        assert!(provider.is_empty(&*cache).unwrap());
        assert_eq!(provider.snapshot(&*cache).unwrap_err().code(), Code::WrongState);
        assert_eq!(provider.copy(&*cache).unwrap().offset(), 0);
    }
    let recurrent = RecurrentCache::new(2);
    assert_eq!(provider.snapshot(&recurrent).unwrap_err().code(), Code::WrongState);
    assert_eq!(provider.copy(&recurrent).err().unwrap().code(), Code::WrongState);
    for mut cache in [latent(LatentRole::Target, 0), latent(LatentRole::TargetWithIndex, 0), paged(None, 0)] {
        let loaded = provider.load(&provider.snapshot(&*cache).unwrap()).unwrap();
        assert_eq!((loaded.offset(), loaded.signature()), (0, cache.signature()));
        cache.forget(1);
    }
    // One that gave all its blocks back keeps its pool.
    let mut used = paged(None, 9);
    used.forget(9);
    let mut loaded = provider.load(&provider.snapshot(&*used).unwrap()).unwrap();
    assert_eq!(LOOK.append(&mut *loaded, &[3]), LOOK.expected(&[3], None));
    assert_eq!(of_kind::<PagedCache>(&mut *loaded).unwrap().table(), [0]);
}

#[test]
fn b98_nothing_is_lost_on_reload() {
    let provider = Provider::built_in();
    let block_written = || {
        let mut cache = filled(RotatingCache::new(8, 0).unwrap(), 11);
        LOOK.append(&mut *cache, &ids(30, 34));
        cache
    };
    let caches = vec![
        filled(PlainCache::new(), 5),
        filled(RotatingCache::new(8, 0).unwrap(), 11),
        filled(RotatingCache::new(8, 2).unwrap(), 20),
        block_written(),
        filled(AffineCache::new(4, 32).unwrap(), 6),
        paged(None, 6),
    ];
    for original in caches {
        let entry = provider.snapshot(&*original).unwrap();
        let header = serde_json::from_str(&serde_json::to_string(&entry.header).unwrap()).unwrap();
        let mut loaded = provider.load(&Entry { header, ..entry }).unwrap();
        let mut twin = original;
        for piece in [ids(60, 61), ids(61, 62), ids(62, 63), ids(63, 66)] {
            assert_eq!(loaded.offset(), twin.offset());
            let rows = attended(&mut *loaded, LOOK, &piece, None);
            assert_eq!(rows, attended(&mut *twin, LOOK, &piece, None), "{}", twin.signature());
        }
        assert_eq!((loaded.signature(), loaded.can_forget(1)), (twin.signature(), twin.can_forget(1)));
    }
    let (_, list) = all().into_iter().find(|(kind, _)| *kind == "list").unwrap();
    let mut loaded = provider.load(&provider.snapshot(&*list).unwrap()).unwrap();
    assert_eq!(loaded.signature(), list.signature());
    let parts = of_kind::<CompositeCache>(&mut *loaded).unwrap().parts_mut();
    let slots = of_kind::<RecurrentCache>(&mut *parts[0]).unwrap().slots();
    assert!(slots[0].is_none());
    assert_eq!(slots[1].as_ref().unwrap().to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0]);
    let mut twin = list.fork();
    let twins = of_kind::<CompositeCache>(&mut *twin).unwrap().parts_mut();
    assert_eq!(
        attended(&mut *parts[1], LOOK, &[9, 10], None),
        attended(&mut *twins[1], LOOK, &[9, 10], None)
    );
}

#[test]
fn b62_and_b69_survive_a_reload() {
    let provider = Provider::built_in();
    let mut ring = filled(RotatingCache::new(8, 2).unwrap(), 20);
    ring = provider.load(&provider.snapshot(&*ring).unwrap()).unwrap();
    let mut row = attended(&mut *ring, LOOK, &[20], None).remove(0);
    let mut expected = LOOK.expected(&[0, 1, 15, 16, 17, 18, 19, 20], None);
    row.sort();
    expected.sort();
    assert_eq!(row, expected);
    let look = Look::WIDE;
    for bits in [4, 8] {
        let mut cache: Box<dyn LayerCache> = Box::new(AffineCache::new(bits, 32).unwrap());
        look.append(&mut *cache, &ids(0, 557));
        cache.forget(5);
        let mut loaded = provider.load(&provider.snapshot(&*cache).unwrap()).unwrap();
        let found = look.append(&mut *loaded, &ids(552, 600));
        assert!(found == look.expected(&ids(0, 600), Some(affine(bits, 32))));
    }
}

#[test]
fn the_least_reusable_offset_is_stored_beside_the_kind() {
    let provider = Provider::built_in();
    let mut cache = reusable_from(filled(PlainCache::new(), 9), 6);
    let entry = provider.snapshot(&*cache).unwrap();
    assert_eq!(entry.header["minimumReusableOffset"], 6);
    assert_eq!(provider.load(&entry).unwrap().minimum_reusable_offset(), 6);
    assert_eq!(provider.copy(&*cache).unwrap().minimum_reusable_offset(), 6);
    cache.forget(5);
    let cut = provider.snapshot(&*cache).unwrap();
    assert_eq!(provider.load(&cut).unwrap().minimum_reusable_offset(), 4);
    for wrong in [json!(10), json!(-1), json!(1.5), json!("6"), json!(null)] {
        let mut entry = entry.clone();
        entry.header.insert("minimumReusableOffset".into(), wrong);
        assert_eq!(field_of(&refused(&entry)), "minimumReusableOffset");
    }
}

struct Double;

impl Codec for Double {
    fn kind(&self) -> &'static str {
        "kv"
    }

    fn matches(&self, cache: &dyn LayerCache) -> bool {
        cache.as_any().is::<PlainCache>()
    }

    fn snapshot(&self, _: &dyn LayerCache, _: &mut Header, _: &Provider) -> Result<Vec<Tensor>> {
        unreachable!("two codecs match")
    }

    fn load(&self, _: usize, _: &mut Fields, _: &[Tensor], _: &Provider) -> Result<Box<dyn LayerCache>> {
        unreachable!("two codecs match")
    }

    fn header_trimmable(&self, _: usize, _: &mut Fields, _: &Provider) -> Result<bool> {
        unreachable!("two codecs match")
    }
}

#[test]
fn a_kind_without_a_codec_or_with_two_is_an_error() {
    let cache = filled(PlainCache::new(), 2);
    let entry = Provider::built_in().snapshot(&*cache).unwrap();
    let none = Provider { identity: "none", codecs: Vec::new() };
    assert_eq!(none.snapshot(&*cache).unwrap_err().code(), Code::Unsupported);
    assert_eq!(none.copy(&*cache).err().unwrap().code(), Code::Unsupported);
    assert_eq!(none.load(&entry).err().unwrap().code(), Code::IncompatibleCheckpoint);
    let two = Provider { identity: "two", codecs: vec![Box::new(Double), Box::new(Double)] };
    assert_eq!(two.snapshot(&*cache).unwrap_err().code(), Code::Internal);
    assert_eq!(two.load(&entry).err().unwrap().code(), Code::Internal);
    let provider = Provider::built_in();
    provider.check_identity("mlxgen-cache-1").unwrap();
    assert_eq!(field_of(&provider.check_identity("mlx-cache-v3").unwrap_err()), "codecProvider");
    let unknown = Entry { kind: "kv2".into(), ..entry };
    assert_eq!(field_of(&refused(&unknown)), "kind");
    let error = provider.header_trimmable("kv2", &unknown.header).unwrap_err();
    assert_eq!((error.code(), field_of(&error)), (Code::IncompatibleCheckpoint, "kind"));
}
