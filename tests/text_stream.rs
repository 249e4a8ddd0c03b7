//! The streaming decoder: whole characters, each once, nothing that a whole decode would not say.
//! Cases B25, B26, B28, B29.

mod text_support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use mlxgen::text::{StreamDecoder, Tokenizer};
use serde_json::{Value, json};
use text_support::{Random, byte_char};

const MARK: char = char::REPLACEMENT_CHARACTER;

/// The text of each id, and last what `finish` gives.
fn segments(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> Vec<String> {
    let mut stream = StreamDecoder::new(tokenizer.clone(), false);
    let mut segments: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
    segments.push(stream.finish());
    segments
}

/// After each id, what was said so far and what an end there would add are a whole decode.
fn check_every_prefix(tokenizer: &Arc<Tokenizer>, ids: &[u32]) {
    for skip_special in [false, true] {
        let mut stream = StreamDecoder::new(tokenizer.clone(), skip_special);
        let mut said = String::new();
        for (index, id) in ids.iter().enumerate() {
            stream.push_to(*id, &mut said);
            let whole = tokenizer.decode(&ids[..=index], skip_special).unwrap();
            assert_eq!(said.clone() + &stream.clone().finish(), whole, "{:?}", &ids[..=index]);
            let marks = |text: &str| text.chars().filter(|c| *c == MARK).count();
            assert!(marks(&said) <= marks(&whole));
        }
        said += &stream.finish();
        assert_eq!(said, tokenizer.decode(ids, skip_special).unwrap());
        // A finished stream begins anew.
        assert_eq!(ids.iter().map(|id| stream.push(*id)).collect::<String>() + &stream.finish(), said);
    }
}

fn bytes_of(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// A SentencePiece-like tokenizer: `<0x00>` to `<0xFF>` are ids 0 to 255, then the pieces.
fn pieces(pieces: &[&str], pre_tokenizer: &Value, decoder: &Value) -> Arc<Tokenizer> {
    let mut vocabulary: serde_json::Map<String, Value> =
        (0..=255u32).map(|byte| (format!("<0x{byte:02X}>"), json!(byte))).collect();
    for (index, piece) in pieces.iter().enumerate() {
        vocabulary.insert((*piece).to_owned(), json!(256 + index));
    }
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": pre_tokenizer, "post_processor": null, "decoder": decoder,
        "model": {"type": "BPE", "byte_fallback": true, "vocab": vocabulary, "merges": []},
    });
    Arc::new(Tokenizer::from_json(&file.to_string()).unwrap())
}

fn sentence_piece_decoder(strip: usize) -> Value {
    json!({"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": strip, "stop": 0},
    ]})
}

#[test]
fn b25_characters_that_are_split_over_tokens_come_whole() {
    let tokenizer = Arc::new(Tokenizer::bytes().unwrap());
    for text in ["ďáb", "🙂", "日本 語", "👨‍👩‍👧", "a🙂b", "𝔸ß≠€"] {
        let ids = bytes_of(text);
        let said = segments(&tokenizer, &ids);
        assert_eq!(said.concat(), text);
        assert!(said.iter().all(|segment| !segment.contains(MARK)), "{said:?}");
        check_every_prefix(&tokenizer, &ids);
    }
    assert_eq!(segments(&tokenizer, &bytes_of("🙂")), ["", "", "", "🙂", ""]);
    // One that is cut off is marked once, at the end.
    assert_eq!(segments(&tokenizer, &bytes_of("🙂")[..3]), ["", "", "", "\u{fffd}"]);
}

#[test]
fn b26_combining_marks_repeat_nothing() {
    let tokenizer = Arc::new(Tokenizer::bytes().unwrap());
    for text in
        ["e\u{301}x", "🏳️\u{200d}🌈", "🇫🇷🇩🇪", "\u{1100}\u{1161}\u{11a8}", "नि", "x\u{300}\u{301}\u{302}y"]
    {
        let said = segments(&tokenizer, &bytes_of(text));
        assert_eq!(said.concat(), text);
        // Each segment is one whole character or nothing, so each was said once.
        assert!(said.iter().all(|segment| segment.chars().count() <= 1));
        assert_eq!(said.iter().filter(|segment| !segment.is_empty()).count(), text.chars().count());
    }
}

