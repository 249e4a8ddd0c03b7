//! The Jinja environment that transformers gives to chat templates.

use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use serde_json::Map;

use super::{generation, library, methods, python};
use crate::base::{Code, Error, Result, deep};

const NAME: &str = "chat_template";

/// The longest source in bytes: ten times what the longest known templates have.
const MOST_SOURCE: usize = 256 << 10;

/// The most code in one tag, in bytes without the texts in it. A chain such as `a + b + c + …` is
/// a tree as deep as it is long, and takes time that grows with the square of its length.
const MOST_TAG: usize = 16 << 10;

/// Stack for each byte of source while it is compiled: at least four times what the worst needs,
/// which is `--------1`.
const STACK_PER_BYTE: usize = 2 << 10;

/// Stack for whatever does not grow with the template or its work.
const STACK: usize = 16 << 20;

/// What a render may cost, in units that the engine calls fuel: an instruction, or 64 bytes made
/// or looked at. A render that uses up the first amount is tried with the next one.
///
/// The first is enough for some 50 KB of conversation, the second for several MB; the last is for
/// templates that look at all later messages for each one. It lets a template make 512 MB, or nest
/// a value in itself five million times.
const FUEL: [u64; 3] = [64 << 10, 1 << 20, 8 << 20];

/// Stack for each unit of fuel: nesting a value in a list costs 1.5 units, and comparing or dropping
/// what is nested takes stack at each level; this is at least four times what the worst needs.
const STACK_PER_FUEL: usize = 1 << 10;

/// A template that is ready to run.
#[derive(Debug)]
pub(super) struct Compiled {
    environment: Environment<'static>,
}

/// INVALID_MODEL with the line for a template that cannot be understood.
pub(super) fn compile(source: &str) -> Result<Compiled> {
    compile_within(source, 1)
}

/// With that part of the stack.
fn compile_within(source: &str, part: usize) -> Result<Compiled> {
    let too_large = |what: String| Err(Error::invalid_model(what).field("chat_template"));
    if source.len() > MOST_SOURCE {
        return too_large(format!(
            "the chat template has {} bytes; at most {MOST_SOURCE} are accepted",
            source.len()
        ));
    }
    let (source, longest) = generation::as_scopes(source);
    if longest > MOST_TAG {
        return too_large(format!(
            "a tag of the chat template has {longest} bytes of code; at most {MOST_TAG} are accepted"
        ));
    }
    let stack = STACK + source.len() * STACK_PER_BYTE;
    deep::run("compiling the chat template", stack / part, || build(source))
}

fn build(source: String) -> Result<Compiled> {
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
    environment.set_formatter(|out, state, value| {
        let text = python::str(state, value)?;
        out.write_str(&text).map_err(minijinja::Error::from)
    });
    library::add_to(&mut environment);
    environment.add_template_owned(NAME, source).map_err(|e| fault(&e))?;
    Ok(Compiled { environment })
}

impl Compiled {
    /// INVALID_ARGUMENT with the template's line where it refuses its input.
    pub(super) fn render(&self, variables: Map<String, serde_json::Value>) -> Result<String> {
        self.render_within(&serde_json::Value::Object(variables), &FUEL, 1)
    }

    /// With that part of the stack.
    fn render_within(&self, variables: &serde_json::Value, amounts: &[u64], part: usize) -> Result<String> {
        let mut spent = None;
        for &fuel in amounts {
            let stack = STACK + usize::try_from(fuel).unwrap_or(usize::MAX).saturating_mul(STACK_PER_FUEL);
            let tried = deep::run("the chat template", stack / part, || {
                let mut environment = self.environment.clone();
                environment.set_fuel(Some(fuel));
                let rendered = environment.get_template(NAME).and_then(|t| t.render(value(variables)));
                match rendered {
                    Ok(text) => Ok(Some(text)),
                    Err(error) if is_out_of_fuel(&error) => Ok(None),
                    Err(error) => Err(fault(&error)),
                }
            });
            match tried {
                Ok(Some(text)) => return Ok(text),
                Ok(None) => spent = Some(fuel),
                // Where address space is short, the work that was possible is the limit.
                Err(error) if error.code() == Code::OutOfMemory && spent.is_some() => break,
                Err(error) => return Err(error),
            }
        }
        Err(Error::invalid_argument(
            "the chat template takes too many steps, or makes too much text, for this conversation",
        )
        .field("chat_template"))
    }
}

/// Whether the engine gave up because of that; it may be the cause of another error.
fn is_out_of_fuel(error: &minijinja::Error) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<minijinja::Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
            return true;
        }
        next = error.source();
    }
    false
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

#[cfg(test)]
#[path = "limits_tests.rs"]
mod limits_tests;
