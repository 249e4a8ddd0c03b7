//! One file per family of models: from a configuration file's fields to what the graph computes.

pub mod cohere2;
pub mod ernie4_5;
pub mod exaone4;
pub mod gemma2;
pub mod gemma3;
pub mod glm4;
pub mod granite;
pub mod helium;
pub mod internlm3;
pub mod llama;
pub mod minicpm;
pub mod ministral3;
pub mod nemotron;
pub mod olmo;
pub mod phi3;
pub mod qwen;
pub mod seed_oss;
pub mod smollm3;
pub mod stablelm;
pub mod starcoder2;
