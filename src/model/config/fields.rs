//! Reading a JSON object whose values are not to be trusted.
//!
//! `null` and a missing key are the same everywhere. Whole numbers may stand where fractions are
//! meant, and the other way round if nothing is lost.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::base::quote::{json_fault, name as name_of};
use crate::base::{Error, Result, json};
use crate::model::weights::read_small;

/// Bytes of a configuration file.
const FILE_LIMIT: u64 = 16 << 20;

/// A configuration file's outermost object.
pub(super) struct JsonFile {
    path: PathBuf,
    object: Map<String, Value>,
}

impl JsonFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let text = read_small(path, FILE_LIMIT)?;
        let bad = |what: String| Error::invalid_model(format!("{} {what}", path.display())).file(path);
        match json::value(&text) {
            Ok(value) => match json::object(value) {
                Some(object) => Ok(JsonFile { path: path.to_owned(), object }),
                None => Err(bad("does not hold a JSON object".to_owned())),
            },
            Err(fault) => {
                let what = if fault.to_string().contains("recursion limit") {
                    format!("is {}", json_fault(&fault))
                } else {
                    format!("is not valid JSON (line {}, column {})", fault.line(), fault.column())
                };
                Err(json::at_fault(bad(what), &text, &fault))
            }
        }
    }

    pub(super) fn fields(&self) -> Fields<'_> {
        Fields::new(&self.path, String::new(), &self.object)
    }
}

/// An object of a configuration file and the way to it.
pub struct Fields<'a> {
    path: &'a Path,
    prefix: String,
    object: &'a Map<String, Value>,
    /// Names that were asked for.
    asked: RefCell<BTreeSet<String>>,
}

impl<'a> Fields<'a> {
    fn new(path: &'a Path, prefix: String, object: &'a Map<String, Value>) -> Self {
        Fields { path, prefix, object, asked: RefCell::default() }
    }

    /// The value, unless it is missing or `null`.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        if !self.asked.borrow().contains(name) {
            self.asked.borrow_mut().insert(name.to_owned());
        }
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// Whether anyone has asked for this field, so that it is understood.
    pub(super) fn was_asked(&self, name: &str) -> bool {
        self.asked.borrow().contains(name)
    }

    /// The names that were asked for.
    #[cfg(test)]
    pub(super) fn asked(&self) -> Vec<String> {
        self.asked.borrow().iter().cloned().collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.object.iter().filter(|(_, value)| !value.is_null())
    }

    fn field_name(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}.{name}", self.prefix) }
    }

    /// INVALID_MODEL: "`field` `what`".
    pub fn invalid(&self, name: &str, what: impl AsRef<str>) -> Error {
        let field = self.field_name(name);
        Error::invalid_model(format!("{} in {} {}", name_of(&field), self.path.display(), what.as_ref()))
            .file(self.path)
            .field(field)
    }

    /// UNSUPPORTED: "`field` `what`, which is not supported".
    pub fn unsupported(&self, name: &str, what: impl AsRef<str>) -> Error {
        let field = self.field_name(name);
        Error::unsupported(format!(
            "{} in {} {}, which is not supported",
            name_of(&field),
            self.path.display(),
            what.as_ref()
        ))
        .file(self.path)
        .field(field)
    }

    fn wrong(&self, name: &str, found: &Value, wanted: &str) -> Error {
        self.invalid(name, format!("is {}; it must be {wanted}", brief(found)))
    }

    pub fn section(&self, name: &str) -> Result<Option<Fields<'a>>> {
        match self.get(name) {
            None => Ok(None),
            Some(found @ Value::Object(object)) if json::odd_number(found).is_none() => {
                Ok(Some(Fields::new(self.path, self.field_name(name), object)))
            }
            Some(other) => Err(self.wrong(name, other, "an object")),
        }
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, other, "a text")),
        }
    }

    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(name, other, "true or false")),
        }
    }

    pub fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match value.as_f64() {
            Some(number) if number.is_finite() => Ok(Some(number)),
            _ => Err(self.wrong(name, value, "a number")),
        }
    }

    /// A count or size.
    pub fn size(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        match json::whole(value).and_then(|number| usize::try_from(number).ok()) {
            Some(size) => Ok(Some(size)),
            None => Err(self.wrong(name, value, "a whole number of at least 0")),
        }
    }

    pub fn required_size(&self, name: &str) -> Result<usize> {
        self.size(name)?.ok_or_else(|| self.invalid(name, "is missing"))
    }

    /// One token id or a list of them, as [`json::token_ids`] reads it.
    pub fn token_ids(&self, name: &str) -> Result<Vec<u32>> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        json::token_ids(value).map_err(|found| self.wrong(name, found, "a token id or a list of token ids"))
    }
}

/// A value in a message.
pub(super) fn brief(value: &Value) -> String {
    match value {
        Value::Object(_) => json::odd_number(value).unwrap_or("an object").to_owned(),
        Value::Array(_) => "a list".to_owned(),
        short => {
            let text = short.to_string();
            if text.len() > 60 { "a long text".to_owned() } else { text }
        }
    }
}
