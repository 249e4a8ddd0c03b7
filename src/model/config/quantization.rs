//! The `quantization` section of a `config.json` written by MLX.

use std::collections::BTreeMap;

use serde_json::Value;

use super::fields::{Fields, whole};
use crate::base::Result;
use crate::base::quote::quote;
use crate::model::weights::text_model_name;

/// Parameters of MLX's affine quantisation: an element is `scale * q + bias`, where scale and
/// bias belong to `group` neighbours in a row and q has `bits` bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Affine {
    pub bits: u32,
    pub group: u32,
}

impl Affine {
    /// Whether MLX has this width and group.
    pub fn is_possible(self) -> bool {
        matches!(self.bits, 2 | 3 | 4 | 5 | 6 | 8) && matches!(self.group, 32 | 64 | 128)
    }
}

/// What the section says of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Override {
    /// Quantised with these parameters.
    Affine(Affine),
    /// Quantised in a mode that is not supported, such as `mxfp4`.
    Mode(String),
    /// Quantised with the default parameters.
    Default,
    /// Not quantised.
    Plain,
}

/// Default parameters, and modules that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    pub default: Affine,
    /// By module path, without the prefix of a multimodal checkpoint's text model.
    pub overrides: BTreeMap<String, Override>,
}

impl Quantization {
    /// What the section says of the module at `path`, if it names it.
    pub fn of(&self, path: &str) -> Option<&Override> {
        self.overrides.get(path)
    }

    pub(super) fn from_fields(fields: &Fields<'_>) -> Result<Option<Self>> {
        let section = match fields.section("quantization")? {
            Some(section) => section,
            None => match fields.section("quantization_config")? {
                None => return Ok(None),
                Some(section) => {
                    if let Some(method) = section.text("quant_method")? {
                        return Err(section.unsupported("quant_method", format!("is {}", quote(method))));
                    }
                    section
                }
            },
        };
        let default = match parameters(&section)? {
            Parameters::Affine(affine) => affine,
            Parameters::Mode(mode) => return Err(section.unsupported("mode", format!("is {}", quote(&mode)))),
        };
        let mut overrides = BTreeMap::new();
        for (path, value) in section.iter() {
            let said = match value {
                Value::Bool(false) => Override::Plain,
                Value::Bool(true) => Override::Default,
                Value::Object(_) => {
                    match section.section(path)?.map(|inner| parameters(&inner)).transpose()? {
                        Some(Parameters::Affine(affine)) => Override::Affine(affine),
                        Some(Parameters::Mode(mode)) => Override::Mode(mode),
                        None => continue,
                    }
                }
                // Parameters of the section itself.
                _ => continue,
            };
            overrides.insert(text_model_name(path), said);
        }
        Ok(Some(Quantization { default, overrides }))
    }
}

enum Parameters {
    Affine(Affine),
    Mode(String),
}

/// MLX's own defaults are 64 and 4.
fn parameters(section: &Fields<'_>) -> Result<Parameters> {
    if let Some(mode) = section.text("mode")?
        && mode != "affine"
    {
        return Ok(Parameters::Mode(mode.to_owned()));
    }
    let number = |name: &str, default: u32| match section.get(name) {
        None => Ok(default),
        Some(value) => whole(value)
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| section.invalid(name, "must be a whole number")),
    };
    let affine = Affine { bits: number("bits", 4)?, group: number("group_size", 64)? };
    if !affine.is_possible() {
        let (name, found) = match affine.bits {
            2 | 3 | 4 | 5 | 6 | 8 => ("group_size", affine.group),
            _ => ("bits", affine.bits),
        };
        return Err(section.unsupported(name, format!("is {found}")));
    }
    Ok(Parameters::Affine(affine))
}
