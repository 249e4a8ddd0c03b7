//! What families make of configuration files: their own defaults, and what they refuse by name.

use serde_json::{Value, json};

use super::*;
use crate::base::Code;

/// A small file of a family, with changes; `null` takes a field away.
fn file(model_type: &str, changes: Value) -> Value {
    let mut config = json!({
        "model_type": model_type, "hidden_size": 64, "num_hidden_layers": 4, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": 64,
        "max_position_embeddings": 256, "rope_theta": 10000.0
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn open(config: &Value) -> Result<ModelConfig> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    ModelConfig::open_folder(folder.path())
}

#[track_caller]
fn refused(config: &Value, code: Code, field: &str) {
    let error = open(config).expect_err("must be refused");
    assert_eq!((error.code(), error.detail().field.as_deref()), (code, Some(field)), "{error}");
}

fn windows(config: &Value) -> Vec<Option<usize>> {
    open(config).unwrap().layers.iter().map(|layer| layer.window).collect()
}

/// What a family must be told.
fn needs(model_type: &str) -> Value {
    match model_type {
        "ministral3" => {
            json!({"rope_theta": null, "rope_parameters": {"rope_theta": 1e4, "rope_type": "yarn",
            "factor": 4.0, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1}})
        }
        "granite" => json!({"logits_scaling": 3.0, "attention_multiplier": 0.3, "embedding_multiplier": 1.7,
            "residual_multiplier": 0.8}),
        "cohere2" => json!({"head_dim": 16}),
        "nemotron" => json!({"norm_eps": 1e-5}),
        "minicpm" => json!({"dim_model_base": 32, "scale_depth": 1.4, "scale_emb": 2.0}),
        "stablelm" | "stablelm_epoch" => json!({"layer_norm_eps": 1e-5}),
        _ => json!({}),
    }
}

#[test]
fn b13_null_and_missing_are_the_same_in_every_family() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let open = |config: &Value| {
        std::fs::write(&path, config.to_string()).unwrap();
        ModelConfig::open_folder(folder.path())
    };
    for model_type in crate::model::registry::known() {
        let Some(family) = crate::model::registry::find(model_type) else { continue };
        let whole = file(model_type, needs(model_type));
        open(&whole).unwrap_or_else(|error| panic!("{error}"));
        let fields = fields::JsonFile::open(&path).unwrap();
        let fields = fields.fields();
        (family.describe)(&fields).unwrap();
        let mut names = fields.asked();
        assert!(names.iter().any(|name| name == "hidden_act"), "{names:?}");
        names.extend(
            ["model_type", "quantization", "text_config", "model_file", "clip_qkv", "use_qk_norm"]
                .map(str::to_owned),
        );
        for name in names {
            let mut config = whole.clone();
            config.as_object_mut().unwrap().remove(&name);
            let missing = open(&config);
            config[&name] = Value::Null;
            assert_eq!(open(&config), missing, "{model_type}: {name}");
        }
    }
}

#[test]
fn b13_null_and_missing_are_the_same_inside_rotations() {
    let sections = [
        json!({"rope_type": "yarn", "factor": 4.0}),
        json!({"rope_type": "llama3", "factor": 8.0}),
        json!({"rope_type": "default"}),
        json!({"rope_type": "proportional"}),
    ];
    let inner = [
        "type",
        "rope_theta",
        "partial_rotary_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "attention_factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
    ];
    for section in sections {
        for place in ["rope_scaling", "rope_parameters"] {
            let plain = open(&file("llama", json!({place: section}))).unwrap();
            for name in inner {
                let mut section = section.clone();
                section[name] = Value::Null;
                assert_eq!(open(&file("llama", json!({place: section}))).unwrap(), plain, "{place}.{name}");
            }
        }
    }
}

/// What mlx-lm 0.32.2 takes for a file that does not say; where it wants to be told, the models' own code.
#[test]
fn heads_of_files_that_say_nothing_of_ties() {
    let tied = [
        "llama",
        "mistral",
        "ministral3",
        "smollm3",
        "qwen2",
        "gemma2",
        "olmo2",
        "granite",
        "cohere2",
        "seed_oss",
        "ernie4_5",
        "starcoder2",
    ];
    let own = ["qwen3", "phi3", "olmo3", "glm4", "exaone4", "internlm3", "nemotron", "stablelm", "helium"];
    let as_file = ["gemma3_text", "minicpm"];
    for (families, table) in
        [(&tied[..], HeadTable::Embedding), (&own, HeadTable::Own), (&as_file, HeadTable::OwnIfPresent)]
    {
        for family in families {
            for said in [json!({}), json!({"tie_word_embeddings": null})] {
                let mut config = file(family, needs(family));
                for (key, value) in said.as_object().unwrap() {
                    config[key] = value.clone();
                }
                assert_eq!(open(&config).unwrap().head.table, table, "{family}");
            }
        }
    }
    assert_eq!(tied.len() + own.len() + as_file.len(), 23);
}

#[test]
fn b13_gemma3_inside_a_multimodal_file_has_heads_of_its_own() {
    let text = json!({"model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 6, "sliding_window": 32});
    let whole = json!({"model_type": "gemma3", "text_config": text, "eos_token_id": [1, 106]});
    let config = open(&whole).unwrap();
    assert_eq!((config.heads, config.kv_heads, config.head_dim), (8, 4, 256));
    assert_eq!((config.vocabulary, config.family, config.multimodal), (262_208, "gemma3", true));
    assert_eq!(config.eos, BTreeSet::from([1, 106]));
    let windows: Vec<_> = config.layers.iter().map(|layer| layer.window).collect();
    assert_eq!(windows, [Some(32), Some(32), Some(32), Some(32), Some(32), None]);
    assert_eq!((config.ropes[0].theta, config.ropes[1].theta), (1e6, 1e4));
}

#[test]
fn a_text_model_inside_mistral3_has_its_own_head_unless_it_says_otherwise() {
    let inner = |changes: Value| json!({"model_type": "mistral3", "text_config": file("mistral", changes)});
    assert_eq!(open(&inner(json!({}))).unwrap().head.table, HeadTable::Own);
    let tied = inner(json!({"tie_word_embeddings": true}));
    assert_eq!(open(&tied).unwrap().head.table, HeadTable::Embedding);
    let other = json!({"model_type": "mistral3", "text_config": file("mistral4", json!({}))});
    refused(&other, Code::Unsupported, "text_config.model_type");
}

#[test]
fn rotations_by_kind_of_layer_in_newer_files() {
    let parameters = json!({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}
    });
    let config = open(&file(
        "gemma3_text",
        json!({"rope_theta": null, "rope_parameters": parameters, "sliding_window": 32}),
    ))
    .unwrap();
    assert_eq!(
        (config.ropes[0].theta, &config.ropes[0].scaling),
        (1e6, &RopeScaling::Linear { factor: 8.0 })
    );
    assert_eq!((config.ropes[1].theta, &config.ropes[1].scaling), (1e4, &RopeScaling::None));
}

#[test]
fn patterns_of_sliding_layers() {
    let cohere = |pattern: Value| {
        let eps = json!({"layer_norm_eps": 1e-5, "head_dim": 16, "sliding_window": 16, "sliding_window_pattern": pattern});
        file("cohere2", eps)
    };
    assert_eq!(windows(&cohere(json!(2))), [Some(16), None, Some(16), None]);
    refused(&cohere(json!(0)), Code::InvalidModel, "sliding_window_pattern");
    let config = open(&cohere(json!(2))).unwrap();
    let turns: Vec<bool> = config.layers.iter().map(|layer| layer.rope.is_some()).collect();
    assert_eq!(turns, [true, false, true, false]);

    let exaone =
        |pattern: Value| file("exaone4", json!({"sliding_window": 16, "sliding_window_pattern": pattern}));
    assert_eq!(windows(&exaone(json!("LLG"))), [Some(16), Some(16), None, Some(16)]);
    assert_eq!(windows(&exaone(json!(4))), [Some(16), Some(16), Some(16), None]);
    assert_eq!(windows(&exaone(json!(null))), [None; 4]);
    // A list of layers is more than a pattern.
    let full = ["full_attention"; 4];
    let both = json!({"sliding_window": 16, "sliding_window_pattern": "LLG", "layer_types": full});
    assert_eq!(windows(&file("exaone4", both)), [None; 4]);
    for bad in [json!(""), json!("LX"), json!(0)] {
        refused(&exaone(bad), Code::InvalidModel, "sliding_window_pattern");
    }
    assert_eq!(windows(&file("gemma2", json!({"sliding_window": 16}))), [Some(16), None, Some(16), None]);
    // A window that no position notices leaves the layers' rotations as they are.
    let wide = open(&file("olmo3", json!({"sliding_window": 4096}))).unwrap();
    assert_eq!(wide.layers[0], LayerConfig { window: None, rope: Some(1) });
}

#[test]
fn layers_without_positions() {
    let turns = |changes: Value| -> Vec<bool> {
        let config = open(&file("smollm3", changes)).unwrap();
        config.layers.iter().map(|layer| layer.rope.is_some()).collect()
    };
    assert_eq!(turns(json!({})), [true, true, true, false]);
    assert_eq!(turns(json!({"no_rope_layer_interval": 2})), [true, false, true, false]);
    assert_eq!(turns(json!({"no_rope_layers": [0, 1, 1, 0]})), [false, true, true, false]);
    refused(&file("smollm3", json!({"no_rope_layers": [1]})), Code::InvalidModel, "no_rope_layers");
    refused(
        &file("smollm3", json!({"no_rope_layer_interval": 0})),
        Code::InvalidModel,
        "no_rope_layer_interval",
    );
}

#[test]
fn shares_of_a_head_that_turn() {
    let dims = |model_type: &str, changes: Value| open(&file(model_type, changes)).unwrap().ropes[0].dims;
    assert_eq!(dims("glm4", json!({})), 8);
    assert_eq!(dims("glm4", json!({"partial_rotary_factor": 1.0})), 16);
    assert_eq!(dims("nemotron", json!({"norm_eps": 1e-5})), 8);
    let inner = json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}});
    assert_eq!(dims("phi3", inner), 4);
    for share in [json!(0), json!(1.5), json!(-1), json!(1e-9)] {
        refused(
            &file("phi3", json!({"partial_rotary_factor": share})),
            Code::InvalidModel,
            "partial_rotary_factor",
        );
    }
    refused(
        &file("qwen3", json!({"partial_rotary_factor": 0.5})),
        Code::Unsupported,
        "partial_rotary_factor",
    );
}

