//! Reading in pieces: order, completeness, threads, files that change.

use super::super::testing::{Noise, SafetensorsFile, floats};
use super::super::types::ElementType;
use super::super::{Keep, LoadPlan, Quantized};
use super::*;
use crate::base::Code;

/// All kept tensors, put together from their pieces.
pub(super) fn collect(plan: LoadPlan, threads: usize) -> Vec<Vec<u8>> {
    let sizes: Vec<u64> = plan.kept().iter().map(|kept| kept.bytes).collect();
    let expected_file_bytes = plan.file_bytes();
    let mut tensors: Vec<Vec<u8>> = vec![Vec::new(); sizes.len()];
    let mut file_bytes = 0;
    let mut reader = plan.pieces(threads);
    let transient = reader.transient_bytes();
    while let Some(piece) = reader.next_piece().unwrap() {
        assert_eq!(piece.offset, tensors[piece.tensor].len(), "a gap in tensor {}", piece.tensor);
        assert!(piece.bytes.len() as u64 <= transient);
        tensors[piece.tensor].extend(piece.bytes);
        file_bytes += piece.file_bytes;
    }
    assert_eq!(tensors.iter().map(|tensor| tensor.len() as u64).collect::<Vec<_>>(), sizes);
    assert_eq!(file_bytes, expected_file_bytes);
    tensors
}

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
    for (quantized, kept) in [(Quantized::Packed, 4), (Quantized::Dequantized, 2)] {
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
            Quantized::Packed => assert!(alone[0] == packed && alone[1] == floats(&scales)),
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
    let keep = Keep { float: Some(ElementType::F32), quantized: Quantized::Packed };
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
    let keep = Keep { float: None, quantized: Quantized::Packed };
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
