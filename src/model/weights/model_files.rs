//! A model on disk, as one call opens it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::WeightFile;
use super::files::WeightFiles;
use super::gguf::{self, GgufMetadata};
use super::hub;
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
    /// What the file calls itself, the repository of a snapshot, or the folder's or file's name.
    pub name: String,
    /// The folder or file that was read.
    pub root: PathBuf,
    /// A GGUF file's metadata; its tokenizer and chat template are among them.
    pub gguf: Option<Arc<GgufMetadata>>,
}

impl ModelFiles {
    /// Opens a model folder, a repository in the hub's cache, or a GGUF file.
    pub fn open(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|source| Error::io(path, "examine", &source))?;
        if metadata.is_dir() { Self::open_folder(&hub::resolve(path)?) } else { Self::open_gguf(path) }
    }

    fn open_folder(path: &Path) -> Result<Self> {
        let config = ModelConfig::open_folder(path)?;
        let weights = Arc::new(WeightFiles::open_folder(path)?);
        // A path such as `.` has no name of its own.
        let named = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let folder_name = || named.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name = hub::repository(&named).unwrap_or_else(folder_name);
        Ok(ModelFiles {
            config,
            weights,
            format: Format::Safetensors,
            name,
            root: path.to_owned(),
            gguf: None,
        })
    }

    fn open_gguf(path: &Path) -> Result<Self> {
        let (metadata, weights) = gguf::open(WeightFile::open(path)?)?;
        let config = ModelConfig::from_gguf(&metadata, &weights)?;
        let name = match metadata.text("general.name")? {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        };
        Ok(ModelFiles {
            config,
            weights: Arc::new(weights),
            format: Format::Gguf,
            name,
            root: path.to_owned(),
            gguf: Some(Arc::new(metadata)),
        })
    }
}

impl GgufMetadata {
    /// Reads the metadata of a GGUF file, such as its tokenizer, whatever its architecture.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(gguf::open(WeightFile::open(path)?)?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SafetensorsFile, floats, llama};
    use super::*;
    use crate::base::Code;

    #[test]
    fn folders_and_files_open_alike() {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("tiny");
        std::fs::create_dir(&model).unwrap();
        let json = r#"{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"intermediate_size":128,
            "num_attention_heads":4,"rms_norm_eps":1e-5,"vocab_size":64}"#;
        std::fs::write(model.join("config.json"), json).unwrap();
        SafetensorsFile::new()
            .tensor("a", "F32", &[1], &floats(&[1.0]))
            .write(&model.join("model.safetensors"));
        let opened = ModelFiles::open(&model).unwrap();
        assert_eq!((opened.format, opened.name.as_str()), (Format::Safetensors, "tiny"));
        assert!(opened.gguf.is_none() && opened.weights.get("a").is_some());

        let path = folder.path().join("file.gguf");
        llama().write(&path);
        let opened = ModelFiles::open(&path).unwrap();
        assert_eq!((opened.format.name(), opened.name.as_str()), ("gguf", "Tiny"));
        assert!(opened.gguf.is_some());
        assert_eq!(GgufMetadata::open(&path).unwrap().text("general.name").unwrap(), Some("Tiny"));

        // A weight file alone has no configuration.
        let error = ModelFiles::open(&model.join("model.safetensors")).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel);
        let error = ModelFiles::open(&folder.path().join("absent")).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        std::fs::remove_file(model.join("config.json")).unwrap();
        let error = ModelFiles::open(&model).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert!(error.detail().file.as_ref().unwrap().ends_with("config.json"));
    }
}
