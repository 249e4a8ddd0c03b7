//! Tokenizers made for tests.
#![allow(dead_code, reason = "each test uses some of these")]

use mlxgen::text::{GgufTokenizer, Tokenizer};
use serde_json::{Value, json};

/// The character that stands for a byte in byte-level vocabularies.
pub fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !printable(*b)).count();
    char::from_u32(256 + before as u32).unwrap()
}

/// A byte-level vocabulary: the bytes, then `special`; the first two of those are BOS and EOS.
pub fn bytes_with(special: &[&str]) -> GgufTokenizer {
    let mut tokens: Vec<String> = (0..=255).map(|b| byte_char(b).to_string()).collect();
    let mut token_types = vec![1; 256];
    tokens.extend(special.iter().map(|text| (*text).to_owned()));
    token_types.extend(special.iter().map(|_| 3));
    GgufTokenizer {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        token_types,
        bos: Some(256),
        eos: Some(257),
        ..GgufTokenizer::default()
    }
}

/// A byte-level tokenizer with this chat template and the ChatML tokens.
pub fn with_template(template: &str) -> Tokenizer {
    let source = bytes_with(&["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]);
    Tokenizer::from_gguf(GgufTokenizer { chat_template: Some(template.to_owned()), ..source }).unwrap()
}

/// Numbers that are the same in every run.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(limit)) as u32
    }
}

/// A model folder with these files.
pub fn folder(files: &[(&str, String)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    folder
}

/// A byte-level tokenizer.json: the bytes, then `special`; with `before`, that token is put before
/// each text.
pub fn tokenizer_json(special: &[&str], before: Option<&str>) -> String {
    let vocabulary: serde_json::Map<String, Value> =
        (0..=255u8).map(|byte| (byte_char(byte).to_string(), json!(byte))).collect();
    let added: Vec<Value> = special
        .iter()
        .enumerate()
        .map(|(index, text)| {
            json!({"id": 256 + index, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true})
        })
        .collect();
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let post_processor = before.map(|token| {
        let id = 256 + special.iter().position(|text| *text == token).unwrap();
        json!({"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}}})
    });
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": post_processor, "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    })
    .to_string()
}
