//! Matrices packed by rows, against the same packed from arrays.

use super::*;
use crate::base::Code;
use crate::mlx::Array;

fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|index| (index.wrapping_mul(2654435761).wrapping_add(seed * 977) >> 7) as u8).collect()
}

/// A form, its rows in their own order, and what arrays of them are packed to.
fn samples() -> Vec<(PackedForm, [Vec<u8>; 3], Vec<u8>)> {
    let mut samples = Vec::new();
    for (index, (outputs, inputs)) in [(1, 32), (32, 64), (1000, 96), (77, 160)].into_iter().enumerate() {
        let shape = [outputs as i32, inputs as i32];
        let halves: Vec<u8> = bytes(outputs * inputs * 2, index);
        let values: Vec<half::bf16> =
            halves.as_chunks::<2>().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes)).collect();
        let array = Array::from_slice(&values, &shape).unwrap();
        let packed = PackedWeight::dense(&mut Arena::new(), &array).unwrap().unwrap();
        let form = PackedForm::dense(Dtype::Bfloat16, [outputs, inputs]).unwrap();
        samples.push((form, [halves, Vec::new(), Vec::new()], packed.data().bytes().to_vec()));

        let (bits, group) = if index % 2 == 0 { (4, 32) } else { (5, 32) };
        let words = bytes(outputs * inputs * bits / 8, index + 10);
        let numbers: Vec<u32> =
            words.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let parameters: [Vec<f32>; 2] =
            [3, 5].map(|step| (0..outputs * inputs / group).map(|index| (index * step) as f32).collect());
        let columns = |values: usize| [outputs as i32, (values / outputs) as i32];
        let packed = PackedWeight::affine(
            &mut Arena::new(),
            &Array::from_slice(&numbers, &columns(numbers.len())).unwrap(),
            &Array::from_slice(&parameters[0], &columns(parameters[0].len())).unwrap(),
            &Array::from_slice(&parameters[1], &columns(parameters[1].len())).unwrap(),
            group as u32,
            bits as u32,
        );
        let packed = packed.unwrap().unwrap();
        let form = PackedForm::affine(Dtype::Float32, bits as u32, group as u32, [outputs, inputs]).unwrap();
        let [scales, biases] =
            parameters.map(|values| values.iter().flat_map(|value| value.to_le_bytes()).collect());
        samples.push((form, [words, scales, biases], packed.data().bytes().to_vec()));
    }
    samples
}

#[test]
fn rows_are_packed_as_arrays_are() {
    let samples = samples();
    let forms: Vec<PackedForm> = samples.iter().map(|sample| sample.0).collect();
    for threads in [0, 1, 2, 3, 50] {
        let reader = || {
            |matrix: usize, from: usize, rows: [&mut [u8]; 3]| {
                for (stream, rows) in rows.into_iter().enumerate() {
                    let start = from * forms[matrix].row_bytes()[stream];
                    rows.copy_from_slice(&samples[matrix].1[stream][start..start + rows.len()]);
                }
                Ok(())
            }
        };
        let packed = pack_rows(&mut Arena::new(), &forms, threads, reader).unwrap();
        for (matrix, packed) in packed.iter().enumerate() {
            assert!(packed.data().bytes() == samples[matrix].2, "matrix {matrix}, {threads} threads");
            assert_eq!(forms[matrix].bytes(), packed.byte_size().next_multiple_of(64));
        }
    }
}

#[test]
fn threads_that_read_begin_apart() {
    let forms =
        [[4096, 96], [32, 32], [5000, 64]].map(|shape| PackedForm::dense(Dtype::Float32, shape).unwrap());
    let mut arena = Arena::new();
    let mut rooms: Vec<Room> = forms.iter().map(|form| arena.room(form.0.bytes()).unwrap()).collect();
    let shares = neighbours(&forms, &mut rooms, 3);
    let places: Vec<Vec<(usize, usize)>> = shares
        .iter()
        .map(|shares| shares.iter().map(|share| (share.matrix, share.first_block)).collect())
        .collect();
    assert!(places.concat().is_sorted(), "neighbours stay together");
    let sizes: Vec<usize> =
        shares.iter().map(|shares| shares.iter().map(|share| share.target.len()).sum()).collect();
    let total: usize = forms.iter().map(|form| form.0.bytes()).sum();
    assert_eq!(sizes.iter().sum::<usize>(), total);
    assert!(sizes.iter().all(|size| size.abs_diff(total / 3) <= 2 * SHARE), "{sizes:?}");
}

#[test]
fn a_row_that_cannot_be_read_ends_the_packing() {
    let forms = [PackedForm::dense(Dtype::Float32, [100_000, 32]).unwrap()];
    let held = kernels::mapping::held;
    let before = held();
    for threads in [1, 2] {
        let calls = std::sync::atomic::AtomicUsize::new(0);
        let reader = || {
            |_: usize, _: usize, _: [&mut [u8]; 3]| match calls.fetch_add(1, Ordering::Relaxed) {
                3.. => Err(Error::invalid_model("no")),
                _ => Ok(()),
            }
        };
        let error = pack_rows(&mut Arena::new(), &forms, threads, reader).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel);
        assert!(calls.into_inner() <= 3 + threads);
    }
    assert_eq!(held(), before);
}
