//! Status numbers as C sees them.

use std::ffi::CStr;

use crate::base::Code;

/// What became of a call: one of the MLXGEN_ numbers from MLXGEN_OK to MLXGEN_INTERNAL. They
/// never change. Later versions may add numbers: treat an unknown one as a failure.
pub type mlxgen_status = i32;

/// Success.
pub const MLXGEN_OK: mlxgen_status = 0;
/// The stream has told everything. Not a failure: no error object comes with it.
pub const MLXGEN_DONE: mlxgen_status = 1;
/// The time given is over. Not a failure: no error object comes with it.
pub const MLXGEN_TIMEOUT: mlxgen_status = 2;
/// A cancel handle was asked to stop this work.
pub const MLXGEN_CANCELLED: mlxgen_status = 3;
/// An argument has no meaning: NULL where something is needed, a handle that is not alive, text
/// that is not UTF-8, a number out of its range. The error's detail names the argument.
pub const MLXGEN_INVALID_ARGUMENT: mlxgen_status = 4;
/// A file, or something asked for by name, is not there.
pub const MLXGEN_NOT_FOUND: mlxgen_status = 5;
/// A model's or tokenizer's files are damaged or contradict each other.
pub const MLXGEN_INVALID_MODEL: mlxgen_status = 6;
/// Sound, but beyond what this version or this machine can do.
pub const MLXGEN_UNSUPPORTED: mlxgen_status = 7;
/// The work does not fit in the engine's limit or the machine's memory. Nothing was changed.
pub const MLXGEN_OUT_OF_MEMORY: mlxgen_status = 8;
/// The tokens do not fit in the model's context or the cache set's capacity.
pub const MLXGEN_CONTEXT_FULL: mlxgen_status = 9;
/// Another call, or an open stream, is using the object.
pub const MLXGEN_BUSY: mlxgen_status = 10;
/// The object, the library or the calling thread is not in a state that allows this call.
pub const MLXGEN_WRONG_STATE: mlxgen_status = 11;
/// A checkpoint does not fit the model.
pub const MLXGEN_INCOMPATIBLE_CHECKPOINT: mlxgen_status = 12;
/// The system failed to read or write.
pub const MLXGEN_IO: mlxgen_status = 13;
/// The system's watchdog ended work on the GPU that took too long.
pub const MLXGEN_GPU_TIMEOUT: mlxgen_status = 14;
/// The system does not let this process use the GPU now, such as an app in the background.
pub const MLXGEN_GPU_NOT_PERMITTED: mlxgen_status = 15;
/// A defect of the library, caught at its boundary. Please report the error's message.
pub const MLXGEN_INTERNAL: mlxgen_status = 16;

macro_rules! check_numbers {
    ($($name:ident = $code:ident,)*) => {
        $(const _: () = assert!($name == Code::$code as i32, "the status numbers are frozen");)*

        /// The C name of a status, NUL-terminated.
        pub(super) fn c_name(status: mlxgen_status) -> &'static CStr {
            const fn literal(text: &'static str) -> &'static CStr {
                match CStr::from_bytes_with_nul(text.as_bytes()) {
                    Ok(text) => text,
                    Err(_) => c"MLXGEN_UNKNOWN",
                }
            }
            match status {
                $($name => const { literal(concat!(stringify!($name), "\0")) },)*
                _ => c"MLXGEN_UNKNOWN",
            }
        }
    };
}

check_numbers! {
    MLXGEN_OK = Ok,
    MLXGEN_DONE = Done,
    MLXGEN_TIMEOUT = Timeout,
    MLXGEN_CANCELLED = Cancelled,
    MLXGEN_INVALID_ARGUMENT = InvalidArgument,
    MLXGEN_NOT_FOUND = NotFound,
    MLXGEN_INVALID_MODEL = InvalidModel,
    MLXGEN_UNSUPPORTED = Unsupported,
    MLXGEN_OUT_OF_MEMORY = OutOfMemory,
    MLXGEN_CONTEXT_FULL = ContextFull,
    MLXGEN_BUSY = Busy,
    MLXGEN_WRONG_STATE = WrongState,
    MLXGEN_INCOMPATIBLE_CHECKPOINT = IncompatibleCheckpoint,
    MLXGEN_IO = Io,
    MLXGEN_GPU_TIMEOUT = GpuTimeout,
    MLXGEN_GPU_NOT_PERMITTED = GpuNotPermitted,
    MLXGEN_INTERNAL = Internal,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_c_name() {
        for code in Code::ALL {
            assert_eq!(c_name(code as i32).to_str().unwrap(), format!("MLXGEN_{}", code.name()));
        }
        assert_eq!(c_name(-1), c"MLXGEN_UNKNOWN");
        assert_eq!(c_name(17), c"MLXGEN_UNKNOWN");
    }
}
