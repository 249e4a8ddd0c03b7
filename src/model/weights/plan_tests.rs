//! Plans over crafted folders: forms, shapes, quantisation parameters, strays.

use std::collections::BTreeMap;

use super::super::testing::{GgufFile, SafetensorsFile, floats, llama};
use super::super::{BlockFormat, WeightFile, gguf};
use super::*;
use crate::base::Code;
use crate::model::config::{Override, Packing};

const FILE: Keep = Keep { float: None, quantized: Quantized::Mlx };
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

fn affine(bits: u32, group: u32) -> Packing {
    Packing::Affine(Affine { bits, group })
}

fn quantization(bits: u32, group: u32, overrides: &[(&str, Override)]) -> Option<Quantization> {
    let overrides: BTreeMap<_, _> =
        overrides.iter().map(|(path, said)| ((*path).to_owned(), said.clone())).collect();
    Some(Quantization { default: affine(bits, group), overrides })
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
                quantization(4, 128, &[("elsewhere.l", Override::Packed(affine(2, 64)))]),
                quantization(4, 128, &[("l", Override::Packed(affine(bits as u32, group as u32)))]),
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
    for said in [Override::Packed(affine(4, 32)), Override::Default, Override::Plain] {
        let error = folder.plan(quantization(4, 64, &[("l", said)]), FILE).linear("l", 2, 64).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel);
        assert_eq!(error.detail().tensor.as_deref(), Some("l.weight"));
    }
    assert!(folder.plan(quantization(8, 32, &[("l", Override::Default)]), FILE).linear("l", 2, 64).is_ok());
    let mode = Override::Unknown("fp3".to_owned());
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
    let block_scaled = alone.clone().tensor("l.scales", "U8", &[2, 1], &[0; 2]);
    let error = Folder::new(block_scaled).plan(None, FILE).linear("l", 2, 64).unwrap_err();
    assert_eq!(error.code(), Code::InvalidModel);
    assert!(error.message().contains("uint8"), "{error}");
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

/// A layer `path` of 2 rows and 64 columns in small floats.
fn small_floats(content: SafetensorsFile, path: &str, mode: Microscaled) -> SafetensorsFile {
    let (columns, groups) = (2 * mode.bits() as usize, 64 / mode.group() as usize);
    content.tensor(&format!("{path}.weight"), "U32", &[2, columns], &vec![0; 8 * columns]).tensor(
        &format!("{path}.scales"),
        "U8",
        &[2, groups],
        &vec![127; 2 * groups],
    )
}

#[test]
fn b07_two_modes_in_one_checkpoint() {
    for mode in Microscaled::ALL {
        let content = packed(small_floats(SafetensorsFile::new(), "a", mode), "b", 8, 32, "BF16");
        let folder = Folder::new(content);
        // Whatever the configuration says of other layers, each layer is what its shapes say.
        for said in [
            None,
            quantization(8, 32, &[]),
            quantization(8, 32, &[("a", Override::Packed(Packing::Microscaled(mode)))]),
        ] {
            let mut plan = folder.plan(said, FILE);
            let linear = plan.linear("a", 2, 64).unwrap();
            assert_eq!(linear, PlannedLinear::Microscaled { weight: 0, scales: 1, mode });
            assert_eq!(linear.tensors(), [0, 1]);
            let linear = plan.linear("b", 2, 64).unwrap();
            assert_eq!(linear, PlannedLinear::Affine { weight: 2, scales: 3, biases: 4, bits: 8, group: 32 });
            assert!(plan.description().contains(mode.name()), "{}", plan.description());
            assert!(plan.description().contains("affine 8-bit group 32"), "{}", plan.description());
            plan.refuse_unused(|_| false).unwrap();
        }
        for said in [Override::Packed(affine(4, 32)), Override::Plain, Override::Default] {
            let error =
                folder.plan(quantization(8, 32, &[("a", said)]), FILE).linear("a", 2, 64).unwrap_err();
            assert_eq!(error.code(), Code::InvalidModel);
            assert_eq!(error.detail().tensor.as_deref(), Some("a.weight"));
        }
    }
}

#[test]
fn small_floats_take_the_form_of_the_arithmetic() {
    let kernels = Keep { float: None, quantized: Quantized::Kernels };
    for (mode, form, description) in [
        (Microscaled::Mxfp4, Some((5, 32)), "affine 5-bit group 32 (from mxfp4)"),
        (Microscaled::Nvfp4, Some((6, 16)), "affine 6-bit group 16 (from nvfp4)"),
        (Microscaled::Mxfp8, None, "bfloat16 (from mxfp8)"),
    ] {
        let folder = Folder::new(small_floats(SafetensorsFile::new(), "a", mode));
        let mut plan = folder.plan(None, kernels);
        let expected = match form {
            Some((bits, group)) => PlannedLinear::Affine { weight: 0, scales: 1, biases: 2, bits, group },
            None => PlannedLinear::Plain { weight: 0 },
        };
        assert_eq!(plan.linear("a", 2, 64).unwrap(), expected);
        assert_eq!(plan.description(), description);
        assert!(plan.kept().iter().skip(1).all(|kept| kept.element == ElementType::Bf16));
        let mut plan = folder.plan(None, FLOAT);
        assert_eq!(plan.linear("a", 2, 64).unwrap(), PlannedLinear::Plain { weight: 0 });
        assert_eq!(plan.description(), format!("float32 (from {})", mode.name()));
    }
    let scaled = small_floats(SafetensorsFile::new(), "a", Microscaled::Nvfp4);
    let scaled = scaled.tensor("a.global_scale", "F32", &[1], &floats(&[2.0]));
    let error = Folder::new(scaled).plan(None, FILE).linear("a", 2, 64).unwrap_err();
    assert_eq!(error.code(), Code::Unsupported);
    assert_eq!(error.detail().tensor.as_deref(), Some("a.global_scale"));
}

