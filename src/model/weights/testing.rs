//! Weight files made byte by byte, for tests.

use std::fmt::Write as _;
use std::path::Path;

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

    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}
