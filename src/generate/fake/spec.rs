//! `fake-model.json`: a model of the fake back end, described by a file.

use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::base::{Code, Error, Result, small_file};

/// The file's name in a model folder. The path of a model may also be that of the file.
pub const FILE_NAME: &str = "fake-model.json";

/// All keys are optional; an unknown key makes the file invalid.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FakeSpec {
    pub vocabulary: u32,
    pub layers: u32,
    pub context_limit: u64,
    pub prefill_chunk: u32,
    /// Ids that end a generation. The model never chooses one of them unless its script says so.
    pub eos: Vec<u32>,
    /// Whether the model has the tokenizer of bytes, `Tokenizer::bytes`.
    pub tokenizer: bool,
    /// Bytes of weights. They are really held.
    pub weight_bytes: u64,
    /// Bytes of a piece of weights.
    pub piece_bytes: u64,
    /// What the model says that its loading needs at once; absent: `weight_bytes`.
    pub load_bytes: Option<u64>,
    /// Bytes that a cache says it takes for each token.
    pub cache_bytes_per_token: u64,
    /// Transient bytes for each token of a forward.
    pub workspace_bytes_per_token: u64,
    /// Time that the reading of a piece takes.
    pub piece_micros: u64,
    /// Time that a prefill takes for each token.
    pub prefill_micros_per_token: u64,
    /// Time from the dispatch of a decode step to its token.
    pub step_micros: u64,
    /// Whether a cache can forget its latest tokens.
    pub trimmable: bool,
    /// What every generation says; absent: tokens that depend on all tokens before.
    pub script: Option<Script>,
    pub faults: Vec<Fault>,
}

/// A generation said in advance, and then the first end-of-sequence id for ever.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Script {
    /// One token for each byte.
    Text(String),
    Ids(Vec<u32>),
}

/// Makes a call of the back end fail.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub at: Place,
    /// So many calls succeed first.
    #[serde(default)]
    pub after: u64,
    /// So many calls fail then; absent: all.
    #[serde(default = "forever")]
    pub count: u64,
    /// The status code of the error; absent: the call panics.
    #[serde(default)]
    pub code: Option<i32>,
}

fn forever() -> u64 {
    u64::MAX
}

/// The calls that can be made to fail. A drop can only panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Opening the model; any thread.
    Open,
    /// Reading a piece; the thread that loads.
    Piece,
    /// Making the receiver of the pieces.
    Builder,
    Accept,
    Finish,
    NewState,
    Prefill,
    Logits,
    Step,
    /// Waiting for a token.
    Read,
    Truncate,
    Fork,
    DropState,
    DropModel,
}

impl Default for FakeSpec {
    fn default() -> Self {
        FakeSpec {
            vocabulary: 260,
            layers: 2,
            context_limit: 4096,
            prefill_chunk: 64,
            eos: vec![257, 259],
            tokenizer: true,
            weight_bytes: 64 << 10,
            piece_bytes: 16 << 10,
            load_bytes: None,
            cache_bytes_per_token: 64,
            workspace_bytes_per_token: 0,
            piece_micros: 0,
            prefill_micros_per_token: 0,
            step_micros: 0,
            trimmable: true,
            script: None,
            faults: Vec::new(),
        }
    }
}

impl FakeSpec {
    /// Reads a model folder or a `fake-model.json`.
    pub fn read(path: &Path) -> Result<Self> {
        let file = if path.is_dir() { path.join(FILE_NAME) } else { path.to_owned() };
        let text = small_file::read(&file, 16 << 20)?;
        let spec: FakeSpec = serde_json::from_slice(&text)
            .map_err(|error| Error::invalid_model(format!("{}: {error}", file.display())).file(&file))?;
        spec.check().map_err(|error| error.file(&file))?;
        Ok(spec)
    }

    fn check(&self) -> Result<()> {
        let bad = |field: &str, rule: &str| {
            Err(Error::invalid_model(format!("{field} must be {rule}")).field(field))
        };
        if self.vocabulary == 0 {
            return bad("vocabulary", "at least 1");
        }
        if self.tokenizer && self.vocabulary < 260 {
            return bad("vocabulary", "at least 260 with the tokenizer of bytes");
        }
        if self.piece_bytes == 0 {
            return bad("piece_bytes", "at least 1");
        }
        if self.eos.iter().chain(&self.script_ids()).any(|id| *id >= self.vocabulary) {
            return bad("eos and script", "inside the vocabulary");
        }
        if self.script.is_some() && self.eos.is_empty() {
            return bad("eos", "there when there is a script");
        }
        if self
            .faults
            .iter()
            .filter_map(|fault| fault.code)
            .any(|code| code == 0 || Code::from_number(code).is_none())
        {
            return bad("faults", "known status codes other than 0");
        }
        Ok(())
    }

    pub fn script_ids(&self) -> Vec<u32> {
        match &self.script {
            None => Vec::new(),
            Some(Script::Text(text)) => text.bytes().map(u32::from).collect(),
            Some(Script::Ids(ids)) => ids.clone(),
        }
    }

    /// The token that the script says at a step, if there is a script.
    pub fn scripted(&self, step: u64) -> Option<u32> {
        self.script.as_ref()?;
        let at = usize::try_from(step).ok()?;
        self.script_ids().get(at).copied().or_else(|| self.eos.first().copied())
    }

    pub fn piece_time(&self) -> Duration {
        Duration::from_micros(self.piece_micros)
    }

    pub fn step_time(&self) -> Duration {
        Duration::from_micros(self.step_micros)
    }
}
