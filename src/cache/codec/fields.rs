//! Reads headers and tensors that may say anything.

use std::fmt;

use serde_json::Value;

use super::entry::{Header, Tensor};
use crate::base::{Code, Error, Result, quote};
use crate::cache::planes;
use crate::mlx::{Array, Dtype};

/// INCOMPATIBLE_CHECKPOINT that names a field.
pub fn wrong(field: &str, message: impl Into<String>) -> Error {
    Error::new(Code::IncompatibleCheckpoint, message).field(field)
}

/// The fields of a header, each asked for by its name; at the end none may be left.
pub struct Fields<'a> {
    header: &'a Header,
    asked: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    pub fn new(header: &'a Header) -> Self {
        Fields { header, asked: Vec::new() }
    }

    fn optional(&mut self, name: &'static str) -> Option<&'a Value> {
        self.asked.push(name);
        self.header.get(name)
    }

    fn required(&mut self, name: &'static str) -> Result<&'a Value> {
        self.optional(name).ok_or_else(|| wrong(name, format!("the field {name} is missing")))
    }

    pub fn optional_number(&mut self, name: &'static str) -> Result<Option<usize>> {
        self.optional(name).map(|value| number(name, value)).transpose()
    }

    /// A whole number that counts tokens or what they are made of.
    pub fn number(&mut self, name: &'static str) -> Result<usize> {
        number(name, self.required(name)?)
    }

    pub fn list(&mut self, name: &'static str) -> Result<&'a [Value]> {
        match self.required(name)? {
            Value::Array(list) => Ok(list),
            _ => Err(wrong(name, format!("{name} is no list"))),
        }
    }

    pub fn numbers(&mut self, name: &'static str) -> Result<Vec<usize>> {
        self.list(name)?.iter().map(|value| number(name, value)).collect()
    }

    pub fn optional_numbers(&mut self, name: &'static str) -> Result<Option<Vec<usize>>> {
        if self.optional(name).is_some() { self.numbers(name).map(Some) } else { Ok(None) }
    }

    pub fn flag(&mut self, name: &'static str) -> Result<bool> {
        let flag = self.required(name)?.as_bool();
        flag.ok_or_else(|| wrong(name, format!("{name} is neither true nor false")))
    }

    pub fn text(&mut self, name: &'static str) -> Result<&'a str> {
        let text = self.required(name)?.as_str();
        text.ok_or_else(|| wrong(name, format!("{name} is no text")))
    }

    /// The name of an element type that layers compute with.
    pub fn float(&mut self, name: &'static str) -> Result<Dtype> {
        let text = self.text(name)?;
        let float = FLOATS.into_iter().find(|dtype| dtype.name() == text);
        float.ok_or_else(|| wrong(name, format!("{name} is {}, which is no float type", quote::quote(text))))
    }

    pub fn flags(&mut self, name: &'static str) -> Result<Vec<bool>> {
        let flag = |value: &Value| value.as_bool();
        let flags: Option<Vec<bool>> = self.list(name)?.iter().map(flag).collect();
        flags.ok_or_else(|| wrong(name, format!("{name} has something else than true and false")))
    }

    /// Refuses fields that no one asked for: what they mean would be lost.
    pub fn finish(self) -> Result<()> {
        match self.header.keys().find(|name| !self.asked.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => {
                Err(wrong(&quote::name(name), format!("the field {} is unknown", quote::quote(name))))
            }
        }
    }
}

/// Element types that layers compute with.
const FLOATS: [Dtype; 3] = [Dtype::Float16, Dtype::Bfloat16, Dtype::Float32];

fn number(name: &str, value: &Value) -> Result<usize> {
    let number = value.as_u64().and_then(|number| usize::try_from(number).ok());
    number
        .filter(|number| *number <= planes::MOST)
        .ok_or_else(|| wrong(name, format!("{name} is no whole number from 0 to {}", planes::MOST)))
}

/// INCOMPATIBLE_CHECKPOINT unless there are `count` tensors.
pub fn check_count(tensors: &[Tensor], count: usize) -> Result<()> {
    if tensors.len() == count {
        return Ok(());
    }
    Err(wrong("tensors", format!("there are {} tensors instead of {count}", tensors.len())))
}

/// Exactly `count` tensors as arrays.
pub fn arrays(tensors: &[Tensor], count: usize) -> Result<Vec<Array>> {
    check_count(tensors, count)?;
    tensors.iter().map(Tensor::to_array).collect()
}

/// A fault of one tensor.
pub fn wrong_tensor(index: usize, field: &str, found: &impl fmt::Debug) -> Error {
    wrong(field, format!("tensor {index} has another {field} than its cache: {found:?}"))
        .tensor(index.to_string())
}

/// Checks that these are planes `[rows, heads, columns, …]` with the same columns; `rows` and `columns` may be left open.
pub fn check_planes(planes: &[Array], rows: Option<usize>, columns: Option<usize>) -> Result<()> {
    let Some(first) = planes.first() else { return Ok(()) };
    for (index, plane) in planes.iter().enumerate() {
        let is = |axis, size: Option<usize>| size.is_none_or(|size| plane.dim(axis) as usize == size);
        let fits = plane.shape().len() == 4
            && (0..4).all(|axis| plane.dim(axis) > 0)
            && (0..3).all(|axis| plane.dim(axis) == first.dim(axis))
            && is(0, rows)
            && is(2, columns);
        if !fits {
            return Err(wrong_tensor(index, "shape", plane));
        }
    }
    Ok(())
}

/// Checks the size of a plane's last axis.
pub fn check_size(planes: &[Array], index: usize, size: usize) -> Result<()> {
    if planes[index].dim(3) as usize == size {
        Ok(())
    } else {
        Err(wrong_tensor(index, "shape", &planes[index]))
    }
}

/// Checks that the planes at `indices` have one element type, of those that layers compute with.
pub fn check_floats(planes: &[Array], indices: &[usize]) -> Result<()> {
    let like = indices.first().map(|&first| planes[first].dtype());
    for &index in indices {
        let dtype = planes[index].dtype();
        if !FLOATS.contains(&dtype) || Some(dtype) != like {
            return Err(wrong_tensor(index, "dtype", &planes[index]));
        }
    }
    Ok(())
}

pub fn check_dtype(planes: &[Array], index: usize, dtype: Dtype) -> Result<()> {
    if planes[index].dtype() == dtype { Ok(()) } else { Err(wrong_tensor(index, "dtype", &planes[index])) }
}
