//! Streams: what they say, when they end, what the cache holds afterwards.
#![cfg(all(feature = "fake", not(feature = "mlx")))]

mod support;

use mlxgen::base::Code;
use mlxgen::base::event::{EndReason, Event, ReuseStop};
use mlxgen::base::options::{CacheOptions, GenerateOptions, ModelOptions, Sampling};
use mlxgen::engine::{CacheSet, Model, Stream};
use support::*;

#[test]
fn a_script_is_said_and_ends_with_eos() {
    let model = load(r#"{"script": {"text": "Paris is it — ça va."}}"#);
    let said = generate(&model, None, &prompt(200, 0), &GenerateOptions::default());
    assert_eq!(said.text, "Paris is it — ça va.");
    assert_eq!(said.reason(), EndReason::Eos);
    let end = said.end.unwrap();
    assert_eq!(end.usage.prompt_tokens, 200);
    assert_eq!(end.usage.generated_tokens, said.tokens.len() as u64 + 1, "EOS counts as generated");
    assert!(end.timings.first_token >= end.timings.prefill && end.timings.prefill > 0.0);
    let done: Vec<_> = said
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Prefill { done, total, reused, reuse_stop } => {
                assert_eq!((*total, *reused, *reuse_stop), (200, 0, ReuseStop::NothingCached));
                Some(*done)
            }
            _ => None,
        })
        .collect();
    assert_eq!(done, [0, 64, 128, 192, 199, 200]);
}

