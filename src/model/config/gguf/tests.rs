//! Configurations from GGUF metadata.

use crate::base::{Code, Result};
use crate::model::config::{HeadTable, ModelConfig, RopeScaling};
use crate::model::weights::ModelFiles;
use crate::model::weights::testing::{GgufFile, floats, llama};

fn open(file: &GgufFile) -> Result<ModelConfig> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    file.write(&path);
    ModelFiles::open(&path).map(|model| model.config)
}

#[track_caller]
fn refused(file: &GgufFile, code: Code, field: &str) {
    let error = open(file).expect_err("must be refused");
    assert_eq!(error.code(), code, "{error}");
    assert_eq!(error.detail().field.as_deref(), Some(field), "{error}");
    assert!(error.detail().file.as_ref().unwrap().ends_with("m.gguf"), "{error}");
}

#[test]
fn metadata_gives_the_same_configuration_as_config_json() {
    let file = llama().f32("llama.rope.freq_base", 1e5).u32("tokenizer.ggml.bos_token_id", 1);
    let from_gguf = open(&file).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let json = serde_json::json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": f64::from(1e-5f32), "vocab_size": 8,
        "max_position_embeddings": 256, "rope_theta": 100_000, "bos_token_id": 1
    });
    std::fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    assert_eq!(ModelConfig::open_folder(folder.path()).unwrap(), from_gguf);
}

#[test]
fn tensors_tell_of_the_head_the_biases_and_the_vocabulary() {
    let plain = open(&llama()).unwrap();
    assert!(plain.head.table == HeadTable::Embedding && !plain.attention.bias && !plain.mlp.bias);
    let file = llama()
        .tensor("output.weight", 0, &[1], &[0; 4])
        .tensor("blk.0.attn_q.bias", 0, &[1], &[0; 4])
        .tensor("blk.0.ffn_gate.bias", 0, &[1], &[0; 4]);
    let config = open(&file).unwrap();
    assert!(config.head.table == HeadTable::Own && config.attention.bias && config.mlp.bias);
    let without_size = |file: GgufFile| {
        let mut file = file;
        file = file.tensor("token_embd.weight", 0, &[64, 3], &[0; 768]);
        file
    };
    let mut bare = GgufFile::new()
        .text("general.architecture", "llama")
        .u32("llama.block_count", 1)
        .u32("llama.embedding_length", 64)
        .u32("llama.feed_forward_length", 96)
        .u32("llama.attention.head_count", 4)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    assert_eq!(open(&bare).unwrap_err().detail().tensor.as_deref(), Some("token_embd.weight"));
    bare = without_size(bare);
    let config = open(&bare).unwrap();
    assert_eq!((config.vocabulary, config.kv_heads, config.max_positions), (3, 4, None));
    assert_eq!(config.ropes[0].theta, 10_000.0);
}

#[test]
fn b54_b55_every_end_id_counts() {
    let file = llama()
        .u32("tokenizer.ggml.eos_token_id", 2)
        .u32("tokenizer.ggml.eot_token_id", 5)
        .u32("tokenizer.ggml.eom_token_id", 2)
        .i32s("tokenizer.ggml.eos_token_ids", &[7, 2]);
    assert_eq!(Vec::from_iter(open(&file).unwrap().eos), [2, 5, 7]);
    refused(
        &llama().i32s("tokenizer.ggml.eos_token_ids", &[-1]),
        Code::InvalidModel,
        "tokenizer.ggml.eos_token_ids",
    );
}

