//! Which MLX this is.

use std::ffi::CStr;

use mlx_sys as sys;

use super::error;

/// MLX's version, such as `0.32.2`.
pub fn version() -> String {
    error::init();
    // SAFETY: the string is made, read as the NUL-terminated text that it holds, and freed here.
    unsafe {
        let mut text = sys::mlx_string_new();
        let code = sys::mlx_version(&mut text);
        let data = sys::mlx_string_data(text);
        let version = if code == 0 && !data.is_null() {
            CStr::from_ptr(data).to_string_lossy().into_owned()
        } else {
            String::new()
        };
        sys::mlx_string_free(text);
        version
    }
}
