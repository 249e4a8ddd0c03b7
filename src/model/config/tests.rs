//! Configurations with null, missing, odd and hostile fields.

use serde_json::{Value, json};

use super::*;
use crate::base::Code;

pub(super) fn base() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 64,
        "max_position_embeddings": 256, "rope_theta": 10000.0, "tie_word_embeddings": true
    })
}

fn with(changes: Value) -> Value {
    let mut config = base();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn without(key: &str) -> Value {
    let mut config = base();
    config.as_object_mut().unwrap().remove(key);
    config
}

pub(super) fn open_text(text: &str) -> Result<ModelConfig> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), text).unwrap();
    ModelConfig::open_folder(folder.path())
}

fn open(config: &Value) -> Result<ModelConfig> {
    open_text(&config.to_string())
}

#[track_caller]
fn refused(config: &Value, code: Code, field: &str) {
    let error = open(config).expect_err("must be refused");
    assert_eq!(error.code(), code, "{error}");
    assert_eq!(error.detail().field.as_deref(), Some(field), "{error}");
    assert!(error.detail().file.as_ref().unwrap().ends_with("config.json"), "{error}");
    assert!(error.message().contains(field), "{error}");
}

#[test]
fn a_plain_file_gives_its_fields() {
    let config = open(&base()).unwrap();
    assert_eq!((config.hidden, config.layers.len(), config.intermediate), (64, 2, 128));
    assert_eq!((config.heads, config.kv_heads, config.head_dim), (4, 2, 16));
    assert_eq!((config.vocabulary, config.max_positions), (64, Some(256)));
    assert_eq!(config.norm.eps, 1e-5);
    assert_eq!(
        config.ropes,
        [Rope { dims: 16, theta: 10000.0, traditional: false, scaling: RopeScaling::None }]
    );
    assert_eq!(config.layers, [LayerConfig::FULL; 2]);
    assert!(config.head.table == HeadTable::Embedding && !config.attention.bias && !config.mlp.bias);
    assert_eq!(config.quantization, None);
}

#[test]
fn b13_null_and_missing_are_the_same() {
    let expected = open(&base()).unwrap();
    for name in [
        "sliding_window",
        "head_dim",
        "rope_scaling",
        "rope_parameters",
        "rope_traditional",
        "layer_types",
        "quantization",
        "quantization_config",
        "attention_bias",
        "mlp_bias",
        "hidden_act",
        "eos_token_id",
        "bos_token_id",
        "partial_rotary_factor",
        "rope_theta",
        "tie_word_embeddings",
    ] {
        assert_eq!(open(&with(json!({name: null}))).unwrap(), expected, "{name}");
        assert_eq!(open(&without(name)).unwrap(), expected, "{name}");
    }
    for config in [with(json!({"num_key_value_heads": null})), without("num_key_value_heads")] {
        assert_eq!(open(&config).unwrap().kv_heads, 4);
    }
    assert_eq!(open(&with(json!({"max_position_embeddings": null}))).unwrap().max_positions, None);
    assert_eq!(open(&with(json!({"head_dim": 8}))).unwrap().head_dim, 8);
    let odd = with(
        json!({"unknown_key": {"a": [1, 2]}, "pretraining_tp": 1, "use_cache": true, "architectures": ["X"]}),
    );
    assert_eq!(open(&odd).unwrap(), expected);
}

#[test]
fn b13_required_fields_must_be_there() {
    for name in [
        "model_type",
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "num_attention_heads",
        "rms_norm_eps",
        "vocab_size",
    ] {
        refused(&without(name), Code::InvalidModel, name);
        refused(&with(json!({name: null})), Code::InvalidModel, name);
    }
}