#[test]
fn rotations_with_fields_that_contradict_are_refused() {
    let scaling = |section: Value| file("qwen2", json!({"rope_scaling": section}));
    let yarn = |more: Value| {
        let mut section = json!({"rope_type": "yarn", "factor": 4.0});
        for (key, value) in more.as_object().unwrap() {
            section[key] = value.clone();
        }
        scaling(section)
    };
    assert!(open(&yarn(json!({"attention_factor": 0.1 * 4.0f64.ln() + 1.0}))).is_ok());
    refused(&yarn(json!({"attention_factor": 2.0})), Code::Unsupported, "rope_scaling.attention_factor");
    refused(&yarn(json!({"truncate": false})), Code::Unsupported, "rope_scaling.truncate");
    refused(&yarn(json!({"factor": 0})), Code::InvalidModel, "rope_scaling.factor");
    let long = |short: Value, long: Value| {
        let section = json!({"rope_type": "longrope", "short_factor": short, "long_factor": long});
        file("phi3", json!({"rope_scaling": section, "original_max_position_embeddings": 64}))
    };
    let ones = json!([1, 1, 1, 1, 1, 1, 1, 1]);
    assert!(open(&long(ones.clone(), ones.clone())).is_ok());
    refused(&long(json!([1, 2]), ones.clone()), Code::InvalidModel, "rope_scaling.short_factor");
    refused(&long(ones, json!("x")), Code::InvalidModel, "rope_scaling.long_factor");
}

