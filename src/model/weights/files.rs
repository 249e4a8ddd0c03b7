//! The table of a model's tensors, whatever files hold them.

use std::ops::Range;
use std::path::Path;

use super::blocks::BlockFormat;
use super::file::{WeightFile, zeroed};
use super::folder;
use super::types::{ElementType, Encoding, Tensor};
use crate::base::quote;
use crate::base::{Error, Result};

/// Open weight files and the tensors in them. Reads by position; any thread.
#[derive(Debug)]
pub struct WeightFiles {
    files: Vec<WeightFile>,
    tensors: Vec<Tensor>,
    /// Indices into `tensors`, in the order of the names.
    by_name: Vec<usize>,
}

impl WeightFiles {
    /// Opens the safetensors files of a model folder and reads their headers.
    pub fn open_folder(folder: &Path) -> Result<Self> {
        let (files, mut tensors) = folder::open(folder)?;
        for tensor in &mut tensors {
            let name = text_model_name(&tensor.name);
            if name != tensor.name {
                tensor.stored_name = Some(std::mem::replace(&mut tensor.name, name));
            }
        }
        Self::new(files, tensors)
    }

    /// INVALID_MODEL if two tensors have one name.
    pub(crate) fn new(files: Vec<WeightFile>, tensors: Vec<Tensor>) -> Result<Self> {
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        by_name.sort_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name));
        for pair in by_name.windows(2) {
            let (first, second) = (&tensors[pair[0]], &tensors[pair[1]]);
            if first.name == second.name {
                let (first_path, second_path) = (files[first.file].path(), files[second.file].path());
                return Err(files[second.file]
                    .invalid(format!(
                        "holds tensor {} a second time (as {}; the other is {} in {})",
                        second.name,
                        second.stored_name(),
                        first.stored_name(),
                        if first.file == second.file {
                            "the same file".into()
                        } else {
                            first_path.display().to_string()
                        }
                    ))
                    .file(second_path)
                    .tensor(second.stored_name())
                    .position(second.offset));
            }
        }
        Ok(WeightFiles { files, tensors, by_name })
    }

    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    pub fn files(&self) -> &[WeightFile] {
        &self.files
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.position(name).map(|index| &self.tensors[index])
    }

    /// Where the tensor of this name stands in `tensors`.
    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        let place = self.by_name.binary_search_by(|&index| self.tensors[index].name.as_str().cmp(name));
        place.ok().map(|place| self.by_name[place])
    }

    /// The tensor of this name and shape; INVALID_MODEL naming it if there is no such tensor.
    pub fn require(&self, name: &str, shape: &[usize]) -> Result<&Tensor> {
        let tensor = self.get(name).ok_or_else(|| self.missing(name))?;
        if tensor.shape == shape {
            return Ok(tensor);
        }
        Err(self.invalid(tensor, format!("has shape {:?}; the configuration needs {shape:?}", tensor.shape)))
    }

    /// INVALID_MODEL for a tensor that is not there.
    pub(crate) fn missing(&self, name: &str) -> Error {
        let error = Error::invalid_model(format!("the model's files hold no tensor {}", quote::name(name)))
            .tensor(name);
        match self.files.as_slice() {
            [only] => error.file(only.path()),
            [first, ..] => error.file(first.path().parent().unwrap_or(first.path())),
            [] => error,
        }
    }

    /// INVALID_MODEL about a tensor: "tensor `name` `what`".
    pub(crate) fn invalid(&self, tensor: &Tensor, what: impl AsRef<str>) -> Error {
        let file = &self.files[tensor.file];
        Error::invalid_model(format!(
            "tensor {} in {} {}",
            quote::name(tensor.stored_name()),
            file.path().display(),
            what.as_ref()
        ))
        .file(file.path())
        .tensor(tensor.stored_name())
        .position(tensor.offset)
    }

    /// Bytes of a tensor as stored; `range` counts from the tensor's first byte.
    pub fn read(&self, tensor: &Tensor, range: Range<u64>) -> Result<Vec<u8>> {
        if range.start > range.end || range.end > tensor.bytes {
            return Err(Error::internal(format!(
                "bytes {range:?} of tensor {} were asked for, which has {}",
                tensor.name, tensor.bytes
            )));
        }
        let mut bytes = zeroed((range.end - range.start) as usize)?;
        self.read_into(tensor, range.start, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `buffer` with a tensor's bytes from `start` on. The caller stays inside the tensor.
    pub(crate) fn read_into(&self, tensor: &Tensor, start: u64, buffer: &mut [u8]) -> Result<()> {
        debug_assert!(start + buffer.len() as u64 <= tensor.bytes);
        self.files[tensor.file]
            .read_at(tensor.offset + start, buffer)
            .map_err(|error| error.tensor(tensor.stored_name()))
    }

    /// Bytes of all tensors in the files.
    pub fn file_bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }

    /// The float type that most bytes of the model use: of plain floats, and of the scales of
    /// quantised tensors (in GGUF as their blocks say).
    pub fn float_type(&self) -> ElementType {
        let types = [ElementType::F32, ElementType::F16, ElementType::Bf16];
        let bytes_of = |wanted: ElementType| -> u64 {
            let counted = self.tensors.iter().map(|tensor| match tensor.encoding {
                Encoding::Plain(element) if element == wanted => tensor.bytes,
                Encoding::Block(format) if format.parameters() == wanted => tensor.bytes,
                _ => 0,
            });
            counted.sum()
        };
        // The first of equals, so float32 where nothing speaks.
        types.into_iter().rev().max_by_key(|&element| bytes_of(element)).unwrap_or(ElementType::F32)
    }

    /// The block format that most bytes use, in GGUF.
    pub fn block_format(&self) -> Option<BlockFormat> {
        let bytes_of = |wanted: BlockFormat| -> u64 {
            let counted = self.tensors.iter().filter(|tensor| tensor.encoding == Encoding::Block(wanted));
            counted.map(|tensor| tensor.bytes).sum()
        };
        BlockFormat::ALL
            .into_iter()
            .filter(|&format| bytes_of(format) > 0)
            .max_by_key(|&format| bytes_of(format))
    }

    /// INVALID_MODEL if a file was written to since it was opened. To be asked when a load is
    /// done: what was read before may then be half old and half new.
    pub fn check_unchanged(&self) -> Result<()> {
        self.files.iter().try_for_each(WeightFile::check_unchanged)
    }
}

