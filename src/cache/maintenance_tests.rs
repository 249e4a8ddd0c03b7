//! The conversion itself: one layer after the other.

use std::any::Any;
use std::cell::Cell;
use std::rc::Rc;

use super::test_support::Look;
use super::{Backing, LayerCache, Maintenance, PlainCache, Planned, Precision, Signature};
use crate::base::{Code, Error, Result};
use crate::mlx::{Array, Dtype, Mask, eval, memory};

const LOOK: Look = Look { heads: 4, key_dims: 128, value_dims: 128, dtype: Dtype::Float32 };
const AFFINE: Precision = Precision::Affine { bits: 8, group: 64 };
const TURBO: Precision = Precision::TurboQuant { key_bits: 8, value_bits: 4, deferred: false };

fn plain(tokens: u32) -> Box<dyn LayerCache> {
    let mut cache = PlainCache::new();
    if tokens > 0 {
        let ids: Vec<u32> = (0..tokens).collect();
        LOOK.append(&mut cache, &ids);
    }
    Box::new(cache)
}

fn planned(precision: Precision, start: u64) -> Option<Planned> {
    Some(Planned { precision, start })
}

/// How many caches there are, and the most that there have been.
#[derive(Default)]
struct Count {
    now: Cell<usize>,
    most: Cell<usize>,
    computed: Cell<usize>,
}

/// A cache that counts itself.
struct Counted {
    cache: Box<dyn LayerCache>,
    count: Rc<Count>,
    encoded: bool,
    fails: bool,
}

impl Counted {
    fn new(cache: Box<dyn LayerCache>, count: &Rc<Count>) -> Self {
        count.now.set(count.now.get() + 1);
        count.most.set(count.most.get().max(count.now.get()));
        Counted { cache, count: Rc::clone(count), encoded: false, fails: false }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.now.set(self.count.now.get() - 1);
    }
}

impl LayerCache for Counted {
    fn offset(&self) -> usize {
        self.cache.offset()
    }

    fn mask(&self, queries: usize, window: Option<usize>) -> Result<Mask> {
        self.cache.mask(queries, window)
    }

    fn state(&self) -> Result<Vec<Array>> {
        self.count.computed.set(self.count.computed.get() + usize::from(self.encoded));
        self.cache.state()
    }

    fn can_forget(&self, tokens: usize) -> bool {
        self.cache.can_forget(tokens)
    }

    fn forget(&mut self, tokens: usize) -> usize {
        self.cache.forget(tokens)
    }

    fn signature(&self) -> Signature {
        self.cache.signature()
    }

    fn bytes(&self) -> usize {
        self.cache.bytes()
    }

    fn fork(&self) -> Box<dyn LayerCache> {
        Box::new(Counted::new(self.cache.fork(), &self.count))
    }

