//! Folders with one file, shards, strays and gaps.

use super::super::WeightFiles;
use super::super::testing::{SafetensorsFile, floats};
use super::*;
use crate::base::Code;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn weights(&self, file: &str, tensors: &[(&str, f32)]) -> &Self {
        let mut content = SafetensorsFile::new();
        for (name, value) in tensors {
            content = content.tensor(name, "F32", &[1], &floats(&[*value]));
        }
        content.write(&self.0.path().join(file));
        self
    }

    fn index(&self, text: &str) -> &Self {
        std::fs::write(self.0.path().join(INDEX_NAME), text).unwrap();
        self
    }

    fn open(&self) -> Result<WeightFiles> {
        WeightFiles::open_folder(self.0.path())
    }

    fn value(&self, name: &str) -> f32 {
        let files = self.open().unwrap();
        let bytes = files.read(files.get(name).unwrap(), 0..4).unwrap();
        f32::from_le_bytes(bytes.try_into().unwrap())
    }
}

#[test]
fn one_file_or_several_without_an_index() {
    let folder = Folder::new();
    folder.weights("model.safetensors", &[("a", 1.0)]);
    assert_eq!(folder.value("a"), 1.0);
    folder.weights("model-2.safetensors", &[("b", 2.0)]).weights("optimizer.safetensors", &[("a", 9.0)]);
    assert_eq!((folder.value("a"), folder.value("b")), (1.0, 2.0));
    folder.weights("model-3.safetensors", &[("a", 3.0)]);
    let error = folder.open().unwrap_err();
    assert_eq!(error.code(), Code::InvalidModel);
    assert!(error.message().contains("model-3.safetensors"), "{error}");

    let mlx = Folder::new();
    mlx.weights("weights.safetensors", &[("a", 4.0)]);
    assert_eq!(mlx.value("a"), 4.0);
}

#[test]
fn a_folder_without_weights_is_not_found() {
    let folder = Folder::new();
    let error = folder.open().unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    std::fs::write(folder.0.path().join("a.gguf"), b"GGUF").unwrap();
    assert!(folder.open().unwrap_err().message().contains("GGUF"));
    let error = WeightFiles::open_folder(&folder.0.path().join("absent")).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
}

#[test]
fn b03_a_missing_shard_is_named() {
    let folder = Folder::new();
    folder
        .weights("model-00001-of-00002.safetensors", &[("a", 1.0)])
        .index(r#"{"metadata":{"total_size":8},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}"#);
    let error = folder.open().unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.message().contains("model-00002-of-00002.safetensors"), "{error}");
    assert!(error.detail().file.as_ref().unwrap().ends_with("model-00002-of-00002.safetensors"));
    folder.weights("model-00002-of-00002.safetensors", &[("b", 2.0)]);
    assert_eq!((folder.value("a"), folder.value("b")), (1.0, 2.0));
}

