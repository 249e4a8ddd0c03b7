//! Plans over crafted folders: forms, shapes, quantisation parameters, strays.

use std::collections::BTreeMap;

use super::super::testing::{SafetensorsFile, floats};
use super::*;
use crate::base::Code;

const FILE: Keep = Keep { float: None, quantized: Quantized::Packed };
const FLOAT: Keep = Keep { float: Some(ElementType::F32), quantized: Quantized::Dequantized };

struct Folder(tempfile::TempDir);

impl Folder {
    fn new(content: SafetensorsFile) -> Self {
        let folder = tempfile::tempdir().unwrap();
        content.write(&folder.path().join("model.safetensors"));
        Folder(folder)
    }

    fn plan(&self, quantization: Option<Quantization>, keep: Keep) -> LoadPlan {
        let files = WeightFiles::open_folder(self.0.path()).unwrap();
        LoadPlan::new(Arc::new(files), quantization, keep)
    }
}

/// A layer `path` of 2 rows and 64 columns, packed with these parameters.
fn packed(
    content: SafetensorsFile,
    path: &str,
    bits: usize,
    group: usize,
    scale_type: &str,
) -> SafetensorsFile {
    let columns = 64 * bits / 32;
    let scale_bytes = if scale_type == "F32" { 4 } else { 2 };
    let scales = vec![0; 2 * (64 / group) * scale_bytes];
    content
        .tensor(&format!("{path}.weight"), "U32", &[2, columns], &vec![0; 8 * columns])
        .tensor(&format!("{path}.scales"), scale_type, &[2, 64 / group], &scales)
        .tensor(&format!("{path}.biases"), scale_type, &[2, 64 / group], &scales)
}

fn quantization(bits: u32, group: u32, overrides: &[(&str, Override)]) -> Option<Quantization> {
    let overrides: BTreeMap<_, _> =
        overrides.iter().map(|(path, said)| ((*path).to_owned(), said.clone())).collect();
    Some(Quantization { default: Affine { bits, group }, overrides })
}

#[test]
fn floats_are_kept_or_cast() {
    let content = SafetensorsFile::new().tensor("n", "BF16", &[2], &[0; 4]).tensor("i", "I32", &[2], &[0; 8]);
    let folder = Folder::new(content);
    let mut plan = folder.plan(None, FILE);
    assert_eq!(plan.float("n", &[2]).unwrap(), 0);
    assert_eq!(plan.kept()[0].element, ElementType::Bf16);
    assert_eq!(plan.resident_bytes(), 4);
    assert_eq!(plan.description(), "bfloat16");
    let mut plan = folder.plan(None, FLOAT);
    plan.float("n", &[2]).unwrap();
    assert_eq!((plan.kept()[0].element, plan.kept()[0].bytes), (ElementType::F32, 8));
    assert_eq!(plan.file_bytes(), 4);
    for (name, shape) in [("n", [3]), ("i", [2]), ("absent", [2])] {
        let error = plan.float(name, &shape).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel);
        assert_eq!(error.detail().tensor.as_deref(), Some(name));
    }
}

#[test]
fn packed_layers_keep_or_lose_their_packing() {
    let folder = Folder::new(packed(SafetensorsFile::new(), "l", 4, 32, "BF16"));
    let mut plan = folder.plan(quantization(4, 32, &[]), FILE);
    let linear = plan.linear("l", 2, 64).unwrap();
    assert_eq!(linear, PlannedLinear::Affine { weight: 0, scales: 1, biases: 2, bits: 4, group: 32 });
    let kept: Vec<_> =
        plan.kept().iter().map(|kept| (kept.name.as_str(), kept.element, kept.shape.clone())).collect();
    assert_eq!(
        kept,
        [
            ("l.weight", ElementType::U32, vec![2, 8]),
            ("l.scales", ElementType::Bf16, vec![2, 2]),
            ("l.biases", ElementType::Bf16, vec![2, 2])
        ]
    );
    assert_eq!(plan.description(), "affine 4-bit group 32");
    plan.refuse_unused(|_| false).unwrap();
    let mut plan = folder.plan(quantization(4, 32, &[]), Keep { float: Some(ElementType::F32), ..FILE });
    plan.linear("l", 2, 64).unwrap();
    assert_eq!(plan.kept()[1].element, ElementType::F32);
    let mut plan = folder.plan(quantization(4, 32, &[]), FLOAT);
    assert_eq!(plan.linear("l", 2, 64).unwrap(), PlannedLinear::Plain { weight: 0 });
    assert_eq!((plan.kept()[0].shape.as_slice(), plan.kept()[0].bytes), ([2, 64].as_slice(), 512));
    assert_eq!(plan.description(), "float32 (from affine 4-bit group 32)");
}

