//! What loads, what is refused and what a model tells of itself.

use super::tiny::{
    CONTEXT, HEAD_DIM, HIDDEN, KV_HEADS, LAYERS, Tiny, VOCABULARY, exact, load, new_state, open,
};
use super::tiny::{prompt, read};
use crate::base::options::{ComputeType, ModelOptions, Numerics};
use crate::base::{Code, Error};
use crate::generate::runtime::ModelSource;

fn refused(tiny: &Tiny) -> Error {
    match open(tiny.write().path(), &exact()) {
        Ok(_) => panic!("the model was accepted"),
        Err(error) => error,
    }
}

#[test]
fn b01_the_head_of_a_tied_model_is_ignored() {
    let mut tiny = Tiny::new(true, false);
    let expected = tiny.scores(&prompt(5));
    tiny.tensors.insert("lm_head.weight".into(), (vec![VOCABULARY, HIDDEN], vec![1.0; VOCABULARY * HIDDEN]));
    let model = load(tiny.write().path(), &exact()).unwrap();
    let found = read(&model, new_state(&model).as_mut(), &prompt(5), 64);
    assert!(found.iter().zip(expected).all(|(found, expected)| (f64::from(*found) - expected).abs() < 2e-4));
}

#[test]
fn stored_frequencies_are_ignored() {
    let mut tiny = Tiny::new(false, false);
    let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    tiny.tensors.insert(name.into(), (vec![HEAD_DIM / 2], vec![9.0; HEAD_DIM / 2]));
    load(tiny.write().path(), &exact()).unwrap();
}

#[test]
fn missing_surplus_and_misshapen_tensors_are_named() {
    for name in ["model.layers.1.self_attn.k_proj.weight", "model.norm.weight", "lm_head.weight"] {
        let mut tiny = Tiny::new(false, false);
        let (shape, values) = tiny.tensors.remove(name).unwrap();
        let error = refused(&tiny);
        assert_eq!((error.code(), error.detail().tensor.as_deref()), (Code::InvalidModel, Some(name)));
        let wider = [vec![shape[0] * 2], shape[1..].to_vec()].concat();
        tiny.tensors.insert(name.into(), (wider, [values.clone(), values].concat()));
        let error = refused(&tiny);
        assert_eq!((error.code(), error.detail().tensor.as_deref()), (Code::InvalidModel, Some(name)));
    }
    for name in ["model.layers.3.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias", "other"] {
        let mut tiny = Tiny::new(false, false);
        tiny.tensors.insert(name.into(), (vec![32], vec![0.0; 32]));
        let error = refused(&tiny);
        assert_eq!((error.code(), error.detail().tensor.as_deref()), (Code::InvalidModel, Some(name)));
    }
}

/// As an interrupted download leaves them in the hub's cache: each is there, and what it holds is not known.
#[cfg(unix)]
#[test]
fn links_to_nothing_are_named_and_not_taken_for_absent_files() {
    for name in [
        "config.json",
        "generation_config.json",
        "hf_quant_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "model-2.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "chat_template.json",
        "additional_chat_templates",
        "additional_chat_templates/tools.jinja",
    ] {
        let folder = Tiny::new(false, false).write();
        open(folder.path(), &exact()).unwrap();
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        if path.exists() {
            std::fs::remove_file(&path).unwrap();
        }
        std::os::unix::fs::symlink("../blobs/lost", &path).unwrap();
        let Err(error) = open(folder.path(), &exact()) else { panic!("{name} was left out") };
        let code = if name == "hf_quant_config.json" { Code::Unsupported } else { Code::NotFound };
        assert_eq!((error.code(), error.detail().file.as_deref()), (code, Some(path.as_path())), "{error}");
    }
}

#[test]
fn an_unknown_type_is_unsupported() {
    let folder = Tiny::new(false, false).write();
    let config = Tiny::new(false, false).config().replace("\"llama\"", "\"alpaca\"");
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let Err(error) = open(folder.path(), &exact()) else { panic!("the model was accepted") };
    assert_eq!((error.code(), error.detail().field.as_deref()), (Code::Unsupported, Some("model_type")));
}