#[test]
fn b04_the_index_decides_and_strays_are_ignored() {
    let folder = Folder::new();
    folder
        .weights("model.safetensors", &[("a", 1.0), ("unlisted", 7.0)])
        .weights("model-old.safetensors", &[("a", 0.0), ("b", 0.0)])
        .index(r#"{"weight_map":{"a":"model.safetensors"}}"#);
    assert_eq!(folder.value("a"), 1.0);
    let files = folder.open().unwrap();
    assert!(files.get("b").is_none());
    assert!(files.get("unlisted").is_none());
    assert_eq!(files.files().len(), 1);
    // A stray that is damaged does no harm either.
    std::fs::write(folder.0.path().join("model-old.safetensors"), b"junk").unwrap();
    assert_eq!(folder.value("a"), 1.0);
}

#[test]
fn an_index_that_a_shard_contradicts_is_refused() {
    let folder = Folder::new();
    folder
        .weights("model-1.safetensors", &[("a", 1.0)])
        .weights("model-2.safetensors", &[("b", 1.0)])
        .index(r#"{"weight_map":{"a":"model-2.safetensors","b":"model-1.safetensors"}}"#);
    let error = folder.open().unwrap_err();
    assert_eq!(error.code(), Code::InvalidModel);
    assert_eq!(error.detail().tensor.as_deref(), Some("a"));
    assert!(error.detail().file.as_ref().unwrap().ends_with("model-2.safetensors"));
}

#[test]
fn indices_that_make_no_sense_are_refused() {
    let folder = Folder::new();
    folder.weights("model.safetensors", &[("a", 1.0)]);
    for text in [
        "",
        "[]",
        "{}",
        r#"{"weight_map":{}}"#,
        r#"{"weight_map":[]}"#,
        r#"{"weight_map":{"a":1}}"#,
        r#"{"weight_map":{"a":"../model.safetensors"}}"#,
        r#"{"weight_map":{"a":"/model.safetensors"}}"#,
        r#"{"weight_map":{"a":".."}}"#,
        r#"{"weight_map":{"a":""}}"#,
        r#"{"weight_map":{"a":"model.bin"}}"#,
        r#"{"weight_map":{"a":"model.safetensors","a":"model.safetensors"}}"#,
        r#"{"weight_map":{"a":"model.safetensors"},"weight_map":{}}"#,
        "version https://git-lfs.github.com/spec/v1\n",
    ] {
        folder.index(text);
        let error = folder.open().unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel, "{text}: {error}");
        assert!(error.detail().file.as_ref().unwrap().ends_with(INDEX_NAME), "{text}");
    }
}

#[test]
fn faults_of_an_index_have_their_byte() {
    let folder = Folder::new();
    folder.weights("model.safetensors", &[("a", 1.0)]);
    for (text, at) in [
        ("{\n\"weight_map\": x}", 16),
        (r#"{"weight_map":{"a":1}}"#, 19),
        (r#"{"weight_map":{"a":NaN}}"#, 19),
        (r#"{"metadata":{"total_size":Infinity},"weight_map":{"a":y}}"#, 54),
        (r#"{"weight_map":{"a":"model.safetensors""#, 37),
        ("{}", 1),
    ] {
        folder.index(text);
        let error = folder.open().unwrap_err();
        assert_eq!(
            (error.code(), error.detail().position),
            (Code::InvalidModel, Some(at)),
            "{text}: {error}"
        );
        assert!(error.detail().file.as_ref().unwrap().ends_with(INDEX_NAME));
    }
    // A number that only Python knows, where none is asked for.
    folder
        .index(r#"{"metadata":{"total_size":NaN, "loss":-Infinity},"weight_map":{"a":"model.safetensors"}}"#);
    folder.open().unwrap();
}

#[test]
fn b18_a_truncated_shard_is_named() {
    let folder = Folder::new();
    folder
        .weights("model-1.safetensors", &[("a", 1.0)])
        .weights("model-2.safetensors", &[("b", 1.0)])
        .index(r#"{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#);
    let path = folder.0.path().join("model-2.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = folder.open().unwrap_err();
    assert_eq!(error.code(), Code::InvalidModel);
    assert_eq!(error.detail().tensor.as_deref(), Some("b"));
    assert_eq!(error.detail().file.as_deref(), Some(path.as_path()));
}

#[test]
fn b21_values_do_not_change_once_read() {
    let folder = Folder::new();
    folder.weights("model.safetensors", &[("a", 1.0)]);
    let path = folder.0.path().join("model.safetensors");
    let files = folder.open().unwrap();
    let before = files.read(files.get("a").unwrap(), 0..4).unwrap();
    folder.weights("model.safetensors", &[("a", 0.0)]);
    assert_eq!(before, floats(&[1.0]));
    assert_eq!(files.check_unchanged().unwrap_err().code(), Code::InvalidModel);
    // Replacing the file by renaming leaves the old one alone.
    let files = folder.open().unwrap();
    std::fs::rename(&path, folder.0.path().join("old")).unwrap();
    folder.weights("model.safetensors", &[("a", 5.0)]);
    assert_eq!(files.read(files.get("a").unwrap(), 0..4).unwrap(), floats(&[0.0]));
    files.check_unchanged().unwrap();
    // Truncation is an error, never values.
    let files = folder.open().unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(40).unwrap();
    let error = files.read(files.get("a").unwrap(), 0..4).unwrap_err();
    assert_eq!(error.code(), Code::InvalidModel);
    assert_eq!(error.detail().tensor.as_deref(), Some("a"));
}

/// An index with bytes changed leads to what the whole one leads to, or to an error with a file, and never out of the folder.
#[test]
fn damaged_indices_never_panic() {
    use super::super::testing::{Noise, SafetensorsFile, floats};
    let folder = tempfile::tempdir().unwrap();
    for (name, shard) in [("a", "model-1.safetensors"), ("b", "model-2.safetensors")] {
        SafetensorsFile::new().tensor(name, "F32", &[1], &floats(&[1.0])).write(&folder.path().join(shard));
    }
    let whole = br#"{"metadata":{"total_size":8},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#;
    let mut noise = Noise(11);
    for round in 0..2000 {
        let mut bytes = whole.to_vec();
        for _ in 0..1 + noise.below(4) {
            let place = noise.below(bytes.len());
            let letters = br#"{}[]",:/.\01az"#;
            bytes[place] =
                if round % 2 == 0 { letters[noise.below(letters.len())] } else { noise.next() as u8 };
        }
        if round % 5 == 0 {
            bytes.truncate(noise.below(bytes.len() + 1));
        }
        std::fs::write(folder.path().join(INDEX_NAME), &bytes).unwrap();
        match open(folder.path()) {
            Ok((files, tensors)) => {
                assert!(tensors.len() <= 2);
                assert!(files.iter().all(|file| file.path().parent() == Some(folder.path())));
            }
            Err(error) => {
                assert!(matches!(error.code(), Code::InvalidModel | Code::NotFound), "{error}");
                assert!(error.detail().file.is_some(), "{error}");
            }
        }
    }
}