/// The name of a tensor or module without the prefix that multimodal checkpoints give their text
/// model.
pub(crate) fn text_model_name(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        format!("model.{rest}")
    } else {
        name.strip_prefix("language_model.").unwrap_or(name).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{SafetensorsFile, floats};
    use super::*;
    use crate::base::Code;

    #[test]
    fn prefixes_of_multimodal_checkpoints_go() {
        assert_eq!(text_model_name("language_model.model.norm.weight"), "model.norm.weight");
        assert_eq!(text_model_name("model.language_model.norm.weight"), "model.norm.weight");
        assert_eq!(text_model_name("model.norm.weight"), "model.norm.weight");
        assert_eq!(text_model_name("vision.language_model.x"), "vision.language_model.x");
    }

    #[test]
    fn tensors_are_found_and_read_by_position() {
        let folder = tempfile::tempdir().unwrap();
        SafetensorsFile::new()
            .tensor("language_model.model.norm.weight", "F32", &[3], &floats(&[1.0, 2.0, 3.0]))
            .tensor("a", "F16", &[1], &[1, 2])
            .write(&folder.path().join("model.safetensors"));
        let files = WeightFiles::open_folder(folder.path()).unwrap();
        let norm = files.require("model.norm.weight", &[3]).unwrap();
        assert_eq!(norm.stored_name(), "language_model.model.norm.weight");
        assert_eq!(files.read(norm, 4..12).unwrap(), floats(&[2.0, 3.0]));
        assert_eq!(files.read(norm, 0..13).unwrap_err().code(), Code::Internal);
        assert_eq!(files.file_bytes(), 14);
        assert_eq!(files.float_type(), ElementType::F32);
        let error = files.require("model.norm.weight", &[4]).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel);
        assert!(error.message().contains("[3]") && error.message().contains("[4]"));
        assert_eq!(error.detail().tensor.as_deref(), Some("language_model.model.norm.weight"));
        let error = files.require("lm_head.weight", &[4]).unwrap_err();
        assert_eq!(error.detail().tensor.as_deref(), Some("lm_head.weight"));
    }

    #[test]
    fn two_names_for_one_tensor_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        SafetensorsFile::new()
            .tensor("language_model.model.norm.weight", "F32", &[1], &floats(&[1.0]))
            .tensor("model.norm.weight", "F32", &[1], &floats(&[1.0]))
            .write(&folder.path().join("model.safetensors"));
        let error = WeightFiles::open_folder(folder.path()).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel);
    }
}
