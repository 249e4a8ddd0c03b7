//! Conversions, bit for bit against other implementations: MLX's GGUF reader, its `dequantize`
//! and `astype`, and the `gguf` package. `scripts/weight_fixtures.py` makes the expected hashes.

use std::collections::BTreeMap;
use std::sync::Arc;

use half::f16;

use super::testing::{GgufFile, Noise, SafetensorsFile, collect, floats, hash};
use super::types::{BlockFormat, ElementType, RowOrder};
use super::{Keep, LoadPlan, PlannedLinear, Quantized, WeightFile, WeightFiles, cast, gguf};

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

fn convert(files: &Arc<WeightFiles>, keep: Keep) -> (PlannedLinear, Vec<Vec<u8>>) {
    let mut plan = LoadPlan::new(Arc::clone(files), None, keep);
    let linear = plan.linear("t", ROWS, COLUMNS).unwrap();
    (linear, collect(plan, 2))
}

#[test]
fn gguf_blocks_equal_mlx_and_the_gguf_package() {
    let expected = Expected::read();
    for (name, number, format, halves) in [
        ("Q4_0", 2, BlockFormat::Q4_0, 1),
        ("Q4_1", 3, BlockFormat::Q4_1, 2),
        ("Q8_0", 8, BlockFormat::Q8_0, 1),
    ] {
        for (kind, mask) in [("ordinary", 0xbfff), ("large", 0xfbff)] {
            let case = format!("gguf {name} {kind}");
            let mut noise = Noise::named(&case);
            let mut blocks = Vec::new();
            for _ in 0..ROWS * COLUMNS / 32 {
                let mut block = noise.bytes(format.bytes());
                for half in 0..halves {
                    block[2 * half..2 * half + 2].copy_from_slice(&noise.halves(1, mask));
                }
                blocks.extend(block);
            }
            let file = GgufFile::new().tensor("t.weight", number, &[COLUMNS as u64, ROWS as u64], &blocks);
            expected.check(&format!("{case} file"), &file.bytes());
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("t.gguf");
            file.write(&path);
            let files = Arc::new(gguf::open(WeightFile::open(&path).unwrap()).unwrap().1);

            let (linear, kept) = convert(&files, keep(None, Quantized::Packed));
            assert_eq!(
                linear,
                PlannedLinear::Affine { weight: 0, scales: 1, biases: 2, bits: format.bits(), group: 32 }
            );
            for (part, bytes) in ["weight", "scales", "biases"].iter().zip(&kept) {
                expected.check(&format!("{case} {part}"), bytes);
            }
            for (type_name, float) in [("float32", ElementType::F32), ("bfloat16", ElementType::Bf16)] {
                let (_, kept) = convert(&files, keep(Some(float), Quantized::Packed));
                expected.check(&format!("{case} weight"), &kept[0]);
                expected.check(&format!("{case} scales {type_name}"), &kept[1]);
                expected.check(&format!("{case} biases {type_name}"), &kept[2]);
            }
            let (_, values) = convert(&files, keep(Some(ElementType::F32), Quantized::Dequantized));
            expected.check(&format!("{case} values"), &values[0]);
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
                let (_, values) = convert(&files, keep(Some(ElementType::F32), Quantized::Dequantized));
                expected.check(&format!("{case} values"), &values[0]);
                let (_, kept) = convert(&files, keep(None, Quantized::Packed));
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
