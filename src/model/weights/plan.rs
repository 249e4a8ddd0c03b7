//! Which tensors of a model are kept, and in which form.
//!
//! A model family asks for its tensors in the order of its graph and gets an index for each
//! array that will exist. Nothing is read yet: shapes, types and quantisation parameters are
//! settled from the headers, so that a load that cannot succeed fails before it begins.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::files::WeightFiles;
use super::kernel::Kernel;
use super::pieces::PieceReader;
use super::types::{BlockFormat, ElementType, Encoding, RowOrder, Tensor};
use crate::base::{Error, Result};
use crate::model::config::{Affine, Override, Quantization};

/// What becomes of quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantized {
    /// They stay packed, as MLX's affine triples.
    Packed,
    /// They become float matrices.
    Dequantized,
}

/// The form in which weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The type of all floats, scales and biases among them; `None`: each keeps the file's own
    /// (float16 for what comes from GGUF blocks).
    pub float: Option<ElementType>,
    pub quantized: Quantized,
}

/// An array that will exist.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptTensor {
    /// Such as `model.layers.0.self_attn.q_proj.scales`.
    pub name: String,
    pub element: ElementType,
    pub shape: Vec<usize>,
    pub bytes: u64,
}

/// The arrays of a linear layer or an embedding: indices of kept tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedLinear {
    /// `[out, in]`, floats.
    Plain { weight: usize },
    /// Packed numbers (uint32 `[out, in * bits / 32]`); scales and biases `[out, in / group]`.
    Affine { weight: usize, scales: usize, biases: usize, bits: u32, group: u32 },
}

impl PlannedLinear {
    /// The index that names it: that of the numbers.
    pub fn weight(&self) -> usize {
        match *self {
            PlannedLinear::Plain { weight } | PlannedLinear::Affine { weight, .. } => weight,
        }
    }

    /// All its indices.
    pub fn tensors(&self) -> Vec<usize> {
        match *self {
            PlannedLinear::Plain { weight } => vec![weight],
            PlannedLinear::Affine { weight, scales, biases, .. } => vec![weight, scales, biases],
        }
    }
}

/// One conversion from tensors of the files to kept tensors.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) kernel: Kernel,
    /// Indices of the files' tensors, as many as the kernel has inputs.
    pub(crate) sources: Vec<usize>,
    /// Indices of kept tensors, as many as the kernel has outputs.
    pub(crate) targets: Vec<usize>,
    /// Groups of the kernel in all, and in one row.
    pub(crate) groups: usize,
    pub(crate) row_groups: usize,
    pub(crate) rows: RowOrder,
}

/// The plan of a load.
#[derive(Debug)]
pub struct LoadPlan {
    files: Arc<WeightFiles>,
    quantization: Option<Quantization>,
    keep: Keep,
    kept: Vec<KeptTensor>,
    linears: Vec<PlannedLinear>,
    jobs: Vec<Job>,
    /// For each tensor of the files.
    used: Vec<bool>,
    /// Forms of quantised weights and the elements that have each.
    forms: BTreeMap<String, usize>,
}

impl LoadPlan {
    /// `keep.float` must be a float type.
    pub fn new(files: Arc<WeightFiles>, quantization: Option<Quantization>, keep: Keep) -> Self {
        let used = vec![false; files.tensors().len()];
        LoadPlan {
            files,
            quantization,
            keep,
            kept: Vec::new(),
            linears: Vec::new(),
            jobs: Vec::new(),
            used,
            forms: BTreeMap::new(),
        }
    }

    pub fn files(&self) -> &Arc<WeightFiles> {
        &self.files
    }

