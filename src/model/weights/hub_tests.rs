//! Models in the layout of the hub's cache.

use std::fs;
use std::os::unix::fs::symlink;

use super::super::testing::{SafetensorsFile, floats};
use super::super::{Format, ModelFiles};
use super::*;
use crate::base::Code;

const CONFIG: &str = r#"{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"intermediate_size":128,
    "num_attention_heads":4,"rms_norm_eps":1e-5,"vocab_size":64}"#;

/// A repository with one snapshot, as a download leaves it.
fn repository_of_hash(folder: &Path) -> PathBuf {
    let repository = folder.join("models--org--tiny--model");
    let (blobs, snapshot) = (repository.join("blobs"), repository.join("snapshots/abc123"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), "abc123\n").unwrap();
    fs::write(blobs.join("c0"), CONFIG).unwrap();
    let content = SafetensorsFile::new().tensor("a", "F32", &[1], &floats(&[7.0]));
    content.write(&blobs.join("w0"));
    symlink("../../blobs/c0", snapshot.join("config.json")).unwrap();
    symlink("../../blobs/w0", snapshot.join("model.safetensors")).unwrap();
    repository
}

#[test]
fn b04_a_repository_of_the_cache_and_its_snapshot_open_alike() {
    let folder = tempfile::tempdir().unwrap();
    let repository = repository_of_hash(folder.path());
    for path in [repository.clone(), repository.join("snapshots/abc123")] {
        let opened = ModelFiles::open(&path).unwrap();
        assert_eq!((opened.format, opened.name.as_str()), (Format::Safetensors, "org/tiny--model"));
        assert!(opened.root.ends_with("snapshots/abc123"));
        let tensor = opened.weights.get("a").unwrap();
        assert_eq!(opened.weights.read(tensor, 0..4).unwrap(), floats(&[7.0]));
    }
    // The only snapshot, where `main` was never asked for; of two, none.
    fs::remove_file(repository.join("refs/main")).unwrap();
    ModelFiles::open(&repository).unwrap();
    fs::create_dir(repository.join("snapshots/def")).unwrap();
    let error = ModelFiles::open(&repository).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(
        error.detail().file.as_ref().unwrap().ends_with("refs/main")
            && error.message().contains("2 snapshots")
    );
}

#[test]
fn b03_what_a_download_left_out_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let repository = repository_of_hash(folder.path());
    let snapshot = repository.join("snapshots/abc123");
    // A link to a blob that is not there yet.
    fs::remove_file(repository.join("blobs/w0")).unwrap();
    let error = ModelFiles::open(&repository).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(error.detail().file.as_deref(), Some(snapshot.join("model.safetensors").as_path()));
    fs::write(repository.join("refs/main"), "fedcba").unwrap();
    let error = ModelFiles::open(&repository).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert!(error.detail().file.as_ref().unwrap().ends_with("snapshots/fedcba"));
    // A reference, or a configuration of the folder's own, that is there and leads nowhere.
    for name in ["refs/main", "config.json"] {
        let path = repository.join(name);
        let _absent = fs::remove_file(&path);
        symlink("lost", &path).unwrap();
        let error = ModelFiles::open(&repository).unwrap_err();
        assert_eq!((error.code(), error.detail().file.as_deref()), (Code::NotFound, Some(path.as_path())));
    }
}

#[test]
fn a_reference_never_leads_out_of_the_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let repository = repository_of_hash(folder.path());
    let large = "a".repeat(2000);
    for text in ["", ".", "..", "../snapshots/abc123", "/etc", "abc123/.", "abc123/", &large] {
        fs::write(repository.join("refs/main"), text).unwrap();
        let error = ModelFiles::open(&repository).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel, "{text:?}");
        assert!(error.detail().file.as_ref().unwrap().ends_with("refs/main"));
    }
}

#[test]
fn links_that_lead_in_a_circle_are_an_error_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let repository = repository_of_hash(folder.path());
    let snapshot = repository.join("snapshots/abc123");
    let weights = snapshot.join("model.safetensors");
    fs::remove_file(&weights).unwrap();
    symlink("model.safetensors", &weights).unwrap();
    let error = ModelFiles::open(&snapshot).unwrap_err();
    assert_eq!(error.code(), Code::Io);
    assert_eq!(error.detail().file.as_deref(), Some(weights.as_path()));
}
