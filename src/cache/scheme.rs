//! From the options of a cache set to the caches of a model's layers.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::maintenance::{Maintenance, Planned};
use super::segmented::{KvSizes, SEGMENT, SegmentedCache};
use super::{
    Affine, LayerCache, PagedCache, PagedForm, PlainCache, Precision, RotatingCache, SegmentForm, check_group,
};
use crate::base::options::{
    AffineGroups, AffineLayers, CacheOptions, PageOptions, TurboQuantOptions, WindowOptions,
};
use crate::base::{Error, Result};
use crate::mlx::Dtype;
use crate::mlx::ops::{Pools, Visible};

/// What a layer needs a cache for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerNeeds {
    pub sizes: KvSizes,
    /// A query sees at most that many of the latest tokens.
    pub window: Option<usize>,
}

/// Where keys and values live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Arrays of MLX's, for its own attention.
    Arrays,
    /// Segments, for the CPU's kernels.
    Segments,
}

/// How the caches of a set are made, what they cost and when they change.
#[derive(Clone, Debug)]
pub struct Scheme {
    layers: Vec<LayerScheme>,
    backing: Backing,
    /// Type of keys and values that are not quantised.
    dtype: Dtype,
    pages: Option<PageOptions>,
    maintenance: Rc<Maintenance>,
    /// Most tokens of a forward of a prompt.
    chunk: u64,
    /// What segments take is a part of this number.
    counter: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct LayerScheme {
    pub(super) needs: LayerNeeds,
    /// A window that the set's options ask for.
    window: Option<WindowOptions>,
    pub(super) planned: Option<Planned>,
}

impl Scheme {
    /// INVALID_ARGUMENT or UNSUPPORTED naming the option, and the layer where one layer is the reason. `dtype` is that
    /// of keys and values that are not quantised; prompts are read in chunks of `chunk` tokens.
    pub fn new(
        options: &CacheOptions,
        layers: &[LayerNeeds],
        backing: Backing,
        dtype: Dtype,
        chunk: u64,
    ) -> Result<Self> {
        check_window(options.window)?;
        check_pages(options, backing)?;
        if let Some(affine) = &options.affine {
            check_table(&affine.layers, layers.len())?;
        }
        let mut schemes = Vec::with_capacity(layers.len());
        for (index, needs) in layers.iter().enumerate() {
            let window = if needs.window.is_none() { options.window } else { None };
            let planned = planned(options, index, needs, window.is_some() || needs.window.is_some())
                .map_err(|error| error.position(index as u64))?;
            schemes.push(LayerScheme { needs: *needs, window, planned });
        }
        let maintenance =
            Rc::new(Maintenance::new(schemes.iter().map(|scheme| scheme.planned).collect(), backing));
        let scheme = Scheme {
            layers: schemes,
            backing,
            dtype,
            pages: options.pages,
            maintenance,
            chunk: chunk.max(1),
            counter: Arc::default(),
        };
        // What a kind refuses, it refuses now.
        scheme.caches()?;
        Ok(scheme)
    }

    /// The same; `counter` goes up and down by the bytes that segments take, shared ones once.
    pub fn counted_in(&self, counter: &Arc<AtomicU64>) -> Self {
        Scheme { counter: Arc::clone(counter), ..self.clone() }
    }

    /// Empty caches, one for each layer.
    pub fn caches(&self) -> Result<Vec<Box<dyn LayerCache>>> {
        let limit = self.pages.filter(|pages| pages.capacity > 0).map(|pages| {
            pages.capacity.div_ceil(u64::from(pages.tokens)).saturating_mul(self.layers.len() as u64) as usize
        });
        let pools = Pools::counted_in(self.layers.len(), limit, Arc::clone(&self.counter));
        self.layers
            .iter()
            .enumerate()
            .map(|(index, layer)| {
                let cache = match self.backing {
                    Backing::Arrays => self.of_arrays(layer),
                    Backing::Segments => self.of_segments(layer, &pools),
                };
                cache.map_err(|error| error.position(index as u64))
            })
            .collect()
    }

