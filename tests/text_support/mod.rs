//! Tokenizers made for tests.
#![allow(dead_code, reason = "each test uses some of these")]

use mlxgen::text::{GgufTokenizer, Tokenizer};

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