#[test]
fn b28_the_leading_space_is_cut_once() {
    let tokenizer = pieces(&["▁", "▁lead", "▁x", "x"], &Value::Null, &sentence_piece_decoder(1));
    for (ids, text) in
        [(vec![256, 257, 258], " lead x"), (vec![256, 256, 259], " x"), (vec![257, 258], "lead x")]
    {
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        assert_eq!(segments(&tokenizer, &ids).concat(), text);
        check_every_prefix(&tokenizer, &ids);
    }
}

#[test]
fn b29_byte_level_vocabulary_behind_a_sentence_piece_decoder() {
    let byte_level =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let letters: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
    let tokenizer = pieces(&letters, &byte_level, &sentence_piece_decoder(1));
    for text in ["a b c", " leading", "日本 語 🙂"] {
        let ids = tokenizer.encode(text, false, true).unwrap();
        assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
        assert_eq!(segments(&tokenizer, &ids).concat(), text);
    }
}

#[test]
fn b29_bytes_join_to_characters() {
    let tokenizer = pieces(&["▁lead", "x"], &Value::Null, &sentence_piece_decoder(0));
    // The character comes once, with the fourth byte.
    assert_eq!(segments(&tokenizer, &[0xF0, 0x9F, 0x99, 0x82]), ["", "", "", "🙂", ""]);
    // Cut off: as many marks as bytes, in the stream and in the whole.
    let cut = [0xF0, 0x9F, 256];
    assert_eq!(segments(&tokenizer, &cut), ["", "", "\u{fffd}\u{fffd} lead", ""]);
    assert_eq!(tokenizer.decode(&cut, false).unwrap(), "\u{fffd}\u{fffd} lead");
    assert_eq!(segments(&tokenizer, &[0x0A, 257]), ["\n", "x", ""]);
    // Characters that were complete stay, whatever follows.
    let mixed = [0xF0, 0x9F, 0x99, 0x82, 0x80, 0xC3, 257];
    assert_eq!(segments(&tokenizer, &mixed).concat(), "🙂\u{fffd}\u{fffd}x");
    for ids in [&cut[..], &mixed, &[0xF0, 0x9F, 0x99, 0xE6, 0x97, 0xA5, 0xFF]] {
        check_every_prefix(&tokenizer, ids);
    }
}

#[test]
fn random_ids_stream_as_they_decode() {
    let mut random = Random::new(25);
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
    let both_ends = json!({"type": "Sequence", "decoders": [
        {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": "x", "start": 2, "stop": 3},
    ]});
    let words = ["▁", "▁lead", "x", "xx", "é", "日本", "▁x▁", "e\u{301}"];
    let tokenizers = [
        Arc::new(Tokenizer::bytes().unwrap()),
        pieces(&words, &Value::Null, &sentence_piece_decoder(1)),
        pieces(&words, &metaspace, &metaspace),
        pieces(&words, &Value::Null, &both_ends),
        pieces(&words, &Value::Null, &Value::Null),
    ];
    for tokenizer in &tokenizers {
        for _ in 0..150 {
            let count = random.below(24) as usize;
            let mut ids: Vec<u32> = Vec::new();
            while ids.len() < count {
                match random.below(3) {
                    0 => ids.push(random.below(tokenizer.table_size())),
                    1 => ids.push(256 + random.below(tokenizer.table_size() - 256)),
                    _ => ids.extend("🙂é日\u{301}".bytes().skip(random.below(8) as usize).map(u32::from)),
                }
            }
            check_every_prefix(tokenizer, &ids);
        }
    }
}

#[test]
fn an_id_costs_the_same_wherever_it_stands() {
    let tokenizer = pieces(&["▁lead"], &Value::Null, &sentence_piece_decoder(1));
    let began = Instant::now();
    let mut stream = StreamDecoder::new(tokenizer, false);
    let mut said = 0;
    for index in 0..300_000 {
        said += stream.push(if index % 3 == 0 { 256 } else { 0xC3 + 4 * (index % 2) }).len();
    }
    assert!(said > 300_000);
    // Anything that grows with the text would take hours.
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
}
