//! Byte-crafted GGUF files, good and bad.

use super::super::blocks::BlockFormat;
use super::super::testing::{GgufFile, Noise, collect, floats, llama, text};
use super::super::types::{ElementType, Encoding};
use super::super::{Keep, LoadPlan, Quantized};
use super::*;
use crate::base::Code;

fn open_bytes(bytes: &[u8]) -> Result<(GgufMetadata, WeightFiles)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    open(WeightFile::open(&path)?)
}

#[track_caller]
fn refused(bytes: &[u8], code: Code) -> Error {
    let error = open_bytes(bytes).expect_err("must be refused");
    assert_eq!(error.code(), code, "{error}");
    assert!(error.detail().file.as_ref().unwrap().ends_with("m.gguf"), "{error}");
    error
}

fn good() -> GgufFile {
    llama()
        .flag("flag", true)
        .entry("i8", 1, &[0xff])
        .entry("u16", 2, &[1, 2])
        .entry("i16", 3, &[0xfe, 0xff])
        .entry("u64", 10, &7u64.to_le_bytes())
        .entry("i64", 11, &(-7i64).to_le_bytes())
        .entry("f64", 12, &0.5f64.to_le_bytes())
        .texts("texts", &["", "aé", "b"])
        .i32s("numbers", &[3, -1])
        .tensor("token_embd.weight", 0, &[64, 2], &floats(&[0.5; 128]))
        .tensor("blk.0.attn_q.weight", 3, &[64, 64], &[0; 64 * 40])
        .tensor("blk.0.attn_v.weight", 8, &[64, 32], &[0; 32 * 68])
        .tensor("blk.0.attn_norm.weight", 30, &[64], &[0; 128])
        .tensor("strange.weight", 23, &[256], &[0; 136])
}

#[test]
fn metadata_and_table_are_read() {
    for version in [2, 3] {
        let mut file = good();
        file.version = version;
        let (metadata, weights) = open_bytes(&file.bytes()).unwrap();
        assert_eq!(metadata.text("general.name").unwrap(), Some("Tiny"));
        assert_eq!(metadata.flag("flag").unwrap(), Some(true));
        assert_eq!(metadata.number("i8").unwrap(), Some(-1.0));
        assert_eq!(metadata.size("u16").unwrap(), Some(0x201));
        assert_eq!(metadata.number("i16").unwrap(), Some(-2.0));
        assert_eq!(metadata.size("u64").unwrap(), Some(7));
        assert_eq!(metadata.number("i64").unwrap(), Some(-7.0));
        assert_eq!(metadata.number("f64").unwrap(), Some(0.5));
        let texts = metadata.texts("texts").unwrap().unwrap();
        assert_eq!(texts.len(), 3);
        assert_eq!(texts.collect::<Vec<_>>(), ["", "aé", "b"]);
        assert_eq!(metadata.integers("numbers").unwrap(), Some(vec![3, -1]));
        assert_eq!(metadata.text("absent").unwrap(), None);

        let embedding = weights.get("model.embed_tokens.weight").unwrap();
        assert_eq!(embedding.stored_name(), "token_embd.weight");
        assert_eq!(embedding.shape, [2, 64]);
        assert_eq!(embedding.encoding, Encoding::Plain(ElementType::F32));
        assert_eq!(weights.read(embedding, 0..8).unwrap(), floats(&[0.5, 0.5]));
        let query = weights.get("model.layers.0.self_attn.q_proj.weight").unwrap();
        assert_eq!(query.encoding, Encoding::Block(BlockFormat::Q4_1));
        assert_eq!(query.rows, RowOrder::InterleavedHalves { head_dim: 16 });
        let value = weights.get("model.layers.0.self_attn.v_proj.weight").unwrap();
        assert_eq!((value.rows, value.bytes), (RowOrder::Natural, 32 * 68));
        let norm = weights.get("model.layers.0.input_layernorm.weight").unwrap();
        assert_eq!(norm.encoding, Encoding::Plain(ElementType::Bf16));
        assert_eq!(weights.float_type(), ElementType::F16);
        assert_eq!(weights.block_format(), Some(BlockFormat::Q4_1));
        let strange = weights.get("strange.weight").unwrap();
        let error = strange.check_usable().unwrap_err();
        assert_eq!(error.code(), Code::Unsupported);
        assert!(error.message().contains("IQ4_XS"), "{error}");
    }
}

#[test]
fn values_of_another_type_name_the_key() {
    let (metadata, _) = open_bytes(&good().bytes()).unwrap();
    for error in [
        metadata.text("flag").err(),
        metadata.flag("u16").err(),
        metadata.number("texts").err(),
        metadata.size("i8").err(),
        metadata.token_id("flag").err(),
        metadata.texts("numbers").map(|_| ()).err(),
        metadata.integers("texts").err(),
    ] {
        let error = error.expect("must be refused");
        assert_eq!(error.code(), Code::InvalidModel);
        assert!(error.detail().field.is_some() && error.detail().file.is_some());
    }
}

