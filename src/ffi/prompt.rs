//! Prompts: arrays of parts.

use std::ffi::c_char;

use super::guard::Call;
use super::options::{self, versioned};
use super::status::mlxgen_status;
use crate::base::info::ModelInfo;
use crate::base::{Error, Prompt, Result};
use crate::generate::request::{check_room, sequence_limit};

/// Token ids.
pub const MLXGEN_PART_TOKENS: i32 = 1;
/// Rows of embeddings, as an encoder of pictures or sound makes them.
pub const MLXGEN_PART_EMBEDDINGS: i32 = 2;

/// A part of a prompt. In an array all elements have the `struct_size` of the first, which is the
/// distance between them. Set it up with mlxgen_prompt_part_init.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_prompt_part {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// One of the MLXGEN_PART_ numbers.
    pub kind: i32,
    /// With MLXGEN_PART_TOKENS: the token ids.
    pub tokens: *const u32,
    pub token_count: usize,
    /// With MLXGEN_PART_EMBEDDINGS: `embedding_rows` rows of `embedding_width` numbers, a row in the place of a token.
    /// The width is the model's `hidden`. They take the place of what the model's own table gives, and come in its
    /// scale.
    pub embeddings: *const f32,
    pub embedding_rows: usize,
    pub embedding_width: usize,
    /// With MLXGEN_PART_EMBEDDINGS: bytes that name the content, such as a hash of the picture and of what encoded it.
    /// What a cache set has read is reused where keys are equal: equal keys have to mean equal numbers.
    pub key: *const c_char,
    pub key_size: usize,
}

versioned!(
    mlxgen_prompt_part, "prompt_part", 32,
    {
        kind: 8, tokens: 16, token_count: 24, embeddings: 32, embedding_rows: 40, embedding_width: 48, key: 56,
        key_size: 64
    },
    key_size: usize,
    mlxgen_prompt_part {
        struct_size: 0,
        kind: MLXGEN_PART_TOKENS,
        tokens: std::ptr::null(),
        token_count: 0,
        embeddings: std::ptr::null(),
        embedding_rows: 0,
        embedding_width: 0,
        key: std::ptr::null(),
        key_size: 0,
    }
);

/// The parts, whose distance is the size that the first one says.
fn read_parts(
    call: &Call,
    first: *const mlxgen_prompt_part,
    count: usize,
) -> Result<Vec<mlxgen_prompt_part>> {
    let bad = |rule: &str| Error::invalid_argument(format!("parts {rule}")).field("parts");
    if count == 0 {
        return Ok(Vec::new());
    }
    let size = call.struct_size_of(first, "parts")?;
    if count.checked_mul(size).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(bad(&format!("has a size of {count}, which is beyond the address space")));
    }
    (0..count)
        .map(|index| {
            let part = first.wrapping_byte_add(index * size);
            let place = |error: Error| error.position(index as u64);
            if call.struct_size_of(part, "parts").map_err(place)? != size {
                return Err(place(bad("has elements of different struct_size")));
            }
            call.read(part, "parts").map_err(place)
        })
        .collect()
}

/// All parts joined.
pub(super) fn read_prompt(
    call: &Call,
    parts: *const mlxgen_prompt_part,
    count: usize,
    info: &ModelInfo,
) -> Result<Prompt> {
    let mut prompt = Prompt::default();
    for (index, part) in (0_u64..).zip(read_parts(call, parts, count)?) {
        let place = |error: Error| error.field("parts").position(index);
        match part.kind {
            MLXGEN_PART_TOKENS => {
                let tokens = call.array(part.tokens, part.token_count, "tokens").map_err(place)?;
                check_prompt_size(prompt.len(), tokens.len(), info)?;
                prompt.push_tokens(tokens);
            }
            MLXGEN_PART_EMBEDDINGS => push_embeddings(call, &part, info, place, &mut prompt)?,
            later if later > MLXGEN_PART_EMBEDDINGS => {
                let fault = format!("this version knows no prompt parts of kind {later}");
                return Err(place(Error::unsupported(fault)));
            }
            other => return Err(place(Error::invalid_argument(format!("a prompt part has kind {other}")))),
        }
    }
    Ok(prompt)
}

/// No more than can be read of a prompt is copied: what is longer than the model's context is refused before.
pub(super) fn check_prompt_size(before: usize, more: usize, info: &ModelInfo) -> Result<()> {
    check_room(before as u64 + more as u64, sequence_limit(info, 0))
}

/// Keys are names: hashes and paths are far shorter.
const LONGEST_KEY: usize = 1 << 16;

fn push_embeddings(
    call: &Call,
    part: &mlxgen_prompt_part,
    info: &ModelInfo,
    place: impl Fn(Error) -> Error,
    prompt: &mut Prompt,
) -> Result<()> {
    let mlxgen_prompt_part { embedding_rows: rows, embedding_width: width, .. } = *part;
    if width != info.hidden as usize {
        let text = format!("embeddings have {} elements, not {width}", info.hidden);
        return Err(place(Error::invalid_argument(text)));
    }
    if part.key_size > LONGEST_KEY {
        let text = format!("a key has at most {LONGEST_KEY} bytes, not {}", part.key_size);
        return Err(place(Error::invalid_argument(text)));
    }
    let too_many = || place(Error::invalid_argument("there are more embeddings than memory has bytes"));
    let values = call.array(part.embeddings, rows.checked_mul(width).ok_or_else(too_many)?, "embeddings");
    let values = values.map_err(&place)?;
    let key = call.array(part.key.cast::<u8>(), part.key_size, "key").map_err(&place)?;
    check_prompt_size(prompt.len(), rows, info)?;
    prompt.push_embeddings(values, width, key).map_err(place)
}

/// Makes an empty part of kind MLXGEN_PART_TOKENS. Pass `sizeof(mlxgen_prompt_part)` as
/// `struct_size`.
///
/// Threads: any thread.
/// Ownership: `struct_size` bytes at `part` are written.
/// Codes: OK, INVALID_ARGUMENT (`part` is NULL, or `struct_size` is not that of this struct in any
/// version).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_prompt_part_init(
    part: *mut mlxgen_prompt_part,
    struct_size: usize,
) -> mlxgen_status {
    // SAFETY: the header asks that `struct_size` bytes are writable.
    unsafe { options::init(part, struct_size) }
}
