//! Conversions, bit for bit against other implementations: MLX's GGUF reader, its `dequantize`
//! and `astype`, and the `gguf` package. `scripts/weight_fixtures.py` makes the expected hashes.

use std::collections::BTreeMap;
use std::sync::Arc;

use half::f16;

use super::testing::{GgufFile, Noise, SafetensorsFile, collect, floats, hash, to_floats};
use super::types::{ElementType, RowOrder};
use super::{
    BlockFormat, Keep, LoadPlan, PlannedLinear, Quantized, WeightFile, WeightFiles, affine, cast, gguf,
    microscaled,
};
use crate::model::config::{Affine, Microscaled};

const ROWS: usize = 6;
const COLUMNS: usize = 128;

struct Expected(BTreeMap<String, String>);

impl Expected {
    fn read() -> Self {
        let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/weights.json"));
        Expected(serde_json::from_str(text).unwrap())
    }

    #[track_caller]
    fn check(&self, name: &str, bytes: &[u8]) {
        let expected = self.0.get(name).unwrap_or_else(|| panic!("no fixture {name}"));
        assert_eq!(&format!("{:016x}", hash(bytes)), expected, "{name}");
    }
}

fn keep(float: Option<ElementType>, quantized: Quantized) -> Keep {
    Keep { float, quantized }
}

fn convert(files: &Arc<WeightFiles>, columns: usize, keep: Keep) -> (PlannedLinear, Vec<Vec<u8>>) {
    let mut plan = LoadPlan::new(Arc::clone(files), None, keep);
    let linear = plan.linear("t", ROWS, columns).unwrap();
    (linear, collect(plan, 2))
}

/// NaN of all kinds as one of them.
fn one_nan(values: &[u8]) -> Vec<u8> {
    let one = |value: f32| if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value };
    floats(&to_floats(values).into_iter().map(one).collect::<Vec<_>>())
}

/// The formats, their numbers, and where in a block its float16 are.
const FORMATS: [(BlockFormat, u32, &[usize]); 10] = [
    (BlockFormat::Q4_0, 2, &[0]),
    (BlockFormat::Q4_1, 3, &[0, 2]),
    (BlockFormat::Q5_0, 6, &[0]),
    (BlockFormat::Q5_1, 7, &[0, 2]),
    (BlockFormat::Q8_0, 8, &[0]),
    (BlockFormat::Q2K, 10, &[80, 82]),
    (BlockFormat::Q3K, 11, &[108]),
    (BlockFormat::Q4K, 12, &[0, 2]),
    (BlockFormat::Q5K, 13, &[0, 2]),
    (BlockFormat::Q6K, 14, &[208]),
];

/// A matrix of noise in this format; the mask acts on the blocks' float16.
fn gguf_matrix(case: &str, format: BlockFormat, number: u32, halves: &[usize], mask: u16) -> GgufFile {
    let columns = columns_of(format);
    let mut noise = Noise::named(case);
    let mut blocks = Vec::new();
    for _ in 0..ROWS * columns / format.elements() {
        let mut block = noise.bytes(format.bytes());
        for &place in halves {
            block[place..place + 2].copy_from_slice(&noise.halves(1, mask));
        }
        blocks.extend(block);
    }
    GgufFile::new().tensor("t.weight", number, &[columns as u64, ROWS as u64], &blocks)
}

fn columns_of(format: BlockFormat) -> usize {
    COLUMNS.max(2 * format.elements())
}

fn open_gguf(file: &GgufFile) -> (tempfile::TempDir, Arc<WeightFiles>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.gguf");
    file.write(&path);
    let files = Arc::new(gguf::open(WeightFile::open(&path).unwrap()).unwrap().1);
    (folder, files)
}

const F32: Option<ElementType> = Some(ElementType::F32);