    /// Whether the files hold a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.files.position(name).is_some()
    }

    /// Keeps a tensor of floats: a norm's gain, a bias.
    pub fn float(&mut self, name: &str, shape: &[usize]) -> Result<usize> {
        let index = self.take(name, shape)?;
        self.plain(index, name)
    }

    /// Keeps the matrix of a linear layer or an embedding: `{path}.weight`, `[out, in]`, with
    /// `{path}.scales` and `{path}.biases` if it is packed.
    pub fn linear(&mut self, path: &str, out: usize, in_: usize) -> Result<PlannedLinear> {
        let linear = self.find_linear(path, out, in_)?;
        self.linears.push(linear);
        Ok(linear)
    }

    fn find_linear(&mut self, path: &str, out: usize, in_: usize) -> Result<PlannedLinear> {
        let name = format!("{path}.weight");
        let index = self.files.position(&name).ok_or_else(|| self.files.missing(&name))?;
        match self.files.tensors()[index].encoding {
            Encoding::Plain(ElementType::U32) => self.packed(path, index, out, in_),
            Encoding::Block(format) if self.keep.quantized == Quantized::Packed => {
                let index = self.take(&name, &[out, in_])?;
                Ok(self.repacked(path, index, format, out, in_))
            }
            _ => {
                let index = self.take(&name, &[out, in_])?;
                Ok(PlannedLinear::Plain { weight: self.plain(index, &name)? })
            }
        }
    }

    /// Finds a tensor, checks its shape and marks it as used.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<usize> {
        let files = Arc::clone(&self.files);
        let tensor = files.require(name, shape)?;
        tensor.check_usable().map_err(|error| error.file(files.files()[tensor.file].path()))?;
        if let RowOrder::InterleavedHalves { head_dim } = tensor.rows
            && !shape.first().is_some_and(|rows| rows.is_multiple_of(head_dim))
        {
            return Err(files
                .invalid(tensor, format!("has shape {shape:?}, which is not made of heads of {head_dim}")));
        }
        let index = files.position(name).ok_or_else(|| files.missing(name))?;
        self.used[index] = true;
        Ok(index)
    }

    fn plain(&mut self, index: usize, name: &str) -> Result<usize> {
        let files = Arc::clone(&self.files);
        let tensor = &files.tensors()[index];
        let (kernel, element) = match tensor.encoding {
            Encoding::Plain(from) if from.is_float() => match self.keep.float {
                Some(to) if to != from => (Kernel::Cast { from, to }, to),
                _ => (Kernel::Copy { size: from.size() }, from),
            },
            Encoding::Block(format) => {
                self.count_form(format!("from {}", format.name()), tensor.elements());
                let to = self.keep.float.unwrap_or(ElementType::F16);
                (Kernel::Blocks { format, to }, to)
            }
            Encoding::Plain(_) | Encoding::Other(_) => {
                let what = format!("holds {}; floats are needed", tensor.encoding.name());
                return Err(files.invalid(tensor, what));
            }
        };
        let target = self.keep(name.to_owned(), element, tensor.shape.clone());
        self.push(kernel, vec![index], vec![target], tensor.rows, tensor);
        Ok(target)
    }

    fn repacked(
        &mut self,
        path: &str,
        index: usize,
        format: BlockFormat,
        out: usize,
        in_: usize,
    ) -> PlannedLinear {
        let (bits, group) = (format.bits(), BlockFormat::ELEMENTS as u32);
        let float = self.keep.float.unwrap_or(ElementType::F16);
        self.count_form(format!("affine {bits}-bit group {group} (from {})", format.name()), out * in_);
        let shape = vec![out, in_ / BlockFormat::ELEMENTS];
        let weight =
            self.keep(format!("{path}.weight"), ElementType::U32, vec![out, in_ * bits as usize / 32]);
        let scales = self.keep(format!("{path}.scales"), float, shape.clone());
        let biases = self.keep(format!("{path}.biases"), float, shape);
        let files = Arc::clone(&self.files);
        let tensor = &files.tensors()[index];
        self.push(
            Kernel::Repack { format, float },
            vec![index],
            vec![weight, scales, biases],
            tensor.rows,
            tensor,
        );
        PlannedLinear::Affine { weight, scales, biases, bits, group }
    }

    /// A matrix that was packed by MLX. Width and group follow from the shapes; what the
    /// configuration says of this very layer must agree.
    fn packed(&mut self, path: &str, index: usize, out: usize, in_: usize) -> Result<PlannedLinear> {
        let files = Arc::clone(&self.files);
        let weight = &files.tensors()[index];
        let said = self.quantization.as_ref().and_then(|quantization| quantization.of(path)).cloned();
        if let Some(Override::Mode(mode)) = &said {
            return Err(Error::unsupported(format!(
                "{path} is quantised in the mode {mode}, which is not supported"
            ))
            .file(files.files()[weight.file].path())
            .tensor(weight.stored_name())
            .field(format!("quantization.{path}.mode")));
        }
        let scales_name = format!("{path}.scales");
        let scales = files.get(&scales_name).ok_or_else(|| files.missing(&scales_name))?;
        let affine = packed_parameters(&files, weight, scales, out, in_)?;
        let expected = match said {
            Some(Override::Affine(affine)) => Some(affine),
            Some(Override::Default) => self.quantization.as_ref().map(|quantization| quantization.default),
            Some(Override::Plain) => {
                return Err(files.invalid(weight, "is packed, but the configuration says that it is not"));
            }
            Some(Override::Mode(_)) | None => None,
        };
        if let Some(expected) = expected
            && expected != affine
        {
            return Err(files.invalid(
                weight,
                format!(
                    "is packed with {} bits in groups of {}, but the configuration says {} bits in groups of {}",
                    affine.bits, affine.group, expected.bits, expected.group
                ),
            ));
        }
        let groups_shape = [out, in_ / affine.group as usize];
        let scales_index = self.take(&scales_name, &groups_shape)?;
        let biases_name = format!("{path}.biases");
        let biases_index = self.take(&biases_name, &groups_shape)?;
        self.used[index] = true;
        let (scales, biases) = (&files.tensors()[scales_index], &files.tensors()[biases_index]);
        let scale_type = float_type(&files, scales)?;
        if float_type(&files, biases)? != scale_type {
            return Err(
                files.invalid(biases, format!("has another type than the scales, {}", scale_type.name()))
            );
        }
        if self.keep.quantized == Quantized::Dequantized {
            let to = self.keep.float.unwrap_or(scale_type);
            self.count_form(format!("from affine {}-bit group {}", affine.bits, affine.group), out * in_);
            let target = self.keep(format!("{path}.weight"), to, vec![out, in_]);
            let kernel = Kernel::Affine { affine, scales: scale_type, to };
            let groups = out * groups_shape[1];
            self.jobs.push(Job {
                kernel,
                sources: vec![index, scales_index, biases_index],
                targets: vec![target],
                groups,
                row_groups: groups_shape[1],
                rows: RowOrder::Natural,
            });
            return Ok(PlannedLinear::Plain { weight: target });
        }
        self.count_form(format!("affine {}-bit group {}", affine.bits, affine.group), out * in_);
        let packed = self.keep(format!("{path}.weight"), ElementType::U32, weight.shape.clone());
        self.push(Kernel::Copy { size: 4 }, vec![index], vec![packed], weight.rows, weight);
        let scales = self.plain(scales_index, &scales_name)?;
        let biases = self.plain(biases_index, &biases_name)?;
        Ok(PlannedLinear::Affine { weight: packed, scales, biases, bits: affine.bits, group: affine.group })
    }

    fn keep(&mut self, name: String, element: ElementType, shape: Vec<usize>) -> usize {
        let bytes = shape.iter().product::<usize>() as u64 * element.size() as u64;
        self.kept.push(KeptTensor { name, element, shape, bytes });
        self.kept.len() - 1
    }

    fn push(
        &mut self,
        kernel: Kernel,
        sources: Vec<usize>,
        targets: Vec<usize>,
        rows: RowOrder,
        tensor: &Tensor,
    ) {
        let groups = tensor.elements() / kernel.elements();
        let row = tensor.shape.get(1..).unwrap_or_default().iter().product::<usize>();
        self.jobs.push(Job { kernel, sources, targets, groups, row_groups: row / kernel.elements(), rows });
    }

    fn count_form(&mut self, form: String, elements: usize) {
        *self.forms.entry(form).or_default() += elements;
    }

    /// INVALID_MODEL naming a tensor that nothing asked for and `ignore` does not excuse: a graph
    /// that leaves a weight out would give wrong numbers. Tables of rotary frequencies are
    /// always excused, since they follow from the configuration.
    pub fn refuse_unused(&self, ignore: impl Fn(&str) -> bool) -> Result<()> {
        for (tensor, used) in self.files.tensors().iter().zip(&self.used) {
            let table = tensor.name.ends_with("rotary_emb.inv_freq") || tensor.name == "rope_freqs.weight";
            if !used && !table && !ignore(&tensor.name) {
                return Err(self
                    .files
                    .invalid(tensor, "is not part of the model that the configuration describes"));
            }
        }
        Ok(())
    }

    pub fn kept(&self) -> &[KeptTensor] {
        &self.kept
    }

    /// All matrices that were asked for.
    pub fn linears(&self) -> &[PlannedLinear] {
        &self.linears
    }

    /// Bytes of the largest matrix.
    pub fn largest_linear(&self) -> u64 {
        let bytes = |linear: &PlannedLinear| -> u64 {
            linear.tensors().into_iter().map(|index| self.kept[index].bytes).sum()
        };
        self.linears.iter().map(bytes).max().unwrap_or(0)
    }

    /// Bytes of all kept tensors.
    pub fn resident_bytes(&self) -> u64 {
        self.kept.iter().map(|tensor| tensor.bytes).sum()
    }

    /// Bytes of the files that will be read.
    pub fn file_bytes(&self) -> u64 {
        let read = self.files.tensors().iter().zip(&self.used).filter(|(_, used)| **used);
        read.map(|(tensor, _)| tensor.bytes).sum()
    }

    /// How most weights are kept, such as `affine 4-bit group 32 (from Q4_1)` or `float32`.
    pub fn description(&self) -> String {
        let float = self.keep.float.unwrap_or_else(|| self.files.float_type()).name();
        match self.forms.iter().max_by_key(|(_, elements)| **elements) {
            Some((form, _)) if form.starts_with("affine") => form.clone(),
            Some((form, _)) => format!("{float} ({form})"),
            None => float.to_owned(),
        }
    }

    /// Starts reading, with that many threads for conversions.
    pub fn pieces(self, threads: usize) -> PieceReader {
        PieceReader::new(self.files, self.jobs, threads)
    }
}

