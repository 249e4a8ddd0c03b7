//! Which templates a model has, and one of them made ready.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use super::environment::{self, Compiled};
use crate::base::quote::{brief, json_fault, quote};
use crate::base::{Error, Result, json, small_file};
use crate::text::folder::read_optional;

/// The chat templates of a model, by name. They are compiled when first used.
#[derive(Debug, Default)]
pub struct ChatTemplates {
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    name: String,
    source: Arc<str>,
    compiled: OnceLock<Result<Arc<Compiled>>>,
}

/// A template and its source.
pub(super) struct Template {
    compiled: Arc<Compiled>,
    source: Arc<str>,
}

impl Template {
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    pub(super) fn render(&self, variables: Map<String, Value>) -> Result<String> {
        self.compiled.render(variables)
    }
}

impl ChatTemplates {
    /// One template, named `default`.
    pub(crate) fn single(source: &str) -> Self {
        Self::from_parts(Some(source.to_owned()), Vec::new())
    }

    /// A default template and named ones; empty ones count as absent.
    pub(crate) fn from_parts(default: Option<String>, named: Vec<(String, String)>) -> Self {
        let mut templates = ChatTemplates::default();
        for (name, source) in default.map(|source| ("default".to_owned(), source)).into_iter().chain(named) {
            templates.add(name, &source);
        }
        templates
    }

    /// The templates of a model folder: `chat_template.jinja` and `additional_chat_templates/`,
    /// else `chat_template.json`, else the field of tokenizer_config.json.
    pub(crate) fn read(folder: &Path, field: Option<&Value>) -> Result<Self> {
        let mut templates = ChatTemplates::default();
        let path = folder.join("chat_template.jinja");
        if let Some(bytes) = read_optional(&path)? {
            templates.add("default".into(), &utf8(&path, bytes)?);
        }
        for path in additional(&folder.join("additional_chat_templates"))? {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            if let Some(bytes) = read_optional(&path)? {
                templates.add(name, &utf8(&path, bytes)?);
            }
        }
        if templates.is_empty() {
            let path = folder.join("chat_template.json");
            if let Some(bytes) = read_optional(&path)? {
                let bad = |reason: String| {
                    Error::invalid_model(format!("{}: {reason}", path.display())).file(&path)
                };
                let value = json::value(&bytes)
                    .map_err(|fault| json::at_fault(bad(json_fault(&fault)), &bytes, &fault))?;
                templates.add_value(value.get("chat_template").unwrap_or(&value)).map_err(bad)?;
            }
        }
        if let (true, Some(field)) = (templates.is_empty(), field) {
            let path = folder.join("tokenizer_config.json");
            templates.add_value(field).map_err(|reason| {
                Error::invalid_model(format!("{}: {reason}", path.display())).file(&path)
            })?;
        }
        Ok(templates)
    }

    /// A string, a list of `{"name", "template"}`, or an object of templates by name.
    fn add_value(&mut self, value: &Value) -> Result<(), String> {
        let bad = || "chat_template is neither a text nor a list of named texts".to_owned();
        match value {
            Value::Null => {}
            Value::String(source) => self.add("default".into(), source),
            Value::Array(items) => {
                for item in items {
                    let name = item.get("name").and_then(Value::as_str).ok_or_else(bad)?;
                    let source = item.get("template").and_then(Value::as_str).ok_or_else(bad)?;
                    self.add(name.to_owned(), source);
                }
            }
            Value::Object(map) if json::odd_number(value).is_none() => {
                for (name, source) in map {
                    self.add(name.clone(), source.as_str().ok_or_else(bad)?);
                }
            }
            _ => return Err(bad()),
        }
        Ok(())
    }

    fn add(&mut self, name: String, source: &str) {
        // Python reads text files with all line ends as \n; a mark at the beginning is no text.
        let source = source.strip_prefix('\u{feff}').unwrap_or(source);
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        if source.is_empty() {
            return;
        }
        self.entries.retain(|entry| entry.name != name);
        self.entries.push(Entry { name, source: source.into(), compiled: OnceLock::new() });
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the default template is there and can be compiled.
    pub fn has_default(&self) -> bool {
        self.pick(None, false).is_ok()
    }

    /// Names of the templates; a single one is usually `default`.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// A template's source.
    pub fn source(&self, name: &str) -> Option<&str> {
        self.entries.iter().find(|entry| entry.name == name).map(|entry| &*entry.source)
    }

    pub(super) fn pick(&self, name: Option<&str>, with_tools: bool) -> Result<Template> {
        if self.is_empty() {
            return Err(Error::not_found("the model has no chat template").field("chat_template"));
        }
        let find = |name: &str| self.entries.iter().find(|entry| entry.name == name);
        let entry = match name {
            Some(name) => find(name),
            None => with_tools.then(|| find("tool_use")).flatten().or_else(|| find("default")),
        };
        let Some(entry) = entry else {
            let names: Vec<&str> = self.names().collect();
            let wanted = name.unwrap_or("default");
            return Err(Error::not_found(format!(
                "the model has no chat template {}; it has {}",
                quote(wanted),
                brief(&names.join(", "))
            ))
            .field("template_name"));
        };
        let compiled = entry.compiled.get_or_init(|| environment::compile(&entry.source).map(Arc::new));
        Ok(Template { compiled: compiled.clone()?, source: entry.source.clone() })
    }
}

/// The templates in a folder, in the order of their names; none where there is no such folder.
fn additional(folder: &Path) -> Result<Vec<PathBuf>> {
    let files = match std::fs::read_dir(folder) {
        Ok(files) => files,
        Err(_) if small_file::is_absent(folder) => return Ok(Vec::new()),
        Err(source) if source.kind() == ErrorKind::NotADirectory => return Ok(Vec::new()),
        Err(source) => return Err(Error::io(folder, "list", &source)),
    };
    let mut paths = Vec::new();
    for file in files {
        let path = file.map_err(|source| Error::io(folder, "list", &source))?.path();
        if path.extension().is_some_and(|extension| extension == "jinja") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn utf8(path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).map_err(|e| {
        Error::invalid_model(format!("{}: not UTF-8", path.display()))
            .file(path)
            .position(e.utf8_error().valid_up_to() as u64)
    })
}
