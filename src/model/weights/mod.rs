//! Weight files: what they hold, and how it is brought into the form in which it is kept.
//!
//! A model folder's safetensors and a GGUF file look alike from outside: `WeightFiles` lists the
//! tensors, a `LoadPlan` says which are kept and in which form, a `PieceReader` reads and
//! converts them in pieces, `MatrixRows` a matrix row by row. Host only, any thread; nothing is mapped.

mod affine;
mod blocks;
mod cast;
mod file;
mod files;
mod folder;
mod foreign;
mod gguf;
mod hub;
mod kernel;
mod matrix;
mod microscaled;
mod model_files;
mod pieces;
mod plan;
mod rows;
mod safetensors;
mod types;

#[cfg(test)]
mod fixture_tests;
#[cfg(test)]
mod limits_tests;
#[cfg(test)]
pub(crate) mod testing;

pub use blocks::BlockFormat;
pub use file::WeightFile;
pub use files::WeightFiles;
pub use gguf::GgufMetadata;
pub use model_files::{Format, ModelFiles};
pub use pieces::{Piece, PieceReader};
pub use plan::{Keep, KeptTensor, LoadPlan, PlannedLinear, Quantized};
pub use rows::{MatrixRows, RowBuffers};
pub use types::{ElementType, Encoding, Tensor};

pub(crate) use file::read_small;
pub(crate) use files::text_model_name;
pub(crate) use gguf::Value;
pub(crate) use hub::resolve as model_folder;
