//! Which family describes which model type. A new family is one file in `families` and a row here.

use crate::base::Result;
use crate::model::config::{Fields, ModelConfig};
use crate::model::families::{
    cohere2, ernie4_5, exaone4, gemma2, gemma3, glm4, granite, helium, internlm3, llama, minicpm, ministral3,
    nemotron, olmo, phi3, qwen, seed_oss, smollm3, stablelm, starcoder2,
};

/// A family of models.
pub struct Family {
    pub name: &'static str,
    /// Values of `model_type` in a configuration.
    pub model_types: &'static [&'static str],
    /// From the fields of a configuration to what the graph computes.
    pub describe: fn(&Fields<'_>) -> Result<ModelConfig>,
}

const fn family(
    name: &'static str,
    model_types: &'static [&'static str],
    describe: fn(&Fields<'_>) -> Result<ModelConfig>,
) -> Family {
    Family { name, model_types, describe }
}

static FAMILIES: [Family; 23] = [
    family("llama", &["llama", "iquestcoder", "xverse"], llama::llama),
    family("mistral", &["mistral"], llama::mistral),
    family("ministral3", &["ministral3"], ministral3::describe),
    family("smollm3", &["smollm3"], smollm3::describe),
    family("qwen2", &["qwen2"], qwen::qwen2),
    family("qwen3", &["qwen3"], qwen::qwen3),
    family("gemma2", &["gemma2"], gemma2::describe),
    family("gemma3", &["gemma3_text"], gemma3::describe),
    family("phi3", &["phi3"], phi3::describe),
    family("olmo2", &["olmo2"], olmo::olmo2),
    family("olmo3", &["olmo3"], olmo::olmo3),
    family("granite", &["granite"], granite::describe),
    family("cohere2", &["cohere2"], cohere2::describe),
    family("glm4", &["glm4"], glm4::describe),
    family("exaone4", &["exaone4"], exaone4::describe),
    family("seed_oss", &["seed_oss"], seed_oss::describe),
    family("internlm3", &["internlm3"], internlm3::describe),
    family("ernie4_5", &["ernie4_5"], ernie4_5::describe),
    family("nemotron", &["nemotron"], nemotron::describe),
    family("minicpm", &["minicpm"], minicpm::describe),
    family("starcoder2", &["starcoder2"], starcoder2::describe),
    family("stablelm", &["stablelm", "stablelm_epoch"], stablelm::describe),
    family("helium", &["helium"], helium::describe),
];

/// Families of text models inside multimodal ones, by the type of the whole.
static INSIDE: [Family; 2] =
    [family("gemma3", &["gemma3"], gemma3::inside), family("mistral", &["mistral3"], llama::inside_mistral3)];

/// The family of a model type.
pub fn find(model_type: &str) -> Option<&'static Family> {
    FAMILIES.iter().find(|family| family.model_types.contains(&model_type))
}

/// The family of the text model inside a model of this type, whose description is a section of its own.
pub fn find_inside(outer_type: &str) -> Option<&'static Family> {
    INSIDE.iter().find(|family| family.model_types.contains(&outer_type))
}

/// The model types that are supported.
pub fn known() -> Vec<&'static str> {
    FAMILIES.iter().chain(&INSIDE).flat_map(|family| family.model_types).copied().collect()
}
