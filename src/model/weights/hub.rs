//! The cache of the Hugging Face hub: `models--org--name` with `refs/main`, which names a folder in `snapshots`, whose
//! files are links into `blobs`.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use super::file::read_small;
use crate::base::quote::quote;
use crate::base::{Error, Result, small_file};

/// A revision is a hash.
const REVISION_LIMIT: u64 = 1024;

/// What a folder with files of its own holds.
const OWN: [&str; 2] = ["config.json", "tokenizer.json"];

/// The folder that holds the model's files: of a repository's folder in the cache its snapshot, else `folder` itself.
pub(crate) fn resolve(folder: &Path) -> Result<PathBuf> {
    let snapshots = folder.join("snapshots");
    if OWN.iter().any(|name| !small_file::is_absent(&folder.join(name))) || !snapshots.is_dir() {
        return Ok(folder.to_owned());
    }
    let reference = folder.join("refs").join("main");
    let Some(text) = small_file::optional(&reference, read_small(&reference, REVISION_LIMIT))? else {
        // Who asked for a certain revision has no `main`.
        return only_snapshot(&snapshots, &reference);
    };
    let revision = revision(&reference, &text)?;
    let snapshot = snapshots.join(&revision);
    match std::fs::metadata(&snapshot) {
        Ok(about) if about.is_dir() => Ok(snapshot),
        Err(source) if source.kind() != ErrorKind::NotFound => Err(Error::io(&snapshot, "examine", &source)),
        _ => Err(Error::not_found(format!(
            "{} names the snapshot {}, which is not there: the download is incomplete",
            reference.display(),
            quote(&revision)
        ))
        .file(snapshot)),
    }
}

/// A name, never a path.
fn revision(reference: &Path, text: &[u8]) -> Result<String> {
    let text = str::from_utf8(text).unwrap_or_default().trim();
    let mut parts = Path::new(text).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(name)), None) if name == text => Ok(text.to_owned()),
        _ => Err(Error::invalid_model(format!("{} holds no name of a snapshot", reference.display()))
            .file(reference)),
    }
}

fn only_snapshot(snapshots: &Path, reference: &Path) -> Result<PathBuf> {
    let unreadable = |source: std::io::Error| Error::io(snapshots, "list", &source);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(snapshots).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() {
            found.push(path);
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (more, _) => {
            let count = found.len() + usize::from(more.is_some());
            let text = format!("{} is missing, and there are {count} snapshots", reference.display());
            Err(Error::not_found(text).file(reference))
        }
    }
}

/// `org/name` for a snapshot in the cache; `None` for any other folder.
pub(crate) fn repository(folder: &Path) -> Option<String> {
    let snapshots = folder.parent()?;
    let name = snapshots.parent()?.file_name()?.to_str()?.strip_prefix("models--")?;
    (snapshots.file_name()? == "snapshots").then(|| name.replacen("--", "/", 1))
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
