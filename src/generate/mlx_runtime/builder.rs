//! Receives the pieces of the weights on the owner thread and makes the model of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::cache_forms::CacheForms;
use super::model::MlxModel;
use super::pace::Speed;
use super::packed::PackedMatrices;
use crate::base::{Error, Result};
use crate::generate::runtime::{ModelBuilder, TokenModel, WeightPiece};
use crate::mlx::ops::Weight;
use crate::mlx::{self, DeviceKind, Dtype, StagedTensor};
use crate::model::dense::DensePlan;
use crate::model::footprint::Footprint;
use crate::model::tensors::{Arithmetic, Part, Tensors, dtype_of};
use crate::model::weights::KeptTensor;

/// What the owner thread has to know of a model, made off it.
#[derive(Clone)]
pub(super) struct Blueprint {
    pub(super) family: Arc<DensePlan>,
    pub(super) kept: Arc<[KeptTensor]>,
    pub(super) footprint: Footprint,
    pub(super) context_limit: u64,
    pub(super) device: DeviceKind,
    /// How the model computes and what its caches keep.
    pub(super) forms: CacheForms,
    /// Of activations.
    pub(super) activation: Dtype,
    /// Of most floats in the files.
    pub(super) float: Dtype,
    /// Where the source puts matrices that it has packed itself.
    pub(super) packed: PackedMatrices,
}

enum Slot {
    Empty,
    Filling(StagedTensor),
    Full(Part),
}

pub(super) struct MlxBuilder {
    blueprint: Blueprint,
    slots: Vec<Slot>,
}

impl MlxBuilder {
    pub(super) fn new(blueprint: Blueprint) -> Result<Self> {
        mlx::select_device(blueprint.device)?;
        let slots = blueprint.kept.iter().map(|_| Slot::Empty).collect();
        Ok(MlxBuilder { blueprint, slots })
    }

    fn stage(&self, tensor: usize) -> Result<StagedTensor> {
        let kept = &self.blueprint.kept[tensor];
        let shape: Option<Vec<i32>> = kept.shape.iter().map(|dim| i32::try_from(*dim).ok()).collect();
        let shape = shape.ok_or_else(|| {
            Error::invalid_model("the tensor is larger than an array can be").tensor(kept.name.clone())
        })?;
        StagedTensor::new(dtype_of(kept.element), &shape)
    }
}

impl ModelBuilder for MlxBuilder {
    fn accept(&mut self, piece: WeightPiece) -> Result<()> {
        let index = piece.tensor;
        if let Some((linear, weight)) = self.blueprint.packed.take(index) {
            for index in linear.tensors() {
                self.slots[index] = Slot::Full(Part::Merged);
            }
            self.slots[index] = Slot::Full(Part::Weight(Weight::Packed(weight)));
            return Ok(());
        }
        if let Some(Slot::Empty) = self.slots.get(index) {
            self.slots[index] = Slot::Filling(self.stage(index)?);
        }
        let Some(slot) = self.slots.get_mut(index) else {
            return Err(Error::internal("a piece of an unknown tensor"));
        };
        let Slot::Filling(staged) = slot else {
            return Err(Error::internal("a piece of a finished tensor"));
        };
        staged.write(piece.offset, &piece.bytes)?;
        if staged.is_complete()
            && let Slot::Filling(staged) = std::mem::replace(slot, Slot::Empty)
        {
            *slot = Slot::Full(Part::Array(staged.finish()?));
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn TokenModel>> {
        Ok(Box::new(self.assemble()?))
    }
}

impl MlxBuilder {
    /// The model of tensors that are all there.
    pub(super) fn assemble(self) -> Result<MlxModel> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let MlxBuilder { blueprint, slots } = self;
        let mut parts = Vec::with_capacity(slots.len());
        for (slot, kept) in slots.into_iter().zip(blueprint.kept.iter()) {
            match slot {
                Slot::Full(part) => parts.push(part),
                Slot::Empty | Slot::Filling(_) => {
                    return Err(Error::internal("a tensor was not read to its end").tensor(kept.name.clone()));
                }
            }
        }
        if blueprint.forms.arithmetic == Arithmetic::Kernels {
            mlx::memory::clear_pool()?;
        }
        let graph =
            blueprint.family.build(&Tensors::new(parts, blueprint.forms.arithmetic, blueprint.float))?;
        Ok(MlxModel {
            graph,
            footprint: blueprint.footprint,
            context_limit: blueprint.context_limit,
            device: blueprint.device,
            activation: blueprint.activation,
            forms: blueprint.forms,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            speed: Speed::unknown(),
        })
    }
}
