//! The one error type of the library. Its codes are the C ABI's status numbers and never change.

use std::fmt;
use std::path::{Path, PathBuf};

/// Status codes. The numbers are frozen: they are part of the ABI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum Code {
    Ok = 0,
    Done = 1,
    Timeout = 2,
    Cancelled = 3,
    InvalidArgument = 4,
    NotFound = 5,
    InvalidModel = 6,
    Unsupported = 7,
    OutOfMemory = 8,
    ContextFull = 9,
    Busy = 10,
    WrongState = 11,
    IncompatibleCheckpoint = 12,
    Io = 13,
    GpuTimeout = 14,
    GpuNotPermitted = 15,
    Internal = 16,
}

impl Code {
    /// Every code, in the order of its number.
    pub const ALL: [Code; 17] = [
        Code::Ok,
        Code::Done,
        Code::Timeout,
        Code::Cancelled,
        Code::InvalidArgument,
        Code::NotFound,
        Code::InvalidModel,
        Code::Unsupported,
        Code::OutOfMemory,
        Code::ContextFull,
        Code::Busy,
        Code::WrongState,
        Code::IncompatibleCheckpoint,
        Code::Io,
        Code::GpuTimeout,
        Code::GpuNotPermitted,
        Code::Internal,
    ];

    /// The name without the `MLXGEN_` prefix, such as `INVALID_MODEL`.
    pub const fn name(self) -> &'static str {
        match self {
            Code::Ok => "OK",
            Code::Done => "DONE",
            Code::Timeout => "TIMEOUT",
            Code::Cancelled => "CANCELLED",
            Code::InvalidArgument => "INVALID_ARGUMENT",
            Code::NotFound => "NOT_FOUND",
            Code::InvalidModel => "INVALID_MODEL",
            Code::Unsupported => "UNSUPPORTED",
            Code::OutOfMemory => "OUT_OF_MEMORY",
            Code::ContextFull => "CONTEXT_FULL",
            Code::Busy => "BUSY",
            Code::WrongState => "WRONG_STATE",
            Code::IncompatibleCheckpoint => "INCOMPATIBLE_CHECKPOINT",
            Code::Io => "IO",
            Code::GpuTimeout => "GPU_TIMEOUT",
            Code::GpuNotPermitted => "GPU_NOT_PERMITTED",
            Code::Internal => "INTERNAL",
        }
    }

    /// The code with this number, if there is one.
    pub fn from_number(number: i32) -> Option<Code> {
        Code::ALL.iter().copied().find(|code| *code as i32 == number)
    }
}

/// Where a fault lies, as far as it is known. Every part is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Detail {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// A configuration key, option or argument; with INVALID_ARGUMENT what the boundary calls so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// A byte in `file` or in a text, an element of the list `field`, or a layer: CONVENTIONS.md has the table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
}

/// An error: a code, a sentence for people, and where the fault lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Inner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Inner {
    code: Code,
    message: String,
    detail: Detail,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $code:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(Code::$code, message)
        })*
    };
}

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        debug_assert!(!matches!(code, Code::Ok), "an error cannot be OK");
        Error(Box::new(Inner { code, message: message.into(), detail: Detail::default() }))
    }

    constructors! {
        invalid_argument => InvalidArgument;
        not_found => NotFound;
        invalid_model => InvalidModel;
        unsupported => Unsupported;
        out_of_memory => OutOfMemory;
        context_full => ContextFull;
        busy => Busy;
        wrong_state => WrongState;
        internal => Internal;
    }

    pub fn cancelled() -> Self {
        Self::new(Code::Cancelled, "the work was cancelled")
    }

    pub fn timeout() -> Self {
        Self::new(Code::Timeout, "the time given is over")
    }

    /// A failed file operation. A missing file is NOT_FOUND; anything else is IO.
    pub fn io(path: &Path, action: &str, source: &std::io::Error) -> Self {
        let code = match source.kind() {
            std::io::ErrorKind::NotFound => Code::NotFound,
            _ => Code::Io,
        };
        Self::new(code, format!("cannot {action} {}: {source}", path.display())).file(path)
    }

    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.detail.file = Some(path.into());
        self
    }

    #[must_use]
    pub fn tensor(mut self, name: impl Into<String>) -> Self {
        self.0.detail.tensor = Some(name.into());
        self
    }

    #[must_use]
    pub fn field(mut self, name: impl Into<String>) -> Self {
        self.0.detail.field = Some(name.into());
        self
    }

    #[must_use]
    pub fn position(mut self, position: u64) -> Self {
        self.0.detail.position = Some(position);
        self
    }

    pub fn code(&self) -> Code {
        self.0.code
    }

    pub fn message(&self) -> &str {
        &self.0.message
    }

    pub fn detail(&self) -> &Detail {
        &self.0.detail
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code.name(), self.0.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_frozen() {
        for (number, code) in Code::ALL.iter().enumerate() {
            assert_eq!(*code as i32, number as i32);
            assert_eq!(Code::from_number(number as i32), Some(*code));
        }
        assert_eq!(Code::Internal as i32, 16);
        assert_eq!(Code::from_number(17), None);
        assert_eq!(Code::from_number(-1), None);
    }

    #[test]
    fn detail_lists_only_what_is_known() {
        let error = Error::invalid_model("short").file("/m/a.safetensors").tensor("w").position(8);
        let json = serde_json::to_string(error.detail()).unwrap();
        assert_eq!(json, r#"{"file":"/m/a.safetensors","tensor":"w","position":8}"#);
    }

    #[test]
    fn a_missing_file_is_not_found() {
        let missing = std::io::Error::from(std::io::ErrorKind::NotFound);
        assert_eq!(Error::io(Path::new("/x"), "open", &missing).code(), Code::NotFound);
        let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
        assert_eq!(Error::io(Path::new("/x"), "open", &denied).code(), Code::Io);
    }
}
