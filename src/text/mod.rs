//! Text to tokens and back, and conversations to prompts. Host only; any thread.
//!
//! - [`Tokenizer`] is what the rest of the library holds, as `Arc<Tokenizer>`: it encodes, decodes,
//!   knows the ids that begin and end sequences, and renders the model's chat template.
//! - [`StreamDecoder`] turns ids into whole characters, one id at a time.
//! - [`GgufTokenizer`] is what a GGUF reader hands over; [`Tokenizer::load_dir`] reads a model folder.

mod added;
mod bytes;
pub mod chat;
mod check;
mod decode;
mod folder;
pub mod gguf;
mod guard;
mod parse;
mod pretokenizers;
mod protect;
mod stream;
mod tokenizer;

pub use chat::{ChatOptions, RenderedChat, ToolArguments};
pub use gguf::GgufTokenizer;
pub use stream::StreamDecoder;
pub use tokenizer::Tokenizer;