#[test]
fn b06_width_and_group_follow_from_the_shapes() {
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64] {
            let folder = Folder::new(packed(SafetensorsFile::new(), "l", bits, group, "F16"));
            // The default says otherwise and the override is missing or belongs to another path.
            for said in [
                quantization(4, 128, &[]),
                quantization(4, 128, &[("elsewhere.l", Override::Affine(Affine { bits: 2, group: 64 }))]),
                quantization(
                    4,
                    128,
                    &[("l", Override::Affine(Affine { bits: bits as u32, group: group as u32 }))],
                ),
                None,
            ] {
                let linear = folder.plan(said, FILE).linear("l", 2, 64).unwrap();
                let PlannedLinear::Affine { bits: found, group: found_group, .. } = linear else {
                    panic!("packed expected")
                };
                assert_eq!((found as usize, found_group as usize), (bits, group));
            }
        }
    }
}

#[test]
fn b06_an_override_of_this_layer_must_agree_with_the_shapes() {
    let folder = Folder::new(packed(SafetensorsFile::new(), "l", 8, 32, "F32"));
    for said in [Override::Affine(Affine { bits: 4, group: 32 }), Override::Default, Override::Plain] {
        let error = folder.plan(quantization(4, 64, &[("l", said)]), FILE).linear("l", 2, 64).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel);
        assert_eq!(error.detail().tensor.as_deref(), Some("l.weight"));
    }
    assert!(folder.plan(quantization(8, 32, &[("l", Override::Default)]), FILE).linear("l", 2, 64).is_ok());
    let mode = Override::Mode("mxfp4".to_owned());
    let error = folder.plan(quantization(4, 64, &[("l", mode)]), FILE).linear("l", 2, 64).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    assert_eq!(error.detail().field.as_deref(), Some("quantization.l.mode"));
}

#[test]
fn packings_that_no_parameters_give_are_refused() {
    let with = |columns: usize, groups: usize| {
        SafetensorsFile::new()
            .tensor("l.weight", "U32", &[2, columns], &vec![0; 8 * columns])
            .tensor("l.scales", "F32", &[2, groups], &vec![0; 8 * groups])
            .tensor("l.biases", "F32", &[2, groups], &vec![0; 8 * groups])
    };
    for (columns, groups) in [(7, 2), (14, 2), (8, 3), (8, 4), (8, 0), (0, 2), (64, 2), (32, 2)] {
        let error = Folder::new(with(columns, groups)).plan(None, FILE).linear("l", 2, 64).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel, "{columns} {groups}");
        assert_eq!(error.detail().tensor.as_deref(), Some("l.weight"));
    }
    assert!(Folder::new(with(8, 2)).plan(None, FILE).linear("l", 2, 64).is_ok());
    assert!(Folder::new(with(8, 2)).plan(None, FILE).linear("l", 3, 64).is_err());
    let alone = SafetensorsFile::new().tensor("l.weight", "U32", &[2, 8], &[0; 64]);
    let error = Folder::new(alone.clone()).plan(None, FILE).linear("l", 2, 64).unwrap_err();
    assert_eq!(error.detail().tensor.as_deref(), Some("l.scales"));
    let no_biases = alone.clone().tensor("l.scales", "F32", &[2, 2], &[0; 16]);
    let error = Folder::new(no_biases).plan(None, FILE).linear("l", 2, 64).unwrap_err();
    assert_eq!(error.detail().tensor.as_deref(), Some("l.biases"));
    let block_scaled = alone.clone().tensor("l.scales", "U8", &[2, 2], &[0; 4]);
    let error = Folder::new(block_scaled).plan(None, FILE).linear("l", 2, 64).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    let mixed =
        alone.tensor("l.scales", "F32", &[2, 2], &[0; 16]).tensor("l.biases", "F16", &[2, 2], &[0; 8]);
    let error = Folder::new(mixed).plan(None, FILE).linear("l", 2, 64).unwrap_err();
    assert_eq!(error.detail().tensor.as_deref(), Some("l.biases"));
}

#[test]
fn formats_that_cannot_be_used_are_named() {
    let folder = Folder::new(SafetensorsFile::new().tensor("l.weight", "F8_E4M3", &[2, 64], &[0; 128]));
    let error = folder.plan(None, FLOAT).linear("l", 2, 64).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    assert_eq!(error.detail().tensor.as_deref(), Some("l.weight"));
    assert!(error.detail().file.is_some());
    assert!(error.message().contains("F8_E4M3"));
}

#[test]
fn b01_tensors_that_nothing_asks_for_are_refused_unless_excused() {
    let content = SafetensorsFile::new()
        .tensor("model.norm.weight", "F32", &[1], &floats(&[1.0]))
        .tensor("lm_head.weight", "F32", &[1], &floats(&[1.0]))
        .tensor("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", &[1], &floats(&[1.0]));
    let folder = Folder::new(content);
    let mut plan = folder.plan(None, FILE);
    plan.float("model.norm.weight", &[1]).unwrap();
    let error = plan.refuse_unused(|_| false).unwrap_err();
    assert_eq!(error.code(), Code::InvalidModel);
    assert_eq!(error.detail().tensor.as_deref(), Some("lm_head.weight"));
    plan.refuse_unused(|name| name == "lm_head.weight").unwrap();
}
