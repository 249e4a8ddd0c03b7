//! The tokenizer handle.

use std::ffi::c_char;
use std::sync::Arc;

use super::buffer::{self, mlxgen_buffer};
use super::error::mlxgen_error;
use super::guard::{self, Call};
use super::handle::{self, object};
use super::library::path;
use super::options::{self, bits, choice, flag, versioned};
use super::status::mlxgen_status;
use crate::base::{Code, Error, Result};
use crate::generate::tokenizer_files;
use crate::text::{ChatOptions, Tokenizer, ToolArguments};

/// Turns text into token ids and back, and conversations into prompts. Immutable; any thread.
/// Release it with mlxgen_tokenizer_release.
pub struct mlxgen_tokenizer {
    _opaque: [u8; 0],
}

pub(super) struct TokenizerObject(pub(super) Arc<Tokenizer>);

object!(TokenizerObject, mlxgen_tokenizer, 5);

/// For mlxgen_tokenize: add what the tokenizer puts around a text, such as the
/// begin-of-sequence token.
pub const MLXGEN_TOKENIZE_ADD_SPECIAL: u32 = 1;
/// For mlxgen_tokenize: the texts of special tokens become those tokens, instead of the tokens that
/// spell them.
pub const MLXGEN_TOKENIZE_PARSE_SPECIAL: u32 = 2;
/// For mlxgen_detokenize: special tokens give no text.
pub const MLXGEN_DETOKENIZE_SKIP_SPECIAL: u32 = 1;

/// Arguments of tool calls go to the template as the messages have them.
pub const MLXGEN_TOOL_ARGUMENTS_AS_GIVEN: i32 = 0;
/// Arguments that are JSON text go to the template as what the text says.
pub const MLXGEN_TOOL_ARGUMENTS_OBJECT: i32 = 1;
/// Arguments go to the template as JSON text.
pub const MLXGEN_TOOL_ARGUMENTS_TEXT: i32 = 2;

/// How to render a conversation. Set it up with mlxgen_chat_options_init. All texts are UTF-8 and
/// may be (NULL, 0).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct mlxgen_chat_options {
    /// Bytes of this struct, as the caller knows it.
    pub struct_size: usize,
    /// A JSON array of tools for the template.
    pub tools_json: *const c_char,
    pub tools_json_size: usize,
    /// Which of the model's templates to use; none: its default.
    pub template_name: *const c_char,
    pub template_name_size: usize,
    /// A JSON object whose members the template sees as variables.
    pub extra_json: *const c_char,
    pub extra_json_size: usize,
    /// 1 (the default): end with the head of the assistant's answer. 0: do not.
    pub add_generation_prompt: i32,
    /// One of the MLXGEN_TOOL_ARGUMENTS_ numbers.
    pub tool_arguments: i32,
    /// 0 (the default): texts of special tokens inside the messages stay plain text, so that a
    /// message cannot end its own turn. 1: they become special tokens.
    pub parse_special_in_content: i32,
    /// Must be 0.
    pub reserved: i32,
}

versioned!(
    mlxgen_chat_options, "chat_options", 72,
    {
        tools_json: 8, tools_json_size: 16, template_name: 24, template_name_size: 32, extra_json: 40,
        extra_json_size: 48, add_generation_prompt: 56, tool_arguments: 60, parse_special_in_content: 64
    },
    reserved: i32,
    mlxgen_chat_options {
        struct_size: 0,
        tools_json: std::ptr::null(),
        tools_json_size: 0,
        template_name: std::ptr::null(),
        template_name_size: 0,
        extra_json: std::ptr::null(),
        extra_json_size: 0,
        add_generation_prompt: 1,
        tool_arguments: MLXGEN_TOOL_ARGUMENTS_AS_GIVEN,
        parse_special_in_content: 0,
        reserved: 0,
    }
);

