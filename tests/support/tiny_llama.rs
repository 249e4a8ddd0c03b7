//! A small llama with weights from a formula, written as a model folder.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

/// Sizes of the model; heads of 16.
#[derive(Clone, Copy)]
pub struct Shape {
    pub hidden: usize,
    pub layers: usize,
    pub vocabulary: usize,
    pub context: usize,
    /// All weights are 0: quickly written.
    pub zero: bool,
}

pub const SMALL: Shape = Shape { hidden: 64, layers: 2, vocabulary: 320, context: 8192, zero: false };

pub struct TinyLlama(TempDir);

impl TinyLlama {
    pub fn new(shape: Shape) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let Shape { hidden, layers, vocabulary, context, zero } = shape;
        let heads = hidden / 16;
        let config = format!(
            r#"{{"model_type": "llama", "hidden_size": {hidden}, "intermediate_size": {}, "vocab_size": {vocabulary},
                 "num_attention_heads": {heads}, "num_key_value_heads": {heads}, "num_hidden_layers": {layers},
                 "max_position_embeddings": {context}, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                 "tie_word_embeddings": false, "torch_dtype": "float32", "eos_token_id": 0}}"#,
            2 * hidden
        );
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let mut tensors = BTreeMap::new();
        let mut seed = 1u32;
        let mut add = |name: String, shape: &[usize], scale: f32| {
            let count: usize = shape.iter().product();
            let bytes: Vec<u8> = if zero {
                vec![0; 4 * count]
            } else {
                (0..count)
                    .flat_map(|_| {
                        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        let value = (seed >> 8) as f32 / (1 << 23) as f32 - 1.0;
                        let value = if shape.len() == 1 { 1.0 } else { value * scale };
                        value.to_le_bytes()
                    })
                    .collect()
            };
            tensors.insert(name, (shape.to_vec(), bytes));
        };
        add("model.embed_tokens.weight".into(), &[vocabulary, hidden], 1.0);
        for layer in 0..layers {
            let at = format!("model.layers.{layer}");
            let scale = 4.0 / (hidden as f32).sqrt();
            for name in ["input_layernorm", "post_attention_layernorm"] {
                add(format!("{at}.{name}.weight"), &[hidden], 1.0);
            }
            for name in ["q_proj", "k_proj", "v_proj", "o_proj"] {
                add(format!("{at}.self_attn.{name}.weight"), &[hidden, hidden], scale);
            }
            for name in ["gate_proj", "up_proj"] {
                add(format!("{at}.mlp.{name}.weight"), &[2 * hidden, hidden], scale);
            }
            add(format!("{at}.mlp.down_proj.weight"), &[hidden, 2 * hidden], scale);
        }
        add("model.norm.weight".into(), &[hidden], 1.0);
        add("lm_head.weight".into(), &[vocabulary, hidden], 1.0);
        let views = tensors.iter().map(|(name, (shape, bytes))| {
            (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
        });
        safetensors::serialize_to_file(views, None, &folder.path().join("model.safetensors")).unwrap();
        TinyLlama(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}