#[test]
fn b09_whole_numbers_where_fractions_are_meant() {
    let scaling = |factor: Value, low: Value, high: Value, original: Value| {
        let section = json!({"rope_type": "llama3", "factor": factor, "low_freq_factor": low,
            "high_freq_factor": high, "original_max_position_embeddings": original});
        open(&with(json!({"rope_scaling": section, "rope_theta": 500000}))).unwrap().ropes.remove(0)
    };
    let whole = scaling(json!(8), json!(1), json!(4), json!(8192));
    let fractions = scaling(json!(8.0), json!(1.0), json!(4.0), json!(8192.0));
    assert_eq!(whole, fractions);
    assert_eq!(whole.theta, 500000.0);
    assert_eq!(
        whole.scaling,
        RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192.0
        }
    );
    assert_eq!(open(&with(json!({"hidden_size": 64.0, "rms_norm_eps": 0}))).unwrap().hidden, 64);
}

#[test]
fn rope_sections_of_older_and_newer_files() {
    let rope = |changes: Value| open(&with(changes)).unwrap().ropes.remove(0);
    assert_eq!(
        rope(json!({"rope_scaling": {"type": "linear", "factor": 2}})).scaling,
        RopeScaling::Linear { factor: 2.0 }
    );
    assert_eq!(
        rope(json!({"rope_scaling": {"rope_type": "default", "factor": 2}})).scaling,
        RopeScaling::None
    );
    let newer = rope(
        json!({"rope_theta": null, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}),
    );
    assert_eq!(
        newer,
        Rope { dims: 16, theta: 5e5, traditional: false, scaling: RopeScaling::Linear { factor: 4.0 } }
    );
    assert!(rope(json!({"rope_traditional": true})).traditional);
    let RopeScaling::Llama3 { low_freq_factor, high_freq_factor, original_max_positions, .. } =
        rope(json!({"rope_scaling": {"rope_type": "llama3", "factor": 8}})).scaling
    else {
        panic!("llama3 expected")
    };
    assert_eq!((low_freq_factor, high_freq_factor, original_max_positions), (1.0, 4.0, 8192.0));
}

#[test]
fn rope_sections_that_are_not_understood_or_contradict() {
    for kind in ["ntk", "mrope", "linear "] {
        let section = json!({"rope_type": kind, "factor": 2.0});
        refused(&with(json!({"rope_scaling": section})), Code::Unsupported, "rope_scaling.rope_type");
        refused(&with(json!({"rope_parameters": section})), Code::Unsupported, "rope_parameters.rope_type");
    }
    refused(&with(json!({"rope_scaling": {"type": "linear"}})), Code::InvalidModel, "rope_scaling.factor");
    refused(
        &with(json!({"rope_scaling": {"type": "linear", "factor": "2"}})),
        Code::InvalidModel,
        "rope_scaling.factor",
    );
    refused(
        &with(json!({"rope_scaling": {"type": "linear", "factor": 0}})),
        Code::InvalidModel,
        "rope_scaling.factor",
    );
    refused(
        &with(json!({"rope_scaling": {"type": "linear", "factor": -2}})),
        Code::InvalidModel,
        "rope_scaling.factor",
    );
    refused(
        &with(json!({"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 4}})),
        Code::InvalidModel,
        "rope_scaling.high_freq_factor",
    );
    refused(&with(json!({"rope_scaling": "linear"})), Code::InvalidModel, "rope_scaling");
    refused(
        &with(json!({"rope_parameters": {"rope_theta": 5.0}})),
        Code::InvalidModel,
        "rope_parameters.rope_theta",
    );
    refused(
        &with(
            json!({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2}}),
        ),
        Code::InvalidModel,
        "rope_scaling",
    );
    refused(
        &with(json!({"rope_parameters": {"partial_rotary_factor": 0.5}})),
        Code::Unsupported,
        "rope_parameters.partial_rotary_factor",
    );
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for name in [
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "num_attention_heads",
        "vocab_size",
        "num_key_value_heads",
    ] {
        for value in [
            json!(-1),
            json!(1.5),
            json!("64"),
            json!([64]),
            json!(true),
            json!(1e300),
            json!(1u64 << 31),
            json!({}),
        ] {
            refused(&with(json!({name: value})), Code::InvalidModel, name);
        }
    }
    for name in
        ["num_hidden_layers", "intermediate_size", "num_attention_heads", "vocab_size", "num_key_value_heads"]
    {
        refused(&with(json!({name: 0})), Code::InvalidModel, name);
    }
    refused(&with(json!({"num_hidden_layers": 1_000_000})), Code::InvalidModel, "num_hidden_layers");
    refused(&with(json!({"num_key_value_heads": 3})), Code::InvalidModel, "num_key_value_heads");
    refused(&with(json!({"num_attention_heads": 5})), Code::InvalidModel, "num_attention_heads");
    refused(&with(json!({"head_dim": 15})), Code::InvalidModel, "head_dim");
    refused(&with(json!({"head_dim": 1 << 30})), Code::InvalidModel, "head_dim");
    refused(&with(json!({"max_position_embeddings": 0})), Code::InvalidModel, "max_position_embeddings");
    for value in [json!(-1e-5), json!(1), json!("1e-5"), json!([])] {
        refused(&with(json!({"rms_norm_eps": value})), Code::InvalidModel, "rms_norm_eps");
    }
    for value in [json!(0), json!(-1), json!(1e300), json!("1e4")] {
        refused(&with(json!({"rope_theta": value})), Code::InvalidModel, "rope_theta");
    }
    refused(&with(json!({"tie_word_embeddings": "true"})), Code::InvalidModel, "tie_word_embeddings");
}

#[test]
fn text_that_is_no_configuration_is_refused() {
    for text in [
        "",
        "{",
        "[]",
        "null",
        "NaN",
        "<!DOCTYPE html>",
        "version https://git-lfs.github.com/spec/v1\nsize 3\n",
    ] {
        let error = open_text(text).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel, "{text}");
        assert!(error.detail().file.is_some());
    }
    let error = open_text("{\"hidden_size\": 64,\n \"vocab_size\": 6x}").unwrap_err();
    assert_eq!(error.detail().position, Some(36));
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(5000), "]".repeat(5000));
    assert_eq!(open_text(&deep).unwrap_err().code(), Code::InvalidModel);
    let error = ModelConfig::open_folder(tempfile::tempdir().unwrap().path()).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
}