fn float_type(files: &WeightFiles, tensor: &Tensor) -> Result<ElementType> {
    match tensor.encoding {
        Encoding::Plain(element) if element.is_float() => Ok(element),
        other => Err(files.invalid(tensor, format!("holds {}; floats are needed", other.name()))),
    }
}

/// Width and group that the shapes of a packed matrix and its scales imply.
fn packed_parameters(
    files: &WeightFiles,
    weight: &Tensor,
    scales: &Tensor,
    out: usize,
    in_: usize,
) -> Result<Affine> {
    if scales.encoding == Encoding::Plain(ElementType::U8) {
        return Err(Error::unsupported(format!(
            "{} is quantised in a mode with 8-bit scales, which is not supported",
            weight.stored_name()
        ))
        .file(files.files()[weight.file].path())
        .tensor(weight.stored_name()));
    }
    let (&[weight_rows, columns], &[scale_rows, groups]) = (weight.shape.as_slice(), scales.shape.as_slice())
    else {
        return Err(files.invalid(weight, format!("has shape {:?}; a packed matrix is needed", weight.shape)));
    };
    let bits = columns.saturating_mul(32).checked_div(in_).unwrap_or(0);
    let group = in_.checked_div(groups).unwrap_or(0);
    let affine = Affine { bits: bits as u32, group: group as u32 };
    let exact = weight_rows == out
        && scale_rows == out
        && columns.checked_mul(32) == bits.checked_mul(in_)
        && group.checked_mul(groups) == Some(in_)
        && u32::try_from(bits).is_ok()
        && u32::try_from(group).is_ok()
        && affine.is_possible();
    if exact {
        return Ok(affine);
    }
    Err(files.invalid(
        weight,
        format!(
            "has shape {:?} and scales of shape {:?}, which no packing of a {out} by {in_} matrix gives",
            weight.shape, scales.shape
        ),
    ))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
