//! One file per family of models.

pub mod llama;
