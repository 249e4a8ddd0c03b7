//! A model on disk, as one call opens it.

use std::path::Path;
use std::sync::Arc;

use super::files::WeightFiles;
use crate::base::{Error, Result};
use crate::model::config::ModelConfig;

/// Where a model's weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Safetensors,
    Gguf,
}

impl Format {
    /// As `ModelInfo` names it.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Safetensors => "safetensors",
            Format::Gguf => "gguf",
        }
    }
}

/// A model's configuration and its open weight files; only headers were read.
#[derive(Debug)]
pub struct ModelFiles {
    pub config: ModelConfig,
    pub weights: Arc<WeightFiles>,
    pub format: Format,
    /// The folder's name, or what the file calls itself.
    pub name: String,
}

impl ModelFiles {
    /// Opens a model folder.
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|source| Error::io(path, "examine", &source))?;
        if !metadata.is_dir() {
            return Err(Error::unsupported(format!("{} is not a model folder", path.display())).file(path));
        }
        let config = ModelConfig::open_folder(path)?;
        let weights = Arc::new(WeightFiles::open_folder(path)?);
        // A path such as `.` has no name of its own.
        let named = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = named.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(ModelFiles { config, weights, format: Format::Safetensors, name })
    }
}