fn read_options(call: &Call, options: *const mlxgen_chat_options) -> Result<ChatOptions> {
    let options = call.options(options)?;
    let text = |data, size, field| {
        let text = call.text(data, size, field)?;
        Ok::<_, Error>((!text.is_empty()).then(|| text.to_owned()))
    };
    let forms = [
        (MLXGEN_TOOL_ARGUMENTS_AS_GIVEN, ToolArguments::AsGiven),
        (MLXGEN_TOOL_ARGUMENTS_OBJECT, ToolArguments::AsObject),
        (MLXGEN_TOOL_ARGUMENTS_TEXT, ToolArguments::AsText),
    ];
    choice(options.reserved, "reserved", &[(0, ())])?;
    Ok(ChatOptions {
        tools_json: text(options.tools_json, options.tools_json_size, "tools_json")?,
        template_name: text(options.template_name, options.template_name_size, "template_name")?,
        extra_json: text(options.extra_json, options.extra_json_size, "extra_json")?,
        add_generation_prompt: flag(options.add_generation_prompt, "add_generation_prompt")?,
        tool_arguments: choice(options.tool_arguments, "tool_arguments", &forms)?,
        parse_special_in_content: flag(options.parse_special_in_content, "parse_special_in_content")?,
        ..ChatOptions::default()
    })
}

/// Loads a tokenizer without a model: from a model folder, a repository's folder in the cache of the Hugging Face hub (its
/// revision main), a tokenizer.json or a .gguf file.
///
/// Threads: any thread.
/// Ownership: `path` is read during the call. `out` receives a handle that you release with
/// mlxgen_tokenizer_release.
/// Codes: OK, INVALID_ARGUMENT, NOT_FOUND, INVALID_MODEL, UNSUPPORTED, OUT_OF_MEMORY, IO.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_tokenizer_load(
    path: *const c_char,
    path_size: usize,
    out: *mut *mut mlxgen_tokenizer,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for `path_size` readable bytes and for outputs that are NULL or writable.
    unsafe {
        guard::fallible(out_error, [out.cast()], |call| {
            call.required(out, "out")?;
            let path = self::path(call.text(path, path_size, "path")?, "path")?;
            call.write(out, handle::hand_out(TokenizerObject(Arc::new(tokenizer_files::open(path)?)))?);
            Ok(Code::Ok)
        })
    }
}

/// Turns a text into token ids. `flags` is 0 or a sum of MLXGEN_TOKENIZE_ADD_SPECIAL and
/// MLXGEN_TOKENIZE_PARSE_SPECIAL.
///
/// Threads: any thread.
/// Ownership: `text` is read during the call. `out_tokens` receives a buffer of uint32_t that you
/// release with mlxgen_buffer_release.
/// Codes: OK, INVALID_ARGUMENT, INVALID_MODEL (the tokenizer's rules have no way for this text).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_tokenize(
    tokenizer: *const mlxgen_tokenizer,
    text: *const c_char,
    size: usize,
    flags: u32,
    out_tokens: *mut *mut mlxgen_buffer,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for `size` readable bytes and for outputs that are NULL or writable.
    unsafe {
        guard::fallible(out_error, [out_tokens.cast()], |call| {
            call.required(out_tokens, "out_tokens")?;
            let tokenizer = handle::get::<TokenizerObject>(tokenizer, "tokenizer")?;
            let text = call.text(text, size, "text")?;
            bits(flags, MLXGEN_TOKENIZE_ADD_SPECIAL | MLXGEN_TOKENIZE_PARSE_SPECIAL, "flags")?;
            let add_special = flags & MLXGEN_TOKENIZE_ADD_SPECIAL != 0;
            let parse_special = flags & MLXGEN_TOKENIZE_PARSE_SPECIAL != 0;
            let tokens = tokenizer.0.encode(text, add_special, parse_special)?;
            call.write(out_tokens, buffer::tokens(tokens)?);
            Ok(Code::Ok)
        })
    }
}

/// Turns token ids into a text. `flags` is 0 or MLXGEN_DETOKENIZE_SKIP_SPECIAL. Bytes that form no
/// UTF-8 character become U+FFFD.
///
/// Threads: any thread.
/// Ownership: `tokens` is read during the call. `out_text` receives a text buffer that you release
/// with mlxgen_buffer_release.
/// Codes: OK, INVALID_ARGUMENT (also for an id that the tokenizer does not have, with its position).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_detokenize(
    tokenizer: *const mlxgen_tokenizer,
    tokens: *const u32,
    count: usize,
    flags: u32,
    out_text: *mut *mut mlxgen_buffer,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for `count` readable ids and for outputs that are NULL or writable.
    unsafe {
        guard::fallible(out_error, [out_text.cast()], |call| {
            call.required(out_text, "out_text")?;
            let tokenizer = handle::get::<TokenizerObject>(tokenizer, "tokenizer")?;
            let tokens = call.array(tokens, count, "tokens")?;
            bits(flags, MLXGEN_DETOKENIZE_SKIP_SPECIAL, "flags")?;
            let text = tokenizer.0.decode(tokens, flags & MLXGEN_DETOKENIZE_SKIP_SPECIAL != 0)?;
            call.write(out_text, buffer::text(text)?);
            Ok(Code::Ok)
        })
    }
}

