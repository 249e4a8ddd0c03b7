//! Small tokenizers of each kind encode and decode as Python's tokenizers does; streams too.

use std::sync::Arc;

use mlxgen::text::{StreamDecoder, Tokenizer};
use serde_json::Value;

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

/// Each kind's name, tokenizer and cases.
fn kinds() -> Vec<(String, Arc<Tokenizer>, Value)> {
    let oracle: Value = serde_json::from_str(include_str!("data/tokenizer_oracle.json")).unwrap();
    let kinds = oracle["kinds"].as_object().unwrap();
    assert!(kinds.len() >= 10);
    let load = |(name, kind): (&String, &Value)| {
        let tokenizer = Tokenizer::from_json(&kind["json"].to_string()).unwrap();
        (name.clone(), Arc::new(tokenizer), kind.clone())
    };
    kinds.iter().map(load).collect()
}

#[test]
fn texts_encode_as_in_python() {
    for (name, tokenizer, kind) in kinds() {
        for case in kind["encode"].as_array().unwrap() {
            let text = case[0].as_str().unwrap();
            assert_eq!(tokenizer.encode(text, true, true).unwrap(), ids(&case[1]), "{name}: {text:?}");
            let plain = tokenizer.encode(text, false, false).unwrap();
            assert_eq!(plain, ids(&case[2]), "{name}: {text:?} without special tokens");
        }
    }
}

#[test]
fn ids_decode_as_in_python() {
    for (name, tokenizer, kind) in kinds() {
        for case in kind["decode"].as_array().unwrap() {
            let ids = ids(&case[0]);
            for (skip_special, expected) in [(false, &case[1]), (true, &case[2])] {
                let text = tokenizer.decode(&ids, skip_special).unwrap();
                assert_eq!(text, expected.as_str().unwrap(), "{name}: {ids:?}, skip_special {skip_special}");
            }
        }
    }
}

#[test]
fn streams_say_what_python_decodes_and_nothing_twice() {
    for (name, tokenizer, kind) in kinds() {
        for case in kind["decode"].as_array().unwrap() {
            let ids = ids(&case[0]);
            for (skip_special, expected) in [(false, &case[1]), (true, &case[2])] {
                let mut stream = StreamDecoder::new(tokenizer.clone(), skip_special);
                let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
                text += &stream.finish();
                assert_eq!(text, expected.as_str().unwrap(), "{name}: {ids:?}, skip_special {skip_special}");
            }
        }
    }
}
