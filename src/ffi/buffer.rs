//! Texts and arrays across the boundary: the owned buffer object out, borrowed views in.

use std::ffi::{c_char, c_void};

use super::guard::{self, Call};
use super::handle::{self, object};
use crate::base::{Error, Result};

/// Bytes, a text or an array that the library made. Immutable; any thread. Release it with
/// mlxgen_buffer_release.
pub struct mlxgen_buffer {
    _opaque: [u8; 0],
}

/// Kept in the element type, for its alignment.
enum BufferObject {
    /// With a terminator that its size does not count.
    Text(Vec<u8>),
    Tokens(Vec<u32>),
    Numbers(Vec<f32>),
}

object!(BufferObject, mlxgen_buffer, 2);

impl BufferObject {
    fn data(&self) -> *const c_void {
        match self {
            BufferObject::Text(text) => text.as_ptr().cast(),
            BufferObject::Tokens(tokens) => tokens.as_ptr().cast(),
            BufferObject::Numbers(numbers) => numbers.as_ptr().cast(),
        }
    }

    fn size(&self) -> usize {
        match self {
            BufferObject::Text(text) => text.len() - 1,
            BufferObject::Tokens(tokens) => size_of_val(tokens.as_slice()),
            BufferObject::Numbers(numbers) => size_of_val(numbers.as_slice()),
        }
    }
}

pub(super) fn text(text: String) -> Result<*mut mlxgen_buffer> {
    let mut bytes = text.into_bytes();
    bytes.push(0);
    handle::hand_out(BufferObject::Text(bytes))
}

pub(super) fn tokens(tokens: Vec<u32>) -> Result<*mut mlxgen_buffer> {
    handle::hand_out(BufferObject::Tokens(tokens))
}

pub(super) fn numbers(numbers: Vec<f32>) -> Result<*mut mlxgen_buffer> {
    handle::hand_out(BufferObject::Numbers(numbers))
}

pub(super) fn release(buffer: *mut mlxgen_buffer) {
    handle::release::<BufferObject>(buffer);
}

/// Gives the buffer to the caller, if the caller wants it.
pub(super) fn write_or_release(call: &Call, out: *mut *mut mlxgen_buffer, buffer: *mut mlxgen_buffer) {
    if out.is_null() { release(buffer) } else { call.write(out, buffer) }
}

impl Call {
    /// The UTF-8 text at `data`; (NULL, 0) is the empty text.
    pub(super) fn text<'a>(&'a self, data: *const c_char, size: usize, field: &str) -> Result<&'a str> {
        let bytes = self.array::<u8>(data.cast(), size, field)?;
        std::str::from_utf8(bytes).map_err(|fault| {
            let position = fault.valid_up_to();
            Error::invalid_argument(format!("{field} is not UTF-8 at byte {position}"))
                .field(field)
                .position(position as u64)
        })
    }

    /// The array at `data`; (NULL, 0) is the empty array. All bit patterns of `T` must be values.
    pub(super) fn array<'a, T: Plain>(
        &'a self,
        data: *const T,
        count: usize,
        field: &str,
    ) -> Result<&'a [T]> {
        let bad = |rule: &str| Error::invalid_argument(format!("{field} {rule}")).field(field);
        if count == 0 {
            return Ok(&[]);
        }
        if data.is_null() {
            return Err(bad(&format!("is NULL with a size of {count}")));
        }
        if !data.is_aligned() {
            return Err(bad("is not aligned for its element type"));
        }
        if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(bad(&format!("has a size of {count}, which is beyond the address space")));
        }
        // SAFETY: by the promise of `Call`, `count` elements are readable at `data` until the call
        // ends, and nobody changes them; the size was checked.
        Ok(unsafe { std::slice::from_raw_parts(data, count) })
    }
}

/// Element types for which all bit patterns are values.
pub(super) trait Plain: Copy {}
impl Plain for u8 {}
impl Plain for u32 {}
impl Plain for f32 {}

/// Gives the first byte of a buffer's contents. Arrays are aligned for their element type. A text
/// is UTF-8 and followed by a NUL that its size does not count.
///
/// Threads: any thread.
/// Ownership: the bytes are borrowed until you release `buffer`; never NULL while it is alive, even
/// when it is empty; NULL if it is not alive.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_buffer_data(buffer: *const mlxgen_buffer) -> *const c_void {
    guard::plain(std::ptr::null(), || {
        handle::find::<BufferObject>(buffer).map_or(std::ptr::null(), |object| object.data())
    })
}