#[test]
fn what_a_family_does_not_compute_is_refused_by_name() {
    refused(&file("qwen3", json!({"attention_bias": true})), Code::Unsupported, "attention_bias");
    refused(&file("qwen2", json!({"use_sliding_window": true})), Code::Unsupported, "use_sliding_window");
    refused(&file("phi3", json!({"attention_bias": true})), Code::Unsupported, "attention_bias");
    let eps = json!({"layer_norm_eps": 1e-5, "tie_word_embeddings": true});
    refused(&file("stablelm", eps), Code::Unsupported, "tie_word_embeddings");
    refused(&file("llama", json!({"logits_scaling": 4.0})), Code::Unsupported, "logits_scaling");
    let granite = |scaling: f64| {
        file(
            "granite",
            json!({"logits_scaling": scaling, "attention_multiplier": 0.3,
            "embedding_multiplier": 2.0, "residual_multiplier": 0.5}),
        )
    };
    assert_eq!(open(&granite(4.0)).unwrap().head.divisor, Some(4.0));
    refused(&granite(0.0), Code::InvalidModel, "logits_scaling");
    refused(&file("granite", json!({})), Code::InvalidModel, "embedding_multiplier");
    // Numbers that float32 makes 0 or infinite.
    refused(&granite(1e-320), Code::InvalidModel, "logits_scaling");
    refused(&file("llama", json!({"rope_theta": 1e-320})), Code::InvalidModel, "rope_theta");
    let eps = json!({"layer_norm_eps": 1e-5, "head_dim": 16, "logit_scale": 1e300});
    refused(&file("cohere2", eps), Code::InvalidModel, "logit_scale");
}