    fn of_arrays(&self, layer: &LayerScheme) -> Result<Box<dyn LayerCache>> {
        if let Some((window, keep)) = layer.window_and_keep() {
            return Ok(Box::new(RotatingCache::new(window, keep)?));
        }
        Ok(match self.pages {
            Some(pages) => {
                let quantised = match layer.planned {
                    Some(Planned { precision: Precision::Affine { bits, group }, .. }) => {
                        Some(Affine::new(bits, group)?)
                    }
                    _ => None,
                };
                Box::new(PagedCache::new(paged_form(pages, quantised))?)
            }
            None => Box::new(PlainCache::new()),
        })
    }

    fn of_segments(&self, layer: &LayerScheme, pools: &Arc<Pools>) -> Result<Box<dyn LayerCache>> {
        let form = match layer.planned {
            // The kernels quantise from the first token on, so that no result depends on how a prompt was cut.
            Some(planned) if planned.start == 0 => form_of(planned.precision),
            _ => SegmentForm::Float(self.dtype),
        };
        let pools = Arc::clone(pools);
        if let Some(planned) = layer.planned {
            SegmentedCache::bytes_per_token(form_of(planned.precision), layer.needs.sizes)?;
        }
        let visible = layer.visible();
        let segment = self.segment_tokens(visible);
        Ok(Box::new(SegmentedCache::new(form, layer.needs.sizes, segment, visible, pools)?))
    }

    pub(super) fn segment_tokens(&self, visible: Visible) -> usize {
        match self.pages {
            Some(pages) if visible.window.is_none() => pages.tokens as usize,
            _ => SEGMENT,
        }
    }

    pub(super) fn layers(&self) -> &[LayerScheme] {
        &self.layers
    }

    pub(super) fn backing(&self) -> Backing {
        self.backing
    }

    pub(super) fn pages(&self) -> Option<PageOptions> {
        self.pages
    }

    /// Most tokens of a forward of a prompt.
    pub(super) fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Whether a layer's keys and values never lie there in full precision if they are to be reduced from the start.
    pub(super) fn reduces_at_once(&self, layer: &LayerScheme) -> bool {
        self.backing == Backing::Segments || self.pages.is_some() && layer.window_and_keep().is_none()
    }

    pub fn maintenance(&self) -> &Maintenance {
        &self.maintenance
    }

    /// Most bytes that a state of `tokens` tokens occupies, the room for more included.
    pub fn bytes_for(&self, tokens: u64) -> u64 {
        self.layers.iter().map(|layer| self.layer_bytes(layer, tokens)).fold(0, u64::saturating_add)
    }

    /// Most tokens of a set: what its pages take where their number is limited and a layer keeps all tokens.
    pub fn most_tokens(&self) -> u64 {
        match self.pages {
            Some(pages)
                if pages.capacity > 0
                    && self.layers.iter().any(|layer| layer.window_and_keep().is_none()) =>
            {
                pages.capacity.div_ceil(u64::from(pages.tokens)).saturating_mul(u64::from(pages.tokens))
            }
            _ => u64::MAX,
        }
    }

    /// Bytes of each further token's keys and values once precision is reduced, as long as no window is full.
    pub fn bytes_per_token(&self) -> u64 {
        let of_layer = |layer: &LayerScheme| match layer.planned {
            Some(planned) => self.encoded_bytes(layer.needs.sizes, planned.precision),
            None => self.float_bytes(layer.needs.sizes),
        };
        self.layers.iter().map(of_layer).fold(0, u64::saturating_add)
    }

    fn layer_bytes(&self, layer: &LayerScheme, tokens: u64) -> u64 {
        let bytes = |tokens: u64, bytes: u64| self.capacity(layer, tokens).saturating_mul(bytes);
        let float = self.float_bytes(layer.needs.sizes);
        let Some(planned) = layer.planned else { return bytes(tokens, float) };
        let encoded = bytes(tokens, self.encoded_bytes(layer.needs.sizes, planned.precision));
        let before = match (self.backing, self.pages) {
            (Backing::Segments, _) => planned.start,
            // Pages are quantised from the first token on.
            (Backing::Arrays, Some(_)) if layer.window_and_keep().is_none() => 0,
            // A forward may cross the point from which on all is quantised.
            (Backing::Arrays, _) => planned.start.saturating_add(self.chunk),
        };
        encoded.max(bytes(tokens.min(before), float))
    }

