//! A tokenizer from the files of a model folder.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::AddedToken;

use super::Tokenizer;
use super::chat::ChatTemplates;
use super::decode::Pipeline;
use super::eos::add_ids;
use super::guard::unpanicked;
use super::tokenizer::Roles;
use crate::base::{Error, Result};

/// Names of special tokens that tokenizer_config.json may give and templates may use.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl Tokenizer {
    /// Reads `tokenizer.json` and, where they exist, `tokenizer_config.json`,
    /// `special_tokens_map.json`, `config.json`, `generation_config.json` and the chat templates.
    ///
    /// NOT_FOUND without `tokenizer.json`; INVALID_MODEL naming the file, and the byte if known,
    /// for one that cannot be understood; UNSUPPORTED for a decoder that cannot stream. A chat
    /// template is not compiled here: a broken one does not stop a load.
    pub fn load_dir(folder: &Path) -> Result<Tokenizer> {
        let files = Files::read(folder)?;
        let path = folder.join("tokenizer.json");
        let bytes = fs::read(&path).map_err(|e| Error::io(&path, "read", &e))?;
        let mut inner = parse(&path, &bytes)?;
        drop(bytes);
        add_tokens(&mut inner, &files).map_err(|e| e.file(folder.join("tokenizer_config.json")))?;
        let roles = files.roles(&inner)?;
        let pipeline = pipeline(&inner).map_err(|e| e.file(&path))?;
        Tokenizer::assemble(inner, pipeline, roles, files.templates).map_err(|e| e.file(&path))
    }

    /// A tokenizer from the text of a `tokenizer.json` alone.
    pub fn from_json(json: &str) -> Result<Tokenizer> {
        let inner = parse(Path::new("tokenizer.json"), json.as_bytes())?;
        let pipeline = pipeline(&inner)?;
        Tokenizer::assemble(inner, pipeline, Roles::default(), ChatTemplates::default())
    }
}

fn parse(path: &Path, bytes: &[u8]) -> Result<tokenizers::Tokenizer> {
    let invalid = |reason: String| Error::invalid_model(format!("{}: {reason}", path.display())).file(path);
    let parsed = unpanicked(|| tokenizers::Tokenizer::from_bytes(bytes));
    let mut inner = match parsed {
        Ok(Ok(inner)) => inner,
        Ok(Err(error)) => {
            return Err(match error.downcast_ref::<serde_json::Error>() {
                Some(json) => at_line(invalid(json.to_string()), bytes, json),
                None => invalid(error.to_string()),
            });
        }
        Err(panic) => return Err(invalid(panic)),
    };
    // The crate keeps what it cached for a tokenizer until the thread ends, even when the tokenizer is gone.
    let mut model = inner.get_model().clone();
    if matches!(model, tokenizers::ModelWrapper::BPE(_)) {
        model.resize_cache(0);
        inner.with_model(model);
    }
    Ok(inner)
}

/// Adds the byte offset of a JSON fault.
fn at_line(error: Error, bytes: &[u8], fault: &serde_json::Error) -> Error {
    if fault.line() == 0 {
        return error;
    }
    let before: usize = bytes.split_inclusive(|b| *b == b'\n').take(fault.line() - 1).map(<[u8]>::len).sum();
    error.position((before + fault.column().saturating_sub(1)) as u64)
}

/// A decoder shaped for SentencePiece behind a byte-level pre-tokenizer is a known mistake of
/// converted models: the vocabulary is byte-level, and so is its decoding.
fn pipeline(inner: &tokenizers::Tokenizer) -> Result<Pipeline> {
    let byte_level = |part: Option<Value>| part.is_some_and(|part| mentions_byte_level(&part));
    let encodes_bytes = byte_level(inner.get_pre_tokenizer().and_then(|p| serde_json::to_value(p).ok()))
        || byte_level(inner.get_normalizer().and_then(|n| serde_json::to_value(n).ok()));
    let decodes_bytes = byte_level(inner.get_decoder().and_then(|d| serde_json::to_value(d).ok()));
    if encodes_bytes && !decodes_bytes {
        return Ok(Pipeline::byte_level());
    }
    Pipeline::new(inner.get_decoder())
}

fn mentions_byte_level(part: &Value) -> bool {
    match part {
        Value::Object(map) => {
            map.get("type").is_some_and(|t| t == "ByteLevel") || map.values().any(mentions_byte_level)
        }
        Value::Array(items) => items.iter().any(mentions_byte_level),
        _ => false,
    }
}

