//! Tiny llamas with reproducible weights: as a model folder, and as a float64 forward that shares
//! no code with the library.

use std::collections::BTreeMap;
use std::path::Path;

use tempfile::TempDir;

use crate::base::options::{CacheOptions, EngineOptions, ModelOptions, Numerics};
use crate::base::{CancelToken, Prompt, Result};
use crate::generate::mlx_runtime::builder::MlxBuilder;
use crate::generate::mlx_runtime::model::MlxModel;
use crate::generate::mlx_runtime::source::MlxSource;
use crate::generate::runtime::{ModelBuilder, ModelSource, TokenModel, TokenState};
use crate::model::weights::testing::{Noise, SafetensorsFile, floats};

pub(super) const HIDDEN: usize = 32;
pub(super) const INTERMEDIATE: usize = 48;
pub(super) const LAYERS: usize = 3;
pub(super) const HEADS: usize = 4;
pub(super) const KV_HEADS: usize = 2;
pub(super) const HEAD_DIM: usize = 8;
pub(super) const VOCABULARY: usize = 40;
pub(super) const CONTEXT: usize = 1024;
const THETA: f64 = 10000.0;
const EPS: f64 = 1e-5;

pub(super) struct Tiny {
    pub(super) tied: bool,
    pub(super) biases: bool,
    head_dim: usize,
    /// Row-major float32 values by name.
    pub(super) tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Tiny {
    pub(super) fn new(tied: bool, biases: bool) -> Self {
        Self::with_heads(tied, biases, HEAD_DIM)
    }

    /// With heads of another size.
    pub(super) fn with_heads(tied: bool, biases: bool, head_dim: usize) -> Self {
        let mut made = Tiny { tied, biases, head_dim, tensors: BTreeMap::new() };
        let mut noise = Noise(7);
        made.random(&mut noise, "model.embed_tokens.weight", &[VOCABULARY, HIDDEN], 0.0, 1.0);
        for layer in 0..LAYERS {
            let path = |name: &str| format!("model.layers.{layer}.{name}");
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                made.random(&mut noise, &path(&format!("{norm}.weight")), &[HIDDEN], 1.0, 0.2);
            }
            for (name, outputs, inputs) in projections(head_dim) {
                let scale = 2.5 / (inputs as f32).sqrt();
                made.random(&mut noise, &path(&format!("{name}.weight")), &[outputs, inputs], 0.0, scale);
                if biases {
                    made.random(&mut noise, &path(&format!("{name}.bias")), &[outputs], 0.0, 0.3);
                }
            }
        }
        made.random(&mut noise, "model.norm.weight", &[HIDDEN], 1.0, 0.2);
        if !tied {
            made.random(&mut noise, "lm_head.weight", &[VOCABULARY, HIDDEN], 0.0, 0.5);
        }
        made
    }

    fn random(&mut self, noise: &mut Noise, name: &str, shape: &[usize], centre: f32, scale: f32) {
        let count = shape.iter().product();
        let values = (0..count).map(|_| {
            let uniform = (noise.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
            centre + scale * uniform
        });
        self.tensors.insert(name.to_owned(), (shape.to_vec(), values.collect()));
    }

    pub(super) fn config(&self) -> String {
        format!(
            r#"{{"model_type":"llama","hidden_size":{HIDDEN},"intermediate_size":{INTERMEDIATE},
            "num_hidden_layers":{LAYERS},"num_attention_heads":{HEADS},"num_key_value_heads":{KV_HEADS},
            "head_dim":{head_dim},"vocab_size":{VOCABULARY},"rms_norm_eps":{EPS},"rope_theta":{THETA},
            "max_position_embeddings":{CONTEXT},"tie_word_embeddings":{tied},"attention_bias":{biases},
            "mlp_bias":{biases},"eos_token_id":[2,5],"bos_token_id":1}}"#,
            head_dim = self.head_dim,
            tied = self.tied,
            biases = self.biases
        )
    }

    pub(super) fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), self.config()).unwrap();
        let mut file = SafetensorsFile::new();
        for (name, (shape, values)) in &self.tensors {
            file = file.tensor(name, "F32", shape, &floats(values));
        }
        file.write(&folder.path().join("model.safetensors"));
        folder
    }

    fn get(&self, name: &str) -> Vec<f64> {
        self.tensors[name].1.iter().map(|value| f64::from(*value)).collect()
    }

    fn project(&self, path: &str, x: &[f64]) -> Vec<f64> {
        let weight = self.get(&format!("{path}.weight"));
        let mut y: Vec<f64> = weight
            .chunks(x.len())
            .map(|row| row.iter().zip(x).map(|(weight, value)| weight * value).sum())
            .collect();
        if self.biases && self.tensors.contains_key(&format!("{path}.bias")) {
            for (value, bias) in y.iter_mut().zip(self.get(&format!("{path}.bias"))) {
                *value += bias;
            }
        }
        y
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|value| value * value).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + EPS).sqrt();
        x.iter().zip(self.get(&format!("{name}.weight"))).map(|(value, gain)| value * scale * gain).collect()
    }

    /// The scores after the last of `tokens`, computed in float64.
    pub(super) fn scores(&self, tokens: &[u32]) -> Vec<f64> {
        let table = self.get("model.embed_tokens.weight");
        let row = |id: u32| table[id as usize * HIDDEN..(id as usize + 1) * HIDDEN].to_vec();
        let mut x: Vec<Vec<f64>> = tokens.iter().map(|id| row(*id)).collect();
        for layer in 0..LAYERS {
            let path = format!("model.layers.{layer}");
            let normed: Vec<Vec<f64>> =
                x.iter().map(|x| self.norm(&format!("{path}.input_layernorm"), x)).collect();
            let all = |name: &str, rotated: bool| -> Vec<Vec<f64>> {
                let projected = normed.iter().map(|x| self.project(&format!("{path}.self_attn.{name}"), x));
                projected
                    .enumerate()
                    .map(|(position, y)| if rotated { rotate(&y, position, self.head_dim) } else { y })
                    .collect()
            };
            let (q, k, v) = (all("q_proj", true), all("k_proj", true), all("v_proj", false));
            for (position, x) in x.iter_mut().enumerate() {
                let attended = attend(&q[position], &k[..=position], &v[..=position], self.head_dim);
                let output = self.project(&format!("{path}.self_attn.o_proj"), &attended);
                x.iter_mut().zip(output).for_each(|(x, y)| *x += y);
                let normed = self.norm(&format!("{path}.post_attention_layernorm"), x);
                let gate = self.project(&format!("{path}.mlp.gate_proj"), &normed);
                let up = self.project(&format!("{path}.mlp.up_proj"), &normed);
                let inner: Vec<f64> =
                    gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
                let output = self.project(&format!("{path}.mlp.down_proj"), &inner);
                x.iter_mut().zip(output).for_each(|(x, y)| *x += y);
            }
        }
        let last = self.norm("model.norm", &x[x.len() - 1]);
        self.project(if self.tied { "model.embed_tokens" } else { "lm_head" }, &last)
    }
}