    /// Most tokens that a layer has room for once it covers `tokens`.
    fn capacity(&self, layer: &LayerScheme, tokens: u64) -> u64 {
        match (self.backing, layer.window_and_keep(), self.pages) {
            (Backing::Segments, ..) => {
                let visible = layer.visible();
                SegmentedCache::capacity_for(tokens, visible, self.segment_tokens(visible), self.chunk)
            }
            (Backing::Arrays, Some((window, _)), _) => {
                RotatingCache::capacity_for(tokens, window, self.chunk)
            }
            (Backing::Arrays, None, Some(pages)) => {
                PagedCache::capacity_for(tokens, &paged_form(pages, None))
            }
            (Backing::Arrays, None, None) => PlainCache::capacity_for(tokens),
        }
    }

    pub(super) fn float_bytes(&self, sizes: KvSizes) -> u64 {
        (sizes.kv_heads * (sizes.key_dims + sizes.value_dims) * self.dtype.size()) as u64
    }

    /// Bytes of a token's keys and values.
    pub(super) fn encoded_bytes(&self, sizes: KvSizes, precision: Precision) -> u64 {
        if self.backing == Backing::Segments
            && let Ok(bytes) = SegmentedCache::bytes_per_token(form_of(precision), sizes)
        {
            return bytes as u64;
        }
        let KvSizes { kv_heads, key_dims, value_dims } = sizes;
        let elements = (kv_heads * (key_dims + value_dims)) as u64;
        match precision {
            Precision::Affine { bits, group } => {
                elements * u64::from(bits) / 8 + elements / u64::from(group) * 2 * self.dtype.size() as u64
            }
            Precision::TurboQuant { key_bits, value_bits, .. } => {
                let (keys, values) = ((kv_heads * key_dims) as u64, (kv_heads * value_dims) as u64);
                // Scales and zeros of keys, scales of values, in half precision for each 32 elements.
                keys * u64::from(key_bits) / 8
                    + values * u64::from(value_bits) / 8
                    + (2 * keys + values) / 32 * 2
            }
        }
    }
}

impl LayerScheme {
    /// The window of the layer's own or of the set's options, what it keeps included, and how many of the first tokens
    /// it keeps.
    pub(super) fn window_and_keep(&self) -> Option<(usize, usize)> {
        let asked = self.window.map(|WindowOptions { tokens, keep }| (tokens as usize, keep as usize));
        self.needs.window.map(|window| (window, 0)).or(asked)
    }