/// Sets options to their defaults. Pass `sizeof(mlxgen_chat_options)` as `struct_size`.
///
/// Threads: any thread.
/// Ownership: `struct_size` bytes at `options` are written.
/// Codes: OK, INVALID_ARGUMENT (`options` is NULL, or `struct_size` is not that of this struct in
/// any version).
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_chat_options_init(
    options: *mut mlxgen_chat_options,
    struct_size: usize,
) -> mlxgen_status {
    // SAFETY: the header asks that `struct_size` bytes are writable.
    unsafe { options::init(options, struct_size) }
}

/// Renders a conversation with the model's chat template. `messages_json` is a JSON array of
/// messages, such as [{"role": "user", "content": "Hello"}]. NULL as `options` means the defaults.
///
/// Threads: any thread.
/// Ownership: `messages_json` and `options` are read during the call. `out_text` receives a text buffer and
/// `out_tokens` a buffer of uint32_t, the same prompt as token ids; you release both with
/// mlxgen_buffer_release; each may be NULL.
/// Codes: OK, INVALID_ARGUMENT (also for a conversation that the template refuses, or for which it takes
/// too many steps), NOT_FOUND (there is no template, or none of that name), INVALID_MODEL (the template
/// is damaged or too long, or as for mlxgen_tokenize), UNSUPPORTED (it uses a filter, test or function that is not known),
/// OUT_OF_MEMORY.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_chat_render(
    tokenizer: *const mlxgen_tokenizer,
    messages_json: *const c_char,
    size: usize,
    options: *const mlxgen_chat_options,
    out_text: *mut *mut mlxgen_buffer,
    out_tokens: *mut *mut mlxgen_buffer,
    out_error: *mut *mut mlxgen_error,
) -> mlxgen_status {
    // SAFETY: the header asks for readable texts and options, and for outputs that are NULL or writable.
    unsafe {
        guard::fallible(out_error, [out_text.cast(), out_tokens.cast()], |call| {
            let tokenizer = handle::get::<TokenizerObject>(tokenizer, "tokenizer")?;
            let messages = call.text(messages_json, size, "messages_json")?;
            let rendered = tokenizer.0.chat_render(messages, &read_options(call, options)?);
            let rendered = rendered.map_err(name_argument)?;
            let text = buffer::text(rendered.text)?;
            let tokens = buffer::tokens(rendered.tokens).inspect_err(|_| buffer::release(text))?;
            buffer::write_or_release(call, out_text, text);
            buffer::write_or_release(call, out_tokens, tokens);
            Ok(Code::Ok)
        })
    }
}

/// Adds a reference to a tokenizer.
///
/// Threads: any thread.
/// Ownership: gives back `tokenizer`, to be released once more; NULL if it is not alive.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_tokenizer_retain(tokenizer: *mut mlxgen_tokenizer) -> *mut mlxgen_tokenizer {
    guard::plain(std::ptr::null_mut(), || handle::retain::<TokenizerObject>(tokenizer))
}

/// Gives up a reference to a tokenizer. NULL and a handle that is not alive are left alone.
///
/// Threads: any thread.
/// Ownership: takes your reference.
/// Codes: none.
/// Since: 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlxgen_tokenizer_release(tokenizer: *mut mlxgen_tokenizer) {
    guard::plain((), || handle::release::<TokenizerObject>(tokenizer));
}

/// An error of the rendering names what is at fault as the header calls it.
fn name_argument(error: Error) -> Error {
    let argument = match error.detail().field.as_deref() {
        // A template that can be read refuses what it is given.
        Some("messages") => "messages_json",
        Some("chat_template") if error.code() == Code::InvalidArgument => "messages_json",
        Some("tools") => "tools_json",
        Some("extra") => "extra_json",
        _ => return error,
    };
    error.field(argument)
}
