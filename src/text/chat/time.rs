//! `strftime_now`: the local time for templates that tell the model the date.

use std::fmt::Write;

use chrono::Local;
use minijinja::{Error, ErrorKind};

/// The time now, in the format of Python's `strftime`.
pub(super) fn now(format: &str) -> Result<String, Error> {
    let mut text = String::new();
    write!(text, "{}", Local::now().format(format)).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, format!("strftime_now does not know the format {format:?}"))
    })?;
    Ok(text)
}
