//! Each architecture gives the configuration that its family reads from `config.json`.

use serde_json::{Value, json};

use crate::base::{Code, Result};
use crate::model::config::{HeadTable, ModelConfig, RopeScaling};
use crate::model::weights::ModelFiles;
use crate::model::weights::testing::{GgufFile, architecture, floats};

const RMS: &str = "layer_norm_rms_epsilon";
const LAYER: &str = "layer_norm_epsilon";

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
}

fn from_json(changes: Value) -> ModelConfig {
    let mut config = json!({
        "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 8, "max_position_embeddings": 256, "rope_theta": 10_000,
        "tie_word_embeddings": false, "rms_norm_eps": f64::from(1e-5f32), "head_dim": 16
    });
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    ModelConfig::open_folder(folder.path()).unwrap()
}

/// The tensors matter by their presence.
fn with(file: GgufFile, tensors: &[&str]) -> GgufFile {
    tensors.iter().fold(file, |file, name| file.tensor(name, 0, &[1], &[0; 4]))
}

/// Compares with what the family reads, but for what the format does not tell: the type within a family, that gains
/// count from one, and that a head need not be there.
#[track_caller]
fn same(file: &GgufFile, changes: Value) {
    let mut wanted = from_json(changes);
    let got = open(file).unwrap();
    assert!(wanted.model_type.starts_with(&got.model_type[..4]), "{}", got.model_type);
    wanted.model_type.clone_from(&got.model_type);
    wanted.family = got.family;
    wanted.norm.one_more = false;
    if wanted.head.table == HeadTable::OwnIfPresent {
        wanted.head.table = got.head.table;
    }
    assert_eq!(got, wanted);
}

const HEAD: &str = "output.weight";
const BIASES: &[&str] = &[HEAD, "blk.0.attn_q.bias"];
const ALL_BIASES: &[&str] = &[HEAD, "blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias"];

#[test]
fn llamas_with_biases_and_norms() {
    same(&with(architecture("qwen2", 2, RMS), BIASES), json!({"model_type": "qwen2"}));
    same(&with(architecture("qwen3", 2, RMS), &[HEAD]), json!({"model_type": "qwen3"}));
    same(
        &with(architecture("seed_oss", 2, RMS), BIASES),
        json!({"model_type": "seed_oss", "attention_bias": true, "attention_out_bias": false}),
    );
    same(
        &with(architecture("ernie4_5", 2, RMS), ALL_BIASES),
        json!({"model_type": "ernie4_5", "use_bias": true}),
    );
    same(
        &with(architecture("smollm3", 5, RMS), &[HEAD]),
        json!({"model_type": "smollm3", "num_hidden_layers": 5}),
    );
    same(
        &with(architecture("glm4", 2, RMS).u32("glm4.rope.dimension_count", 8), BIASES),
        json!({"model_type": "glm4", "attention_bias": true}),
    );
    same(&with(architecture("olmo2", 2, RMS), &[HEAD]), json!({"model_type": "olmo2"}));
}

#[test]
fn gemmas() {
    let file = architecture("gemma2", 4, RMS)
        .u32("gemma2.attention.sliding_window", 32)
        .f32("gemma2.attn_logit_softcapping", 5.0)
        .f32("gemma2.final_logit_softcapping", 20.0);
    let changes = json!({"model_type": "gemma2", "num_hidden_layers": 4, "query_pre_attn_scalar": 16,
        "sliding_window": 32, "attn_logit_softcapping": 5, "final_logit_softcapping": 20});
    same(&file, changes);
    let file = architecture("gemma3", 7, RMS)
        .u32("gemma3.attention.sliding_window", 32)
        .f32("gemma3.rope.freq_base", 1e6)
        .text("gemma3.rope.scaling.type", "linear")
        .f32("gemma3.rope.scaling.factor", 8.0);
    let changes = json!({"model_type": "gemma3_text", "num_hidden_layers": 7, "query_pre_attn_scalar": 16,
        "sliding_window": 32, "sliding_window_pattern": 6, "rope_theta": 1e6,
        "rope_scaling": {"rope_type": "linear", "factor": 8}});
    same(&file, changes);
    // The largest of each divides by another width than that of a head.
    for (name, layers) in [("gemma2", 46), ("gemma3", 62)] {
        let scale = |layers: u32| {
            let file = architecture(name, layers, RMS).u32(&format!("{name}.attention.key_length"), 32);
            open(&file.u32(&format!("{name}.attention.value_length"), 32)).unwrap().attention.scale
        };
        assert_eq!((scale(layers), scale(layers - 1)), (16f64.powf(-0.5), 32f64.powf(-0.5)));
    }
}

