//! Which tensors of a model are kept, and in which form.
//!
//! A model family asks for its tensors in the order of its graph and gets an index for each
//! array that will exist. Nothing is read yet: shapes, types and quantisation parameters are
//! settled from the headers, so that a load that cannot succeed fails before it begins.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::files::WeightFiles;
use super::foreign;
use super::kernel::Kernel;
use super::pieces::{self, PieceReader};
use super::rows::MatrixRows;
use super::types::{ElementType, Encoding, RowOrder, Tensor};
use crate::base::Result;
use crate::model::config::{Affine, Microscaled, Quantization};

/// What becomes of quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantized {
    /// They stay packed where MLX's own operations take them so: affine triples with groups of 32, 64 and 128, and MLX's
    /// other modes.
    Mlx,
    /// They stay packed where our kernels take them so: affine triples with groups of 16, 32, 64 and 128.
    Kernels,
    /// They become float matrices.
    Dequantized,
}

impl Quantized {
    /// Whether an affine triple can be used as it is.
    pub(super) fn takes(self, affine: Affine) -> bool {
        match self {
            Quantized::Mlx => affine.is_possible(),
            Quantized::Kernels => true,
            Quantized::Dequantized => false,
        }
    }
}

/// The form in which weights are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// The type of all floats, scales and biases among them; `None`: each keeps the file's own
    /// (for what comes from GGUF blocks and MLX's other modes: one that holds it without loss).
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
    /// Packed elements (uint32 `[out, in * bits / 32]`); scales uint8 `[out, in / group]`.
    Microscaled { weight: usize, scales: usize, mode: Microscaled },
}

impl PlannedLinear {
    /// The index that names it: that of the numbers.
    pub fn weight(&self) -> usize {
        match *self {
            PlannedLinear::Plain { weight }
            | PlannedLinear::Affine { weight, .. }
            | PlannedLinear::Microscaled { weight, .. } => weight,
        }
    }