#[test]
fn alignment_follows_the_metadata() {
    let mut file = GgufFile::new().u32("general.alignment", 128);
    file.alignment = 128;
    let file = file.tensor("a", 0, &[1], &floats(&[1.0])).tensor("b", 0, &[1], &floats(&[2.0]));
    let (_, weights) = open_bytes(&file.bytes()).unwrap();
    let second = weights.get("b").unwrap();
    assert_eq!(second.offset % 128, 0);
    assert_eq!(weights.read(second, 0..4).unwrap(), floats(&[2.0]));
    for bad in [0, 24, 3, u32::MAX] {
        let error = refused(&GgufFile::new().u32("general.alignment", bad).bytes(), Code::InvalidModel);
        assert_eq!(error.detail().field.as_deref(), Some("general.alignment"));
    }
}

#[test]
fn files_of_another_kind_are_called_by_their_name() {
    assert!(
        refused(b"version https://git-lfs.github.com/spec/v1\n", Code::InvalidModel)
            .message()
            .contains("LFS")
    );
    assert!(refused(b"<html>", Code::InvalidModel).message().contains("web page"));
    refused(b"", Code::InvalidModel);
    refused(b"GGU", Code::InvalidModel);
    refused(b"GGUF", Code::InvalidModel);
    refused(b"GGML\0\0\0\0", Code::InvalidModel);
    for version in [0u32, 1, 4, 99] {
        let mut file = good();
        file.version = version;
        refused(&file.bytes(), Code::Unsupported);
    }
    let mut big_endian = good();
    big_endian.version = 3u32.swap_bytes();
    assert!(refused(&big_endian.bytes(), Code::Unsupported).message().contains("big-endian"));
    let split = GgufFile::new().entry("split.count", 2, &[2, 0]);
    assert_eq!(refused(&split.bytes(), Code::Unsupported).detail().field.as_deref(), Some("split.count"));
}

#[test]
fn every_truncation_is_refused_with_the_sizes() {
    let whole = good().bytes();
    for length in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
        let error = refused(&whole[..length], Code::InvalidModel);
        assert!(error.message().contains(&format!("{length} bytes")), "{length}: {error}");
    }
    let error = refused(&whole[..whole.len() - 1], Code::InvalidModel);
    assert_eq!(error.detail().tensor.as_deref(), Some("strange.weight"));
    assert!(error.message().contains(&format!("byte {}", whole.len())), "{error}");
}

/// Headers that declare more than any file could hold. Were a declared count believed, the
/// allocation would end the test process.
#[test]
fn bombs_are_refused_by_the_size_of_the_file() {
    let with_counts = |tensors: u64, entries: u64| {
        let mut bytes = GgufFile::new().bytes();
        bytes[8..16].copy_from_slice(&tensors.to_le_bytes());
        bytes[16..24].copy_from_slice(&entries.to_le_bytes());
        bytes
    };
    for count in [1 << 20, 1 << 28, 1 << 40, 1 << 60, u64::MAX] {
        refused(&with_counts(count, 0), Code::InvalidModel);
        refused(&with_counts(0, count), Code::InvalidModel);
        let long_key = GgufFile::new().u32("k", 1);
        let mut bytes = long_key.bytes();
        bytes[24..32].copy_from_slice(&count.to_le_bytes());
        refused(&bytes, Code::InvalidModel);
        let count = count.to_le_bytes();
        refused(&GgufFile::new().entry("k", 8, &count).bytes(), Code::InvalidModel);
        for kind in [0u32, 4, 7, 8, 9, 12] {
            let mut value = kind.to_le_bytes().to_vec();
            value.extend(count);
            let error = refused(&GgufFile::new().entry("k", 9, &value).bytes(), Code::InvalidModel);
            assert_eq!(error.detail().field.as_deref(), Some("k"));
        }
        let mut texts = 8u32.to_le_bytes().to_vec();
        texts.extend(1u64.to_le_bytes());
        texts.extend(count);
        refused(&GgufFile::new().entry("k", 9, &texts).bytes(), Code::InvalidModel);
    }
    let mut lists = Vec::new();
    for _ in 0..100 {
        lists.extend(9u32.to_le_bytes());
        lists.extend(1u64.to_le_bytes());
    }
    refused(&GgufFile::new().entry("k", 9, &lists).bytes(), Code::InvalidModel);
}

