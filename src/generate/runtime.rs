//! What the drivers and the engine need of a numeric back end.
//!
//! Two back ends stand behind these traits: MLX, and a fake one without numerics that lets the
//! engine and the boundary be tested without MLX. Unless a trait is `Send`, its objects live on
//! the owner thread and never leave it.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::estimate::MemoryNeeds;
use crate::base::event::TokenLogprobs;
use crate::base::info::{LayerCacheInfo, ModelInfo};
use crate::base::options::{CacheOptions, EngineOptions, ModelOptions, Sampling};
use crate::base::{CancelToken, Prompt, Result};
use crate::text::Tokenizer;

/// Opens models off the owner thread and makes the runtime on it.
pub trait Backend: Send + Sync {
    /// Such as `MLX 0.32.2, CPU`.
    fn description(&self) -> String;

    /// Whether engines can compute on a GPU.
    fn has_gpu(&self) -> bool;

    /// Called once, on the owner thread, before anything else there.
    fn start(&self) -> Result<Box<dyn Runtime>>;

    /// Reads configuration, tokenizer and headers; no weight yet. Any thread.
    fn open_model(
        &self,
        path: &Path,
        engine: &EngineOptions,
        options: &ModelOptions,
        cancel: &CancelToken,
    ) -> Result<Box<dyn ModelSource>>;

    /// What the model and a cache set of it would take. Reads configuration and headers; no tokenizer and no weight.
    /// Any thread; the errors are those of `open_model` and of a new state.
    fn memory_needs(
        &self,
        path: &Path,
        engine: &EngineOptions,
        options: &ModelOptions,
        cache: &CacheOptions,
        cancel: &CancelToken,
    ) -> Result<Box<dyn MemoryNeeds>>;
}

/// Bytes that the back end's arrays take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    pub active: u64,
    pub pooled: u64,
    pub peak: u64,
}

/// The back end on the owner thread.
pub trait Runtime {
    fn memory(&self) -> DeviceMemory;
    fn reset_peak(&mut self);
    /// Bytes of freed buffers that may be kept.
    fn set_pool_limit(&mut self, bytes: u64) -> Result<()>;
    /// Gives freed buffers back to the system.
    fn trim(&mut self) -> Result<()>;
    /// 0: as many as there are physical cores.
    fn set_threads(&mut self, threads: u32) -> Result<()>;
    /// Waits for everything that was dispatched.
    fn synchronize(&mut self) -> Result<()>;
}

/// An opened model whose weights are read piece by piece, off the owner thread.
pub trait ModelSource: Send {
    fn info(&self) -> &ModelInfo;
    fn tokenizer(&self) -> Option<Arc<Tokenizer>>;
    /// Bytes of the files that `next_piece` will read in all.
    fn file_bytes(&self) -> u64;
    /// The most bytes that loading needs at once, the finished model included.
    fn load_bytes(&self) -> u64;
    /// The next piece of a weight in the form in which it will be kept; at most a few MiB.
    fn next_piece(&mut self) -> Result<Option<WeightPiece>>;
    /// Makes the receiver of the pieces; called once, the result runs on the owner thread.
    fn builder(&self) -> BuilderFn;
}

pub type BuilderFn = Box<dyn FnOnce(&mut dyn Runtime) -> Result<Box<dyn ModelBuilder>> + Send>;

/// Consecutive bytes of one kept tensor.
pub struct WeightPiece {
    /// Index in the source's own table of kept tensors.
    pub tensor: usize,
    /// Byte offset in the kept tensor.
    pub offset: usize,
    pub bytes: Vec<u8>,
    /// Bytes of memory that it takes, here or where the source has put it already.
    pub memory: u64,
    /// File bytes read to make it, for progress.
    pub file_bytes: u64,
}

/// Collects pieces into a model, on the owner thread.
pub trait ModelBuilder {
    fn accept(&mut self, piece: WeightPiece) -> Result<()>;
    fn finish(self: Box<Self>) -> Result<Box<dyn TokenModel>>;
}

