//! GGUF files made byte by byte, for tests.

use std::path::Path;

/// A GGUF file in the making.
#[derive(Clone)]
pub(crate) struct GgufFile {
    pub(crate) version: u32,
    pub(crate) alignment: usize,
    metadata: Vec<u8>,
    metadata_count: u64,
    table: Vec<u8>,
    tensor_count: u64,
    data: Vec<u8>,
}

/// A length and the bytes, as GGUF writes texts.
pub(crate) fn text(value: &str) -> Vec<u8> {
    let mut bytes = (value.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(value.as_bytes());
    bytes
}

impl GgufFile {
    pub(crate) fn new() -> Self {
        GgufFile {
            version: 3,
            alignment: 32,
            metadata: Vec::new(),
            metadata_count: 0,
            table: Vec::new(),
            tensor_count: 0,
            data: Vec::new(),
        }
    }

    /// An entry of any type, with the bytes of its value.
    pub(crate) fn entry(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.metadata.extend(text(key));
        self.metadata.extend(kind.to_le_bytes());
        self.metadata.extend(value);
        self.metadata_count += 1;
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.entry(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.entry(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn flag(self, key: &str, value: bool) -> Self {
        self.entry(key, 7, &[u8::from(value)])
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.entry(key, 8, &text(value))
    }

    pub(crate) fn texts(self, key: &str, values: &[&str]) -> Self {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| text(value)));
        self.entry(key, 9, &bytes)
    }

    pub(crate) fn i32s(self, key: &str, values: &[i32]) -> Self {
        let mut bytes = 5u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self.entry(key, 9, &bytes)
    }

    pub(crate) fn flags(self, key: &str, values: &[bool]) -> Self {
        let mut bytes = 7u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        bytes.extend(values.iter().map(|value| u8::from(*value)));
        self.entry(key, 9, &bytes)
    }

    /// A tensor; the fastest axis stands first.
    pub(crate) fn tensor(mut self, name: &str, format: u32, axes: &[u64], bytes: &[u8]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        let offset = self.data.len() as u64;
        self.data.extend_from_slice(bytes);
        self.declare(name, format, axes, offset)
    }

    /// A row of the tensor table alone.
    pub(crate) fn declare(mut self, name: &str, format: u32, axes: &[u64], offset: u64) -> Self {
        self.table.extend(text(name));
        self.table.extend((axes.len() as u32).to_le_bytes());
        self.table.extend(axes.iter().flat_map(|axis| axis.to_le_bytes()));
        self.table.extend(format.to_le_bytes());
        self.table.extend(offset.to_le_bytes());
        self.tensor_count += 1;
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.tensor_count.to_le_bytes());
        bytes.extend(self.metadata_count.to_le_bytes());
        bytes.extend(&self.metadata);
        bytes.extend(&self.table);
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(&self.data);
        bytes
    }

    pub(crate) fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }
}

/// The metadata of a llama with two layers: hidden 64, 4 heads of 16, 2 for keys and values.
pub(crate) fn llama() -> GgufFile {
    architecture("llama", 2, "layer_norm_rms_epsilon").u32("llama.rope.dimension_count", 16)
}

/// The same of another architecture, with that many layers and this key for its norms' epsilon.
pub(crate) fn architecture(name: &str, layers: u32, epsilon: &str) -> GgufFile {
    GgufFile::new()
        .text("general.architecture", name)
        .text("general.name", "Tiny")
        .u32(&format!("{name}.block_count"), layers)
        .u32(&format!("{name}.context_length"), 256)
        .u32(&format!("{name}.embedding_length"), 64)
        .u32(&format!("{name}.feed_forward_length"), 96)
        .u32(&format!("{name}.attention.head_count"), 4)
        .u32(&format!("{name}.attention.head_count_kv"), 2)
        .f32(&format!("{name}.attention.{epsilon}"), 1e-5)
        .u32(&format!("{name}.vocab_size"), 8)
}
