//! Arguments of Python calls: by position or by name.

use minijinja::value::{Kwargs, from_args};
use minijinja::{Error, ErrorKind, Value};

pub(super) struct Arguments<'a> {
    positional: &'a [Value],
    named: Kwargs,
}

impl<'a> Arguments<'a> {
    pub(super) fn new(args: &'a [Value]) -> Result<Self, Error> {
        let count = args.len() - usize::from(args.last().is_some_and(Value::is_kwargs));
        let (positional, named) = args.split_at(count);
        let (named,) = from_args(named)?;
        Ok(Arguments { positional, named })
    }

    pub(super) fn of(positional: &'a [Value], named: Kwargs) -> Self {
        Arguments { positional, named }
    }

    /// The argument, unless it is absent or none.
    pub(super) fn get(&self, index: usize, name: &str) -> Result<Option<Value>, Error> {
        let value = match self.positional.get(index) {
            Some(value) => Some(value.clone()),
            None if name.is_empty() => None,
            None => self.named.get::<Option<Value>>(name)?,
        };
        Ok(value.filter(|value| !value.is_none()))
    }

    /// The argument; an error if it is absent.
    pub(super) fn need(&self, index: usize, name: &str) -> Result<Value, Error> {
        self.get(index, name)?.ok_or_else(|| Error::from(ErrorKind::MissingArgument))
    }

    pub(super) fn text(&self, index: usize, name: &str) -> Result<Option<String>, Error> {
        self.get(index, name)?.map(text).transpose()
    }

    pub(super) fn integer(&self, index: usize, name: &str) -> Result<Option<i64>, Error> {
        self.get(index, name)?.map(i64::try_from).transpose()
    }

    pub(super) fn flag(&self, index: usize, name: &str) -> Result<bool, Error> {
        Ok(self.get(index, name)?.is_some_and(|value| value.is_true()))
    }

    /// An error if there are more than `most` arguments or a name that was not asked for.
    pub(super) fn finish(&self, most: usize) -> Result<(), Error> {
        if self.positional.len() > most {
            return Err(Error::from(ErrorKind::TooManyArguments));
        }
        self.named.assert_all_used()
    }
}

/// A string; an error for anything else.
pub(super) fn text(value: Value) -> Result<String, Error> {
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => {
            Err(Error::new(ErrorKind::InvalidOperation, format!("expected a string, found {}", value.kind())))
        }
    }
}
