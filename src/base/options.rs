//! Options as the library understands them; the boundary turns C structs into these.

use super::{CancelToken, Error, Result};

/// How arithmetic is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numerics {
    /// The fastest way whose results are the library's own.
    #[default]
    Fast,
    /// Only MLX's operations in mlx-lm's order: bit-equal to mlx-lm.
    Exact,
}

/// Element type of activations, unquantised weights, scales and plain keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ComputeType {
    /// The file's under `Exact`; float32 under `Fast` on x86-64, else the file's.
    #[default]
    Auto,
    Float32,
    Float16,
    Bfloat16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    #[default]
    Auto,
    Cpu,
    Gpu,
}

/// Zero means the default in every number.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Bytes that models, caches and work may take together; 0: three quarters of the memory.
    pub memory_limit: u64,
    /// Bytes of freed buffers kept for reuse; 0: 256 MiB or an eighth of the limit, the smaller.
    pub pool_limit: u64,
    /// Threads of our workers and of the BLAS; 0: physical cores.
    pub threads: u32,
    pub device: Device,
}

impl EngineOptions {
    /// No machine that this runs on has more cores, and a greater number is a mistake, whose threads
    /// could bring the process down.
    const MOST_THREADS: u32 = 1024;

    /// INVALID_ARGUMENT naming the field whose value has no meaning.
    pub fn validate(&self) -> Result<()> {
        let most = Self::MOST_THREADS;
        if self.threads > most {
            let text = format!("threads must be at most {most}, not {}", self.threads);
            return Err(Error::invalid_argument(text).field("threads"));
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    pub numerics: Numerics,
    pub compute_type: ComputeType,
    /// Tokens of a prefill forward; 0: chosen by the numerics (2048 under `Exact`, as mlx-lm).
    pub prefill_chunk: u32,
    /// Most tokens of a sequence; 0: the model's own limit. Never above the model's.
    pub context_limit: u32,
}

/// What a cache set keeps and how.
#[derive(Clone, Debug, Default)]
pub struct CacheOptions {
    /// Most tokens the set may hold; 0: the model's context limit.
    pub capacity: u64,
    pub kv_type: KvType,
    /// Affine groups for keys and values; `None`: as they are.
    pub affine: Option<AffineOptions>,
    /// TurboQuant codes for keys and values. It wins over affine groups.
    pub turboquant: Option<TurboQuantOptions>,
    /// Layers without a window of their own keep the latest tokens only.
    pub window: Option<WindowOptions>,
    pub pages: Option<PageOptions>,
}

impl CacheOptions {
    /// Most tokens that the set may hold, the model's context limit aside.
    pub fn most_tokens(&self) -> u64 {
        if self.capacity == 0 { u64::MAX } else { self.capacity }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AffineOptions {
    pub layers: AffineLayers,
    /// Tokens from which on keys and values are quantised, those before too; `None`: 0 for a table, else 5000.
    pub start: Option<u64>,
}

impl AffineOptions {
    /// mlx-lm's default for uniform bits.
    const UNIFORM_START: u64 = 5000;

    pub fn start(&self) -> u64 {
        self.start.unwrap_or(match self.layers {
            AffineLayers::Uniform(_) => Self::UNIFORM_START,
            AffineLayers::Table(_) => 0,
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AffineLayers {
    Uniform(AffineGroups),
    /// The layers that are quantised, each once, and how.
    Table(Vec<(usize, AffineGroups)>),
}

/// `group` elements share a scale and a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AffineGroups {
    pub bits: u32,
    pub group: u32,
}

impl AffineGroups {
    pub const DEFAULT_GROUP: u32 = 64;

    /// INVALID_ARGUMENT naming the field unless keys and values can be kept in such groups.
    pub fn validate(&self) -> Result<()> {
        let AffineGroups { bits, group } = self;
        if !matches!(bits, 4 | 8) {
            let text = format!("keys and values can be kept in 4 or 8 bits, not in {bits}");
            return Err(Error::invalid_argument(text).field("kv_bits"));
        }
        if !matches!(group, 32 | 64 | 128) {
            let text = format!("groups of keys and values have 32, 64 or 128 elements, not {group}");
            return Err(Error::invalid_argument(text).field("kv_group"));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurboQuantOptions {
    pub key_bits: u32,
    pub value_bits: u32,
    /// Tokens from which on keys and values are quantised, those before too.
    pub start: u64,
    /// Values are read rotated and attention's result is rotated back. Kernels of ours always do that.
    pub deferred: bool,
}

impl TurboQuantOptions {
    /// INVALID_ARGUMENT naming the field unless there are codes of these widths.
    pub fn validate(&self) -> Result<()> {
        let TurboQuantOptions { key_bits, value_bits, .. } = self;
        if !matches!(key_bits, 2 | 4 | 5 | 8) {
            let text = format!("TurboQuant keeps keys in 2, 4, 5 or 8 bits, not in {key_bits}");
            return Err(Error::invalid_argument(text).field("turboquant_key_bits"));
        }
        if !matches!(value_bits, 2 | 3 | 4 | 5 | 8) {
            let text = format!("TurboQuant keeps values in 2, 3, 4, 5 or 8 bits, not in {value_bits}");
            return Err(Error::invalid_argument(text).field("turboquant_value_bits"));
        }
        Ok(())
    }
}

/// The first `keep` tokens and the latest ones, `tokens` together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowOptions {
    pub tokens: u64,
    pub keep: u64,
}

/// Keys and values in pages that a set and its forks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOptions {
    /// Tokens of a page.
    pub tokens: u32,
    /// Most tokens that a set and its forks hold in pages together; 0: as many as there is memory for.
    pub capacity: u64,
}

/// Element type of a cache set's keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// float16 where the CPU's own kernels compute, else the compute type.
    #[default]
    Auto,
    Float32,
    Float16,
    Bfloat16,
}

/// One way of sampling. `temperature` 0 is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    pub temperature: f32,
    /// Kept mass; active in (0, 1).
    pub top_p: f32,
    /// Kept share of the greatest probability; active in (0, 1].
    pub min_p: f32,
    /// Kept candidates; 0 or at least the vocabulary: off.
    pub top_k: u32,
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 0.0, top_p: 1.0, min_p: 0.0, top_k: 0, seed: 0 }
    }
}

impl Sampling {
    /// INVALID_ARGUMENT naming the field whose value has no meaning.
    pub fn validate(&self) -> Result<()> {
        let bad = |field: &str, rule: &str| {
            Err(Error::invalid_argument(format!("{field} must be {rule}")).field(field))
        };
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return bad("temperature", "a finite number of at least 0");
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return bad("top_p", "between 0 and 1");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return bad("min_p", "between 0 and 1");
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Default)]
pub struct GenerateOptions {
    pub sampling: Sampling,
    /// Most tokens to generate; `None`: up to the context limit.
    pub max_tokens: Option<u64>,
    /// Texts that end the generation; not part of the output.
    pub stop: Vec<String>,
    /// Ids that end it, besides the model's own.
    pub extra_eos: Vec<u32>,
    /// Do not end at the model's own end-of-sequence ids.
    pub ignore_eos: bool,
    /// Report the chosen token's log-probability.
    pub logprobs: bool,
    /// Report that many of the likeliest tokens too (at most 20).
    pub top_logprobs: u32,
    pub cancel: Option<CancelToken>,
}