#[test]
fn gguf_blocks_have_the_values_of_the_gguf_package() {
    let expected = Expected::read();
    assert_eq!(FORMATS.map(|(format, _, _)| format), BlockFormat::ALL);
    for (format, number, halves) in FORMATS {
        for (kind, mask) in [("ordinary", 0xbfff), ("large", 0xfbff), ("any", 0xffff)] {
            let case = format!("gguf {} {kind}", format.name());
            let file = gguf_matrix(&case, format, number, halves, mask);
            expected.check(&format!("{case} file"), &file.bytes());
            let (_folder, files) = open_gguf(&file);
            let columns = columns_of(format);
            let (linear, values) = convert(&files, columns, keep(F32, Quantized::Dequantized));
            assert_eq!(linear, PlannedLinear::Plain { weight: 0 });
            expected.check(&format!("{case} values"), &one_nan(&values[0]));
            if mask == 0xffff {
                continue;
            }
            // Packed, with scales and biases as they come, they say the same.
            let (linear, kept) = convert(&files, columns, keep(None, Quantized::Kernels));
            let PlannedLinear::Affine { weight: 0, scales: 1, biases: 2, bits, group } = linear else {
                panic!("{case} becomes {linear:?}")
            };
            let affine = Affine { bits, group };
            assert_eq!(affine, format.affine());
            let mut same = vec![0; values[0].len()];
            let triple = [&kept[0][..], &kept[1], &kept[2]];
            affine::dequantize(affine, triple, format.parameters(), ElementType::F32, &mut same);
            for (index, (found, wanted)) in to_floats(&same).iter().zip(to_floats(&values[0])).enumerate() {
                // A float16 does not hold the bias of the largest scales.
                let lost = kind == "large" && format.parameters() == ElementType::F16 && found.is_nan();
                assert!(*found == wanted || lost || found.is_infinite() && kind == "large", "{case} {index}");
            }
        }
    }
}

#[test]
fn gguf_triples_are_those_of_mlx() {
    let expected = Expected::read();
    for (format, number, halves) in FORMATS {
        if !matches!(format, BlockFormat::Q4_0 | BlockFormat::Q4_1 | BlockFormat::Q8_0) {
            continue;
        }
        for (kind, mask) in [("ordinary", 0xbfff), ("large", 0xfbff)] {
            let case = format!("gguf {} {kind}", format.name());
            let (_folder, files) = open_gguf(&gguf_matrix(&case, format, number, halves, mask));
            let (linear, kept) = convert(&files, COLUMNS, keep(None, Quantized::Mlx));
            let bits = format.affine().bits;
            assert_eq!(linear, PlannedLinear::Affine { weight: 0, scales: 1, biases: 2, bits, group: 32 });
            for (part, bytes) in ["weight", "scales", "biases"].iter().zip(&kept) {
                expected.check(&format!("{case} {part}"), bytes);
            }
            for (type_name, float) in [("float32", ElementType::F32), ("bfloat16", ElementType::Bf16)] {
                let (_, kept) = convert(&files, COLUMNS, keep(Some(float), Quantized::Mlx));
                expected.check(&format!("{case} weight"), &kept[0]);
                expected.check(&format!("{case} scales {type_name}"), &kept[1]);
                expected.check(&format!("{case} biases {type_name}"), &kept[2]);
            }
        }
    }
}

#[test]
fn groups_of_sixteen_become_floats_where_mlx_computes() {
    for (format, number, halves) in FORMATS {
        let case = format!("gguf {} ordinary", format.name());
        let (_folder, files) = open_gguf(&gguf_matrix(&case, format, number, halves, 0xbfff));
        let mut plan = LoadPlan::new(files, None, keep(None, Quantized::Mlx));
        let linear = plan.linear("t", ROWS, columns_of(format)).unwrap();
        if format.affine().group == 32 {
            assert!(matches!(linear, PlannedLinear::Affine { group: 32, .. }), "{}", format.name());
            assert_eq!(plan.kept()[1].element, format.parameters());
        } else {
            assert_eq!(linear, PlannedLinear::Plain { weight: 0 }, "{}", format.name());
            assert_eq!(plan.description(), format!("float32 (from {})", format.name()));
        }
    }
}

