//! Weight files made byte by byte, for tests.

mod gguf;

pub(crate) use gguf::{GgufFile, architecture, llama, text};

use std::fmt::Write as _;
use std::path::Path;

use super::LoadPlan;

/// A safetensors file in the making.
#[derive(Clone, Default)]
pub(crate) struct SafetensorsFile {
    entries: String,
    data: Vec<u8>,
}

impl SafetensorsFile {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn tensor(mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) -> Self {
        let begin = self.data.len();
        self.data.extend_from_slice(bytes);
        if !self.entries.is_empty() {
            self.entries.push(',');
        }
        let end = self.data.len();
        write!(
            self.entries,
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
        )
        .unwrap();
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        with_header(&format!("{{{}}}", self.entries), &self.data)
    }

    pub(crate) fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }
}

/// A safetensors file with this header text and data.
pub(crate) fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// float32 bytes.
pub(crate) fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// float32 values of bytes.
pub(crate) fn to_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// A small generator of varied bytes; not random in any deeper sense.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn next(&mut self) -> u64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// Seeded by the hash of a name, as `scripts/weight_fixtures.py` does it.
    pub(crate) fn named(name: &str) -> Self {
        Noise(hash(name.as_bytes()))
    }

    /// 16-bit floats; the mask keeps the exponent from being all ones.
    pub(crate) fn halves(&mut self, count: usize, mask: u16) -> Vec<u8> {
        (0..count).flat_map(|_| (self.next() as u16 & mask).to_le_bytes()).collect()
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// FNV-1a.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |value, byte| (value ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// All kept tensors of a plan, put together from their pieces, which must come in order and
/// without gaps.
pub(crate) fn collect(plan: LoadPlan, threads: usize) -> Vec<Vec<u8>> {
    let sizes: Vec<u64> = plan.kept().iter().map(|kept| kept.bytes).collect();
    let expected_file_bytes = plan.file_bytes();
    let mut tensors: Vec<Vec<u8>> = vec![Vec::new(); sizes.len()];
    let mut file_bytes = 0;
    let transient = plan.transient_bytes(threads);
    let mut reader = plan.pieces(threads);
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