    pub(super) fn visible(&self) -> Visible {
        match self.window_and_keep() {
            Some((window, keep)) => Visible { window: Some(window - keep), keep },
            None => Visible::default(),
        }
    }
}

fn paged_form(pages: PageOptions, quantised: Option<Affine>) -> PagedForm {
    let block = pages.tokens as usize;
    // Whole pages, as the kernels' pools have them.
    let limit =
        (pages.capacity > 0).then_some((pages.capacity as usize).next_multiple_of(pages.tokens as usize));
    PagedForm { block, capacity: limit.unwrap_or(block), limit, quantised }
}

fn form_of(precision: Precision) -> SegmentForm {
    match precision {
        Precision::Affine { bits, group } => SegmentForm::Affine { bits, group },
        Precision::TurboQuant { key_bits, value_bits, .. } => {
            SegmentForm::TurboQuant { key_bits, value_bits }
        }
    }
}

/// To what the options reduce a layer's keys and values, and when.
fn planned(
    options: &CacheOptions,
    layer: usize,
    needs: &LayerNeeds,
    windowed: bool,
) -> Result<Option<Planned>> {
    if let Some(turboquant) = options.turboquant {
        let TurboQuantOptions { key_bits, value_bits, start, deferred } = turboquant;
        if windowed {
            warn_of_windows();
            return Ok(None);
        }
        turboquant.validate()?;
        check_turboquant_heads(needs.sizes)?;
        let precision = Precision::TurboQuant { key_bits, value_bits, deferred };
        return Ok(Some(Planned { precision, start }));
    }
    let Some(affine) = &options.affine else { return Ok(None) };
    let groups = match &affine.layers {
        AffineLayers::Uniform(groups) => Some(*groups),
        AffineLayers::Table(table) => {
            table.iter().find(|(index, _)| *index == layer).map(|(_, groups)| *groups)
        }
    };
    let Some(groups) = groups else { return Ok(None) };
    groups.validate()?;
    let AffineGroups { bits, group } = groups;
    for dims in [needs.sizes.key_dims, needs.sizes.value_dims] {
        check_group(dims, group).map_err(|error| match affine.layers {
            AffineLayers::Uniform(_) => error,
            AffineLayers::Table(_) => error.field("kv_config"),
        })?;
    }
    Ok(Some(Planned { precision: Precision::Affine { bits, group }, start: affine.start() }))
}

/// TurboQuant leaves windows as they are, which a user of a model with windows should know.
fn warn_of_windows() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        log::warn!(
            "TurboQuant leaves layers with a window in full precision; the set's description tells which"
        );
    });
}

fn check_turboquant_heads(sizes: KvSizes) -> Result<()> {
    for dims in [sizes.key_dims, sizes.value_dims] {
        if !matches!(dims, 64 | 128 | 256 | 512) {
            let text = format!("TurboQuant takes heads of 64, 128, 256 or 512 elements, not of {dims}");
            return Err(Error::unsupported(text).field("turboquant_key_bits"));
        }
    }
    Ok(())
}

fn check_window(window: Option<WindowOptions>) -> Result<()> {
    let Some(WindowOptions { tokens, keep }) = window else { return Ok(()) };
    if tokens == 0 || tokens > i32::MAX as u64 {
        let text = format!("a window has from 1 to 2^31 - 1 tokens, not {tokens}");
        return Err(Error::invalid_argument(text).field("window"));
    }
    if keep >= tokens {
        let text = format!("a window of {tokens} tokens that always keeps the first {keep} would never move");
        return Err(Error::invalid_argument(text).field("window_keep"));
    }
    Ok(())
}

fn check_pages(options: &CacheOptions, backing: Backing) -> Result<()> {
    let Some(pages) = options.pages else { return Ok(()) };
    let bad = |text: String, field: &str| Err(Error::invalid_argument(text).field(field));
    if pages.tokens == 0 || pages.tokens > 1 << 16 {
        return bad(format!("a page has from 1 to 65536 tokens, not {}", pages.tokens), "page_tokens");
    }
    if backing == Backing::Segments && !pages.tokens.is_multiple_of(16) {
        let text = format!("pages for the CPU's kernels have a multiple of 16 tokens, not {}", pages.tokens);
        return Err(Error::unsupported(text).field("page_tokens"));
    }
    if options.window.is_some() {
        return bad("a window and pages exclude each other".to_owned(), "page_tokens");
    }
    if options.turboquant.is_some() && backing == Backing::Arrays {
        let text = "there are no pages of TurboQuant codes for MLX's own attention";
        return Err(Error::unsupported(text).field("page_tokens"));
    }
    Ok(())
}

fn check_table(layers: &AffineLayers, count: usize) -> Result<()> {
    let AffineLayers::Table(table) = layers else { return Ok(()) };
    let mut seen = vec![false; count];
    for (layer, _) in table {
        let bad =
            |text: String| Err(Error::invalid_argument(text).field("kv_config").position(*layer as u64));
        match seen.get_mut(*layer) {
            None => return bad(format!("there is no layer {layer}: the model has {count} with a cache")),
            Some(true) => return bad(format!("layer {layer} stands twice in the table")),
            Some(seen) => *seen = true,
        }
    }
    Ok(())
}
