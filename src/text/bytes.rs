//! A tokenizer without files: one token for each byte.

use std::collections::BTreeSet;

use tokenizers::AddedToken;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::Tokenizer;
use super::chat::ChatTemplates;
use super::decode::{Pipeline, char_of};
use super::tokenizer::Roles;
use crate::base::{Error, Result};

/// Special tokens of [`Tokenizer::bytes`], from id 256 on.
const SPECIAL: [&str; 4] = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"];

/// ChatML.
const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

impl Tokenizer {
    /// A tokenizer that needs no files: ids 0 to 255 are the bytes, 256 `<|bos|>`, 257 `<|eos|>`,
    /// 258 `<|im_start|>`, 259 `<|im_end|>`. The last and `<|eos|>` end a generation; the chat
    /// template is ChatML after `<|bos|>`. What the fake back end speaks.
    pub fn bytes() -> Result<Tokenizer> {
        let vocabulary: Vocab =
            (0..=255u8).map(|byte| (char_of(byte).to_string(), u32::from(byte))).collect();
        let model = BPE::builder()
            .vocab_and_merges(vocabulary, Vec::new())
            .cache_capacity(0)
            .build()
            .map_err(|e| Error::internal(e.to_string()))?;
        let mut inner = tokenizers::Tokenizer::new(model);
        inner.with_pre_tokenizer(Some(ByteLevel::new(false, false, false)));
        inner.with_decoder(Some(ByteLevel::default()));
        inner
            .add_special_tokens(SPECIAL.map(|text| AddedToken::from(text, true)))
            .map_err(|e| Error::internal(e.to_string()))?;
        let roles = Roles {
            bos: Some(256),
            eos: BTreeSet::from([257, 259]),
            unk: None,
            pad: None,
            names: vec![("bos_token".into(), SPECIAL[0].into()), ("eos_token".into(), SPECIAL[1].into())],
        };
        Tokenizer::assemble(inner, Pipeline::byte_level(), roles, ChatTemplates::single(TEMPLATE))
    }
}
