//! A tokenizer from the files of a model folder.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Tokenizer;
use super::added;
use super::chat::ChatTemplates;
use super::decode::Pipeline;
use super::parse;
use super::tokenizer::Roles;
use crate::base::quote::{brief, json_fault};
use crate::base::{Error, Result, json, small_file};

/// The largest tokenizer.json in bytes: ten times the largest known ones.
const MOST_BYTES: u64 = 512 << 20;

/// The same for the files beside it.
const MOST_SIDE_BYTES: u64 = 64 << 20;

/// Names of special tokens that tokenizer_config.json may give and templates may use.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl Tokenizer {
    /// Reads `tokenizer.json` and, where they exist, `tokenizer_config.json`,
    /// `special_tokens_map.json`, `config.json`, `generation_config.json` and the chat templates.
    ///
    /// What is put around a text is what `tokenizer.json` says; `add_bos_token` in the configuration
    /// is for tokenizers without that file.
    ///
    /// NOT_FOUND without `tokenizer.json`, and for any of them that is a link to nothing; INVALID_MODEL naming the file, and the byte if known,
    /// for one that cannot be understood; UNSUPPORTED for a decoder that cannot stream. A chat
    /// template is not compiled here: a broken one does not stop a load.
    pub fn load_dir(folder: &Path) -> Result<Tokenizer> {
        let files = Files::read(folder)?;
        let path = folder.join("tokenizer.json");
        let bytes = small_file::read(&path, MOST_BYTES)?;
        let mut inner = parse::tokenizer(&path, &bytes)?;
        drop(bytes);
        added::declare(&mut inner, &files.config, &files.names())
            .map_err(|e| e.file(folder.join("tokenizer_config.json")))?;
        let roles = files.roles(&inner)?;
        let pipeline = pipeline(&inner).map_err(|e| e.file(&path))?;
        Tokenizer::assemble(inner, pipeline, roles, files.templates).map_err(|e| e.file(&path))
    }

    /// A tokenizer from a `tokenizer.json` alone.
    pub fn load_json(path: &Path) -> Result<Tokenizer> {
        let json = small_file::read(path, MOST_BYTES)?;
        let json = String::from_utf8(json).map_err(|fault| {
            let position = fault.utf8_error().valid_up_to();
            Error::invalid_model(format!("{} is not UTF-8", path.display()))
                .file(path)
                .position(position as u64)
        })?;
        Tokenizer::from_json(&json).map_err(|error| error.file(path))
    }

    /// A tokenizer from the text of a `tokenizer.json` alone.
    pub fn from_json(json: &str) -> Result<Tokenizer> {
        let inner = parse::tokenizer(Path::new("tokenizer.json"), json.as_bytes())?;
        let pipeline = pipeline(&inner)?;
        Tokenizer::assemble(inner, pipeline, Roles::default(), ChatTemplates::default())
    }
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
            roles.eos.extend(self.ids(map, "eos_token_id", file)?);
        }
        if roles.bos.is_none() {
            let mut ids = self.ids(Some(&self.model), "bos_token_id", "config.json")?;
            ids.extend(self.ids(Some(&self.generation), "bos_token_id", "generation_config.json")?);
            roles.bos = ids.first().copied();
        }
        roles.names = names;
        Ok(roles)
    }
}

impl Files {
    /// The token ids under `field` of one of the files.
    fn ids(&self, map: Option<&Map<String, Value>>, field: &str, file: &str) -> Result<Vec<u32>> {
        let Some(value) = map.and_then(|map| map.get(field)) else { return Ok(Vec::new()) };
        json::token_ids(value).map_err(|found| {
            let found = brief(&found.to_string());
            Error::invalid_model(format!("{field} is {found}, neither a token id nor a list of token ids"))
                .file(self.folder.join(file))
                .field(field)
        })
    }
}

/// The object in a JSON file; empty if there is no such file.
fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let Some(bytes) = read_optional(path)? else {
        return Ok(Map::new());
    };
    let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
    match json::value(text) {
        Ok(value) => json::object(value)
            .ok_or_else(|| Error::invalid_model(format!("{}: not a JSON object", path.display())).file(path)),
        Err(fault) => {
            let error =
                Error::invalid_model(format!("{}: {}", path.display(), json_fault(&fault))).file(path);
            let before = (bytes.len() - text.len()) as u64;
            Err(match json::position(text, &fault) {
                Some(position) => error.position(before + position),
                None => error,
            })
        }
    }
}

/// The bytes of a file; none if there is no such file.
pub(super) fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    small_file::optional(path, small_file::read(path, MOST_SIDE_BYTES))
}