#[test]
fn small_floats_have_the_values_of_mlx() {
    let expected = Expected::read();
    for mode in Microscaled::ALL {
        let case = format!("microscaled {}", mode.name());
        let group = mode.group() as usize;
        let packed = Noise::named(&case).bytes(256 * group * mode.bits() as usize / 8);
        expected.check(&format!("{case} packed"), &packed);
        let scales: Vec<u8> = (0..=255).collect();
        for (type_name, to) in [("float32", ElementType::F32), ("bfloat16", ElementType::Bf16)] {
            let mut values = vec![0; 256 * group * to.size()];
            microscaled::dequantize(mode, [&packed, &scales], to, &mut values);
            let mut wide = vec![0; 256 * group * 4];
            cast::cast(to, &values, ElementType::F32, &mut wide);
            for scale in [0, 1, 2, 10, 100, 126, 127, 128, 200, 250, 252, 255] {
                let values = one_nan(&wide[4 * group * scale..][..4 * group]);
                expected.check(&format!("{case} {scale} {type_name}"), &values);
            }
        }
    }
}

#[test]
fn packed_matrices_equal_mlx_dequantize() {
    let expected = Expected::read();
    for bits in [2, 3, 4, 5, 6, 8] {
        for group in [32, 64, 128] {
            for (type_name, float) in
                [("F32", ElementType::F32), ("F16", ElementType::F16), ("BF16", ElementType::Bf16)]
            {
                let case = format!("affine {bits} {group} {type_name}");
                let mut noise = Noise::named(&case);
                let packed = noise.bytes(ROWS * COLUMNS * bits / 8);
                let count = ROWS * COLUMNS / group;
                let mut parameters = || {
                    let halves = noise.halves(count, 0xbfff);
                    if float != ElementType::F32 {
                        return halves;
                    }
                    let value = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).to_f32() * 1.1;
                    floats(&halves.as_chunks::<2>().0.iter().map(value).collect::<Vec<_>>())
                };
                let (scales, biases) = (parameters(), parameters());
                expected.check(&format!("{case} scales"), &scales);
                let folder = tempfile::tempdir().unwrap();
                SafetensorsFile::new()
                    .tensor("t.weight", "U32", &[ROWS, COLUMNS * bits / 32], &packed)
                    .tensor("t.scales", type_name, &[ROWS, COLUMNS / group], &scales)
                    .tensor("t.biases", type_name, &[ROWS, COLUMNS / group], &biases)
                    .write(&folder.path().join("model.safetensors"));
                let files = Arc::new(WeightFiles::open_folder(folder.path()).unwrap());
                let (_, values) = convert(&files, COLUMNS, keep(F32, Quantized::Dequantized));
                expected.check(&format!("{case} values"), &values[0]);
                let (_, kept) = convert(&files, COLUMNS, keep(None, Quantized::Mlx));
                assert!(kept == [packed, scales, biases]);
            }
        }
    }
}

#[test]
fn casts_equal_mlx_astype() {
    let expected = Expected::read();
    let types = [("F32", ElementType::F32), ("F16", ElementType::F16), ("BF16", ElementType::Bf16)];
    for (from_name, from) in types {
        for (to_name, to) in types {
            let case = format!("cast {from_name} {to_name}");
            let mut noise = Noise::named(&case);
            let input: Vec<u8> = if from == ElementType::F32 {
                let mut bits =
                    || (noise.next() as u32 & 0x807f_ffff) | ((96 + noise.next() % 56) as u32) << 23;
                (0..1500).flat_map(|_| bits().to_le_bytes()).collect()
            } else {
                noise.halves(1500, 0xbfff)
            };
            expected.check(&format!("{case} input"), &input);
            let mut output = vec![0; 1500 * to.size()];
            cast::cast(from, &input, to, &mut output);
            expected.check(&format!("{case} output"), &output);
        }
    }
}

#[test]
fn stored_rows_equal_those_of_the_converters() {
    let expected = Expected::read();
    for (heads, head_dim) in [(4, 16), (3, 64), (1, 2)] {
        // The converter's table says which row of the model stands in each stored row.
        let order = RowOrder::InterleavedHalves { head_dim };
        let mut model_rows = vec![0u32; heads * head_dim];
        for row in 0..heads * head_dim {
            model_rows[order.stored_row(row)] = row as u32;
        }
        let bytes: Vec<u8> = model_rows.iter().flat_map(|row| row.to_le_bytes()).collect();
        expected.check(&format!("rows {heads} {head_dim}"), &bytes);
    }
}
