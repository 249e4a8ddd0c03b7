//! Methods of Python's values.

mod strings;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::arguments::Arguments;

pub(super) use strings::{center, trim};

/// A method that the engine itself does not know.
pub(super) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let arguments = Arguments::new(args)?;
    let own = match value.as_str() {
        Some(text) => strings::call(state, text, method, &arguments, args)?,
        None => container(value, method, &arguments)?,
    };
    match own {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn container(value: &Value, method: &str, arguments: &Arguments<'_>) -> Result<Option<Value>, Error> {
    let sequence = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    match method {
        "copy" if sequence || value.kind() == ValueKind::Map => {
            arguments.finish(0)?;
            Ok(Some(value.clone()))
        }
        "index" if sequence => {
            let wanted = arguments.need(0, "")?;
            arguments.finish(1)?;
            match value.try_iter()?.position(|item| item == wanted) {
                Some(index) => Ok(Some(Value::from(index))),
                None => Err(Error::new(ErrorKind::InvalidOperation, "the value is not in list")),
            }
        }
        _ => Ok(None),
    }
}