/// A causal model over token ids.
///
/// Calls that fail or are cancelled leave the state covering the tokens it covered before.
pub trait TokenModel {
    fn new_state(&self, options: &CacheOptions) -> Result<Box<dyn TokenState>>;

    /// Greatest transient bytes of a forward of `tokens` tokens that ends at position `end`, with a state of
    /// `state_bytes` bytes.
    fn workspace_bytes(&self, tokens: u64, end: u64, state_bytes: u64) -> u64;

    /// Most tokens of the forward that ends a prompt and whose last position is projected.
    fn final_width(&self) -> u64 {
        1
    }

    /// Forwards `tokens` without the vocabulary head and evaluates the state. Checks `cancel`
    /// between groups of layers; when CANCELLED, none of `tokens` is covered.
    fn prefill(&self, state: &mut dyn TokenState, tokens: &Prompt, cancel: &CancelToken) -> Result<()>;

    /// Forwards `tokens` and evaluates the scores after the last: float32 `[vocabulary]`.
    fn logits(&self, state: &mut dyn TokenState, tokens: &Prompt, cancel: &CancelToken) -> Result<Vec<f32>>;

    /// Forwards one input and dispatches the sampling of what follows, without waiting for it.
    /// `step` is the index of the sampled token in its generation (the RNG key is made of the
    /// seed and it).
    fn step(
        &self,
        state: &mut dyn TokenState,
        input: StepInput<'_>,
        sampling: &Sampling,
        report: LogprobReport,
        step: u64,
    ) -> Result<Box<dyn PendingToken>>;
}

/// What a step forwards.
pub enum StepInput<'a> {
    Read(&'a Prompt),
    /// A sampled token that was not read yet: the pipelined form.
    Pending(&'a dyn PendingToken),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogprobReport {
    pub chosen: bool,
    pub top: u32,
}

/// A token that is being computed.
pub trait PendingToken {
    /// Waits for it. May be called again. An error means that the forward which computes it
    /// failed: the state is then good for no more than truncation to what it covered before.
    fn read(&self) -> Result<(u32, Option<TokenLogprobs>)>;
    fn as_any(&self) -> &dyn Any;
}

/// The state of one sequence: one cache per cache-owning layer.
pub trait TokenState {
    /// Tokens covered.
    fn offset(&self) -> u64;
    /// Forgets what follows the first `keep` tokens; a state that forgets all is as new. WRONG_STATE naming the layer
    /// that cannot, and then nothing changed.
    fn truncate(&mut self, keep: u64) -> Result<()>;
    /// An independent state with the same tokens.
    fn fork(&self) -> Result<Box<dyn TokenState>>;
    /// Bytes occupied now, those that forks share included.
    fn bytes(&self) -> u64;
    /// Has what forks share counted in `total`, once, as it comes and goes. Asked of an empty state.
    fn count_in(&mut self, _total: &Arc<AtomicU64>) -> Result<()> {
        Ok(())
    }
    /// The part of the bytes that is not counted so.
    fn own_bytes(&self) -> u64 {
        self.bytes()
    }
    /// Bytes that a fork takes, now or with the next token.
    fn fork_bytes(&self) -> u64 {
        self.bytes_for(self.offset())
    }
    /// Bytes that the next token takes because forks share the last ones.
    fn copied_bytes(&self) -> u64 {
        0
    }
    /// Bytes that the state would occupy if it covered `tokens` tokens.
    fn bytes_for(&self, tokens: u64) -> u64;
    /// Whether the latest token can be forgotten, now and whenever the state has more.
    fn can_run_ahead(&self) -> bool {
        self.layers().iter().all(|layer| layer.trimmable)
    }
    /// The least number of tokens that the state may be cut to and still be what these tokens alone would have made.
    fn minimum_reusable_offset(&self) -> u64 {
        0
    }
    /// Most tokens of the next forward of a prompt: `None` for any number.
    fn max_forward(&self) -> Option<u64> {
        None
    }
    fn layers(&self) -> Vec<LayerCacheInfo>;
    fn as_any_mut(&mut self) -> &mut dyn Any;
    fn as_any(&self) -> &dyn Any;
}
