//! Quantised matrices in a plan: how they are packed in the files, and what becomes of that.

use std::sync::Arc;

use super::blocks::BlockFormat;
use super::files::WeightFiles;
use super::kernel::Kernel;
use super::microscaled;
use super::plan::{LoadPlan, PlannedLinear, Quantized};
use super::types::{ElementType, Encoding, RowOrder, Tensor};
use crate::base::quote;
use crate::base::{Error, Result};
use crate::model::config::{Affine, Microscaled, Override, Packing};

impl LoadPlan {
    /// A matrix of GGUF blocks that becomes an affine triple.
    pub(super) fn repacked(
        &mut self,
        path: &str,
        index: usize,
        format: BlockFormat,
        out: usize,
        in_: usize,
    ) -> PlannedLinear {
        let affine = format.affine();
        let float = self.keep.float.unwrap_or(format.parameters());
        self.count_form(format!("{affine} (from {})", format.name()), out * in_);
        let targets = self.keep_triple(path, affine, float, out, in_);
        let rows = self.files.tensors()[index].rows;
        let kernel = Kernel::Repack { format, float };
        self.push_elements(kernel, vec![index], targets.to_vec(), rows, [out * in_, in_]);
        planned(targets, affine)
    }

    /// A matrix that was packed by MLX. How follows from the shapes; what the configuration says of
    /// this very layer must agree.
    pub(super) fn packed(
        &mut self,
        path: &str,
        index: usize,
        out: usize,
        in_: usize,
    ) -> Result<PlannedLinear> {
        let files = Arc::clone(&self.files);
        let weight = &files.tensors()[index];
        let said = self.quantization.as_ref().and_then(|quantization| quantization.of(path));
        if let Some(Override::Unknown(mode)) = said {
            return Err(Error::unsupported(format!(
                "{path} is quantised in the mode {}, which is not supported",
                quote::quote(mode)
            ))
            .file(files.files()[weight.file].path())
            .tensor(weight.stored_name())
            .field(format!("quantization.{path}.mode")));
        }
        let scales_name = format!("{path}.scales");
        let scales = files.get(&scales_name).ok_or_else(|| files.missing(&scales_name))?;
        let packing = packing_of(&files, weight, scales, out, in_)?;
        let expected = match said {
            Some(Override::Packed(packing)) => Some(*packing),
            Some(Override::Default) => self.quantization.as_ref().map(|quantization| quantization.default),
            Some(Override::Plain) => {
                return Err(files.invalid(weight, "is packed, but the configuration says that it is not"));
            }
            Some(Override::Unknown(_)) | None => None,
        };
        if let Some(expected) = expected
            && expected != packing
        {
            return Err(files
                .invalid(weight, format!("is packed as {packing}, but the configuration says {expected}")));
        }
        if let Some(scale) = files.get(&format!("{path}.global_scale")) {
            return Err(Error::unsupported(format!(
                "tensor {} is a scale of a whole matrix, which is not supported",
                quote::name(scale.stored_name())
            ))
            .file(files.files()[scale.file].path())
            .tensor(scale.stored_name()));
        }
        match packing {
            Packing::Affine(affine) => self.affine(path, affine, out, in_),
            Packing::Microscaled(mode) => self.microscaled(path, mode, out, in_),
        }
    }

    fn affine(&mut self, path: &str, affine: Affine, out: usize, in_: usize) -> Result<PlannedLinear> {
        let files = Arc::clone(&self.files);
        let [weight_name, scales_name, biases_name] = names(path);
        let groups = [out, in_ / affine.group as usize];
        let weight = self.take(&weight_name, &[out, packed_columns(affine.bits, in_)])?;
        let (scales, biases) = (self.take(&scales_name, &groups)?, self.take(&biases_name, &groups)?);
        let scale_type = float_type(&files, &files.tensors()[scales])?;
        if float_type(&files, &files.tensors()[biases])? != scale_type {
            let what = format!("has another type than the scales, {}", scale_type.name());
            return Err(files.invalid(&files.tensors()[biases], what));
        }
        if self.keep.quantized.takes(affine) {
            self.count_form(affine.to_string(), out * in_);
            let packed = self.copied(weight, &weight_name);
            let (scales, biases) = (self.plain(scales, &scales_name)?, self.plain(biases, &biases_name)?);
            return Ok(planned([packed, scales, biases], affine));
        }
        let to = self.keep.float.unwrap_or(scale_type);
        self.count_form(format!("{} (from {affine})", to.name()), out * in_);
        let target = self.keep(weight_name, to, vec![out, in_]);
        let kernel = Kernel::Affine { affine, scales: scale_type, to };
        let sources = vec![weight, scales, biases];
        self.push_elements(kernel, sources, vec![target], RowOrder::Natural, [out * in_, in_]);
        Ok(PlannedLinear::Plain { weight: target })
    }

