//! Reading files that are small enough to be read whole, and files that a folder need not have.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::quote::quote;
use super::{Code, Error, Result};

/// The bytes of a file.
///
/// NOT_FOUND if it is missing; INVALID_MODEL if it is not a regular file, such as a pipe or a device, which
/// could be read for ever, and if it has more than `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let invalid = |what: String| Error::invalid_model(format!("{} {what}", path.display())).file(path);
    let failed = |source: std::io::Error| Error::io(path, "read", &source);
    // A socket cannot even be opened.
    if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return Err(invalid("is not a file".into()));
    }
    let file = open(path)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() {
        return Err(invalid("is not a file".into()));
    }
    let too_large = |size: u64| invalid(format!("has {size} bytes; at most {limit} are accepted"));
    if about.len() > limit {
        return Err(too_large(about.len()));
    }
    let mut bytes = Vec::new();
    let room = usize::try_from(about.len()).unwrap_or(usize::MAX);
    bytes
        .try_reserve_exact(room)
        .map_err(|_| Error::out_of_memory(format!("no memory for the {room} bytes of {}", path.display())))?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    // A file may grow, and some have more than they say.
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Opens a file for reading. NOT_FOUND if it is missing, or if a link leads to nothing.
pub fn open(path: &Path) -> Result<File> {
    // Without O_NONBLOCK a named pipe would keep us here for ever.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    opened.map_err(|source| match fs::read_link(path) {
        Ok(target) if source.kind() == ErrorKind::NotFound => Error::not_found(format!(
            "{} is a link to {}, which is not there: the download is incomplete",
            path.display(),
            quote(&target.to_string_lossy())
        ))
        .file(path),
        _ => Error::io(path, "open", &source),
    })
}

/// Whether there is nothing of that name: a link that leads nowhere is something, whose file was lost.
pub fn is_absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|source| source.kind() == ErrorKind::NotFound)
}

/// What was read of the file at `path`; none where `is_absent` holds, and the error that says so is about that file.
pub fn optional<T>(path: &Path, read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error)
            if error.code() == Code::NotFound
                && error.detail().file.as_deref() == Some(path)
                && is_absent(path) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_to_nothing_is_no_absent_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(optional(&at("none"), read(&at("none"), 9)).unwrap().is_none() && is_absent(&at("none")));
        std::os::unix::fs::symlink("../blobs/b7", at("link")).unwrap();
        let error = optional(&at("link"), read(&at("link"), 9)).unwrap_err();
        assert_eq!(
            (error.code(), error.detail().file.as_deref()),
            (Code::NotFound, Some(at("link").as_path()))
        );
        assert!(error.message().contains("../blobs/b7") && !is_absent(&at("link")), "{error}");
        // What one file lacks does not make another one absent.
        let other = optional(&at("none"), read(&at("link"), 9)).unwrap_err();
        assert_eq!(other, error);
        fs::write(at("there"), "x").unwrap();
        std::os::unix::fs::symlink("there", at("good")).unwrap();
        assert_eq!(optional(&at("good"), read(&at("good"), 9)).unwrap().unwrap(), b"x");
    }

    #[test]
    fn what_is_no_file_or_too_large_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("ten"), "0123456789").unwrap();
        assert_eq!(read(&at("ten"), 10).unwrap(), b"0123456789");
        assert!(read(&at("ten"), 9).unwrap_err().message().contains("10 bytes; at most 9"));
        assert_eq!(read(&at("none"), 9).unwrap_err().code(), Code::NotFound);
        let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
        assert!(made.success());
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for path in [at("pipe"), at("socket"), "/dev/zero".into(), "/dev/null".into(), folder.path().into()] {
            let error = read(&path, 10).unwrap_err();
            assert_eq!(error.code(), Code::InvalidModel, "{error}");
            assert!(error.message().ends_with("is not a file"), "{error}");
            assert_eq!(error.detail().file.as_deref(), Some(path.as_path()));
        }
    }
}
