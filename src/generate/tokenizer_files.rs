//! A tokenizer without its model, from whatever a model can be loaded from.

use std::path::Path;

use super::gguf_tokenizer;
use crate::base::Result;
use crate::model::weights::model_folder;
use crate::text::Tokenizer;

/// What a model folder, a repository in the hub's cache, a GGUF file or a `tokenizer.json` holds.
pub fn open(path: &Path) -> Result<Tokenizer> {
    if path.is_dir() {
        return Tokenizer::load_dir(&model_folder(path)?);
    }
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        return gguf_tokenizer::open(path);
    }
    Tokenizer::load_json(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::base::Code;

    const TOKENIZER: &str = r#"{"added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
        "pre_tokenizer": {"type": "WhitespaceSplit"}}"#;
    const CONFIG: &str = r#"{"eos_token": "b", "chat_template": "{{ messages[0].content }}"}"#;

    /// A repository whose files are links into its blobs.
    fn repository(folder: &Path) -> std::path::PathBuf {
        let repository = folder.join("models--org--words");
        let snapshot = repository.join("snapshots/abc");
        for made in [repository.join("blobs"), repository.join("refs"), snapshot.clone()] {
            fs::create_dir_all(made).unwrap();
        }
        fs::write(repository.join("refs/main"), "abc").unwrap();
        for (blob, name, text) in
            [("b0", "tokenizer.json", TOKENIZER), ("b1", "tokenizer_config.json", CONFIG)]
        {
            fs::write(repository.join("blobs").join(blob), text).unwrap();
            symlink(format!("../../blobs/{blob}"), snapshot.join(name)).unwrap();
        }
        repository
    }

    #[test]
    fn b04_a_repository_and_its_snapshot_give_the_same_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        let repository = repository(folder.path());
        for path in [repository.clone(), repository.join("snapshots/abc")] {
            let tokenizer = open(&path).unwrap();
            assert_eq!(tokenizer.encode("b a", false, false).unwrap(), [1, 0]);
            assert_eq!(tokenizer.eos(), [1]);
            assert!(tokenizer.has_chat_template());
        }
        let file = repository.join("snapshots/abc/tokenizer.json");
        assert!(!open(&file).unwrap().has_chat_template());
    }

    #[test]
    fn b03_a_snapshot_or_a_blob_that_is_missing_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let repository = repository(folder.path());
        fs::remove_file(repository.join("blobs/b0")).unwrap();
        let error = open(&repository).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert!(error.detail().file.as_ref().unwrap().ends_with("snapshots/abc/tokenizer.json"));
        fs::write(repository.join("refs/main"), "def").unwrap();
        let error = open(&repository).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert!(error.detail().file.as_ref().unwrap().ends_with("snapshots/def"));
        fs::write(repository.join("refs/main"), "../..").unwrap();
        assert_eq!(open(&repository).unwrap_err().code(), Code::InvalidModel);
    }

    #[test]
    fn a_tokenizer_beside_snapshots_is_the_folders_own() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("snapshots/abc")).unwrap();
        fs::write(folder.path().join("tokenizer.json"), TOKENIZER).unwrap();
        assert_eq!(open(folder.path()).unwrap().encode("b", false, false).unwrap(), [1]);
    }
}
