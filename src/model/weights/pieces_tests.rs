//! Reading in pieces: order, completeness, threads, files that change.

use super::super::testing::{GgufFile, Noise, SafetensorsFile, collect, floats, llama, to_floats};
use super::super::types::ElementType;
use super::super::{Keep, LoadPlan, Quantized};
use super::*;
use crate::base::Code;

fn open(content: &SafetensorsFile) -> (tempfile::TempDir, Arc<WeightFiles>) {
    let folder = tempfile::tempdir().unwrap();
    content.write(&folder.path().join("model.safetensors"));
    let files = WeightFiles::open_folder(folder.path()).unwrap();
    (folder, Arc::new(files))
}

#[test]
fn every_thread_count_gives_the_same_bytes() {
    let (rows, columns) = (1500, 1024);
    let mut noise = Noise(3);
    let packed = noise.bytes(rows * columns / 2);
    let scales: Vec<f32> = (0..rows * columns / 64).map(|_| noise.below(1000) as f32 / 512.0).collect();
    let content = SafetensorsFile::new()
        .tensor("l.weight", "U32", &[rows, columns / 8], &packed)
        .tensor("l.scales", "F32", &[rows, columns / 64], &floats(&scales))
        .tensor("l.biases", "F32", &[rows, columns / 64], &floats(&scales))
        .tensor("n", "F32", &[3], &floats(&[1.0, 2.0, 3.0]));
    let (_folder, files) = open(&content);
    for (quantized, kept) in [(Quantized::Mlx, 4), (Quantized::Dequantized, 2)] {
        let plan = || {
            let keep = Keep { float: Some(ElementType::F32), quantized };
            let mut plan = LoadPlan::new(Arc::clone(&files), None, keep);
            plan.linear("l", rows, columns).unwrap();
            plan.float("n", &[3]).unwrap();
            plan
        };
        let alone = collect(plan(), 1);
        assert_eq!(alone.len(), kept);
        assert_eq!(alone[kept - 1], floats(&[1.0, 2.0, 3.0]));
        for threads in [0, 2, 3, 8, 100] {
            assert!(collect(plan(), threads) == alone, "{threads} threads");
        }
        match quantized {
            Quantized::Mlx | Quantized::Kernels => assert!(alone[0] == packed && alone[1] == floats(&scales)),
            Quantized::Dequantized => {
                let at =
                    |index: usize| f32::from_le_bytes(alone[0][4 * index..4 * index + 4].try_into().unwrap());
                for index in (0..rows * columns).step_by(977) {
                    let number = packed[index / 2] >> (4 * (index % 2)) & 15;
                    let scale = scales[index / 64];
                    assert_eq!(at(index), scale * f32::from(number) + scale);
                }
            }
        }
    }
}

#[test]
fn pieces_are_small() {
    let content = SafetensorsFile::new().tensor("l.weight", "F16", &[3000, 1000], &vec![0; 6_000_000]);
    let (_folder, files) = open(&content);
    let keep = Keep { float: Some(ElementType::F32), quantized: Quantized::Mlx };
    let mut plan = LoadPlan::new(files, None, keep);
    plan.linear("l", 3000, 1000).unwrap();
    let mut reader = plan.pieces(2);
    while let Some(piece) = reader.next_piece().unwrap() {
        assert!(piece.bytes.len() <= PIECE_BYTES);
    }
}

#[test]
fn b21_a_file_that_changes_during_the_load_fails_it() {
    let content = SafetensorsFile::new().tensor("l.weight", "F32", &[1000, 1000], &vec![0; 4_000_000]);
    let keep = Keep { float: None, quantized: Quantized::Mlx };
    for truncate in [true, false] {
        let (folder, files) = open(&content);
        let mut plan = LoadPlan::new(files, None, keep);
        plan.linear("l", 1000, 1000).unwrap();
        let mut reader = plan.pieces(1);
        assert!(reader.next_piece().unwrap().is_some());
        let path = folder.path().join("model.safetensors");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        if truncate {
            file.set_len(1_000_000).unwrap();
        } else {
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }
        let error = loop {
            match reader.next_piece() {
                Ok(piece) => assert!(piece.is_some(), "the change went unnoticed"),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), Code::InvalidModel);
        assert_eq!(error.detail().file.as_deref(), Some(path.as_path()));
    }
}

/// A llama of two layers whose q rows hold their stored row's number, in a given format.
fn numbered_rows(format: u32, row_bytes: impl Fn(usize) -> Vec<u8>) -> (tempfile::TempDir, Arc<WeightFiles>) {
    let rows: Vec<u8> = (0..64).flat_map(row_bytes).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    let file: GgufFile = llama()
        .tensor("blk.0.attn_q.weight", format, &[64, 64], &rows)
        .tensor("blk.0.attn_q.bias", 0, &[64], &floats(&std::array::from_fn::<f32, 64, _>(|row| row as f32)))
        .tensor("blk.0.attn_v.weight", format, &[64, 64], &rows);
    file.write(&path);
    let (_, files) = super::super::gguf::open(super::super::WeightFile::open(&path).unwrap()).unwrap();
    (folder, Arc::new(files))
}

#[test]
fn rows_of_q_come_out_in_the_order_of_the_model() {
    // Head dimension 16: row (head, half, index) is stored at (head, index, half).
    let expected: Vec<f32> =
        (0..64).map(|row| (row / 16 * 16 + 2 * (row % 8) + row % 16 / 8) as f32).collect();
    let float32 = |row: usize| floats(&[row as f32; 64]);
    let q8_0 = |row: usize| {
        let block = [&0x3c00u16.to_le_bytes()[..], &[row as u8; 32]].concat();
        block.repeat(2)
    };
    let query = "model.layers.0.self_attn.q_proj";
    for (_folder, files) in [numbered_rows(0, float32), numbered_rows(8, q8_0)] {
        for threads in [1, 3] {
            let keep = Keep { float: Some(ElementType::F32), quantized: Quantized::Dequantized };
            let mut plan = LoadPlan::new(Arc::clone(&files), None, keep);
            plan.linear(query, 64, 64).unwrap();
            plan.float(&format!("{query}.bias"), &[64]).unwrap();
            plan.linear("model.layers.0.self_attn.v_proj", 64, 64).unwrap();
            let kept = collect(plan, threads);
            let firsts = |bytes: &[u8]| -> Vec<f32> {
                let values = to_floats(bytes);
                assert!(values.chunks(64).all(|row| row.iter().all(|value| *value == row[0])));
                values.chunks(64).map(|row| row[0]).collect()
            };
            assert_eq!(firsts(&kept[0]), expected);
            assert_eq!(to_floats(&kept[1]), expected);
            assert_eq!(firsts(&kept[2]), (0..64).map(|row| row as f32).collect::<Vec<_>>());
        }
    }
    // As triples: all three parts of a row move together.
    let distinct = |row: usize| [&(row as u16).to_le_bytes()[..], &[row as u8; 32]].concat().repeat(2);
    let (_folder, files) = numbered_rows(8, distinct);
    let mut plan = LoadPlan::new(files, None, Keep { float: None, quantized: Quantized::Mlx });
    plan.linear(query, 64, 64).unwrap();
    let kept = collect(plan, 1);
    for (row, stored) in expected.iter().map(|stored| *stored as u8).enumerate() {
        assert_eq!(kept[0][row * 64..row * 64 + 64], [stored ^ 0x80; 64]);
        assert_eq!(kept[1][row * 4..row * 4 + 4], [stored, 0, stored, 0]);
    }
}