#[test]
fn matrices_of_other_programs_are_refused_by_name() {
    let absent = ("l.bias", "F32");
    let tensor = |content: SafetensorsFile, (name, kind): (&str, &str)| {
        let size = if kind == "F32" || kind == "I32" { 4 } else { 1 };
        content.tensor(name, kind, &[2, 64], &vec![0; 128 * size])
    };
    for (weight, sign, method) in [
        (absent, "l.qweight", "AWQ"),
        (absent, "l.g_idx", "GPTQ"),
        (absent, "l.weight_packed", "compressed-tensors"),
        (("l.weight", "U8"), "l.weight.quant_map", "bitsandbytes"),
        (("l.weight", "I8"), "l.SCB", "bitsandbytes"),
        (("l.weight", "F8_E4M3"), "l.weight_scale_inv", "fp8"),
        (absent, "l.W_q", "HQQ"),
    ] {
        let content = tensor(tensor(SafetensorsFile::new(), weight), (sign, "I32"));
        let error = Folder::new(content).plan(None, FILE).linear("l", 2, 64).unwrap_err();
        assert_eq!(error.code(), Code::Unsupported, "{error}");
        assert_eq!(error.detail().tensor.as_deref(), Some(sign));
        assert!(error.detail().file.is_some() && error.message().contains(method), "{error}");
    }
}

#[test]
fn a_description_names_every_form() {
    let blocks = |format: BlockFormat, rows: usize| vec![0; rows * format.bytes()];
    let file = GgufFile::new()
        .tensor("a.weight", 12, &[256, 4], &blocks(BlockFormat::Q4K, 4))
        .tensor("b.weight", 14, &[256, 2], &blocks(BlockFormat::Q6K, 2))
        .tensor("c.weight", 1, &[256, 1], &[0; 512]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.gguf");
    file.write(&path);
    let files = Arc::new(gguf::open(WeightFile::open(&path).unwrap()).unwrap().1);
    for (quantized, expected) in [
        (Quantized::Kernels, "affine 4-bit group 32 (from Q4_K), affine 6-bit group 16 (from Q6_K), float16"),
        (Quantized::Mlx, "affine 4-bit group 32 (from Q4_K), float32 (from Q6_K), float16"),
        (Quantized::Dequantized, "float32 (from Q4_K), float32 (from Q6_K), float16"),
    ] {
        let mut plan = LoadPlan::new(Arc::clone(&files), None, Keep { float: None, quantized });
        for (path, rows) in [("a", 4), ("b", 2), ("c", 1)] {
            plan.linear(path, rows, 256).unwrap();
        }
        assert_eq!(plan.description(), expected);
    }
}

#[test]
fn biases_in_blocks_are_read_unless_their_rows_are_exchanged() {
    const BLOCKS: usize = 64 / 32;
    let bytes = [BlockFormat::Q8_0, BlockFormat::Q4_1].map(BlockFormat::bytes);
    let file = llama()
        .tensor("blk.0.attn_q.bias", 8, &[64], &vec![0; BLOCKS * bytes[0]])
        .tensor("blk.0.attn_k.bias", 3, &[64], &vec![0; BLOCKS * bytes[1]])
        .tensor("blk.0.attn_v.bias", 8, &[64], &vec![0; BLOCKS * bytes[0]])
        .tensor("blk.1.attn_q.bias", 0, &[64], &floats(&[0.5; 64]))
        .tensor("blk.1.attn_q.weight", 8, &[32, 64], &vec![0; 64 * bytes[0]]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.gguf");
    file.write(&path);
    let files = Arc::new(gguf::open(WeightFile::open(&path).unwrap()).unwrap().1);
    for keep in [FILE, FLOAT, Keep { float: None, quantized: Quantized::Kernels }] {
        let mut plan = LoadPlan::new(Arc::clone(&files), None, keep);
        for (module, format) in [("layers.0.self_attn.q_proj", "Q8_0"), ("layers.0.self_attn.k_proj", "Q4_1")]
        {
            let name = format!("model.{module}.bias");
            let error = plan.float(&name, &[64]).unwrap_err();
            assert_eq!(error.code(), Code::InvalidModel);
            assert_eq!(error.detail().file.as_deref(), Some(path.as_path()));
            assert!(error.detail().tensor.is_some(), "{error}");
            assert!(error.message().contains(&format!("holds {format}; its rows are exchanged")), "{error}");
        }
        // Rows as they are, floats, and matrices.
        plan.float("model.layers.0.self_attn.v_proj.bias", &[64]).unwrap();
        plan.float("model.layers.1.self_attn.q_proj.bias", &[64]).unwrap();
        plan.linear("model.layers.1.self_attn.q_proj", 64, 32).unwrap();
    }
}