#[test]
fn a_model_describes_itself() {
    let tiny = Tiny::new(false, true);
    let folder = tiny.write();
    let source = open(folder.path(), &exact()).unwrap();
    let info = source.info();
    assert_eq!(
        (info.family.as_str(), info.format.as_str(), info.numerics.as_str()),
        ("llama", "safetensors", "exact")
    );
    assert_eq!(
        (info.vocabulary as usize, info.layers as usize, info.hidden as usize),
        (VOCABULARY, LAYERS, HIDDEN)
    );
    assert_eq!((info.context_limit, info.prefill_chunk), (CONTEXT as u64, 2048));
    assert_eq!((info.eos.as_slice(), info.bos), (&[2, 5][..], Some(1)));
    let elements: usize = tiny.tensors.values().map(|(_, values)| values.len()).sum();
    assert_eq!((info.parameters, info.weight_bytes), (elements as u64, 4 * elements as u64));
    assert_eq!(info.cache_bytes_per_token as usize, 2 * 4 * LAYERS * KV_HEADS * HEAD_DIM);
    assert!(source.tokenizer().is_none() && !info.has_chat_template);
    assert!(source.load_bytes() >= info.weight_bytes);
}

#[test]
fn the_compute_type_is_the_files_or_the_one_asked_for() {
    let folder = Tiny::new(false, false).write();
    let told = |numerics: Numerics, compute_type: ComputeType| {
        let options = ModelOptions { numerics, compute_type, ..ModelOptions::default() };
        open(folder.path(), &options).unwrap().info().compute_type.clone()
    };
    assert_eq!(told(Numerics::Exact, ComputeType::Auto), "float32");
    assert_eq!(told(Numerics::Exact, ComputeType::Bfloat16), "bfloat16");
    assert_eq!(told(Numerics::Fast, ComputeType::Float16), "float16");
    let options = ModelOptions { compute_type: ComputeType::Bfloat16, ..exact() };
    let model = load(folder.path(), &options).unwrap();
    let found = read(&model, new_state(&model).as_mut(), &prompt(8), 64);
    let expected = Tiny::new(false, false).scores(&prompt(8));
    let worst = found.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
    assert!(worst > 1e-4 && worst < 0.5, "{worst}");
}

/// What the process has open or mapped of a folder.
#[cfg(target_os = "linux")]
fn held(folder: &std::path::Path) -> Vec<String> {
    let name = folder.to_str().unwrap();
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let open = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let open = open.map(|path| path.to_string_lossy().into_owned());
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    open.chain(maps.lines().map(str::to_owned)).filter(|text| text.contains(name)).collect()
}

#[cfg(target_os = "linux")]
#[test]
fn b21_a_loaded_model_holds_no_file_and_outlives_what_becomes_of_it() {
    let tiny = Tiny::new(false, false);
    for options in [ModelOptions::default(), exact()] {
        let folder = tiny.write();
        let model = load(folder.path(), &options).unwrap();
        assert_eq!(held(folder.path()), Vec::<String>::new());
        let tokens = prompt(20);
        let before = read(&model, new_state(&model).as_mut(), &tokens, 64);
        let weights = folder.path().join("model.safetensors");
        let size = std::fs::metadata(&weights).unwrap().len();
        std::fs::write(&weights, vec![0; size as usize]).unwrap();
        assert_eq!(read(&model, new_state(&model).as_mut(), &tokens, 64), before, "overwritten");
        std::fs::write(&weights, [1; 100]).unwrap();
        drop(folder);
        assert_eq!(read(&model, new_state(&model).as_mut(), &tokens, 64), before, "shortened and removed");
    }
}

/// Between the opening and the end of a load: written to, it fails; replaced by another file, it is what it was.
#[cfg(target_os = "linux")]
#[test]
fn b21_a_file_that_changes_during_a_load_gives_an_error_or_what_it_held() {
    let folder = Tiny::new(false, false).write();
    let weights = folder.path().join("model.safetensors");
    let mut source = open(folder.path(), &exact()).unwrap();
    let good = std::fs::read(&weights).unwrap();
    let mut changed = good.clone();
    changed[good.len() - 100..].fill(0x3f);
    std::fs::write(&weights, &changed).unwrap();
    let error = loop {
        match source.next_piece() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the load has not noticed"),
            Err(error) => break error,
        }
    };
    assert_eq!((error.code(), error.detail().file.as_deref()), (Code::InvalidModel, Some(weights.as_path())));
    drop(source);
    assert_eq!(held(folder.path()), Vec::<String>::new(), "after a failure");

    std::fs::write(&weights, &good).unwrap();
    let mut replaced = open(folder.path(), &exact()).unwrap();
    let other = folder.path().join("other");
    std::fs::write(&other, &changed).unwrap();
    std::fs::rename(&other, &weights).unwrap();
    let mut bytes = Vec::new();
    while let Some(piece) = replaced.next_piece().unwrap() {
        bytes.extend(piece.bytes);
    }
    assert!(!bytes.windows(100).any(|window| window == [0x3f; 100]));
}