/// Tokens that only tokenizer_config.json declares, and properties that it changes.
fn add_tokens(inner: &mut tokenizers::Tokenizer, files: &Files) -> Result<()> {
    let mut tokens: Vec<(u32, AddedToken)> = Vec::new();
    for (id, token) in
        files.config.get("added_tokens_decoder").and_then(Value::as_object).into_iter().flatten()
    {
        let bad = || {
            Error::invalid_model(format!("added_tokens_decoder has an entry {id:?} that is not a token"))
                .field("added_tokens_decoder")
        };
        let id: u32 = id.parse().map_err(|_| bad())?;
        let content = token.get("content").and_then(Value::as_str).ok_or_else(bad)?;
        let flag = |name: &str| token.get(name).and_then(Value::as_bool).unwrap_or(false);
        let special = flag("special");
        let normalized = token.get("normalized").and_then(Value::as_bool).unwrap_or(!special);
        let token = AddedToken::from(content, special)
            .normalized(normalized)
            .lstrip(flag("lstrip"))
            .rstrip(flag("rstrip"))
            .single_word(flag("single_word"));
        tokens.push((id, token));
    }
    tokens.sort_by_key(|(id, _)| *id);
    let known = inner.get_added_vocabulary().get_added_tokens_decoder();
    tokens.retain(|(id, token)| known.get(id) != Some(token));
    for (_, text) in files.names() {
        let declared =
            known.values().any(|t| t.content == text) || tokens.iter().any(|(_, t)| t.content == text);
        if let (false, Some(id)) = (declared, inner.token_to_id(&text)) {
            tokens.push((id, AddedToken::from(text, true)));
        }
    }
    for (id, token) in tokens {
        let content = token.content.clone();
        let added = unpanicked(|| inner.add_tokens([token]));
        let added = added.map_err(Error::invalid_model)?;
        added.map_err(|e| Error::invalid_model(format!("cannot add the token {content:?}: {e}")))?;
        if inner.token_to_id(&content) != Some(id) {
            return Err(Error::invalid_model(format!(
                "added_tokens_decoder gives the token {content:?} the id {id}, which the vocabulary contradicts"
            ))
            .field("added_tokens_decoder"));
        }
    }
    Ok(())
}

/// The JSON files beside tokenizer.json; those that do not exist are empty.
struct Files {
    folder: PathBuf,
    config: Map<String, Value>,
    special: Map<String, Value>,
    model: Map<String, Value>,
    generation: Map<String, Value>,
    templates: ChatTemplates,
}

impl Files {
    fn read(folder: &Path) -> Result<Self> {
        let config = read_object(&folder.join("tokenizer_config.json"))?;
        let templates = ChatTemplates::read(folder, config.get("chat_template"))?;
        Ok(Files {
            folder: folder.to_owned(),
            special: read_object(&folder.join("special_tokens_map.json"))?,
            model: read_object(&folder.join("config.json"))?,
            generation: read_object(&folder.join("generation_config.json"))?,
            config,
            templates,
        })
    }

    /// The named special tokens; tokenizer_config.json wins.
    fn names(&self) -> Vec<(String, String)> {
        let text = |map: &Map<String, Value>, name: &str| match map.get(name)? {
            Value::String(text) => Some(text.clone()),
            token => token.get("content")?.as_str().map(str::to_owned),
        };
        NAMES
            .iter()
            .filter_map(|name| {
                let text = match self.config.get(*name) {
                    // An explicit null says that there is none.
                    Some(Value::Null) => None,
                    Some(_) => text(&self.config, name),
                    None => text(&self.special, name),
                };
                Some(((*name).to_owned(), text?))
            })
            .collect()
    }

    fn roles(&self, inner: &tokenizers::Tokenizer) -> Result<Roles> {
        let names = self.names();
        let id = |name: &str| {
            names.iter().find(|(known, _)| known == name).and_then(|(_, text)| inner.token_to_id(text))
        };
        let mut roles =
            Roles { bos: id("bos_token"), unk: id("unk_token"), pad: id("pad_token"), ..Roles::default() };
        roles.eos.extend(id("eos_token"));
        let nested = self.model.get("text_config").and_then(Value::as_object);
        let sources = [
            (Some(&self.model), "config.json"),
            (nested, "config.json"),
            (Some(&self.generation), "generation_config.json"),
            (Some(&self.config), "tokenizer_config.json"),
        ];
        for (map, file) in sources {
            if let Some(value) = map.and_then(|map| map.get("eos_token_id")) {
                add_ids(&mut roles.eos, value, "eos_token_id").map_err(|e| e.file(self.folder.join(file)))?;
            }
        }
        if roles.bos.is_none() {
            let numbers =
                [&self.model, &self.generation].map(|map| map.get("bos_token_id").and_then(Value::as_u64));
            roles.bos = numbers.into_iter().flatten().find_map(|id| u32::try_from(id).ok());
        }
        roles.names = names;
        Ok(roles)
    }
}

/// The object in a JSON file; empty if there is no such file.
fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let Some(bytes) = read_optional(path)? else {
        return Ok(Map::new());
    };
    let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
    match serde_json::from_slice(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::invalid_model(format!("{}: not a JSON object", path.display())).file(path)),
        Err(fault) => {
            let error = Error::invalid_model(format!("{}: {fault}", path.display())).file(path);
            Err(at_line(error, text, &fault))
        }
    }
}

/// The bytes of a file; none if there is no such file.
pub(super) fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(path, "read", &error)),
    }
}
