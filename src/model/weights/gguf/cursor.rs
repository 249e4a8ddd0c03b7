//! Reading a file from front to back, with every length checked against what is left.

use super::super::file::{WeightFile, zeroed};
use crate::base::{Error, Result};

/// Bytes read at once.
const BUFFER: usize = 256 << 10;

/// A place in a file. Errors name the file and the place.
pub(super) struct Cursor<'a> {
    file: &'a WeightFile,
    buffer: Vec<u8>,
    /// Where the buffer begins in the file.
    start: u64,
    /// The place within the buffer.
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(file: &'a WeightFile) -> Self {
        Cursor { file, buffer: Vec::new(), start: 0, at: 0 }
    }

    pub(super) fn position(&self) -> u64 {
        self.start + self.at as u64
    }

    pub(super) fn remaining(&self) -> u64 {
        self.file.size() - self.position()
    }

    /// INVALID_MODEL at this place: "the file `what`".
    pub(super) fn invalid(&self, what: impl AsRef<str>) -> Error {
        self.file.invalid(what).position(self.position())
    }

    fn truncated(&self, what: &str, bytes: u64) -> Error {
        self.invalid(format!(
            "is damaged or truncated: {what} at byte {} needs {bytes} bytes, but the file has {} bytes",
            self.position(),
            self.file.size()
        ))
    }

    /// Whether `count` things of at least `least` bytes can still come.
    pub(super) fn check_count(&self, what: &str, count: u64, least: u64) -> Result<()> {
        match count.checked_mul(least) {
            Some(bytes) if bytes <= self.remaining() => Ok(()),
            Some(bytes) => Err(self.truncated(what, bytes)),
            None => Err(self.invalid(format!("is damaged: it declares {count} {what}"))),
        }
    }

    /// The next `N` bytes.
    pub(super) fn take<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        if self.remaining() < N as u64 {
            return Err(self.truncated(what, N as u64));
        }
        if self.buffer.len() - self.at < N {
            self.start = self.position();
            self.at = 0;
            let left = self.file.size() - self.start;
            self.buffer = zeroed(left.min(BUFFER as u64) as usize)?;
            self.file.read_at(self.start, &mut self.buffer)?;
        }
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.buffer[self.at..self.at + N]);
        self.at += N;
        Ok(bytes)
    }

    /// Appends the next `count` bytes to `target`.
    pub(super) fn append(&mut self, what: &str, count: u64, target: &mut Vec<u8>) -> Result<()> {
        if self.remaining() < count {
            return Err(self.truncated(what, count));
        }
        let count = count as usize;
        let from = target.len();
        target
            .try_reserve(count)
            .map_err(|_| Error::out_of_memory(format!("no memory for {count} bytes of metadata")))?;
        let buffered = count.min(self.buffer.len() - self.at);
        target.extend_from_slice(&self.buffer[self.at..self.at + buffered]);
        self.at += buffered;
        if buffered < count {
            target.resize(from + count, 0);
            self.file.read_at(self.position(), &mut target[from + buffered..])?;
            self.start = self.position() + (count - buffered) as u64;
            self.at = 0;
            self.buffer.clear();
        }
        Ok(())
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        self.take(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        self.take(what).map(u64::from_le_bytes)
    }

    /// A length and that many bytes of UTF-8.
    pub(super) fn text(&mut self, what: &str) -> Result<String> {
        let place = self.position();
        let length = self.u64(what)?;
        let mut bytes = Vec::new();
        self.append(what, length, &mut bytes)?;
        String::from_utf8(bytes)
            .map_err(|_| self.invalid(format!("is damaged: {what} is not UTF-8")).position(place))
    }
}