#[test]
fn a_stream_equals_appended_tokens_and_their_scores() {
    let model = load("{}");
    let prompt = prompt(150, 1);
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    cache.append(&prompt, None).unwrap();
    let mut by_hand = Vec::new();
    for _ in 0..40 {
        let logits = cache.logits().unwrap();
        let best = (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
        by_hand.push(best);
        cache.append(&[best], None).unwrap();
    }
    assert_eq!(generate(&model, None, &prompt, &most(40)).tokens, by_hand);
}

#[test]
fn b58_exactly_as_many_tokens_as_asked_for() {
    let model = load("{}");
    for most_tokens in [0, 1, 2, 5] {
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let said = generate(&model, Some(&cache), &prompt(70, 2), &most(most_tokens));
        assert_eq!(said.tokens.len() as u64, most_tokens);
        assert_eq!(said.reason(), EndReason::MaxTokens);
        assert_eq!(said.end.as_ref().unwrap().usage.generated_tokens, most_tokens);
        let kept = [prompt(70, 2).as_slice(), &said.tokens[..said.tokens.len().saturating_sub(1)]].concat();
        assert_eq!(cache.tokens().unwrap(), kept, "{most_tokens}");
    }
}

#[test]
fn b54_b55_every_eos_ends_and_only_generated_tokens_count() {
    // 257 and 259 are the model's; the prompt contains them too.
    let mut prompt = prompt(20, 3);
    prompt.extend([257, 259, 257, 5]);
    let ended = |script: &str, options: &GenerateOptions| {
        let model = load(script);
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let said = generate(&model, Some(&cache), &prompt, options);
        let kept = cache.token_count().unwrap() - prompt.len();
        let generated = said.end.as_ref().unwrap().usage.generated_tokens;
        assert_eq!(kept as u64, generated.max(1) - 1);
        (said.text.clone(), said.tokens.len(), generated, said.reason())
    };
    let plain = GenerateOptions::default();
    assert_eq!(
        ended(r#"{"script": {"ids": [65, 66, 259, 67]}}"#, &plain),
        ("AB".into(), 2, 3, EndReason::Eos)
    );
    assert_eq!(ended(r#"{"script": {"ids": [65, 257, 67]}}"#, &plain), ("A".into(), 1, 2, EndReason::Eos));
    assert_eq!(ended(r#"{"script": {"ids": [259]}}"#, &plain), (String::new(), 0, 1, EndReason::Eos));
    let extra = GenerateOptions { extra_eos: vec![67, 67], ..plain.clone() };
    assert_eq!(ended(r#"{"script": {"ids": [65, 67, 66]}}"#, &extra), ("A".into(), 1, 2, EndReason::Eos));
    let ignoring = GenerateOptions { ignore_eos: true, max_tokens: Some(4), ..extra };
    let script = r#"{"script": {"ids": [65, 257, 66]}}"#;
    assert_eq!(ended(script, &ignoring), ("AB".into(), 4, 4, EndReason::MaxTokens), "specials give no text");
    let script = r#"{"script": {"ids": [65, 257, 67, 66]}}"#;
    assert_eq!(ended(script, &ignoring), ("A".into(), 2, 3, EndReason::Eos), "extras count all the same");
}

#[test]
fn b56_stop_texts_do_not_leak() {
    let model = load(r#"{"script": {"text": "The quick brown fox"}}"#);
    let stopped = |stops: &[&str]| {
        let stop = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let options = GenerateOptions { stop, ..GenerateOptions::default() };
        let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
        let said = generate(&model, Some(&cache), &prompt(5, 0), &options);
        let end = said.end.clone().unwrap();
        assert_eq!(cache.token_count().unwrap() as u64, 5 + end.usage.generated_tokens - 1);
        (said.text, end.stop, end.reason)
    };
    let brown = ("The quick br".to_owned(), Some("own fox".to_owned()), EndReason::StopString);
    assert_eq!(stopped(&["own fox"]), brown);
    assert_eq!(stopped(&["\nUser:", "own fox"]), brown);
    assert_eq!(stopped(&["b"]), ("The quick ".into(), Some("b".into()), EndReason::StopString));
    assert_eq!(
        stopped(&["foxes"]),
        ("The quick brown fox".into(), None, EndReason::Eos),
        "held text is flushed"
    );
    let empty = GenerateOptions { stop: vec!["a".into(), String::new()], ..GenerateOptions::default() };
    let error = Stream::open(&model, None, &[1], &empty).err().unwrap();
    assert_eq!((error.code(), error.detail().position), (Code::InvalidArgument, Some(1)));
}

#[test]
fn a_cut_off_character_is_flushed_as_a_mark() {
    let model = load(r#"{"script": {"ids": [65, 226, 130]}}"#);
    let said = generate(&model, None, &[1], &GenerateOptions::default());
    assert_eq!(said.text, "A\u{FFFD}");
    let last = said.texts().last().unwrap();
    assert!(last.tokens.is_empty() && last.text == "\u{FFFD}");
}

#[test]
fn b42_ids_outside_the_vocabulary_are_refused_by_position() {
    let model = load(r#"{"vocabulary": 64, "tokenizer": false, "eos": [0]}"#);
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    for wrong in [64, u32::MAX, 2_147_483_648] {
        let refused = [
            Stream::open(&model, None, &[1, wrong], &most(1)).err().unwrap(),
            cache.append(&[1, wrong], None).unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.code(), Code::InvalidArgument);
            assert_eq!(error.detail().field.as_deref(), Some("tokens"));
            assert_eq!(error.detail().position, Some(1));
        }
    }
    let wrong_eos = GenerateOptions { extra_eos: vec![3, 64], ..most(1) };
    let error = Stream::open(&model, None, &[1], &wrong_eos).err().unwrap();
    assert_eq!((error.detail().field.as_deref(), error.detail().position), (Some("extra_eos"), Some(1)));
    assert_eq!(cache.token_count().unwrap(), 0);
    let said = generate(&model, Some(&cache), &[63], &most(3));
    assert_eq!((said.tokens.len(), said.text.as_str()), (3, ""), "without a tokenizer there are ids only");
}

#[test]
fn b148_nothing_to_start_from_is_refused() {
    let model = load("{}");
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    assert_eq!(Stream::open(&model, None, &[], &most(1)).err().unwrap().code(), Code::InvalidArgument);
    assert_eq!(cache.append(&[], None).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(cache.logits().unwrap_err().code(), Code::WrongState);
    // Everything of the prompt is cached: its last token is forwarded again.
    let prompt = prompt(90, 4);
    let cold = generate(&model, Some(&cache), &prompt, &most(8)).tokens;
    cache.truncate(90).unwrap();
    let warm = generate(&model, Some(&cache), &prompt, &most(8));
    assert_eq!(warm.tokens, cold);
    assert!(matches!(
        warm.events[0],
        Event::Prefill { done: 89, total: 90, reused: 89, reuse_stop: ReuseStop::PromptCovered }
    ));
    assert_eq!(warm.end.unwrap().usage.reused_tokens, 89);
}

#[test]
fn b150_the_context_limit_is_never_passed() {
    let model = load(r#"{"context_limit": 32}"#);
    let refused = Stream::open(&model, None, &prompt(33, 0), &most(1)).err().unwrap();
    assert_eq!(refused.code(), Code::ContextFull);
    let said = generate(&model, None, &prompt(30, 0), &most(10));
    assert_eq!((said.tokens.len(), said.reason()), (2, EndReason::ContextFull));
    let said = generate(&model, None, &prompt(30, 0), &most(2));
    assert_eq!((said.tokens.len(), said.reason()), (2, EndReason::MaxTokens));
    let said = generate(&model, None, &prompt(32, 0), &GenerateOptions::default());
    assert_eq!((said.tokens.len(), said.reason()), (0, EndReason::ContextFull));

    // A caller's limits: of the cache set and of the model options.
    let small = CacheSet::new(&model, &CacheOptions { capacity: 16, ..CacheOptions::default() }).unwrap();
    assert_eq!(small.info().unwrap().capacity, 16);
    let said = generate(&model, Some(&small), &prompt(10, 0), &GenerateOptions::default());
    assert_eq!((said.tokens.len(), said.reason()), (6, EndReason::ContextFull));
    assert_eq!(small.append(&[1, 2], None).unwrap_err().code(), Code::ContextFull);
    assert_eq!(small.token_count().unwrap(), 15);
    small.append(&[1], None).unwrap();
    assert_eq!(small.append(&[1], None).unwrap_err().code(), Code::ContextFull);
    let large = CacheSet::new(&model, &CacheOptions { capacity: 1000, ..CacheOptions::default() }).unwrap();
    assert_eq!(large.info().unwrap().capacity, 32);
    let files = FakeModel::new(r#"{"context_limit": 32}"#);
    let options = ModelOptions { context_limit: 16, ..ModelOptions::default() };
    let model = Model::load(model.engine(), files.path(), &options, None, &mut |_| {}).unwrap();
    assert_eq!(Stream::open(&model, None, &prompt(17, 0), &most(1)).err().unwrap().code(), Code::ContextFull);
}

#[test]
fn reuse_is_reported_and_changes_no_token() {
    let model = load("{}");
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    let first = generate(&model, Some(&cache), &prompt(100, 5), &most(20));
    // A next turn: everything so far and more.
    let turn = [prompt(100, 5), first.tokens.clone(), prompt(30, 6)].concat();
    let warm = generate(&model, Some(&cache), &turn, &most(20));
    assert_eq!(warm.tokens, generate(&model, None, &turn, &most(20)).tokens);
    let reuse = |said: &Said| match said.events[0] {
        Event::Prefill { reused, reuse_stop, .. } => (reused, reuse_stop),
        _ => panic!("no prefill event first"),
    };
    assert_eq!(reuse(&warm), (119, ReuseStop::CacheExhausted));
    // Another branch.
    let branch = [&turn[..60], &prompt(10, 7)].concat();
    let said = generate(&model, Some(&cache), &branch, &most(20));
    assert_eq!(reuse(&said), (60, ReuseStop::Diverged));
    assert_eq!(said.tokens, generate(&model, None, &branch, &most(20)).tokens);
}

#[test]
fn a_cache_that_cannot_be_cut_is_extended_or_refused_by_layer() {
    let model = load(r#"{"trimmable": false}"#);
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    let first = generate(&model, Some(&cache), &prompt(40, 0), &most(10));
    let kept = [prompt(40, 0).as_slice(), &first.tokens[..9]].concat();
    assert_eq!(cache.tokens().unwrap(), kept, "nothing ran ahead");
    let turn = [kept.clone(), vec![first.tokens[9]], prompt(10, 1)].concat();
    assert_eq!(
        generate(&model, Some(&cache), &turn, &most(5)).tokens,
        generate(&model, None, &turn, &most(5)).tokens
    );
    let before = cache.tokens().unwrap();
    let refused = Stream::open(&model, Some(&cache), &prompt(20, 3), &most(5)).err().unwrap();
    assert_eq!((refused.code(), refused.detail().field.as_deref()), (Code::WrongState, Some("layer")));
    assert_eq!(cache.truncate(3).unwrap_err().code(), Code::WrongState);
    assert_eq!(cache.tokens().unwrap(), before);
    cache.append(&[1, 2], None).unwrap();
    // A cancelled one as well: the rule about the last token holds without cutting.
    let cancel = mlxgen::base::CancelToken::try_new().unwrap();
    let options = GenerateOptions { cancel: Some(cancel.clone()), ..GenerateOptions::default() };
    let fresh = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    let stream = Stream::open(&model, Some(&fresh), &prompt(40, 0), &options).unwrap();
    first_token(&stream);
    cancel.request();
    let said = drain(&stream);
    assert_eq!(said.reason(), EndReason::Cancelled);
    let generated = said.end.unwrap().usage.generated_tokens as usize;
    assert_eq!(fresh.token_count().unwrap(), 40 + generated - 1);
}

#[test]
fn a_lent_cache_set_is_readable_and_busy() {
    let model = load(r#"{"step_micros": 2000}"#);
    let cache = CacheSet::new(&model, &CacheOptions::default()).unwrap();
    let stream = Stream::open(&model, Some(&cache), &prompt(70, 0), &GenerateOptions::default()).unwrap();
    first_token(&stream);
    for code in [
        cache.append(&[1], None).unwrap_err().code(),
        cache.truncate(1).unwrap_err().code(),
        cache.fork().err().unwrap().code(),
        cache.logits().unwrap_err().code(),
        Stream::open(&model, Some(&cache), &[1], &most(1)).err().unwrap().code(),
    ] {
        assert_eq!(code, Code::Busy);
    }
    assert!(cache.token_count().unwrap() >= 70);
    assert_eq!(cache.tokens().unwrap()[..70], prompt(70, 0));
    assert_eq!(cache.info().unwrap().layers.len(), 2);
    stream.close().unwrap();
    stream.close().unwrap();
    assert_eq!(stream.next(None).unwrap_err().code(), Code::WrongState);
    let kept = cache.tokens().unwrap();
    let fork = cache.fork().unwrap();
    assert_eq!(cache.truncate(10).unwrap(), kept.len() - 10);
    assert_eq!(cache.truncate(11).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(fork.tokens().unwrap(), kept);
    fork.append(&[1], None).unwrap();
    assert_eq!(fork.fork().unwrap().logits().unwrap(), fork.logits().unwrap());
    fork.truncate(5).unwrap();
    assert_eq!(fork.logits().unwrap_err().code(), Code::WrongState);
    let other = load("{}");
    assert_eq!(
        Stream::open(&other, Some(&cache), &[1], &most(1)).err().unwrap().code(),
        Code::InvalidArgument
    );
}

#[test]
fn a_consumer_that_rests_stops_its_row_alone() {
    let model = load("{}");
    let resting = Stream::open(&model, None, &prompt(10, 0), &most(1000)).unwrap();
    let others = generate(&model, None, &prompt(10, 0), &most(1000));
    // The resting row got no further than its queue allows.
    wait_until("the end of the other's cache", || {
        model.engine().memory().unwrap().caches < (10 + 64 + 1 + 256) * 64
    });
    let said = drain(&resting);
    assert_eq!(said.tokens.len(), 1000);
    assert_eq!(said.tokens, others.tokens);
}

#[test]
fn sampling_depends_on_the_seed_alone() {
    let model = load("{}");
    let drawn = |seed| {
        let sampling = Sampling { temperature: 8.0, seed, ..Sampling::default() };
        generate(&model, None, &prompt(10, 0), &GenerateOptions { sampling, ..most(30) }).tokens
    };
    assert_eq!(drawn(1), drawn(1));
    assert_ne!(drawn(1), drawn(2));
    let wrong = Sampling { temperature: f32::NAN, ..Sampling::default() };
    let error =
        Stream::open(&model, None, &[1], &GenerateOptions { sampling: wrong, ..most(1) }).err().unwrap();
    assert_eq!(error.detail().field.as_deref(), Some("temperature"));
}

#[test]
fn logprobs_come_with_their_token() {
    let model = load("{}");
    let options = GenerateOptions { logprobs: true, top_logprobs: 3, ..most(5) };
    for text in generate(&model, None, &prompt(10, 0), &options).texts() {
        assert_eq!(text.logprobs.len(), text.tokens.len());
        let logprobs = &text.logprobs[0];
        assert_eq!(logprobs.top.len(), 3);
        assert_eq!(logprobs.top[0], (text.tokens[0], logprobs.chosen), "greedy takes the likeliest");
        assert!(logprobs.top.is_sorted_by(|a, b| a.1 >= b.1));
    }
    assert!(generate(&model, None, &[1], &most(2)).texts().all(|text| text.logprobs.is_empty()));
    let too_many = GenerateOptions { top_logprobs: 21, ..most(1) };
    assert_eq!(Stream::open(&model, None, &[1], &too_many).err().unwrap().code(), Code::InvalidArgument);
}