    fn encoded(&self, precision: Precision) -> Result<Option<Box<dyn LayerCache>>> {
        if self.fails {
            return Err(Error::out_of_memory("no room for a conversion"));
        }
        let Some(cache) = self.cache.encoded(precision)? else { return Ok(None) };
        let mut counted = Counted::new(cache, &self.count);
        counted.encoded = true;
        Ok(Some(Box::new(counted)))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

fn counted(tokens: u32, layers: usize, count: &Rc<Count>) -> Vec<Box<dyn LayerCache>> {
    (0..layers).map(|_| Box::new(Counted::new(plain(tokens), count)) as Box<dyn LayerCache>).collect()
}

fn kinds(caches: &[Box<dyn LayerCache>]) -> Vec<String> {
    caches.iter().map(|cache| cache.signature().to_string()).collect()
}

#[test]
fn at_most_one_layer_exists_twice() {
    for precision in [AFFINE, TURBO] {
        let count = Rc::new(Count::default());
        let mut caches = counted(40, 6, &count);
        Maintenance::new(vec![planned(precision, 0); 6], Backing::Arrays).run(&mut caches).unwrap();
        assert_eq!((count.now.get(), count.most.get(), count.computed.get()), (6, 7, 6));
        assert!(caches.iter().all(|cache| cache.signature() != Signature::Plain && cache.offset() == 40));
    }
}

#[test]
fn a_conversion_takes_the_memory_of_one_layer() {
    let layers = 8;
    let mut caches: Vec<_> = (0..layers).map(|_| plain(1000)).collect();
    for cache in &caches {
        eval(&cache.state().unwrap()).unwrap();
    }
    let (whole, before) = (caches[0].bytes(), memory::active());
    memory::reset_peak();
    Maintenance::new(vec![planned(AFFINE, 10); layers], Backing::Arrays).run(&mut caches).unwrap();
    let (encoded, peak) = (caches[0].bytes(), memory::peak());
    assert!(encoded * 3 < whole);
    // One encoded layer besides all plain ones, and what computing it takes.
    assert!(peak - before < 2 * encoded, "{peak} after {before}, a layer takes {encoded}");
    assert!(memory::active() + layers * (whole - encoded) <= before);
    assert!(caches.iter().all(|cache| cache.minimum_reusable_offset() == 1000));
}

#[test]
fn layers_change_when_they_are_due_and_only_if_they_are_listed() {
    let plans = vec![planned(AFFINE, 30), None, planned(TURBO, 50), planned(AFFINE, 0)];
    let maintenance = Maintenance::new(plans.clone(), Backing::Arrays);
    let run = |tokens: u32| {
        let mut caches: Vec<_> = plans.iter().map(|_| plain(tokens)).collect();
        maintenance.run(&mut caches).unwrap();
        let minimums: Vec<usize> = caches.iter().map(|cache| cache.minimum_reusable_offset()).collect();
        (kinds(&caches).join(" "), minimums)
    };
    assert_eq!(run(0), ("kv:plain kv:plain kv:plain kv:plain".into(), vec![0; 4]));
    assert_eq!(run(1), ("kv:plain kv:plain kv:plain kv:quant:8:64".into(), vec![0; 4]));
    assert_eq!(run(29), ("kv:plain kv:plain kv:plain kv:quant:8:64".into(), vec![0; 4]));
    assert_eq!(run(30), ("kv:quant:8:64 kv:plain kv:plain kv:quant:8:64".into(), vec![30, 0, 0, 0]));
    let all = "kv:quant:8:64 kv:plain kv:turboquant:8:4 kv:quant:8:64";
    assert_eq!(run(64), (all.into(), vec![64, 0, 64, 0]));
    let due =
        |tokens: u32| maintenance.max_append_tokens(&plans.iter().map(|_| plain(tokens)).collect::<Vec<_>>());
    assert_eq!([due(0), due(29), due(30), due(49), due(50)], [Some(30), Some(1), Some(20), Some(1), None]);
    assert_eq!(Maintenance::new(vec![None], Backing::Segments).max_append_tokens(&[plain(3)]), None);
}

#[test]
fn a_failed_conversion_keeps_every_token() {
    let count = Rc::new(Count::default());
    let mut caches = counted(40, 3, &count);
    let mut failing = Counted::new(plain(40), &count);
    failing.fails = true;
    caches.insert(2, Box::new(failing));
    let maintenance = Maintenance::new(vec![planned(AFFINE, 0); 4], Backing::Arrays);
    assert_eq!(maintenance.run(&mut caches).unwrap_err().code(), Code::OutOfMemory);
    assert_eq!(kinds(&caches), ["kv:quant:8:64", "kv:quant:8:64", "kv:plain", "kv:plain"]);
    assert!(caches.iter().all(|cache| cache.offset() == 40));
    // And goes on later.
    caches[2] = plain(40);
    maintenance.run(&mut caches).unwrap();
    assert_eq!(kinds(&caches), ["kv:quant:8:64"; 4]);
}
