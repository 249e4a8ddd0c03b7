//! The `quantization` section of a `config.json` written by MLX.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::fields::Fields;
use crate::base::quote::quote;
use crate::base::{Result, json};
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

impl fmt::Display for Affine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "affine {}-bit group {}", self.bits, self.group)
    }
}

/// MLX's other modes: an element is a small float, times a scale of 8 bits that a group shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Microscaled {
    /// E2M1 elements, an E8M0 scale for 32.
    Mxfp4,
    /// E2M1 elements, an E4M3 scale for 16.
    Nvfp4,
    /// E4M3 elements, an E8M0 scale for 32.
    Mxfp8,
}

impl Microscaled {
    pub const ALL: [Microscaled; 3] = [Microscaled::Mxfp4, Microscaled::Nvfp4, Microscaled::Mxfp8];

    /// MLX's name of the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Microscaled::Mxfp4 => "mxfp4",
            Microscaled::Nvfp4 => "nvfp4",
            Microscaled::Mxfp8 => "mxfp8",
        }
    }

    /// Bits of an element.
    pub const fn bits(self) -> u32 {
        match self {
            Microscaled::Mxfp4 | Microscaled::Nvfp4 => 4,
            Microscaled::Mxfp8 => 8,
        }
    }

    /// Elements with one scale.
    pub const fn group(self) -> u32 {
        match self {
            Microscaled::Mxfp4 | Microscaled::Mxfp8 => 32,
            Microscaled::Nvfp4 => 16,
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// How the elements of a matrix are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    Affine(Affine),
    Microscaled(Microscaled),
}

impl fmt::Display for Packing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Packing::Affine(affine) => affine.fmt(formatter),
            Packing::Microscaled(mode) => formatter.write_str(mode.name()),
        }
    }
}

/// What the section says of one module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Override {
    /// Quantised with these parameters.
    Packed(Packing),
    /// Quantised in a mode of this name, which is not known.
    Unknown(String),
    /// Quantised with the default parameters.
    Default,
    /// Not quantised.
    Plain,
}

/// Default parameters, and modules that differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    pub default: Packing,
    /// By module path, without the prefix of a multimodal checkpoint's text model.
    pub overrides: BTreeMap<String, Override>,
}

impl Quantization {
    /// What the section says of the module at `path`, if it names it.
    pub fn of(&self, path: &str) -> Option<&Override> {
        self.overrides.get(path)
    }

    /// UNSUPPORTED for the methods of other programs, by their name.
    pub(super) fn from_fields(fields: &Fields<'_>) -> Result<Option<Self>> {
        let (section, method) = match fields.section("quantization")? {
            Some(section) => (section, None),
            None => match fields.section("quantization_config")? {
                None => return Ok(None),
                Some(section) => {
                    let method = section.text("quant_method")?;
                    (section, method)
                }
            },
        };
        let default = match method {
            None => match parameters(&section)? {
                Parameters::Known(packing) => packing,
                Parameters::Unknown(mode) => {
                    return Err(section.unsupported("mode", format!("is {}", quote(&mode))));
                }
            },
            // Older files of MLX's own modes say it so, as mlx-lm reads them.
            Some(method) => match Microscaled::from_name(method).filter(|mode| *mode != Microscaled::Nvfp4) {
                Some(mode) => Packing::Microscaled(mode),
                None => return Err(section.unsupported("quant_method", format!("is {}", quote(method)))),
            },
        };
        let mut overrides = BTreeMap::new();
        for (path, value) in section.iter() {
            let said = match value {
                Value::Bool(false) => Override::Plain,
                Value::Bool(true) => Override::Default,
                Value::Object(_) => {
                    match section.section(path)?.map(|inner| parameters(&inner)).transpose()? {
                        Some(Parameters::Known(packing)) => Override::Packed(packing),
                        Some(Parameters::Unknown(mode)) => Override::Unknown(mode),
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
    Known(Packing),
    Unknown(String),
}

/// MLX's own defaults are 64 and 4, and those of its other modes the only ones that they have.
fn parameters(section: &Fields<'_>) -> Result<Parameters> {
    let number = |name: &str, default: u32| match section.get(name) {
        None => Ok(default),
        Some(value) => json::whole(value)
            .and_then(|number| u32::try_from(number).ok())
            .ok_or_else(|| section.invalid(name, "must be a whole number")),
    };
    match section.text("mode")? {
        None | Some("affine") => {}
        Some(name) => {
            let Some(mode) = Microscaled::from_name(name) else {
                return Ok(Parameters::Unknown(name.to_owned()));
            };
            for (name, only) in [("bits", mode.bits()), ("group_size", mode.group())] {
                let found = number(name, only)?;
                if found != only {
                    return Err(section.unsupported(name, format!("is {found} in the mode {}", mode.name())));
                }
            }
            return Ok(Parameters::Known(Packing::Microscaled(mode)));
        }
    }
    let affine = Affine { bits: number("bits", 4)?, group: number("group_size", 64)? };
    if !affine.is_possible() {
        let (name, found) = match affine.bits {
            2 | 3 | 4 | 5 | 6 | 8 => ("group_size", affine.group),
            _ => ("bits", affine.bits),
        };
        return Err(section.unsupported(name, format!("is {found}")));
    }
    Ok(Parameters::Known(Packing::Affine(affine)))
}

#[cfg(test)]
#[path = "quantization_tests.rs"]
mod tests;