    fn microscaled(
        &mut self,
        path: &str,
        mode: Microscaled,
        out: usize,
        in_: usize,
    ) -> Result<PlannedLinear> {
        let [weight_name, scales_name, _] = names(path);
        let weight = self.take(&weight_name, &[out, packed_columns(mode.bits(), in_)])?;
        let scales = self.take(&scales_name, &[out, in_ / mode.group() as usize])?;
        let (elements, sources) = ([out * in_, in_], vec![weight, scales]);
        match (self.keep.quantized, microscaled::affine_form(mode)) {
            (Quantized::Mlx, _) => {
                self.count_form(mode.name().to_owned(), out * in_);
                let weight = self.copied(weight, &weight_name);
                let scales = self.copied(scales, &scales_name);
                Ok(PlannedLinear::Microscaled { weight, scales, mode })
            }
            (Quantized::Kernels, Some(affine)) => {
                self.count_form(format!("{affine} (from {})", mode.name()), out * in_);
                let targets = self.keep_triple(path, affine, microscaled::PARAMETERS, out, in_);
                let kernel = Kernel::RepackMicroscaled { mode, affine };
                self.push_elements(kernel, sources, targets.to_vec(), RowOrder::Natural, elements);
                Ok(planned(targets, affine))
            }
            (Quantized::Kernels | Quantized::Dequantized, _) => {
                let to = self.keep.float.unwrap_or(microscaled::PARAMETERS);
                self.count_form(format!("{} (from {})", to.name(), mode.name()), out * in_);
                let target = self.keep(weight_name, to, vec![out, in_]);
                let kernel = Kernel::Microscaled { mode, to };
                self.push_elements(kernel, sources, vec![target], RowOrder::Natural, elements);
                Ok(PlannedLinear::Plain { weight: target })
            }
        }
    }

    /// The arrays of an affine triple.
    fn keep_triple(
        &mut self,
        path: &str,
        affine: Affine,
        float: ElementType,
        out: usize,
        in_: usize,
    ) -> [usize; 3] {
        let [weight, scales, biases] = names(path);
        let groups = vec![out, in_ / affine.group as usize];
        [
            self.keep(weight, ElementType::U32, vec![out, packed_columns(affine.bits, in_)]),
            self.keep(scales, float, groups.clone()),
            self.keep(biases, float, groups),
        ]
    }

    /// A plain tensor of the files that is kept as it is.
    fn copied(&mut self, index: usize, name: &str) -> usize {
        let files = Arc::clone(&self.files);
        let tensor = &files.tensors()[index];
        let Encoding::Plain(element) = tensor.encoding else { unreachable!("packed tensors are plain") };
        let target = self.keep(name.to_owned(), element, tensor.shape.clone());
        self.push(Kernel::Copy { size: element.size() }, vec![index], vec![target], tensor.rows, tensor);
        target
    }
}

fn names(path: &str) -> [String; 3] {
    ["weight", "scales", "biases"].map(|part| format!("{path}.{part}"))
}

/// Words in a row of `in_` numbers.
fn packed_columns(bits: u32, in_: usize) -> usize {
    in_ * bits as usize / 32
}

fn planned([weight, scales, biases]: [usize; 3], Affine { bits, group }: Affine) -> PlannedLinear {
    PlannedLinear::Affine { weight, scales, biases, bits, group }
}

fn float_type(files: &WeightFiles, tensor: &Tensor) -> Result<ElementType> {
    match tensor.encoding {
        Encoding::Plain(element) if element.is_float() => Ok(element),
        other => Err(files.invalid(tensor, format!("holds {}; floats are needed", other.name()))),
    }
}

/// The packing that the shapes of a matrix and its scales imply: scales of 8 bits belong to the other modes, which
/// width and group tell apart.
fn packing_of(
    files: &WeightFiles,
    weight: &Tensor,
    scales: &Tensor,
    out: usize,
    in_: usize,
) -> Result<Packing> {
    let (&[weight_rows, columns], &[scale_rows, groups]) = (weight.shape.as_slice(), scales.shape.as_slice())
    else {
        return Err(files.invalid(weight, format!("has shape {:?}; a packed matrix is needed", weight.shape)));
    };
    let bits = columns.saturating_mul(32).checked_div(in_).unwrap_or(0);
    let group = in_.checked_div(groups).unwrap_or(0);
    let exact = weight_rows == out
        && scale_rows == out
        && columns.checked_mul(32) == bits.checked_mul(in_)
        && group.checked_mul(groups) == Some(in_);
    let found = u32::try_from(bits).ok().zip(u32::try_from(group).ok()).filter(|_| exact);
    let packing = found.and_then(|(bits, group)| match scales.encoding {
        Encoding::Plain(ElementType::U8) => Microscaled::ALL
            .into_iter()
            .find(|mode| (mode.bits(), mode.group()) == (bits, group))
            .map(Packing::Microscaled),
        _ => Some(Affine { bits, group }).filter(|affine| affine.is_possible()).map(Packing::Affine),
    });
    packing.ok_or_else(|| {
        let what = format!(
            "has shape {:?} and {} scales of shape {:?}, which no packing of a {out} by {in_} matrix gives",
            weight.shape,
            scales.encoding.name(),
            scales.shape
        );
        files.invalid(weight, what)
    })
}
