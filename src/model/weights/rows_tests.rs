//! Rows of matrices, against the same tensors from pieces.

use super::super::testing::{GgufFile, Noise, SafetensorsFile, collect, llama};
use super::super::{Keep, LoadPlan, Quantized, WeightFile, gguf};
use super::*;
use crate::base::Code;

const KEEP: Keep = Keep { float: None, quantized: Quantized::Kernels };

fn opened(file: &SafetensorsFile) -> (tempfile::TempDir, Arc<WeightFiles>) {
    let folder = tempfile::tempdir().unwrap();
    file.write(&folder.path().join("model.safetensors"));
    let files = Arc::new(WeightFiles::open_folder(folder.path()).unwrap());
    (folder, files)
}

fn opened_gguf(file: &GgufFile) -> (tempfile::TempDir, Arc<WeightFiles>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    file.write(&path);
    let (_, files) = gguf::open(WeightFile::open(&path).unwrap()).unwrap();
    (folder, Arc::new(files))
}

/// Reads the matrix in runs of different lengths, backwards, and compares with the tensors that pieces make.
fn check(files: &Arc<WeightFiles>, path: &str, [rows, columns]: [usize; 2]) {
    let plan = || {
        let mut plan = LoadPlan::new(Arc::clone(files), None, KEEP);
        plan.linear(path, rows, columns).unwrap();
        plan
    };
    let expected = collect(plan(), 2);
    let file_bytes = plan().file_bytes();
    let (matrices, mut rest) = plan().readers(2, |_, _| true);
    assert!(rest.next_piece().unwrap().is_none());
    let [matrix] = matrices.as_slice() else { panic!("one matrix was asked for") };
    assert_eq!(matrix.file_bytes(), file_bytes);
    assert_eq!(matrix.linear().tensors().len(), expected.len());
    let mut stored = RowBuffers::default();
    for run in [1, 7, 32, rows] {
        for from in (0..rows).step_by(run).rev() {
            let count = run.min(rows - from);
            let mut buffers: [Vec<u8>; 3] = std::array::from_fn(|index| {
                vec![0xaa; expected.get(index).map_or(0, |tensor| tensor.len() / rows * count)]
            });
            matrix.read(from, buffers.each_mut().map(|buffer| &mut buffer[..]), &mut stored).unwrap();
            for (buffer, tensor) in buffers.iter().zip(&expected) {
                let row = tensor.len() / rows;
                assert!(
                    *buffer == tensor[from * row..(from + count) * row],
                    "{path}, {run} rows from {from}"
                );
            }
        }
    }
}

#[test]
fn rows_of_safetensors_are_those_of_the_tensors() {
    let mut noise = Noise(5);
    let (rows, columns) = (45, 128);
    let file = SafetensorsFile::new()
        .tensor("a.weight", "BF16", &[rows, columns], &noise.bytes(2 * rows * columns))
        .tensor("b.weight", "U32", &[rows, columns / 8], &noise.bytes(rows * columns / 2))
        .tensor("b.scales", "F16", &[rows, columns / 32], &noise.bytes(rows * columns / 16))
        .tensor("b.biases", "F16", &[rows, columns / 32], &noise.bytes(rows * columns / 16))
        .tensor("c.weight", "U32", &[rows, columns / 8], &noise.bytes(rows * columns / 2))
        .tensor("c.scales", "U8", &[rows, columns / 32], &noise.bytes(rows * columns / 32))
        .tensor("d.weight", "U32", &[rows, columns / 4], &noise.bytes(rows * columns))
        .tensor("d.scales", "U8", &[rows, columns / 32], &noise.bytes(rows * columns / 32));
    let (_folder, files) = opened(&file);
    for path in ["a", "b", "c", "d"] {
        check(&files, path, [rows, columns]);
    }
}

#[test]
fn rows_of_gguf_come_in_the_order_of_the_model() {
    // Heads of 16 rows, of which q's are interleaved; a run of 32 or 7 rows cuts them anywhere.
    let mut noise = Noise(6);
    let (rows, columns) = (64, 64);
    for (format, block, bytes) in [(0, 1, 4), (1, 1, 2), (3, 32, 20), (8, 32, 34)] {
        let mut tensor = || noise.bytes(rows * columns / block * bytes);
        let file = llama().tensor("blk.0.attn_q.weight", format, &[64, 64], &tensor()).tensor(
            "blk.0.attn_v.weight",
            format,
            &[64, 64],
            &tensor(),
        );
        let (_folder, files) = opened_gguf(&file);
        for path in ["q_proj", "v_proj"] {
            check(&files, &format!("model.layers.0.self_attn.{path}"), [rows, columns]);
        }
    }
}

#[test]
fn only_matrices_that_are_apart_are_left_out_of_the_pieces() {
    let mut noise = Noise(7);
    let file = SafetensorsFile::new()
        .tensor("a.weight", "F32", &[4, 8], &noise.bytes(128))
        .tensor("b.weight", "F32", &[4, 8], &noise.bytes(128))
        .tensor("n", "F32", &[8], &noise.bytes(32));
    let (_folder, files) = opened(&file);
    let mut plan = LoadPlan::new(files, None, KEEP);
    plan.linear("a", 4, 8).unwrap();
    plan.float("n", &[8]).unwrap();
    let b = plan.linear("b", 4, 8).unwrap();
    let (matrices, mut pieces) = plan.readers(1, |kept, linear| kept[linear.weight()].name == "b.weight");
    assert_eq!(matrices.iter().map(|matrix| *matrix.linear()).collect::<Vec<_>>(), [b]);
    let mut read = Vec::new();
    while let Some(piece) = pieces.next_piece().unwrap() {
        read.push(piece.tensor);
    }
    assert_eq!(read, [0, 1]);
}

#[test]
fn b21_rows_that_the_file_has_lost_are_an_error() {
    let file = SafetensorsFile::new().tensor("a.weight", "F32", &[100, 100], &[0; 40_000]);
    let (folder, files) = opened(&file);
    let mut plan = LoadPlan::new(files, None, KEEP);
    plan.linear("a", 100, 100).unwrap();
    let (matrices, _) = plan.readers(1, |_, _| true);
    let path = folder.path().join("model.safetensors");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(20_000).unwrap();
    let mut rows = vec![0; 32 * 400];
    let mut read = |from| matrices[0].read(from, [&mut rows, &mut [], &mut []], &mut RowBuffers::default());
    read(0).unwrap();
    let error = read(60).unwrap_err();
    assert_eq!((error.code(), error.detail().tensor.as_deref()), (Code::InvalidModel, Some("a.weight")));
    assert_eq!(error.detail().file.as_deref(), Some(path.as_path()));
    let mut part = [0; 399];
    let error = matrices[0].read(0, [&mut part, &mut [], &mut []], &mut RowBuffers::default()).unwrap_err();
    assert_eq!(error.code(), Code::Internal);
}
