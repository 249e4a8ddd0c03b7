//! What any thread may know of a sequence without asking the owner thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::base::Prompt;
use crate::base::info::LayerCacheInfo;
use crate::base::prompt::PromptRecord;

/// Written by the owner thread, read by all.
#[derive(Debug)]
pub struct SequenceMirror {
    /// The committed tokens: those that the state may be relied on to cover.
    tokens: Mutex<PromptRecord>,
    /// Bytes that the state occupies or was granted.
    bytes: AtomicU64,
    /// The same of all sequences of the engine together.
    total: Arc<AtomicU64>,
    layers: Mutex<Vec<LayerCacheInfo>>,
    /// Scores after the last token, if the last change was an append.
    logits: Mutex<Option<Arc<Vec<f32>>>>,
}

impl SequenceMirror {
    pub fn new(total: Arc<AtomicU64>) -> Self {
        SequenceMirror {
            tokens: Mutex::default(),
            bytes: AtomicU64::new(0),
            total,
            layers: Mutex::default(),
            logits: Mutex::default(),
        }
    }

    pub fn token_count(&self) -> usize {
        self.tokens.lock().len()
    }

    pub fn tokens(&self) -> Vec<u32> {
        self.tokens.lock().ids().to_vec()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn layers(&self) -> Vec<LayerCacheInfo> {
        self.layers.lock().clone()
    }

    pub fn logits(&self) -> Option<Vec<f32>> {
        self.shared_logits().map(|logits| logits.to_vec())
    }

    pub(super) fn shared_logits(&self) -> Option<Arc<Vec<f32>>> {
        self.logits.lock().clone()
    }

    /// How many tokens at the beginning are the same as those of `prompt`.
    pub fn common_prefix(&self, prompt: &Prompt) -> usize {
        self.tokens.lock().common_prefix(&prompt.record())
    }

    pub(super) fn extend(&self, read: &PromptRecord) {
        self.tokens.lock().append(read);
    }

    pub(super) fn push(&self, token: u32) {
        self.tokens.lock().push(token);
    }

    /// What was read, for another sequence.
    pub(super) fn record(&self) -> PromptRecord {
        self.tokens.lock().clone()
    }

    pub(super) fn cut(&self, keep: usize) {
        self.tokens.lock().truncate(keep);
    }

    pub(super) fn set_logits(&self, logits: Option<Arc<Vec<f32>>>) {
        *self.logits.lock() = logits;
    }

    pub(super) fn set_layers(&self, layers: Vec<LayerCacheInfo>) {
        *self.layers.lock() = layers;
    }

    pub(super) fn set_bytes(&self, bytes: u64) {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        if bytes >= before {
            self.total.fetch_add(bytes - before, Ordering::Relaxed);
        } else {
            self.total.fetch_sub(before - bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for SequenceMirror {
    fn drop(&mut self) {
        self.total.fetch_sub(*self.bytes.get_mut(), Ordering::Relaxed);
    }
}