#[test]
fn what_would_change_the_numbers_is_refused_by_name() {
    for (name, value) in [
        ("hidden_act", json!("gelu")),
        ("partial_rotary_factor", json!(0.5)),
        ("final_logit_softcapping", json!(30.0)),
        ("logit_scale", json!(0.25)),
        ("num_local_experts", json!(8)),
        ("use_qk_norm", json!(true)),
        ("quantize_activations", json!(true)),
        ("no_rope_layers", json!([1, 0])),
        ("model_file", json!("model.py")),
        ("model_type", json!("llama4")),
    ] {
        refused(&with(json!({name: value})), Code::Unsupported, name);
    }
    let neutral = json!({"hidden_act": "silu", "partial_rotary_factor": 1, "logit_scale": 1.0, "num_experts": 0,
        "use_qk_norm": false, "no_rope_layers": [1, 1]});
    assert!(open(&with(neutral)).is_ok());
}

#[test]
fn layers_slide_where_a_file_or_its_family_says_so() {
    let windows = |config: Value| -> Vec<Option<usize>> {
        open(&config).unwrap().layers.iter().map(|layer| layer.window).collect()
    };
    // A llama's layers see everything unless they say otherwise.
    assert_eq!(windows(with(json!({"sliding_window": 16}))), [None, None]);
    let full = json!({"sliding_window": 16, "layer_types": ["full_attention", "full_attention"]});
    assert_eq!(windows(with(full)), [None, None]);
    let sliding = json!({"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]});
    assert_eq!(windows(with(sliding)), [Some(16), None]);
    // A window that no position notices is none.
    let wide = json!({"sliding_window": 256, "layer_types": ["sliding_attention", "full_attention"]});
    assert_eq!(windows(with(wide)), [None, None]);
    for window in [json!(null), json!(0)] {
        let types = ["sliding_attention", "full_attention"];
        let config = with(json!({"layer_types": types, "sliding_window": window}));
        refused(&config, Code::InvalidModel, "sliding_window");
    }
    refused(
        &with(json!({"layer_types": ["linear_attention", "full_attention"]})),
        Code::Unsupported,
        "layer_types",
    );
    refused(&with(json!({"layer_types": ["full_attention"]})), Code::InvalidModel, "layer_types");
    let mistral = |window: Value| with(json!({"model_type": "mistral", "sliding_window": window}));
    assert_eq!(windows(mistral(json!(null))), [None, None]);
    assert_eq!(windows(mistral(json!(256))), [None, None]);
    assert_eq!(windows(mistral(json!(16))), [Some(16), Some(16)]);
}

#[test]
fn b54_b55_end_ids_of_all_files_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let write =
        |name: &str, value: Value| std::fs::write(folder.path().join(name), value.to_string()).unwrap();
    let eos = || ModelConfig::open_folder(folder.path()).map(|config| Vec::from_iter(config.eos));
    write("config.json", with(json!({"eos_token_id": 1, "bos_token_id": 3})));
    assert_eq!(eos().unwrap(), [1]);
    write("generation_config.json", json!({"eos_token_id": [1, 6]}));
    assert_eq!(eos().unwrap(), [1, 6]);
    write("config.json", with(json!({"eos_token_id": [2, 5, 7]})));
    write("generation_config.json", json!({"eos_token_id": 2}));
    assert_eq!(eos().unwrap(), [2, 5, 7]);
    write("generation_config.json", json!({"eos_token_id": null}));
    assert_eq!(eos().unwrap(), [2, 5, 7]);
    write("config.json", base());
    assert_eq!(eos().unwrap(), [0u32; 0]);
    // No id, whichever way a file says it; and a fraction that is none.
    write("generation_config.json", json!({"eos_token_id": -1}));
    assert_eq!(eos().unwrap(), [0u32; 0]);
    write("generation_config.json", json!({"eos_token_id": [-1, 6.0]}));
    assert_eq!(eos().unwrap(), [6]);
    for bad in [json!(2.5), json!([1, "2"]), json!(5_000_000_000u64), json!([[1]])] {
        write("generation_config.json", json!({"eos_token_id": bad}));
        let error = eos().unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel);
        assert_eq!(error.detail().field.as_deref(), Some("eos_token_id"));
        assert!(error.detail().file.as_ref().unwrap().ends_with("generation_config.json"));
    }
    // Ends that cannot be read would be missed by nobody until an answer does not end.
    std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [1, 6]"#).unwrap();
    let error = eos().unwrap_err();
    assert_eq!(error.code(), Code::InvalidModel);
    assert!(error.detail().file.as_ref().unwrap().ends_with("generation_config.json"));
}

#[test]
fn quantisations_in_a_file_of_their_own_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), base().to_string()).unwrap();
    std::fs::write(folder.path().join("hf_quant_config.json"), "{}").unwrap();
    assert_eq!(ModelConfig::open_folder(folder.path()).unwrap_err().code(), Code::Unsupported);
}

#[test]
fn damaged_texts_never_panic() {
    use crate::model::weights::testing::Noise;
    let whole = with(json!({"rope_scaling": {"rope_type": "llama3", "factor": 8}, "eos_token_id": [1, 2],
        "quantization": {"group_size": 64, "bits": 4, "a": {"bits": 8}}}))
    .to_string()
    .into_bytes();
    let folder = tempfile::tempdir().unwrap();
    let mut noise = Noise(2);
    for _ in 0..1500 {
        let mut text = whole.clone();
        for _ in 0..1 + noise.below(3) {
            let place = noise.below(text.len());
            text[place] = b"0123456789-.eE\"{}[],:ntf \xff"[noise.below(26)];
        }
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        if let Ok(config) = ModelConfig::open_folder(folder.path()) {
            assert!(config.heads * config.head_dim > 0);
        }
    }
}
