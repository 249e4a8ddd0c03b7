//! SentencePiece vocabularies of GGUF files.

use mlxgen::base::Code;
use mlxgen::text::{GgufTokenizer, Tokenizer};

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// `<unk>`, `<s>`, `</s>`, the bytes from id 3 on, then these pieces from id 259 on, each scored as it stands.
fn vocabulary(pieces: &[(&str, f32, i32)]) -> GgufTokenizer {
    let mut source =
        GgufTokenizer { model: "llama".into(), pre: Some("default".into()), ..Default::default() };
    let mut add = |text: &str, score: f32, kind: i32| {
        source.tokens.push(text.to_owned());
        source.scores.push(score);
        source.token_types.push(kind);
    };
    add("<unk>", 0.0, UNKNOWN);
    add("<s>", 0.0, CONTROL);
    add("</s>", 0.0, CONTROL);
    (0..=255).for_each(|byte| add(&format!("<0x{byte:02X}>"), 0.0, BYTE));
    pieces.iter().for_each(|(text, score, kind)| add(text, *score, *kind));
    source
}

fn words() -> GgufTokenizer {
    vocabulary(&[
        ("▁", -5.0, NORMAL),
        ("a", -6.0, NORMAL),
        ("b", -7.0, NORMAL),
        ("c", -8.0, NORMAL),
        ("bc", -1.0, NORMAL),
        ("ab", -2.0, NORMAL),
        ("abc", -3.0, NORMAL),
        ("▁a", -4.0, NORMAL),
        ("<turn>", -1000.0, CONTROL),
        ("a  a", -1000.0, USER_DEFINED),
        ("▁ab", 0.0, UNUSED),
    ])
}

fn encode(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    let ids = tokenizer.encode(text, false, true).unwrap();
    ids.into_iter().map(|id| tokenizer.token(id).unwrap()).collect()
}

#[test]
fn the_best_pair_is_joined_first() {
    let tokenizer = Tokenizer::from_gguf(words()).unwrap();
    assert_eq!(encode(&tokenizer, "abc"), ["▁", "abc"]);
    // Unused pieces are none.
    assert_eq!(encode(&tokenizer, "ab"), ["▁", "ab"]);
    assert_eq!(encode(&tokenizer, "aa b"), ["▁a", "a", "▁", "b"]);
    let without = |score: f32| {
        let mut source = words();
        source.token_types[265] = UNUSED;
        source.scores[263] = score;
        encode(&Tokenizer::from_gguf(source).unwrap(), "abc")
    };
    // `bc` against `ab`, which is scored -2.
    assert_eq!(without(-1.0), ["▁a", "bc"]);
    assert_eq!(without(-9.0), ["▁", "ab", "c"]);
}

#[test]
fn what_has_no_piece_is_bytes() {
    let tokenizer = Tokenizer::from_gguf(words()).unwrap();
    assert_eq!(encode(&tokenizer, "é\n"), ["▁", "<0xC3>", "<0xA9>", "<0x0A>"]);
    for text in ["é\n", "a", " a", "a b é 🙂", "▁", ""] {
        let ids = tokenizer.encode(text, true, true).unwrap();
        assert_eq!(ids.first(), Some(&1), "a text begins with BOS");
        // A mark in a text comes back as the space for which it stands.
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), text.replace('▁', " "), "{text}");
    }
}

#[test]
fn a_file_chooses_whether_a_space_comes_first() {
    let plain = GgufTokenizer { add_space_prefix: Some(false), add_bos: Some(false), ..words() };
    let tokenizer = Tokenizer::from_gguf(plain).unwrap();
    assert_eq!(encode(&tokenizer, "abc a"), ["abc", "▁a"]);
    let ids = tokenizer.encode(" a", true, true).unwrap();
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), " a");
}

#[test]
fn added_tokens_are_sought_before_the_text_is_normalised() {
    let tokenizer = Tokenizer::from_gguf(words()).unwrap();
    assert_eq!(encode(&tokenizer, "b<turn>b"), ["▁", "b", "<turn>", "▁", "b"]);
    assert_eq!(encode(&tokenizer, "ba  ab"), ["▁", "b", "a  a", "▁", "b"]);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), &[2][..]));
}

#[test]
fn contradictions_are_refused_by_name() {
    type Change = fn(&mut GgufTokenizer);
    let cases: [(Change, &str); 5] = [
        (|source| source.scores.clear(), "tokenizer.ggml.scores"),
        (|source| source.scores[7] = f32::NAN, "tokenizer.ggml.scores"),
        (|source| source.token_types.truncate(3), "tokenizer.ggml.token_type"),
        (|source| source.tokens[260] = "b".into(), "tokenizer.ggml.tokens"),
        (|source| source.tokens[260] = "b".repeat(600), "tokenizer.ggml.tokens"),
    ];
    for (change, field) in cases {
        let mut source = words();
        change(&mut source);
        let error = Tokenizer::from_gguf(source).unwrap_err();
        assert_eq!(
            (error.code(), error.detail().field.as_deref()),
            (Code::InvalidModel, Some(field)),
            "{error}"
        );
    }
}