#[test]
fn metadata_that_makes_no_sense_is_refused() {
    let new = GgufFile::new;
    assert_eq!(
        refused(&new().entry("k", 13, &[0; 8]).bytes(), Code::InvalidModel).detail().field.as_deref(),
        Some("k")
    );
    refused(&new().entry("k", 7, &[2]).bytes(), Code::InvalidModel);
    let mut flags = 7u32.to_le_bytes().to_vec();
    flags.extend(2u64.to_le_bytes());
    flags.extend([1, 2]);
    refused(&new().entry("k", 9, &flags).bytes(), Code::InvalidModel);
    let twice = refused(&new().u32("k", 1).u32("k", 1).bytes(), Code::InvalidModel);
    assert_eq!(twice.detail().field.as_deref(), Some("k"));
    let mut not_utf8 = text("ab");
    not_utf8[8] = 0xff;
    refused(&new().entry("k", 8, &not_utf8).bytes(), Code::InvalidModel);
    // Two texts that are UTF-8 only together.
    let mut halves = 8u32.to_le_bytes().to_vec();
    halves.extend(2u64.to_le_bytes());
    for half in ["é".as_bytes()[0], "é".as_bytes()[1]] {
        halves.extend(1u64.to_le_bytes());
        halves.push(half);
    }
    refused(&new().entry("k", 9, &halves).bytes(), Code::InvalidModel);
}

#[test]
fn lists_of_lists_are_passed_over() {
    let mut lists = 9u32.to_le_bytes().to_vec();
    lists.extend(2u64.to_le_bytes());
    for _ in 0..2 {
        lists.extend(0u32.to_le_bytes());
        lists.extend(3u64.to_le_bytes());
        lists.extend([1, 2, 3]);
    }
    let (metadata, _) = open_bytes(&GgufFile::new().entry("k", 9, &lists).u32("l", 5).bytes()).unwrap();
    assert_eq!(metadata.size("l").unwrap(), Some(5));
    assert!(metadata.integers("k").is_err());
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let with = |format: u32, axes: &[u64], offset: u64| {
        GgufFile::new().tensor("first", 0, &[8], &[0; 32]).declare("t", format, axes, offset).bytes()
    };
    for (format, axes, offset) in [
        (0, vec![8u64], 32u64),         // beyond the end
        (0, vec![8], 0),                // overlaps
        (0, vec![4], 16),               // not aligned
        (0, vec![1 << 40], 0),          // larger than the file
        (0, vec![1 << 32, 1 << 32], 0), // does not fit 64 bits
        (0, vec![1 << 62], 0),          // bytes do not fit 64 bits
        (0, vec![1], u64::MAX - 31),    // the end wraps around
        (0, vec![1], 1 << 63),
        (0, vec![1, 1, 1, 1, 1], 0), // five axes
        (2, vec![31], 0),            // not whole blocks
        (14, vec![128], 0),
        (8, vec![32, 1 << 60], 0),
    ] {
        let error = refused(&with(format, &axes, offset), Code::InvalidModel);
        assert_eq!(error.detail().tensor.as_deref(), Some("t"), "{axes:?} {offset}: {error}");
    }
    for format in [4, 5, 9, 15, 31, 36, 40, 1000] {
        let error = refused(&with(format, &[32], 0), Code::Unsupported);
        assert_eq!(error.detail().tensor.as_deref(), Some("t"));
    }
    let twice = GgufFile::new().tensor("t", 0, &[1], &[0; 4]).tensor("t", 0, &[1], &[0; 4]);
    assert_eq!(refused(&twice.bytes(), Code::InvalidModel).detail().tensor.as_deref(), Some("t"));
    let alias = GgufFile::new().tensor("token_embd.weight", 0, &[1], &[0; 4]).tensor(
        "model.embed_tokens.weight",
        0,
        &[1],
        &[0; 4],
    );
    refused(&alias.bytes(), Code::InvalidModel);
}

/// Converts every matrix, in both forms.
fn read_everything(weights: &std::sync::Arc<WeightFiles>) {
    for quantized in [Quantized::Mlx, Quantized::Dequantized] {
        let keep = Keep { float: Some(ElementType::F32), quantized };
        let mut plan = LoadPlan::new(weights.clone(), None, keep);
        for tensor in weights.tensors() {
            if let (Some(path), &[out, in_]) = (tensor.name.strip_suffix(".weight"), tensor.shape.as_slice())
                && let Err(error) = plan.linear(path, out, in_)
            {
                assert!(matches!(error.code(), Code::InvalidModel | Code::Unsupported), "{error}");
            }
        }
        collect(plan, 2);
    }
}

#[test]
fn damaged_files_never_panic() {
    let whole = good().bytes();
    let mut noise = Noise(4);
    for round in 0..2000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + noise.below(4) {
            // Mostly in the header, which is what is parsed.
            let limit = if round % 8 == 0 { bytes.len() } else { 1200 };
            let place = noise.below(limit);
            bytes[place] = match noise.below(3) {
                0 => 0xff,
                1 => 0,
                _ => noise.next() as u8,
            };
        }
        if round % 5 == 0 {
            bytes.truncate(noise.below(bytes.len() + 1));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        std::fs::write(&path, &bytes).unwrap();
        // The configuration too.
        match super::super::ModelFiles::open(&path) {
            Ok(model) => {
                for tensor in model.weights.tensors() {
                    assert!(tensor.offset + tensor.bytes <= bytes.len() as u64);
                }
                read_everything(&model.weights);
            }
            Err(error) => {
                assert!(matches!(error.code(), Code::InvalidModel | Code::Unsupported), "{error}");
            }
        }
    }
}
