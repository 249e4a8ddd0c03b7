//! The section by itself: parameters, modes, layers that differ, methods of other programs.

use serde_json::json;

use super::super::fields::JsonFile;
use super::*;
use crate::base::{Code, Error};

fn read(config: Value) -> Result<Option<Quantization>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    Quantization::from_fields(&JsonFile::open(&path)?.fields())
}

fn section(section: Value) -> Quantization {
    read(json!({"quantization": section})).unwrap().unwrap()
}

#[track_caller]
fn refused(config: Value, code: Code, field: &str) -> Error {
    let error = read(config).expect_err("must be refused");
    assert_eq!((error.code(), error.detail().field.as_deref()), (code, Some(field)), "{error}");
    assert!(error.detail().file.as_ref().unwrap().ends_with("config.json"), "{error}");
    error
}

fn affine(bits: u32, group: u32) -> Packing {
    Packing::Affine(Affine { bits, group })
}

#[test]
fn layers_that_differ() {
    let both = json!({
        "group_size": 64, "bits": 4, "mode": "affine",
        "model.layers.0.self_attn.q_proj": {"group_size": 32, "bits": 8},
        "model.layers.0.self_attn.k_proj": false,
        "model.layers.0.self_attn.v_proj": true,
        "model.layers.1.mlp.down_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
        "model.layers.1.mlp.up_proj": {"bits": 4, "mode": "fp3"},
        "other": null
    });
    // MLX writes the section under both names.
    let found = read(json!({"quantization": both, "quantization_config": both})).unwrap().unwrap();
    assert_eq!(found.default, affine(4, 64));
    let of = |path: &str| found.of(path).cloned();
    assert_eq!(of("model.layers.0.self_attn.q_proj"), Some(Override::Packed(affine(8, 32))));
    assert_eq!(of("model.layers.0.self_attn.k_proj"), Some(Override::Plain));
    assert_eq!(of("model.layers.0.self_attn.v_proj"), Some(Override::Default));
    let mxfp4 = Packing::Microscaled(Microscaled::Mxfp4);
    assert_eq!(of("model.layers.1.mlp.down_proj"), Some(Override::Packed(mxfp4)));
    assert_eq!(of("model.layers.1.mlp.up_proj"), Some(Override::Unknown("fp3".to_owned())));
    assert_eq!((of("model.layers.1.mlp.gate_proj"), of("other")), (None, None));
    assert!(read(json!({"quantization_config": {"group_size": 64, "bits": 4}})).unwrap().is_some());
    assert!(read(json!({"quantization": null, "quantization_config": null})).unwrap().is_none());
}

#[test]
fn b06_prefixes_of_multimodal_checkpoints_go() {
    let layer = "layers.0.self_attn.q_proj";
    for prefix in ["model.", "model.language_model.", "language_model.model."] {
        let found = section(json!({"bits": 4, "group_size": 32, format!("{prefix}{layer}"): {"bits": 8}}));
        let said = found.of(&format!("model.{layer}"));
        assert_eq!(said, Some(&Override::Packed(affine(8, 64))), "{prefix}");
    }
    let found = section(json!({"bits": 4, "language_model.lm_head": false}));
    assert_eq!(found.of("lm_head"), Some(&Override::Plain));
}

#[test]
fn b07_each_mode_of_mlx() {
    for (mode, bits, group) in [("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)] {
        let whole = json!({"mode": mode, "bits": bits, "group_size": group});
        for said in [whole, json!({"mode": mode, "bits": bits as f64}), json!({"mode": mode})] {
            let Packing::Microscaled(found) = section(said).default else { panic!("{mode} expected") };
            assert_eq!((found.name(), found.bits(), found.group()), (mode, bits, group));
        }
        for (field, number) in [("bits", 6), ("group_size", 64)] {
            let config = json!({"quantization": {"mode": mode, field: number}});
            refused(config, Code::Unsupported, &format!("quantization.{field}"));
        }
    }
    // As older files say it.
    for mode in ["mxfp4", "mxfp8"] {
        let found = read(json!({"quantization_config": {"quant_method": mode}})).unwrap().unwrap();
        assert_eq!(found.default.to_string(), mode);
    }
}

#[test]
fn parameters_that_mlx_does_not_have_are_refused() {
    let quantization = |section: Value| json!({"quantization": section});
    let error = refused(
        quantization(json!({"group_size": 32, "bits": 4, "mode": "fp3"})),
        Code::Unsupported,
        "quantization.mode",
    );
    assert!(error.message().contains("fp3"), "{error}");
    refused(quantization(json!({"bits": 7})), Code::Unsupported, "quantization.bits");
    refused(quantization(json!({"group_size": 48})), Code::Unsupported, "quantization.group_size");
    refused(quantization(json!({"group_size": -64})), Code::InvalidModel, "quantization.group_size");
    refused(quantization(json!({"bits": 4.5})), Code::InvalidModel, "quantization.bits");
    refused(quantization(json!({"mode": 4})), Code::InvalidModel, "quantization.mode");
    refused(quantization(json!([])), Code::InvalidModel, "quantization");
    let layer = json!({"bits": 4, "model.norm": {"bits": 9}});
    refused(quantization(layer), Code::Unsupported, "quantization.model.norm.bits");
}

#[test]
fn methods_of_other_programs_are_refused_by_name() {
    for method in [
        "awq",
        "gptq",
        "bitsandbytes",
        "fp8",
        "compressed-tensors",
        "modelopt",
        "nvfp4",
        "hqq",
        "aqlm",
        "quanto",
        "eetq",
        "bitnet",
        "torchao",
        "auto-round",
    ] {
        let error = refused(
            json!({"quantization_config": {"quant_method": method, "bits": 4}}),
            Code::Unsupported,
            "quantization_config.quant_method",
        );
        assert!(error.message().contains(method), "{error}");
    }
}
