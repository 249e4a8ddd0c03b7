//! The real tokenizer of SmolLM2, from its GGUF file, against what Python made of it.

use std::path::PathBuf;
use std::sync::Arc;

use mlxgen::generate::gguf_tokenizer;
use mlxgen::text::{ChatOptions, StreamDecoder, Tokenizer};
use serde_json::Value;

fn smollm2() -> Arc<Tokenizer> {
    let chosen = std::env::var_os("MLXGEN_SMOLLM2").map(PathBuf::from);
    let path = chosen.unwrap_or_else(|| {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("target/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    });
    assert!(path.is_file(), "{} is missing: `make demo` fetches it (or set MLXGEN_SMOLLM2)", path.display());
    Arc::new(gguf_tokenizer::open(&path).unwrap())
}

fn oracle() -> Value {
    serde_json::from_str(include_str!("data/smollm2_oracle.json")).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

#[test]
fn texts_encode_decode_and_stream_as_in_python() {
    let tokenizer = smollm2();
    assert_eq!((tokenizer.table_size(), tokenizer.bos(), tokenizer.eos()), (49152, Some(1), &[2][..]));
    for case in oracle()["encode"].as_array().unwrap() {
        let text = case[0].as_str().unwrap();
        let encoded = tokenizer.encode(text, true, true).unwrap();
        assert_eq!(encoded, ids(&case[1]), "{text:?}");
        assert_eq!(tokenizer.decode(&encoded, false).unwrap(), text);
        let mut stream = StreamDecoder::new(tokenizer.clone(), false);
        let streamed: String = encoded.iter().map(|id| stream.push(*id)).collect();
        assert_eq!(streamed + &stream.finish(), text);
    }
}

#[test]
fn conversations_become_the_tokens_that_transformers_makes() {
    let tokenizer = smollm2();
    let options = ChatOptions { add_generation_prompt: true, ..ChatOptions::default() };
    for case in oracle()["chats"].as_array().unwrap() {
        let chat = tokenizer.chat_render(&case[0].to_string(), &options).unwrap();
        assert_eq!(chat.text, case[1].as_str().unwrap());
        assert_eq!(chat.tokens, ids(&case[2]));
    }
}
