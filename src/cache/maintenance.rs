//! When keys and values are reduced to a lower precision, and the conversion itself.

use super::scheme::Backing;
use super::{LayerCache, Precision, reusable_from};
use crate::base::Result;
use crate::mlx;

/// To what a layer is reduced, once it covers `start` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    pub precision: Precision,
    pub start: u64,
}

/// The policy of one set. Run it before every forward and after every chunk of a prompt.
#[derive(Clone, Debug)]
pub struct Maintenance {
    layers: Vec<Option<Planned>>,
    backing: Backing,
    /// The first token count at which something may be due.
    earliest: Option<u64>,
}

impl Maintenance {
    pub fn new(layers: Vec<Option<Planned>>, backing: Backing) -> Self {
        let earliest = layers.iter().flatten().map(|planned| planned.start).min();
        Maintenance { layers, backing, earliest }
    }

    /// Converts the layers that are due, one after the other, each computed before the next begins: so at most one
    /// layer exists twice. An empty cache is never converted. After a failure the layers that were converted stay so.
    pub fn run(&self, caches: &mut [Box<dyn LayerCache>]) -> Result<()> {
        let Some(earliest) = self.earliest else { return Ok(()) };
        if caches.first().is_none_or(|cache| cache.offset() == 0 || (cache.offset() as u64) < earliest) {
            return Ok(());
        }
        let mut converted = false;
        for (cache, planned) in caches.iter_mut().zip(&self.layers) {
            let Some(planned) = planned else { continue };
            if cache.offset() == 0 || (cache.offset() as u64) < planned.start {
                continue;
            }
            let Some(encoded) = cache.encoded(planned.precision)? else { continue };
            mlx::eval(&encoded.state()?)?;
            // What was reduced after the fact is good for no shorter prefix.
            let minimum = if planned.start > 0 { cache.offset() } else { 0 };
            *cache = reusable_from(encoded, minimum);
            converted = true;
            mlx::memory::clear_pool()?;
        }
        if converted {
            log::debug!(
                "keys and values were reduced at {} tokens",
                caches.first().map_or(0, |cache| cache.offset())
            );
        }
        Ok(())
    }

    /// Most tokens that may be appended before a layer changes its precision: `None` for any number.
    pub fn max_append_tokens(&self, caches: &[Box<dyn LayerCache>]) -> Option<u64> {
        let pending = caches.iter().zip(&self.layers).filter_map(|(cache, planned)| {
            planned.as_ref().map(|planned| planned.start.saturating_sub(cache.offset() as u64))
        });
        pending.filter(|tokens| *tokens > 0).min()
    }

    /// The same for a forward of a prompt. MLX's own attention reads a chunk as it comes, as mlx-lm does; the kernels
    /// stop where the precision changes, so that no result depends on how a prompt was cut.
    pub fn max_forward(&self, caches: &[Box<dyn LayerCache>]) -> Option<u64> {
        match self.backing {
            Backing::Arrays => None,
            Backing::Segments => self.max_append_tokens(caches),
        }
    }
}
