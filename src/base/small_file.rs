//! Reading files that are small enough to be read whole.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::{Error, Result};

/// The bytes of a file.
///
/// NOT_FOUND if it is missing; INVALID_MODEL if it is not a regular file, such as a pipe or a device, which
/// could be read for ever, and if it has more than `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let invalid = |what: String| Error::invalid_model(format!("{} {what}", path.display())).file(path);
    let failed = |source: std::io::Error| Error::io(path, "read", &source);
    let file = match open(path) {
        Ok(file) => file,
        // A socket cannot even be opened.
        Err(_) if fs::metadata(path).is_ok_and(|about| !about.is_file()) => {
            return Err(invalid("is not a file".into()));
        }
        Err(source) => return Err(failed(source)),
    };
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

/// Without O_NONBLOCK a named pipe would keep us here for ever.
fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Code;

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