#[test]
fn windows_and_layers_without_positions() {
    let changes = json!({"model_type": "olmo3", "sliding_window": 32, "rope_scaling": {"rope_type": "yarn",
        "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 16, "beta_slow": 2},
        "layer_types": ["sliding_attention", "full_attention"]});
    let file = architecture("olmo2", 2, RMS)
        .u32("olmo2.attention.sliding_window", 32)
        .flags("olmo2.attention.sliding_window_pattern", &[true, false])
        .text("olmo2.rope.scaling.type", "yarn")
        .f32("olmo2.rope.scaling.factor", 4.0)
        .u32("olmo2.rope.scaling.original_context_length", 64)
        .f32("olmo2.rope.scaling.yarn_beta_fast", 16.0)
        .f32("olmo2.rope.scaling.yarn_beta_slow", 2.0);
    same(&with(file.clone(), &[HEAD]), changes);
    let odd = file.f32("olmo2.rope.scaling.yarn_attn_factor", 2.0);
    refused(&odd, Code::Unsupported, "olmo2.rope.scaling.yarn_attn_factor");

    let file = architecture("cohere2", 5, LAYER)
        .u32("cohere2.attention.sliding_window", 32)
        .f32("cohere2.logit_scale", 0.5)
        .text("cohere2.rope.scaling.type", "none");
    let changes = json!({"model_type": "cohere2", "num_hidden_layers": 5, "sliding_window": 32, "logit_scale": 0.5,
        "layer_norm_eps": f64::from(1e-5f32)});
    same(&file, changes.clone());
    let mut every_second = changes;
    every_second["sliding_window_pattern"] = json!(2);
    same(&file.u32("cohere2.attention.sliding_window_pattern", 2), every_second);

    let file = architecture("exaone4", 3, RMS)
        .u32("exaone4.attention.sliding_window", 32)
        .flags("exaone4.attention.sliding_window_pattern", &[true, false, true]);
    let changes = json!({"model_type": "exaone4", "num_hidden_layers": 3, "sliding_window": 32,
        "sliding_window_pattern": "LG"});
    same(&with(file, &[HEAD]), changes);
    same(&with(architecture("exaone4", 2, RMS), &[HEAD]), json!({"model_type": "exaone4"}));
    for pattern in [vec![true], vec![true; 3]] {
        let file = architecture("exaone4", 2, RMS)
            .u32("exaone4.attention.sliding_window", 32)
            .flags("exaone4.attention.sliding_window_pattern", &pattern);
        refused(&file, Code::InvalidModel, "exaone4.attention.sliding_window_pattern");
    }
}

#[test]
fn multipliers() {
    let file = architecture("granite", 2, RMS)
        .f32("granite.attention.scale", 0.25)
        .f32("granite.embedding_scale", 1.5)
        .f32("granite.residual_scale", 0.75)
        .f32("granite.logit_scale", 3.0);
    let changes = json!({"model_type": "granite", "attention_multiplier": 0.25, "embedding_multiplier": 1.5,
        "residual_multiplier": 0.75, "logits_scaling": 3});
    same(&with(file.clone(), &[HEAD]), changes);
    let without = open(&file.flag("granite.rope.scaling.finetuned", false)).unwrap();
    assert!(without.layers.iter().all(|layer| layer.rope.is_none()));
    refused(&architecture("granite", 2, RMS), Code::InvalidModel, "granite.logit_scale");

    let file = architecture("minicpm", 4, RMS)
        .f32("minicpm.embedding_scale", 2.0)
        .f32("minicpm.residual_scale", 0.75)
        .f32("minicpm.logit_scale", 4.0);
    let changes = json!({"model_type": "minicpm", "num_hidden_layers": 4, "scale_emb": 2, "scale_depth": 1.5,
        "dim_model_base": 16});
    same(&with(file, &[HEAD]), changes);
    let older = json!({"model_type": "minicpm", "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256});
    same(&with(architecture("minicpm", 2, RMS), &[HEAD]), older);
}

#[test]
fn layer_norms_and_plain_layers() {
    let nemotron = architecture("nemotron", 2, LAYER).u32("nemotron.rope.dimension_count", 8);
    let changes = json!({"model_type": "nemotron", "norm_eps": f64::from(1e-5f32), "hidden_act": "relu2"});
    same(&with(nemotron, &[HEAD]), changes);
    let file = architecture("starcoder2", 2, LAYER).u32("starcoder2.attention.sliding_window", 32);
    let changes = json!({"model_type": "starcoder2", "norm_epsilon": f64::from(1e-5f32), "sliding_window": 32,
        "hidden_act": "gelu_pytorch_tanh"});
    same(&with(file, ALL_BIASES), changes);
    let stablelm = |tensors: &[&str]| {
        let file = architecture("stablelm", 2, LAYER).u32("stablelm.rope.dimension_count", 4);
        with(file.flag("stablelm.use_parallel_residual", true), tensors)
    };
    let changes =
        json!({"model_type": "stablelm", "layer_norm_eps": f64::from(1e-5f32), "use_qkv_bias": true});
    same(&stablelm(&[HEAD, "blk.0.attn_q.bias", "blk.0.ffn_norm.weight"]), changes);
    let file = stablelm(&[HEAD]).tensor("blk.0.attn_q_norm.weight", 0, &[16, 4], &[0; 256]);
    let changes = json!({"model_type": "stablelm", "layer_norm_eps": f64::from(1e-5f32), "qk_layernorm": true,
        "use_parallel_residual": true});
    same(&file, changes);
}

#[test]
fn joined_matrices_and_tables_of_factors() {
    let phi3 = |file: GgufFile| with(file, &[HEAD, "blk.0.attn_qkv.weight"]);
    let table = |file: GgufFile, name: &str, factors: &[f32]| {
        file.tensor(name, 0, &[factors.len() as u64], &floats(factors))
    };
    let both = |file: GgufFile, short: &[f32], long: &[f32]| {
        table(table(file, "rope_factors_short.weight", short), "rope_factors_long.weight", long)
    };
    same(&phi3(architecture("phi3", 2, RMS)), json!({"model_type": "phi3"}));
    let file = phi3(architecture("phi3", 2, RMS))
        .u32("phi3.rope.dimension_count", 4)
        .u32("phi3.attention.sliding_window", 32)
        .u32("phi3.rope.scaling.original_context_length", 64);
    let changes = json!({"model_type": "phi3", "partial_rotary_factor": 0.25, "sliding_window": 32,
        "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}});
    same(&both(file.clone(), &[1.0, 1.5], &[2.0, 3.0]), changes);
    let scaled = both(file.clone().f32("phi3.rope.scaling.attn_factor", 1.5), &[1.0, 1.0], &[2.0, 2.0]);
    let RopeScaling::Long(long) = open(&scaled).unwrap().ropes.remove(0).scaling else { panic!("no tables") };
    assert_eq!((long.short_scale, long.long_scale, long.original_max_positions), (1.5, 1.5, 64));
    for (short, long, field) in [
        (&[1.0][..], &[1.0, 1.0][..], "rope_factors_short.weight"),
        (&[1.0, 1.0], &[1.0, 0.0], "rope_factors_long.weight"),
    ] {
        refused(&both(file.clone(), short, long), Code::InvalidModel, field);
    }
    let error = open(&table(file.clone(), "rope_factors_long.weight", &[1.0, 1.0])).unwrap_err();
    assert_eq!(error.detail().tensor.as_deref(), Some("rope_factors_short.weight"));
    let twice = both(file.f32("phi3.rope.scaling.factor", 2.0), &[1.0, 1.0], &[1.0, 1.0]);
    refused(&twice, Code::Unsupported, "phi3.rope.scaling.factor");
}

#[test]
fn what_an_architecture_does_not_have_is_refused_by_name() {
    for (name, key) in [
        ("qwen2", "attention.sliding_window"),
        ("qwen3", "final_logit_softcapping"),
        ("gemma3", "attn_logit_softcapping"),
        ("glm4", "nextn_predict_layers"),
        ("glm4", "rope.dimension_sections"),
        ("granite", "deepstack_mapping"),
        ("gemma2", "attention.scale"),
        ("qwen3", "rope.scaling.attn_factor"),
        ("qwen2", "rope.dimension_count"),
    ] {
        let full = format!("{name}.{key}");
        refused(&architecture(name, 2, RMS).u32(&full, 8), Code::Unsupported, &full);
    }
    let apart = architecture("exaone4", 2, RMS).f32("exaone4.rope.freq_base_swa", 5.0);
    refused(&apart, Code::Unsupported, "exaone4.rope.freq_base_swa");
}

#[test]
fn tables_of_head_norms_are_split_and_checked() {
    let name = "blk.0.attn_k_norm.weight";
    let file = |format: u32, axes: &[u64], bytes: &[u8]| {
        architecture("stablelm", 2, LAYER).tensor(name, format, axes, bytes)
    };
    let rows = floats(&[1.0, 2.0, 3.0, 4.0]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    file(0, &[2, 2], &rows).write(&path);
    let weights = ModelFiles::open(&path).unwrap().weights;
    for head in 0..2 {
        let place = format!("model.layers.0.self_attn.k_layernorm.norms.{head}.weight");
        let tensor = weights.get(&place).unwrap();
        assert_eq!((tensor.shape.as_slice(), tensor.stored_name()), (&[2][..], name));
        assert_eq!(weights.read(tensor, 0..8).unwrap(), rows[8 * head..8 * head + 8]);
    }
    for (format, axes, bytes) in [(8, vec![32, 2], 68), (0, vec![0, 2], 0), (0, vec![1, 5000], 20_000)] {
        let error = open(&file(format, &axes, &vec![0; bytes])).unwrap_err();
        assert_eq!((error.code(), error.detail().tensor.as_deref()), (Code::InvalidModel, Some(name)));
    }
}