    /// All its indices.
    pub fn tensors(&self) -> Vec<usize> {
        match *self {
            PlannedLinear::Plain { weight } => vec![weight],
            PlannedLinear::Affine { weight, scales, biases, .. } => vec![weight, scales, biases],
            PlannedLinear::Microscaled { weight, scales, .. } => vec![weight, scales],
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
    pub(super) files: Arc<WeightFiles>,
    pub(super) quantization: Option<Quantization>,
    pub(super) keep: Keep,
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
        let Some(index) = self.files.position(&name) else {
            return Err(foreign::error(&self.files, path).unwrap_or_else(|| self.files.missing(&name)));
        };
        match self.files.tensors()[index].encoding {
            Encoding::Plain(ElementType::U32) => self.packed(path, index, out, in_),
            Encoding::Block(format) if self.keep.quantized.takes(format.affine()) => {
                let index = self.take(&name, &[out, in_])?;
                Ok(self.repacked(path, index, format, out, in_))
            }
            Encoding::Plain(element) if element.is_float() => self.plain_linear(&name, out, in_),
            Encoding::Block(_) => self.plain_linear(&name, out, in_),
            Encoding::Plain(_) | Encoding::Other(_) => {
                match foreign::error(&self.files, path) {
                    Some(error) => Err(error),
                    // Tells what is wrong.
                    None => self.plain_linear(&name, out, in_),
                }
            }
        }
    }

    /// A matrix that becomes one of floats.
    fn plain_linear(&mut self, name: &str, out: usize, in_: usize) -> Result<PlannedLinear> {
        let index = self.take(name, &[out, in_])?;
        let weight = self.plain(index, name)?;
        let kept = self.kept[weight].element.name();
        let form = match self.files.tensors()[index].encoding {
            Encoding::Block(format) => format!("{kept} (from {})", format.name()),
            _ => kept.to_owned(),
        };
        self.count_form(form, out * in_);
        Ok(PlannedLinear::Plain { weight })
    }

    /// Finds a tensor, checks its shape and marks it as used.
    pub(super) fn take(&mut self, name: &str, shape: &[usize]) -> Result<usize> {
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

    pub(super) fn plain(&mut self, index: usize, name: &str) -> Result<usize> {
        let files = Arc::clone(&self.files);
        let tensor = &files.tensors()[index];
        let (kernel, element) = match tensor.encoding {
            Encoding::Plain(from) if from.is_float() => match self.keep.float {
                Some(to) if to != from => (Kernel::Cast { from, to }, to),
                _ => (Kernel::Copy { size: from.size() }, from),
            },
            // Rows that are exchanged are whole blocks in a matrix only.
            Encoding::Block(format) if tensor.shape.len() < 2 && tensor.rows != RowOrder::Natural => {
                let what = format!("holds {}; its rows are exchanged, so floats are needed", format.name());
                return Err(files.invalid(tensor, what));
            }
            Encoding::Block(format) => {
                let to = self.keep.float.unwrap_or(ElementType::F32);
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

    pub(super) fn keep(&mut self, name: String, element: ElementType, shape: Vec<usize>) -> usize {
        let bytes = shape.iter().product::<usize>() as u64 * element.size() as u64;
        self.kept.push(KeptTensor { name, element, shape, bytes });
        self.kept.len() - 1
    }

    /// Converts `tensor`, and what goes with it.
    pub(super) fn push(
        &mut self,
        kernel: Kernel,
        sources: Vec<usize>,
        targets: Vec<usize>,
        rows: RowOrder,
        tensor: &Tensor,
    ) {
        let row = tensor.shape.get(1..).unwrap_or_default().iter().product::<usize>();
        self.push_elements(kernel, sources, targets, rows, [tensor.elements(), row]);
    }

    /// As `push`, of this many elements in all and in a row.
    pub(super) fn push_elements(
        &mut self,
        kernel: Kernel,
        sources: Vec<usize>,
        targets: Vec<usize>,
        rows: RowOrder,
        elements: [usize; 2],
    ) {
        let [groups, row_groups] = elements.map(|elements| elements / kernel.elements());
        self.jobs.push(Job { kernel, sources, targets, groups, row_groups, rows });
    }

    pub(super) fn count_form(&mut self, form: String, elements: usize) {
        *self.forms.entry(form).or_default() += elements;
    }

    /// INVALID_MODEL naming a tensor that nothing asked for and `ignore` does not excuse: a graph
    /// that leaves a weight out would give wrong numbers. Tables of rotary frequencies are
    /// always excused, since they follow from the configuration.
    pub fn refuse_unused(&self, ignore: impl Fn(&str) -> bool) -> Result<()> {
        for (tensor, used) in self.files.tensors().iter().zip(&self.used) {
            let table = tensor.name.ends_with("rotary_emb.inv_freq")
                || tensor.name == "rope_freqs.weight"
                || tensor.name.starts_with("rope_factors_");
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

    /// Bytes of all kept tensors.
    pub fn resident_bytes(&self) -> u64 {
        self.kept.iter().map(|tensor| tensor.bytes).sum()
    }

    /// Bytes of the files that will be read.
    pub fn file_bytes(&self) -> u64 {
        let read = self.files.tensors().iter().zip(&self.used).filter(|(_, used)| **used);
        read.map(|(tensor, _)| tensor.bytes).sum()
    }

    /// How the matrices are kept, in the order of the elements that have each form, such as
    /// `affine 4-bit group 32 (from Q4_K), affine 6-bit group 16 (from Q6_K)`, `bfloat16`, or
    /// `float32 (from affine 4-bit group 64)`.
    pub fn description(&self) -> String {
        if self.forms.is_empty() {
            return self.keep.float.unwrap_or_else(|| self.files.float_type()).name().to_owned();
        }
        let mut forms: Vec<(&str, usize)> =
            self.forms.iter().map(|(form, elements)| (form.as_str(), *elements)).collect();
        forms.sort_by_key(|(_, elements)| std::cmp::Reverse(*elements));
        forms.into_iter().map(|(form, _)| form).collect::<Vec<_>>().join(", ")
    }

    /// Bytes that reading with so many threads needs beside the kept tensors, at most.
    pub fn transient_bytes(&self, threads: usize) -> u64 {
        pieces::transient_bytes(&self.jobs, threads)
    }

    /// Starts reading, with that many threads for conversions.
    pub fn pieces(self, threads: usize) -> PieceReader {
        self.readers(threads, |_, _| false).1
    }

    /// As `pieces`, without the matrices that are `apart`: these are read by rows.
    pub fn readers(
        self,
        threads: usize,
        apart: impl Fn(&[KeptTensor], &PlannedLinear) -> bool,
    ) -> (Vec<MatrixRows>, PieceReader) {
        let LoadPlan { files, kept, linears, mut jobs, .. } = self;
        let linears: Vec<PlannedLinear> = linears.into_iter().filter(|linear| apart(&kept, linear)).collect();
        let mut matrix = vec![None; kept.len()];
        for (number, linear) in linears.iter().enumerate() {
            linear.tensors().into_iter().for_each(|tensor| matrix[tensor] = Some(number));
        }
        let mut by_matrix = vec![Vec::new(); linears.len()];
        let matrix_of = |job: &Job| job.targets.first().and_then(|target| matrix[*target]);
        jobs.retain(|job| match matrix_of(job) {
            Some(number) => {
                by_matrix[number].push(job.clone());
                false
            }
            None => true,
        });
        let matrices = linears.into_iter().zip(by_matrix);
        let matrices =
            matrices.map(|(linear, jobs)| MatrixRows::new(linear, Arc::clone(&files), jobs)).collect();
        (matrices, PieceReader::new(files, jobs, threads))
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
