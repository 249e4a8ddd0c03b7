//! An open weight file, read by position.
//!
//! Never mapped: a file that is truncated or overwritten must give an error, neither a fault nor
//! other values than were validated.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::base::{Error, Result, small_file};

/// What tells that a file was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified: (i64, i64),
}

/// An open file with the size it had then.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    file: File,
    stamp: Stamp,
}

impl WeightFile {
    /// NOT_FOUND if it is missing; INVALID_MODEL if it is not a regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let file = small_file::open(path)?;
        let stamp = stamp(path, &file)?;
        Ok(WeightFile { path: path.to_owned(), file, stamp })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes, when it was opened.
    pub fn size(&self) -> u64 {
        self.stamp.size
    }

    /// Fills `buffer` from `offset` on.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            let position = offset.saturating_add(filled as u64);
            match self.file.read_at(&mut buffer[filled..], position) {
                Ok(0) => {
                    let expected = offset.saturating_add(buffer.len() as u64);
                    return Err(self
                        .invalid(format!("ends at byte {position}; expected at least {expected} bytes"))
                        .position(position));
                }
                Ok(count) => filled += count,
                Err(source) if source.kind() == std::io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::io(&self.path, "read", &source).position(position)),
            }
        }
        Ok(())
    }

    /// The first bytes, at most `limit`.
    pub fn head(&self, limit: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.size().min(limit as u64) as usize];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// INVALID_MODEL if it was written to since it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        if stamp(&self.path, &self.file)? == self.stamp {
            Ok(())
        } else {
            Err(self.invalid("was changed while it was being loaded"))
        }
    }

    /// INVALID_MODEL that names the file: "`path` `what`".
    pub fn invalid(&self, what: impl AsRef<str>) -> Error {
        Error::invalid_model(format!("{} {}", self.path.display(), what.as_ref())).file(&self.path)
    }

    /// The INVALID_MODEL for a file that is no weight file at all, if its first bytes tell what
    /// it is instead.
    pub fn impostor(&self, head: &[u8]) -> Option<Error> {
        // The length that a safetensors file begins with may look like blanks and a `<`, but never without zeros.
        if head.contains(&0) {
            return None;
        }
        let text = head.trim_ascii_start();
        let what = if text.starts_with(b"version https://git-lfs") {
            "is a Git LFS pointer, not the file it stands for: fetch the real file with `git lfs pull`"
        } else if text.first() == Some(&b'<') {
            "looks like a web page, not a weight file: the download gave an error page"
        } else {
            return None;
        };
        Some(self.invalid(format!("{what} (it has {} bytes)", self.size())).position(0))
    }
}

fn stamp(path: &Path, file: &File) -> Result<Stamp> {
    let metadata = file.metadata().map_err(|source| Error::io(path, "examine", &source))?;
    if !metadata.is_file() {
        return Err(Error::invalid_model(format!("{} is not a file", path.display())).file(path));
    }
    Ok(Stamp { size: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) })
}

/// An empty buffer with room for `capacity` bytes; OUT_OF_MEMORY instead of the end of the process.
pub(crate) fn reserved(capacity: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    match bytes.try_reserve_exact(capacity) {
        Ok(()) => Ok(bytes),
        Err(_) => Err(Error::out_of_memory(format!("no memory for a buffer of {capacity} bytes"))),
    }
}

/// A buffer of `size` zeros.
pub(crate) fn zeroed(size: usize) -> Result<Vec<u8>> {
    let mut bytes = reserved(size)?;
    bytes.resize(size, 0);
    Ok(bytes)
}

/// Reads a whole text file of at most `limit` bytes.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let file = WeightFile::open(path)?;
    if file.size() > limit {
        return Err(file.invalid(format!("has {} bytes; at most {limit} are accepted", file.size())));
    }
    let mut bytes = zeroed(file.size() as usize)?;
    file.read_at(0, &mut bytes)?;
    match file.impostor(&bytes[..bytes.len().min(256)]) {
        Some(error) => Err(error),
        None => Ok(bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;
    use crate::base::Code;

    #[test]
    fn a_missing_file_is_not_found_and_a_folder_is_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("model.safetensors");
        let error = WeightFile::open(&missing).unwrap_err();
        assert_eq!(error.code(), Code::NotFound);
        assert_eq!(error.detail().file.as_deref(), Some(missing.as_path()));
        assert_eq!(WeightFile::open(folder.path()).unwrap_err().code(), Code::InvalidModel);
    }

    #[test]
    fn b21_a_shortened_file_gives_an_error_and_a_written_one_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        std::fs::write(&path, [7u8; 1000]).unwrap();
        let file = WeightFile::open(&path).unwrap();
        file.check_unchanged().unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(200).unwrap();
        let error = file.read_at(100, &mut [0; 200]).unwrap_err();
        assert_eq!(error.code(), Code::InvalidModel);
        assert_eq!(error.detail().position, Some(200));
        assert!(error.message().contains("expected at least 300"));
        assert_eq!(file.check_unchanged().unwrap_err().code(), Code::InvalidModel);
    }

    /// As CONVENTIONS.md says.
    #[test]
    fn a_write_is_told_by_the_size_and_the_time_and_by_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        std::fs::write(&path, [7u8; 100]).unwrap();
        let time = std::fs::metadata(&path).unwrap().modified().unwrap();
        let file = WeightFile::open(&path).unwrap();
        let write = |bytes: &[u8], time: std::time::SystemTime| {
            std::fs::write(&path, bytes).unwrap();
            OpenOptions::new().write(true).open(&path).unwrap().set_modified(time).unwrap();
            file.check_unchanged().map_err(|error| error.code())
        };
        assert_eq!(write(&[8; 100], time + std::time::Duration::from_secs(1)), Err(Code::InvalidModel));
        assert_eq!(write(&[8; 101], time), Err(Code::InvalidModel));
        assert_eq!(write(&[8; 100], time), Ok(()));
        std::fs::remove_file(&path).unwrap();
        file.check_unchanged().unwrap();
    }

    #[test]
    fn a_named_pipe_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        assert_eq!(WeightFile::open(&path).unwrap_err().code(), Code::InvalidModel);
    }
}
