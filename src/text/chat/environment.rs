//! The Jinja environment that transformers gives to chat templates.

use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use serde_json::Map;

use super::{generation, library, methods, python};
use crate::base::{Error, Result};

const NAME: &str = "chat_template";

/// A template that is ready to run.
#[derive(Debug)]
pub(super) struct Compiled {
    environment: Environment<'static>,
}

/// INVALID_MODEL with the line for a template that cannot be understood.
pub(super) fn compile(source: &str) -> Result<Compiled> {
    let mut environment = Environment::new();
    environment.set_syntax(
        minijinja::syntax::SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| Error::internal(e.to_string()))?,
    );
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, _state, value| {
        let text = python::str(value)?;
        out.write_str(&text).map_err(minijinja::Error::from)
    });
    library::add_to(&mut environment);
    environment.add_template_owned(NAME, generation::as_scopes(source)).map_err(|e| fault(&e))?;
    Ok(Compiled { environment })
}

impl Compiled {
    /// INVALID_ARGUMENT with the template's line where it refuses its input.
    pub(super) fn render(&self, variables: Map<String, serde_json::Value>) -> Result<String> {
        let template = self.environment.get_template(NAME).map_err(|e| fault(&e))?;
        template.render(value(&serde_json::Value::Object(variables))).map_err(|e| fault(&e))
    }
}

/// The template's view of JSON.
pub(super) fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(flag) => Value::from(*flag),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Array(items) => items.iter().map(value).collect(),
        serde_json::Value::Object(map) => {
            Value::from_pairs(map.iter().map(|(key, item)| (key.as_str(), value(item))))
        }
    }
}

/// The library's error for one of the template engine's.
fn fault(error: &minijinja::Error) -> Error {
    let reason = match error.detail() {
        Some(detail) => detail.to_owned(),
        None => error.kind().to_string(),
    };
    let place = error.line().map(|line| format!(" at line {line}")).unwrap_or_default();
    let message = format!("the chat template failed{place}: {reason}");
    let error = match error.kind() {
        ErrorKind::SyntaxError | ErrorKind::BadEscape => Error::invalid_model(message),
        ErrorKind::UnknownFilter | ErrorKind::UnknownTest | ErrorKind::UnknownFunction => {
            Error::unsupported(message)
        }
        _ => Error::invalid_argument(message),
    };
    error.field("chat_template")
}
