//! What the tests of the engine share. They run on the fake back end.
#![allow(dead_code, reason = "each test binary uses a part")]

pub mod child;
pub mod tiny_llama;

use std::path::Path;
use std::time::Duration;

use mlxgen::base::event::{EndEvent, EndReason, Event, TextEvent};
use mlxgen::base::options::{EngineOptions, GenerateOptions, ModelOptions};
use mlxgen::base::{Error, Result};
use mlxgen::engine::{CacheSet, Engine, Model, Stream};
use tempfile::TempDir;

/// Longer than anything here takes, also on a machine whose cores many programs share; a test that waits so long has
/// failed.
pub const LONG: Duration = Duration::from_secs(200);

/// A folder with a `fake-model.json`.
pub struct FakeModel(TempDir);

impl FakeModel {
    pub fn new(json: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("fake-model.json"), json).unwrap();
        FakeModel(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

pub fn engine() -> Engine {
    Engine::new(&EngineOptions::default()).unwrap()
}

pub fn try_load(engine: &Engine, json: &str) -> Result<Model> {
    let model = FakeModel::new(json);
    Model::load(engine, model.path(), &ModelOptions::default(), None, &mut |_| {})
}

/// A model described by `json`, on an engine of its own.
pub fn load(json: &str) -> Model {
    try_load(&engine(), json).unwrap()
}

/// Everything that a stream said.
#[derive(Debug, Default)]
pub struct Said {
    pub events: Vec<Event>,
    pub text: String,
    pub tokens: Vec<u32>,
    pub end: Option<EndEvent>,
    pub error: Option<Error>,
}

impl Said {
    pub fn reason(&self) -> EndReason {
        self.end.as_ref().unwrap_or_else(|| panic!("no end: {:?}", self.error)).reason
    }

    pub fn texts(&self) -> impl Iterator<Item = &TextEvent> {
        self.events.iter().filter_map(|event| match event {
            Event::Text(text) => Some(text),
            _ => None,
        })
    }
}

/// Takes events until DONE.
pub fn drain(stream: &Stream) -> Said {
    let mut said = Said::default();
    loop {
        match stream.next(Some(LONG)) {
            Ok(None) => return said,
            Ok(Some(event)) => {
                match &event {
                    Event::Text(text) => {
                        said.text += &text.text;
                        said.tokens.extend(&text.tokens);
                    }
                    Event::End(end) => said.end = Some(end.clone()),
                    Event::Prefill { .. } => {}
                }
                said.events.push(event);
            }
            Err(error) => {
                assert!(said.error.is_none(), "a second error: {error}");
                said.error = Some(error);
            }
        }
    }
}

/// Takes events up to and including the first with a token.
pub fn first_token(stream: &Stream) {
    loop {
        if let Event::Text(_) = stream.next(Some(LONG)).unwrap().expect("a token") {
            return;
        }
    }
}

pub fn most(tokens: u64) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(tokens), ..GenerateOptions::default() }
}

/// Runs a whole generation and closes it.
pub fn generate(model: &Model, cache: Option<&CacheSet>, prompt: &[u32], options: &GenerateOptions) -> Said {
    let stream = Stream::open(model, cache, prompt, options).unwrap();
    let said = drain(&stream);
    stream.close().unwrap();
    said
}

/// `count` ids of bytes, the same for the same `salt`.
pub fn prompt(count: usize, salt: usize) -> Vec<u32> {
    (0..count).map(|at| ((at * 7 + salt * 13 + at / 11) % 256) as u32).collect()
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !done() {
        assert!(start.elapsed() < LONG, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
