//! What a dense decoder computes, as data: one graph reads it, and a family is a way to fill it in.

/// How values are brought to one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormConfig {
    pub kind: NormKind,
    pub eps: f64,
    /// The gain is one more than what the file holds.
    pub one_more: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x²) + eps) * gain`
    RootMeanSquare,
    /// `(x - mean(x)) / sqrt(var(x) + eps) * gain + bias`
    Layer { bias: bool },
}

/// Where a layer has norms, by the names of their tensors, and how its two halves are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockConfig {
    pub before_attention: Option<&'static str>,
    /// Of attention's result, before it is added.
    pub after_attention: Option<&'static str>,
    pub before_mlp: Option<&'static str>,
    /// Of the feed-forward result, before it is added.
    pub after_mlp: Option<&'static str>,
    pub order: Order,
    /// Sums in float16 stay below its infinity.
    pub clipped: bool,
}

/// The halves of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The feed-forward half takes what attention gave.
    Serial,
    /// Both take the values that `before_attention` normalises: `x + attention + mlp`.
    Parallel,
    /// The same, summed as `attention + mlp + x`.
    ParallelFirst,
}

impl BlockConfig {
    /// Norms before each half.
    pub const BEFORE: BlockConfig = BlockConfig {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_mlp: Some("post_attention_layernorm"),
        after_mlp: None,
        order: Order::Serial,
        clipped: false,
    };

    /// Norms of each half's result.
    pub const AFTER: BlockConfig = BlockConfig {
        before_attention: None,
        after_attention: Some("post_attention_layernorm"),
        before_mlp: None,
        after_mlp: Some("post_feedforward_layernorm"),
        ..Self::BEFORE
    };

    /// Both.
    pub const AROUND: BlockConfig = BlockConfig {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_attention_layernorm"),
        before_mlp: Some("pre_feedforward_layernorm"),
        after_mlp: Some("post_feedforward_layernorm"),
        ..Self::BEFORE
    };
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionConfig {
    /// The q, k and v projections have biases.
    pub bias: bool,
    pub output_bias: Presence,
    /// One matrix `qkv_proj` instead of three.
    pub joined: bool,
    /// Norms of queries and keys before they turn.
    pub head_norm: Option<HeadNorm>,
    /// Of products of queries and keys.
    pub scale: f64,
    /// Scores `s` become `softcap * tanh(s / softcap)`.
    pub softcap: Option<f64>,
    pub query_growth: Option<QueryGrowth>,
    pub wide: Wide,
}

/// Whether the files hold a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Absent,
    Present,
    AsFile,
}

impl From<bool> for Presence {
    fn from(present: bool) -> Self {
        if present { Presence::Present } else { Presence::Absent }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadNorm {
    /// Each head by itself, all with one gain: `q_norm`, `k_norm` `[head_dim]`.
    Shared,
    /// All heads of a token as one row: `q_norm`, `k_norm` `[heads * head_dim]`.
    Whole,
    /// Each head by itself with a gain of its own, as layer norms without biases: `q_layernorm.norms.{head}`.
    Own,
}

/// Queries at position `p` are multiplied by `1 + beta * ln(1 + floor(p / positions))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    pub beta: f64,
    pub positions: f64,
}

/// When attention computes in float32 although the model does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wide {
    Never,
    /// Queries, where the model is in float16.
    Float16Queries,
    /// Queries and keys.
    Always,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MlpConfig {
    pub form: MlpForm,
    pub activation: Activation,
    pub bias: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MlpForm {
    /// `down(activation(gate(x)) * up(x))`
    Gated,
    /// The same with `gate` and `up` as the halves of one matrix.
    GatedJoined,
    /// `down(activation(up(x)))`, by the names of the two.
    Plain { up: &'static str, down: &'static str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// `x * Φ(x)`
    Gelu,
    /// `x / 2 * (1 + tanh(√(2/π) * (x + 0.044715 * x³)))`
    GeluTanh,
    /// `max(x, 0)²`
    ReluSquared,
}

/// A factor of the embeddings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EmbeddingScale {
    Plain(f64),
    /// Rounded to the type of the model's weights, as when it was trained.
    Rounded(f64),
    /// Rounded to bfloat16.
    Bfloat16(f64),
}

/// From the last layer to scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadConfig {
    pub table: HeadTable,
    /// Hidden values are divided by it before the product.
    pub input_divisor: Option<f64>,
    /// Scores are multiplied by it.
    pub factor: Option<f64>,
    /// Scores are divided by it.
    pub divisor: Option<f64>,
    /// Scores `s` become `softcap * tanh(s / softcap)`.
    pub softcap: Option<f64>,
}

/// Which matrix gives the scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadTable {
    Embedding,
    /// `lm_head`
    Own,
    /// `lm_head` if the files hold one, else the embedding.
    OwnIfPresent,
}

impl HeadTable {
    /// `tie_word_embeddings` of a file.
    pub fn tied(tied: bool) -> Self {
        if tied { HeadTable::Embedding } else { HeadTable::Own }
    }
}

/// What distinguishes a layer from its neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LayerConfig {
    /// A query sees at most that many of the latest tokens, its own included.
    pub window: Option<usize>,
    /// Index of the rotation; `None`: positions are left out.
    pub rope: Option<usize>,
}

impl LayerConfig {
    /// Attends to everything, with the first rotation.
    pub const FULL: LayerConfig = LayerConfig { window: None, rope: Some(0) };
}
