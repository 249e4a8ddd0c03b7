//! What a state will occupy, told before it exists. Admission needs a bound instead: [`Scheme::bytes_for`].

use super::maintenance::Planned;
use super::planes::STEP;
use super::scheme::{LayerScheme, Scheme};
use super::segmented::BEHIND;
use super::{Backing, Precision};
use crate::base::options::PageOptions;

impl Scheme {
    /// Bytes of a state that has read a prompt of `tokens` tokens, in chunks and the last token alone. Up to a step of
    /// growth more if the chunks are no multiple of it.
    pub fn expected_bytes(&self, tokens: u64) -> u64 {
        self.layers().iter().map(|layer| self.expected_of(layer, tokens)).fold(0, u64::saturating_add)
    }

    fn expected_of(&self, layer: &LayerScheme, tokens: u64) -> u64 {
        let reduced = layer.planned.filter(|planned| {
            // Reduction is looked for before the last token is read.
            self.reduces_at_once(layer) && planned.start == 0
                || tokens.saturating_sub(1) >= planned.start.max(1)
        });
        let sizes = layer.needs.sizes;
        let bytes = match reduced {
            Some(planned) => self.encoded_bytes(sizes, planned.precision),
            None => self.float_bytes(sizes),
        };
        self.expected_capacity(layer, tokens).saturating_mul(bytes)
    }

    fn expected_capacity(&self, layer: &LayerScheme, tokens: u64) -> u64 {
        if tokens == 0 {
            return 0;
        }
        match (self.backing(), layer.window_and_keep(), self.pages()) {
            (Backing::Segments, ..) => self.segment_room(layer, tokens),
            // A prompt within the window is kept without room; the last token brings a step of it.
            (Backing::Arrays, Some((window, _)), _) => {
                (tokens - 1).saturating_add(STEP as u64).min(window as u64)
            }
            (Backing::Arrays, None, Some(pages)) => self.page_room(pages, tokens),
            (Backing::Arrays, None, None) if self.is_cut_when_encoded(layer, tokens) => {
                (tokens - 1).saturating_add(STEP as u64)
            }
            (Backing::Arrays, None, None) => tokens.div_ceil(STEP as u64).saturating_mul(STEP as u64),
        }
    }

    /// TurboQuant encodes what is there without room for more. If that is all but the last token, which comes alone, that
    /// brings a step of room.
    fn is_cut_when_encoded(&self, layer: &LayerScheme, tokens: u64) -> bool {
        let Some(Planned { precision: Precision::TurboQuant { .. }, start }) = layer.planned else {
            return false;
        };
        let chunks = start.max(1).div_ceil(self.chunk());
        tokens > start.max(1) && tokens - 1 <= chunks.saturating_mul(self.chunk())
    }

    /// Of whole segments, without those that only hold what a window has left behind.
    fn segment_room(&self, layer: &LayerScheme, tokens: u64) -> u64 {
        let visible = layer.visible();
        let segment = self.segment_tokens(visible) as u64;
        let all = tokens.div_ceil(segment);
        let gone = visible.window.map_or(0, |window| {
            let before = (tokens + 1).saturating_sub((window + BEHIND) as u64) / segment;
            before.saturating_sub((visible.keep as u64).div_ceil(segment))
        });
        (all - gone).saturating_mul(segment)
    }

    /// A pool of pages is made for its limit, and else grows to what the next chunk needs, by half at least.
    fn page_room(&self, pages: PageOptions, tokens: u64) -> u64 {
        let page = u64::from(pages.tokens);
        let limit = if pages.capacity > 0 { pages.capacity.div_ceil(page) } else { u64::MAX };
        let needed = tokens.div_ceil(page);
        let mut room: u64 = 0;
        while room < needed {
            let covered = room * page;
            let chunk_end = (covered / self.chunk() + 1).saturating_mul(self.chunk()).min(tokens - 1);
            let read = if chunk_end > covered { chunk_end } else { tokens };
            let planned = match room {
                0 if pages.capacity > 0 => limit,
                0 => 1,
                _ => room + room.div_ceil(2),
            };
            room = planned.min(limit).max(read.div_ceil(page));
        }
        room.saturating_mul(page)
    }
}
