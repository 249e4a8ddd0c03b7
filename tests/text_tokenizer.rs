//! Loading, encoding and decoding, and what must not break them. Cases B40, B41, B54, B55.

mod text_support;

use std::time::{Duration, Instant};

use mlxgen::base::Code;
use mlxgen::text::{GgufTokenizer, Tokenizer};
use serde_json::{Value, json};
use text_support::{byte_char, bytes_with, folder, tokenizer_json};

const SPECIAL: [&str; 4] = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"];

fn changed(change: impl FnOnce(&mut Value)) -> String {
    let mut file: Value = serde_json::from_str(&tokenizer_json(&SPECIAL, None)).unwrap();
    change(&mut file);
    file.to_string()
}

#[test]
fn b40_unreadable_files_are_errors_that_say_where() {
    let good = tokenizer_json(&SPECIAL, None);
    let cases: Vec<(&str, String, &str)> = vec![
        ("empty object", "{}".into(), "Model missing"),
        ("empty file", String::new(), "EOF"),
        ("truncated", good[..good.len() / 2].into(), "EOF"),
        ("not an object", "[1, 2]".into(), ""),
        ("unknown model", changed(|f| f["model"]["type"] = json!("Nope")), "Nope"),
        (
            "unknown pre-tokenizer",
            changed(|f| f["pre_tokenizer"] = json!({"type": "Nope"})),
            "pre_tokenizer has the kind \"Nope\"",
        ),
        (
            "unknown decoder",
            changed(|f| f["decoder"] = json!({"type": "Nope"})),
            "decoder has the kind \"Nope\"",
        ),
        ("unknown version", changed(|f| f["version"] = json!("9.0")), "9.0"),
        (
            "invalid pattern",
            changed(|f| {
                f["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "(["}, "behavior": "Isolated", "invert": false});
            }),
            "",
        ),
        ("two tokens with one id", changed(|f| f["model"]["vocab"]["more"] = json!(7)), "same id 7"),
        (
            "an id beyond any table",
            changed(|f| f["model"]["vocab"]["more"] = json!(4_000_000_000_u32)),
            "4000000000",
        ),
        ("a merge of unknown tokens", changed(|f| f["model"]["merges"] = json!([["no", "such"]])), "no"),
        // The crate's own buffer is too short for this one: it panics.
        ("a merge longer than any token", changed(|f| f["model"]["merges"] = json!([["ć", "ć"]])), ""),
        ("a merge of three", changed(|f| f["model"]["merges"] = json!([["a", "b", "c"]])), "two tokens"),
        (
            "no vocabulary",
            changed(|f| (f["model"]["vocab"], f["added_tokens"]) = (json!({}), json!([]))),
            "no tokens",
        ),
    ];
    for (name, text, part) in cases {
        let folder = folder(&[("tokenizer.json", text)]);
        let error = Tokenizer::load_dir(folder.path()).expect_err(name);
        assert_eq!(error.code(), Code::InvalidModel, "{name}: {error}");
        assert_eq!(
            error.detail().file.as_deref(),
            Some(folder.path().join("tokenizer.json").as_path()),
            "{name}"
        );
        assert!(error.message().contains(part), "{name}: {error}");
    }
    // A fault in the text has its place.
    let broken = good.replacen("\"merges\"", "\"merges\" ?", 1);
    let place = (broken.find("\"merges\" ?").unwrap() + 9) as u64;
    let folder = folder_of(&broken);
    let error = Tokenizer::load_dir(folder.path()).unwrap_err();
    assert_eq!(error.detail().position, Some(place), "{error}");

    let missing = text_support::folder(&[("config.json", "{}".into())]);
    let error = Tokenizer::load_dir(missing.path()).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(error.detail().file.as_deref(), Some(missing.path().join("tokenizer.json").as_path()));

    assert!(Tokenizer::load_dir(folder_of(&good).path()).is_ok());
}

fn folder_of(tokenizer: &str) -> tempfile::TempDir {
    folder(&[("tokenizer.json", tokenizer.to_owned())])
}

#[test]
fn b40_faults_in_the_other_files_name_them() {
    for (name, text, field) in [
        ("tokenizer_config.json", r#"{"bos_token": "#, None),
        ("config.json", "[]", None),
        ("generation_config.json", r#"{"eos_token_id": "2"}"#, Some("eos_token_id")),
        ("config.json", r#"{"eos_token_id": [1, [2]]}"#, Some("eos_token_id")),
        ("config.json", r#"{"eos_token_id": 2.5}"#, Some("eos_token_id")),
        (
            "tokenizer_config.json",
            r#"{"added_tokens_decoder": {"x": {"content": "<y>"}}}"#,
            Some("added_tokens_decoder"),
        ),
        ("tokenizer_config.json", r#"{"chat_template": 7}"#, None),
        ("chat_template.json", "{", None),
        ("chat_template.json", "NaN", None),
        ("tokenizer_config.json", r#"{"chat_template": NaN}"#, None),
        ("config.json", "NaN", None),
        ("config.json", r#"{"eos_token_id": [1, NaN]}"#, Some("eos_token_id")),
        ("tokenizer_config.json", r#"{"eos_token_id": Infinity}"#, Some("eos_token_id")),
    ] {
        let folder = folder(&[("tokenizer.json", tokenizer_json(&SPECIAL, None)), (name, text.to_owned())]);
        let error = Tokenizer::load_dir(folder.path()).expect_err(text);
        assert_eq!(error.code(), Code::InvalidModel, "{error}");
        assert_eq!(error.detail().file.as_deref(), Some(folder.path().join(name).as_path()), "{error}");
        assert_eq!(error.detail().field.as_deref(), field, "{error}");
    }
}

/// Python writes them into such files.
#[test]
fn numbers_that_are_none_do_no_harm_where_nobody_asks() {
    let odd = r#"{"a": NaN, "b": {"limits": [0.0, Infinity]}, "c": -Infinity, "d": "NaN"}"#;
    let names = ["config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"];
    for name in names {
        let folder = folder(&[("tokenizer.json", tokenizer_json(&SPECIAL, None)), (name, odd.to_owned())]);
        assert_eq!(
            Tokenizer::load_dir(folder.path()).unwrap().encode("a", false, false).unwrap(),
            [97],
            "{name}"
        );
        // Where a fault lies is counted in the file, from its first byte.
        let text = format!("\u{feff}{}", odd.replace("\"NaN\"", "x"));
        std::fs::write(folder.path().join(name), &text).unwrap();
        let error = Tokenizer::load_dir(folder.path()).unwrap_err();
        assert_eq!(error.detail().position, Some(text.len() as u64 - 2), "{name}");
    }
}

#[test]
fn b41_odd_texts_are_encoded_and_come_back() {
    let mut gguf = bytes_with(&SPECIAL);
    gguf.pre = Some("llama-bpe".into());
    gguf.add_bos = Some(false);
    gguf.tokens.push("aa".into());
    gguf.token_types.push(1);
    gguf.merges.push("a a".into());
    for tokenizer in [Tokenizer::bytes().unwrap(), Tokenizer::from_gguf(gguf).unwrap()] {
        assert!(tokenizer.encode("", false, true).unwrap().is_empty());
        assert_eq!(tokenizer.encode("\0", false, true).unwrap(), [0]);
        for text in
            ["\0a\0", "x<|im_", "<|im_end|", "\u{fffd}", "\u{10ffff}\u{feff}", "e\u{301}\u{301}", "\r\n \r"]
        {
            let ids = tokenizer.encode(text, false, true).unwrap();
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        }
        for huge in ["a".repeat(1 << 20), " \n".repeat(1 << 18), "🙂é ".repeat(1 << 15)] {
            let began = Instant::now();
            let ids = tokenizer.encode(&huge, false, true).unwrap();
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
            assert_eq!(tokenizer.decode(&ids, false).unwrap(), huge);
        }
        let bos = tokenizer.bos().unwrap();
        assert_eq!(tokenizer.decode(&[bos, bos, 97, bos], true).unwrap(), "a");
    }
}

#[test]
fn b41_ids_without_a_token_are_empty_and_ids_beyond_the_table_are_refused() {
    let mut gguf = bytes_with(&SPECIAL);
    gguf.tokens.push("[PAD260]".into());
    gguf.token_types.push(5);
    let tokenizer = Tokenizer::from_gguf(gguf).unwrap();
    assert_eq!(tokenizer.table_size(), 261);
    assert_eq!(tokenizer.token(260), None);
    assert_eq!(tokenizer.decode(&[97, 260, 98], false).unwrap(), "ab");
    assert_eq!(tokenizer.encode("[PAD260]", false, true).unwrap().len(), 8);
    for ids in [&[97, 261, 98][..], &[97, u32::MAX]] {
        let error = tokenizer.decode(ids, false).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!((error.detail().field.as_deref(), error.detail().position), (Some("tokens"), Some(1)));
    }
}

#[test]
fn b54_an_end_of_sequence_may_be_a_list() {
    let eos = |config: &str, generation: &str, tokenizer: &str| {
        let folder = folder(&[
            ("tokenizer.json", tokenizer_json(&SPECIAL, None)),
            ("config.json", config.into()),
            ("generation_config.json", generation.into()),
            ("tokenizer_config.json", tokenizer.into()),
        ]);
        Tokenizer::load_dir(folder.path()).unwrap().eos().to_vec()
    };
    assert_eq!(
        eos(r#"{"eos_token_id": 1}"#, r#"{"eos_token_id": [1, 6]}"#, r#"{"eos_token_id": 1}"#),
        [1, 6]
    );
    assert_eq!(eos(r#"{"eos_token_id": null}"#, r#"{"eos_token_id": -1}"#, "{}"), [0u32; 0]);
    assert_eq!(eos(r#"{"text_config": {"eos_token_id": [3]}}"#, "{}", "{}"), [3]);
    assert_eq!(eos(r#"{"eos_token_id": 2.0}"#, r#"{"eos_token_id": [-1, 7.0, null]}"#, "{}"), [2, 7]);
    // B55: every source counts; the tokenizer's own end of sequence is </s>, 257.
    assert_eq!(
        eos(
            r#"{"eos_token_id": [2, 5, 7]}"#,
            r#"{"eos_token_id": 2}"#,
            r#"{"eos_token": {"content": "</s>"}}"#
        ),
        [2, 5, 7, 257]
    );
}

#[test]
fn b55_a_gguf_file_joins_its_ends_too() {
    let gguf = GgufTokenizer { extra_eos: vec![259, 5], ..bytes_with(&SPECIAL) };
    let tokenizer = Tokenizer::from_gguf(gguf).unwrap();
    assert_eq!(tokenizer.eos(), [5, 257, 259]);
    assert!(tokenizer.is_special(5) && tokenizer.is_special(259) && !tokenizer.is_special(6));
}

#[test]
fn special_tokens_are_found_and_skipped_as_asked() {
    let mut gguf = bytes_with(&SPECIAL);
    gguf.tokens.push("<tool>".into());
    gguf.token_types.push(4);
    let tokenizer = Tokenizer::from_gguf(gguf).unwrap();
    let text = "a<|im_end|><tool>b";
    assert_eq!(tokenizer.encode(text, false, true).unwrap(), [97, 259, 260, 98]);
    let plain = tokenizer.encode(text, false, false).unwrap();
    assert_eq!(plain.len(), 13);
    // User-defined tokens are no control tokens.
    assert!(plain.contains(&260) && !tokenizer.is_special(260) && tokenizer.is_special(259));
    assert_eq!(tokenizer.decode(&plain, true).unwrap(), text);
    assert_eq!(tokenizer.decode(&[97, 259, 260, 98], true).unwrap(), "a<tool>b");
    assert_eq!(
        (tokenizer.token_id("<tool>"), tokenizer.token(259).as_deref()),
        (Some(260), Some("<|im_end|>"))
    );
    assert_eq!((tokenizer.token_bytes(0xC3), tokenizer.token_bytes(259)), (Some(vec![0xC3]), None));
    assert_eq!(tokenizer.token_bytes(260), Some(b"<tool>".to_vec()));
}

#[test]
fn a_gguf_file_decides_what_surrounds_a_text() {
    let encode = |add_bos: Option<bool>, add_eos: Option<bool>, pre: &str| {
        let gguf = GgufTokenizer { add_bos, add_eos, pre: Some(pre.into()), ..bytes_with(&SPECIAL) };
        Tokenizer::from_gguf(gguf).unwrap().encode("a", true, true).unwrap()
    };
    assert_eq!(encode(None, None, "gpt-2"), [97]);
    assert_eq!(encode(Some(true), None, "gpt-2"), [256, 97]);
    assert_eq!(encode(Some(true), Some(true), "gpt-2"), [256, 97, 257]);
    assert_eq!(encode(None, None, "llama-bpe"), [256, 97]);
    assert_eq!(encode(Some(false), None, "llama-bpe"), [97]);
}

#[test]
fn a_gguf_file_that_contradicts_itself_is_refused() {
    type Change = fn(&mut GgufTokenizer);
    let cases: [(Change, Code, &str, &str); 9] = [
        (|g| g.model = "bert".into(), Code::Unsupported, "tokenizer.ggml.model", "bert"),
        (|g| g.pre = Some("klingon".into()), Code::Unsupported, "tokenizer.ggml.pre", "klingon"),
        (|g| g.token_types.truncate(3), Code::InvalidModel, "tokenizer.ggml.token_type", "3"),
        (|g| g.tokens[5] = "a".into(), Code::InvalidModel, "tokenizer.ggml.tokens", "\"a\""),
        (|g| g.merges.push("ab".into()), Code::InvalidModel, "tokenizer.ggml.merges", "ab"),
        (|g| g.merges.push("a b".into()), Code::InvalidModel, "tokenizer.ggml.merges", "ab"),
        (|g| g.eos = Some(260), Code::InvalidModel, "tokenizer.ggml.eos_token_id", "260"),
        (|g| g.extra_eos.push(900), Code::InvalidModel, "tokenizer.ggml.eot_token_id", "900"),
        (
            |g| {
                g.tokens.clear();
                g.token_types.clear();
                g.bos = None;
                g.eos = None;
            },
            Code::InvalidModel,
            "model.vocab",
            "no tokens",
        ),
    ];
    for (change, code, field, part) in cases {
        let mut gguf = bytes_with(&SPECIAL);
        change(&mut gguf);
        let error = Tokenizer::from_gguf(gguf).unwrap_err();
        assert_eq!((error.code(), error.detail().field.as_deref()), (code, Some(field)), "{error}");
        assert!(error.message().contains(part), "{error}");
    }
    let every = [
        "default",
        "gpt-2",
        "smollm",
        "starcoder",
        "falcon",
        "llama-bpe",
        "qwen2",
        "qwen35",
        "tekken",
        "gpt-4o",
        "deepseek-v3",
        "glm4",
        "chatglm-bpe",
        "minicpm5",
        "seed-coder",
        "command-r",
        "exaone4",
        "olmo",
        "stablelm2",
    ];
    for pre in every {
        let tokenizer =
            Tokenizer::from_gguf(GgufTokenizer { pre: Some(pre.into()), ..bytes_with(&SPECIAL) }).unwrap();
        let text = "It's 1234.5 ÉCOLE été\r\n\t 日本語🙂 don'T <|im_end|>  x";
        let ids = tokenizer.encode(text, false, true).unwrap();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text, "{pre}");
    }
}

/// With every two digits a token of their own, how digits are grouped shows.
#[test]
fn words_are_split_as_the_file_names_it() {
    let encode = |pre: &str, text: &str| {
        let mut gguf = GgufTokenizer { pre: Some(pre.into()), add_bos: Some(false), ..bytes_with(&SPECIAL) };
        let space = byte_char(b' ');
        for (left, right) in [
            ("1", "1"),
            ("11", "1"),
            ("a", "1"),
            (&space.to_string(), "1"),
            ("!", "a"),
            ("'", "T"),
            ("!", "Ċ"),
        ] {
            gguf.tokens.push(format!("{left}{right}"));
            gguf.token_types.push(1);
            gguf.merges.push(format!("{left} {right}"));
        }
        let tokenizer = Tokenizer::from_gguf(gguf).unwrap();
        let ids = tokenizer.encode(text, false, true).unwrap();
        ids.iter().map(|id| tokenizer.token(*id).unwrap().replace(space, "_")).collect::<Vec<_>>().join("|")
    };
    assert_eq!(encode("gpt-2", "1111 1"), "11|11|_1");
    assert_eq!(encode("smollm", "1111 1"), "1|1|1|1|_|1");
    assert_eq!(encode("llama-bpe", "1111 1"), "111|1|_|1");
    assert_eq!(encode("qwen2", "1111 1"), "1|1|1|1|_|1");
    assert_eq!(encode("minicpm5", "1111 1"), "111|1|_|1");
    assert_eq!((encode("qwen2", "!\n"), encode("seed-coder", "!\n")), ("!Ċ".into(), "!|Ċ".into()));
    assert_eq!(encode("gpt-2", "a1!a'T"), "a|1|!|a|'|T");
    assert_eq!(encode("llama-bpe", "a1!a'T"), "a|1|!a|'T");
}

#[test]
fn the_configuration_declares_tokens_and_names_them() {
    let config = json!({
        "added_tokens_decoder": {
            "260": {"content": "<extra>", "special": true, "normalized": false},
            "261": {"content": "<tool>", "special": false, "normalized": false},
            "999": {"content": "<gap>", "special": true},
            "5": {"content": "<|im_start|>", "special": true},
        },
        "bos_token": "<s>", "eos_token": null, "pad_token": {"content": "</s>", "special": true},
        "additional_special_tokens": ["<tool>", "<none such>"],
    });
    let map = json!({"eos_token": "</s>", "unk_token": "<extra>", "bos_token": "</s>"});
    let folder = folder(&[
        ("tokenizer.json", tokenizer_json(&SPECIAL, None)),
        ("tokenizer_config.json", config.to_string()),
        ("special_tokens_map.json", map.to_string()),
    ]);
    let tokenizer = Tokenizer::load_dir(folder.path()).unwrap();
    assert_eq!(tokenizer.table_size(), 262);
    assert_eq!(tokenizer.encode("<extra><tool>", false, true).unwrap(), [260, 261]);
    assert!(tokenizer.is_special(260) && tokenizer.is_special(261));
    // What contradicts the vocabulary is left out.
    assert_eq!(tokenizer.encode("<gap>", false, true).unwrap().len(), 5);
    assert_eq!(tokenizer.token_id("<|im_start|>"), Some(258));
    // A null says that there is none; an absent key leaves it to the other file.
    assert_eq!((tokenizer.bos(), tokenizer.pad(), tokenizer.unk()), (Some(256), Some(257), Some(260)));
    assert!(tokenizer.eos().is_empty());
}

#[test]
fn tokenizer_json_decides_what_surrounds_a_text() {
    for (before, ids) in [(Some("<s>"), vec![256, 97]), (None, vec![97])] {
        for add_bos in [true, false] {
            let config = json!({"bos_token": "<s>", "add_bos_token": add_bos}).to_string();
            let folder = folder(&[
                ("tokenizer.json", tokenizer_json(&SPECIAL, before)),
                ("tokenizer_config.json", config),
            ]);
            assert_eq!(Tokenizer::load_dir(folder.path()).unwrap().encode("a", true, true).unwrap(), ids);
        }
    }
}

#[test]
fn truncation_and_padding_never_touch_a_prompt() {
    let text = changed(|file| {
        file["truncation"] =
            json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        file["padding"] = json!({"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"});
    });
    let tokenizer = Tokenizer::from_json(&text).unwrap();
    assert_eq!(tokenizer.encode("abcd", true, true).unwrap(), [97, 98, 99, 100]);
}

#[test]
fn one_tokenizer_serves_many_threads() {
    let tokenizer = Tokenizer::bytes().unwrap();
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let tokenizer = &tokenizer;
            scope.spawn(move || {
                let mut random = text_support::Random::new(seed);
                for _ in 0..200 {
                    let text: String = (0..50).filter_map(|_| char::from_u32(random.below(0x3000))).collect();
                    let ids = tokenizer.encode(&text, false, random.below(2) == 0).unwrap();
                    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
                }
            });
        }
    });
}

/// What such a tokenizer.json says at load or at encoding `text`.
fn fault_of(json: &str, text: &str) -> mlxgen::base::Error {
    let outcome = Tokenizer::from_json(json).and_then(|tokenizer| tokenizer.encode(text, true, true));
    outcome.map(|ids| panic!("encoded to {} ids", ids.len())).unwrap_err()
}

#[test]
fn contradictions_are_told_in_the_words_of_the_file() {
    let evil =
        json!({"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": false});
    let missing = json!({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<nope>", "type_id": 0}}],
        "pair": [], "special_tokens": {}});
    let nested = json!({"type": "Sequence", "processors": [missing.clone()]});
    let many = json!({"type": "TemplateProcessing", "single": vec![json!({"Sequence": {"id": "A", "type_id": 0}}); 1000],
        "pair": [], "special_tokens": {}});
    let long = "x".repeat(1 << 20);
    let cases: Vec<(String, &str, &str)> = vec![
        (
            changed(|f| f["post_processor"] = missing),
            "post_processor",
            "\"<nope>\", which it does not define",
        ),
        (changed(|f| f["post_processor"] = nested), "post_processor", "<nope>"),
        (changed(|f| f["post_processor"] = many), "post_processor", "1000 times"),
        (changed(|f| f["pre_tokenizer"] = evil), "tokenizer", "too many steps"),
        (changed(|f| f["model"]["merges"] = json!([["a", "b"]])), "model.merges", "not in the vocabulary"),
        (changed(|f| f["model"]["merges"] = json!(["a  b"])), "model.merges", "two tokens to merge"),
        (changed(|f| f["model"]["merges"] = json!([long])), "model.merges", "…"),
        (
            changed(|f| {
                f["model"]["continuing_subword_prefix"] = json!("####");
                f["model"]["merges"] = json!([["a", "b"]]);
            }),
            "model.merges",
            "continuing_subword_prefix",
        ),
        (changed(|f| f["model"]["merges"] = json!([["ć", "ć"]])), "model", "contradict"),
    ];
    for (json, field, part) in cases {
        let error = fault_of(&json, &format!("{}!", "a".repeat(40)));
        assert_eq!(error.code(), Code::InvalidModel, "{error}");
        assert_eq!(error.detail().field.as_deref(), Some(field), "{error}");
        assert!(error.message().contains(part), "{part}: {error}");
        assert!(error.message().len() < 500 && !error.message().contains("slice"), "{error}");
    }
    let deep = fault_of(&format!("{{\"normalizer\": {}", "[".repeat(1000)), "");
    assert!(deep.message().contains("nested too deeply"), "{deep}");
}

#[test]
fn normalizers_cannot_multiply_a_text_nor_state_sizes_that_they_lack() {
    let step = json!({"type": "Replace", "pattern": {"Regex": "x|y"}, "content": "x".repeat(100)});
    let chain = json!({"type": "Sequence", "normalizers": vec![step.clone(); 4]});
    let decoders = json!({"type": "Sequence", "decoders": vec![step.clone(); 4]});
    // Three bytes after the size, and a size of four billion.
    let table = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
    let cases = [
        ("normalizer", changed(|f| f["normalizer"] = chain), "4096 times"),
        ("decoder", changed(|f| f["decoder"] = decoders), "4096 times"),
        ("normalizer", changed(|f| f["normalizer"] = table("/////wAAAAA=")), "damaged"),
        ("normalizer", changed(|f| f["normalizer"] = table("AAAA")), "damaged"),
        ("normalizer", changed(|f| f["normalizer"] = table("")), "damaged"),
    ];
    for (field, json, part) in cases {
        let error = fault_of(&json, "xxx");
        assert_eq!(
            (error.code(), error.detail().field.as_deref()),
            (Code::InvalidModel, Some(field)),
            "{error}"
        );
        assert!(error.message().contains(part), "{error}");
    }
    let one = Tokenizer::from_json(&changed(|f| f["normalizer"] = step)).unwrap();
    assert_eq!(one.encode("x", true, true).unwrap().len(), 100);
}

#[test]
fn files_that_are_no_files_are_refused() {
    let config = json!({"bos_token": "<s>"}).to_string();
    for name in [
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "config.json",
        "generation_config.json",
        "chat_template.jinja",
        "chat_template.json",
        "additional_chat_templates/other.jinja",
    ] {
        let all =
            [("tokenizer.json", tokenizer_json(&SPECIAL, None)), ("tokenizer_config.json", config.clone())];
        let folder = folder(&all);
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _ = std::fs::remove_file(&path);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = Tokenizer::load_dir(folder.path()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel, "{name}: {error}");
        assert_eq!(error.detail().file.as_deref(), Some(path.as_path()));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        assert_eq!(Tokenizer::load_dir(folder.path()).unwrap_err().code(), Code::InvalidModel);
    }
    assert_eq!(Tokenizer::load_json("/dev/zero".as_ref()).unwrap_err().code(), Code::InvalidModel);
    for text in ["null", "[]", "3", "\"text\""] {
        let folder = folder(&[
            ("tokenizer.json", tokenizer_json(&SPECIAL, None)),
            ("tokenizer_config.json", text.into()),
        ]);
        assert_eq!(Tokenizer::load_dir(folder.path()).unwrap_err().code(), Code::InvalidModel, "{text}");
    }
}

#[test]
fn what_nests_is_read_with_little_stack() {
    let pattern = |depth: usize| format!("{}a{}", "(?:".repeat(depth), ")".repeat(depth));
    let split = |depth| {
        json!({"type": "Split", "pattern": {"Regex": pattern(depth)}, "behavior": "Isolated",
        "invert": false})
    };
    let mut nested = json!({"type": "Lowercase"});
    for _ in 0..30 {
        nested = json!({"type": "Sequence", "normalizers": [nested]});
    }
    let files = [
        changed(|f| f["pre_tokenizer"] = split(4000)),
        changed(|f| f["pre_tokenizer"] = split(100_000)),
        changed(|f| f["normalizer"] = nested),
    ];
    let small = std::thread::Builder::new().stack_size(256 << 10);
    // That they come back is what matters.
    let read = small.spawn(move || files.iter().for_each(|file| drop(Tokenizer::from_json(file))));
    read.unwrap().join().unwrap();
}