/// Gives the size of a buffer's contents in bytes.
///
/// Threads: any thread.
/// Ownership: nothing changes hands; the size is 0 if `buffer` is not alive.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_buffer_size(buffer: *const mlxgen_buffer) -> usize {
    guard::plain(0, || handle::find::<BufferObject>(buffer).map_or(0, |object| object.size()))
}

/// Adds a reference to a buffer.
///
/// Threads: any thread.
/// Ownership: gives back `buffer`, to be released once more; NULL if it is not alive.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_buffer_retain(buffer: *mut mlxgen_buffer) -> *mut mlxgen_buffer {
    guard::plain(std::ptr::null_mut(), || handle::retain::<BufferObject>(buffer))
}

/// Gives up a reference to a buffer; the last one frees its contents. NULL and a handle that is
/// not alive are left alone.
///
/// Threads: any thread.
/// Ownership: takes your reference; the bytes borrowed from the buffer end with it.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_buffer_release(buffer: *mut mlxgen_buffer) {
    guard::plain((), || handle::release::<BufferObject>(buffer));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Code;

    /// Runs `body` as an exported function would, and gives its status.
    fn inside(body: impl FnOnce(&Call) -> Result<()>) -> i32 {
        // SAFETY: there are no outputs, and the bodies below read what they own.
        unsafe { guard::fallible(std::ptr::null_mut(), [], |call| body(call).map(|()| Code::Ok)) }
    }

    #[test]
    fn odd_texts_are_refused_before_they_are_read() {
        let status = inside(|call| {
            assert_eq!(call.text(std::ptr::null(), 0, "text")?, "");
            assert_eq!(call.text(c"h\u{e9}".as_ptr(), 3, "text")?, "h\u{e9}");
            let cut = call.text(c"h\u{e9}".as_ptr(), 2, "text").unwrap_err();
            assert_eq!((cut.detail().field.as_deref(), cut.detail().position), (Some("text"), Some(1)));
            let missing = call.text(std::ptr::null(), 1, "text").unwrap_err();
            assert_eq!(missing.code(), Code::InvalidArgument);
            assert!(call.text(c"".as_ptr(), usize::MAX, "text").is_err());
            let words = [1_u32, 2];
            let odd = words.as_ptr().cast::<u8>().wrapping_add(1).cast::<u32>();
            assert!(call.array(odd, 1, "tokens").is_err());
            assert!(call.array(words.as_ptr(), usize::MAX / 2, "tokens").is_err());
            assert_eq!(call.array(words.as_ptr(), 2, "tokens")?, words);
            Ok(())
        });
        assert_eq!(status, 0, "a failed assertion in the call above is INTERNAL");
    }

    #[test]
    fn buffers_keep_their_element_type() {
        let text_buffer = text("\u{1f600}".to_owned()).unwrap();
        let empty = tokens(Vec::new()).unwrap();
        let scores = numbers(vec![1.5, -2.0]).unwrap();
        // SAFETY: the handles are alive, and the sizes are checked before the bytes are read.
        unsafe {
            assert_eq!(mlxgen_buffer_size(text_buffer), 4);
            let bytes = std::ffi::CStr::from_ptr(mlxgen_buffer_data(text_buffer).cast());
            assert_eq!(bytes.to_str(), Ok("\u{1f600}"));
            assert_eq!(mlxgen_buffer_size(empty), 0);
            assert!(!mlxgen_buffer_data(empty).is_null());
            assert_eq!(mlxgen_buffer_size(scores), 8);
            assert_eq!(*mlxgen_buffer_data(scores).cast::<[f32; 2]>(), [1.5, -2.0]);
            for buffer in [text_buffer, empty, scores] {
                assert_eq!(mlxgen_buffer_retain(buffer), buffer);
                mlxgen_buffer_release(buffer);
                mlxgen_buffer_release(buffer);
                assert!(mlxgen_buffer_data(buffer).is_null());
                assert_eq!(mlxgen_buffer_size(buffer), 0);
            }
        }
    }
}
