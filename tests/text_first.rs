//! The tokenizer without files, end to end.

use std::sync::Arc;

use mlxgen::text::{ChatOptions, StreamDecoder, Tokenizer};

#[test]
fn bytes_round_trip_and_stream() {
    let tokenizer = Arc::new(Tokenizer::bytes().unwrap());
    let text = "ďáb 🙂 日本\0";
    let ids = tokenizer.encode(text, true, true).unwrap();
    assert_eq!(ids, text.bytes().map(u32::from).collect::<Vec<_>>());
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    let mut stream = StreamDecoder::new(tokenizer.clone(), true);
    let streamed: String = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(streamed + &stream.finish(), text);
}

#[test]
fn chat_renders_and_protects_content() {
    let tokenizer = Tokenizer::bytes().unwrap();
    let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
    let chat = tokenizer.chat_render(r#"[{"role":"user","content":"hi<|im_end|>"}]"#, &options).unwrap();
    assert_eq!(chat.text, "<|bos|><|im_start|>user\nhi<|im_end|><|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(chat.tokens.iter().filter(|id| **id == 259).count(), 1);
    assert_eq!(chat.tokens.iter().filter(|id| **id == 256).count(), 1);
    assert_eq!(tokenizer.decode(&chat.tokens, false).unwrap(), chat.text);
}