#[test]
fn rope_scaling_from_keys_and_from_the_table() {
    let scaling = |file: GgufFile| open(&file).unwrap().ropes.remove(0).scaling;
    let factor = "llama.rope.scaling.factor";
    let kind = "llama.rope.scaling.type";
    assert_eq!(scaling(llama().text(kind, "none").f32(factor, 2.0)), RopeScaling::None);
    assert_eq!(scaling(llama().text(kind, "linear").f32(factor, 2.0)), RopeScaling::Linear { factor: 2.0 });
    assert_eq!(scaling(llama().f32("llama.rope.scale_linear", 4.0)), RopeScaling::Linear { factor: 4.0 });
    assert_eq!(scaling(llama().f32(factor, 0.0)), RopeScaling::None);
    refused(&llama().text(kind, "yarn"), Code::InvalidModel, factor);
    refused(&llama().text(kind, "spiral"), Code::Unsupported, kind);
    refused(&llama().f32(factor, -2.0), Code::InvalidModel, factor);

    let factors = [1.0, 1.0, 2.0, 3.0, 4.0, 8.0, 8.0, 8.0];
    let table =
        |values: &[f32]| llama().tensor("rope_freqs.weight", 0, &[values.len() as u64], &floats(values));
    assert_eq!(scaling(table(&factors)), RopeScaling::Factors(factors.to_vec()));
    refused(&table(&factors[1..]), Code::InvalidModel, "rope_freqs.weight");
    refused(&table(&[0.0; 8]), Code::InvalidModel, "rope_freqs.weight");
    refused(&table(&[f32::NAN; 8]), Code::InvalidModel, "rope_freqs.weight");
    refused(&table(&factors).f32(factor, 2.0), Code::Unsupported, kind);
    let error = open(&llama().tensor("rope_freqs.weight", 1, &[8], &[0; 16])).unwrap_err();
    assert_eq!(error.detail().tensor.as_deref(), Some("rope_freqs.weight"));
}

#[test]
fn what_would_change_the_numbers_is_refused_by_name() {
    refused(&GgufFile::new(), Code::InvalidModel, "general.architecture");
    refused(
        &GgufFile::new().text("general.architecture", "qwen2moe"),
        Code::Unsupported,
        "general.architecture",
    );
    for (name, value) in [
        ("llama.expert_count", 8),
        ("llama.attention.sliding_window", 16),
        ("llama.attention.value_length", 8),
        ("llama.something_new", 1),
    ] {
        refused(&llama().u32(name, value), Code::Unsupported, name);
    }
    refused(&llama().f32("llama.logit_scale", 0.5), Code::Unsupported, "llama.logit_scale");
    refused(&llama().flag("llama.attention.causal", false), Code::Unsupported, "llama.attention.causal");
    let neutral = llama()
        .u32("llama.expert_count", 0)
        .u32("llama.attention.sliding_window", 256)
        .u32("llama.attention.value_length", 16)
        .f32("llama.logit_scale", 1.0)
        .flag("llama.attention.causal", true)
        .text("llama.tensor_data_layout", "any")
        .u32("other.something", 1);
    assert_eq!(open(&neutral).unwrap(), open(&llama()).unwrap());
}

#[test]
fn sizes_that_cannot_be_are_refused_with_their_own_names() {
    let with = |missing: &str, entry: &dyn Fn(GgufFile) -> GgufFile| {
        let mut file = GgufFile::new().text("general.architecture", "llama").u32("llama.vocab_size", 8);
        for (name, value) in [
            ("llama.block_count", 2),
            ("llama.embedding_length", 64),
            ("llama.feed_forward_length", 96),
            ("llama.attention.head_count", 4),
        ] {
            if name != missing {
                file = file.u32(name, value);
            }
        }
        if missing != "llama.attention.layer_norm_rms_epsilon" {
            file = file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
        }
        entry(file)
    };
    for name in [
        "llama.block_count",
        "llama.embedding_length",
        "llama.feed_forward_length",
        "llama.attention.head_count",
        "llama.attention.layer_norm_rms_epsilon",
    ] {
        refused(&with(name, &|file| file), Code::InvalidModel, name);
        refused(&with(name, &|file| file.text(name, "8")), Code::InvalidModel, name);
        if !name.ends_with("epsilon") && name != "llama.embedding_length" {
            refused(&with(name, &|file| file.u32(name, 0)), Code::InvalidModel, name);
            refused(&with(name, &|file| file.u32(name, u32::MAX)), Code::InvalidModel, name);
        }
    }
    refused(&llama().u32("llama.attention.key_length", 15), Code::Unsupported, "llama.rope.dimension_count");
    let heads = "llama.attention.head_count";
    let lists = |values: &'static [i32]| with(heads, &move |file| file.i32s(heads, values));
    assert_eq!(open(&lists(&[4, 4])).unwrap().heads, 4);
    refused(&lists(&[4, 2]), Code::Unsupported, heads);
    refused(&lists(&[]), Code::InvalidModel, heads);
    refused(&lists(&[-4]), Code::InvalidModel, heads);
}