fn projections(head_dim: usize) -> [(&'static str, usize, usize); 7] {
    [
        ("self_attn.q_proj", HEADS * head_dim, HIDDEN),
        ("self_attn.k_proj", KV_HEADS * head_dim, HIDDEN),
        ("self_attn.v_proj", KV_HEADS * head_dim, HIDDEN),
        ("self_attn.o_proj", HIDDEN, HEADS * head_dim),
        ("mlp.gate_proj", INTERMEDIATE, HIDDEN),
        ("mlp.up_proj", INTERMEDIATE, HIDDEN),
        ("mlp.down_proj", HIDDEN, INTERMEDIATE),
    ]
}

fn rotate(x: &[f64], position: usize, head_dim: usize) -> Vec<f64> {
    let half = head_dim / 2;
    let mut y = x.to_vec();
    for head in (0..x.len()).step_by(head_dim) {
        for pair in 0..half {
            let angle = position as f64 * THETA.powf(-2.0 * pair as f64 / head_dim as f64);
            let (sin, cos) = angle.sin_cos();
            let (a, b) = (x[head + pair], x[head + pair + half]);
            y[head + pair] = a * cos - b * sin;
            y[head + pair + half] = a * sin + b * cos;
        }
    }
    y
}

fn attend(query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>], head_dim: usize) -> Vec<f64> {
    let mut output = Vec::with_capacity(query.len());
    for head in 0..HEADS {
        let q = &query[head * head_dim..(head + 1) * head_dim];
        let kv = head / (HEADS / KV_HEADS) * head_dim;
        let weights: Vec<f64> = keys
            .iter()
            .map(|key| {
                let dot: f64 = q.iter().zip(&key[kv..kv + head_dim]).map(|(a, b)| a * b).sum();
                (dot / (head_dim as f64).sqrt()).exp()
            })
            .collect();
        let total: f64 = weights.iter().sum();
        for dim in 0..head_dim {
            let sum: f64 = weights.iter().zip(values).map(|(weight, value)| weight * value[kv + dim]).sum();
            output.push(sum / total);
        }
    }
    output
}

/// Ids without a pattern.
pub(super) fn prompt(count: usize) -> Vec<u32> {
    let mut noise = Noise(count as u64);
    (0..count).map(|_| noise.below(VOCABULARY) as u32).collect()
}

pub(super) fn exact() -> ModelOptions {
    ModelOptions { numerics: Numerics::Exact, ..ModelOptions::default() }
}

pub(super) fn open(path: &Path, options: &ModelOptions) -> Result<MlxSource> {
    MlxSource::open(path, &EngineOptions::default(), options, &never())
}

pub(super) fn load(path: &Path, options: &ModelOptions) -> Result<MlxModel> {
    let mut source = open(path, options)?;
    let mut builder = MlxBuilder::new(source.blueprint().clone())?;
    while let Some(piece) = source.next_piece()? {
        builder.accept(piece)?;
    }
    builder.assemble()
}

pub(super) fn never() -> CancelToken {
    CancelToken::try_new().unwrap()
}

pub(super) fn new_state(model: &MlxModel) -> Box<dyn TokenState> {
    model.new_state(&CacheOptions::default()).unwrap()
}

/// The scores after `tokens`, read in chunks with the last token alone.
pub(super) fn read(model: &MlxModel, state: &mut dyn TokenState, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let (last, before) = tokens.split_last().unwrap();
    for part in before.chunks(chunk) {
        model.prefill(state, &Prompt::from(part), &never()).unwrap();
    }
    model.logits(state, &Prompt::from(&[*last]), &never()).unwrap()
}
