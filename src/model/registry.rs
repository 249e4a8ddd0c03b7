//! Which family builds which model type. A new family is one file in `families` and a row here.

use std::sync::Arc;

use crate::base::{Error, Result};
use crate::model::config::ModelConfig;
use crate::model::families::llama;
use crate::model::footprint::{Footprint, Storage};
use crate::model::graph::CausalGraph;
use crate::model::tensors::Tensors;
use crate::model::weights::LoadPlan;

/// A family's choice of tensors for one model; builds the graph once they are there.
pub trait FamilyPlan: Send + Sync {
    /// What its states and forwards occupy, with keys, values and activations of `float_bytes`.
    fn footprint(&self, storage: Storage) -> Footprint;

    /// The number of weights.
    fn parameters(&self) -> u64;

    fn build(&self, tensors: &Tensors) -> Result<Box<dyn CausalGraph>>;
}

type PlanFn = fn(&ModelConfig, &mut LoadPlan) -> Result<Arc<dyn FamilyPlan>>;

/// A family of models with one graph.
pub struct Family {
    pub name: &'static str,
    /// Values of `model_type` in a configuration, and of `general.architecture` in GGUF.
    pub model_types: &'static [&'static str],
    /// Asks for the tensors of the model.
    pub plan: PlanFn,
    /// Tensors of a file that the family does not use and does not mind.
    pub ignores: fn(&ModelConfig, &str) -> bool,
}

static FAMILIES: [Family; 1] = [Family {
    name: "llama",
    model_types: &["llama", "mistral"],
    plan: llama::plan,
    ignores: llama::ignores,
}];

/// The family of a model type; UNSUPPORTED if there is none.
pub fn find(model_type: &str) -> Result<&'static Family> {
    FAMILIES.iter().find(|family| family.model_types.contains(&model_type)).ok_or_else(|| {
        let known: Vec<&str> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
        Error::unsupported(format!(
            "models of the type {} are not supported; supported are {}",
            crate::base::quote::quote(model_type),
            known.join(", ")
        ))
        .field("model_type")
    })
}
