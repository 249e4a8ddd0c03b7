//! Where elements of a matrix of floats come to lie in a block of 32 rows.

use super::*;
use crate::mlx::kernels::linear::layout::BLOCK;

/// Element `input` of row `row`: bytes that no other element has.
fn element(float: Float, row: usize, input: usize) -> Vec<u8> {
    let number = 1 + (row * 300 + input) as u32;
    number.to_le_bytes()[..float.size()].to_vec()
}

/// Whole blocks of two bytes are interleaved in squares of four by four, so inputs that make none count too.
#[test]
fn each_element_comes_to_lie_at_its_input_and_row() {
    for float in FLOATS {
        let size = float.size();
        for inputs in (1..=13).chain([64, 131, 256]) {
            for rows in [BLOCK, BLOCK - 1, 5, 1] {
                let layout = Layout::new(Format::Dense(float), rows, inputs).unwrap();
                let elements: Vec<u8> = (0..rows * inputs)
                    .flat_map(|index| element(float, index / inputs, index % inputs))
                    .collect();
                // Of exactly the sizes, so that AddressSanitizer sees what lies beside them.
                let elements = elements.into_boxed_slice();
                let mut packed = vec![0xee; BLOCK * inputs * size].into_boxed_slice();
                layout.pack_dense_block(&mut packed, rows, &elements);
                for (place, found) in packed.chunks_exact(size).enumerate() {
                    let (input, row) = (place / BLOCK, place % BLOCK);
                    let wanted = if row < rows { element(float, row, input) } else { vec![0; size] };
                    assert_eq!(
                        found, wanted,
                        "{float:?}, {rows} rows of {inputs}: input {input} of row {row}"
                    );
                }
            }
        }
    }
}
