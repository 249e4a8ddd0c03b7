//! An opened model: what it is, and its weights piece by piece. Off the owner thread.

use std::path::Path;
use std::sync::Arc;

use super::builder::{Blueprint, MlxBuilder};
use super::cache_forms::CacheForms;
use super::packed::{self, PackedMatrices, Packer};
use super::resident::resident_bytes;
use crate::base::info::ModelInfo;
use crate::base::options::{ComputeType, Device, EngineOptions, ModelOptions, Numerics};
use crate::base::{CancelToken, Error, Result, small_file};
use crate::generate::gguf_tokenizer;
use crate::generate::runtime::{BuilderFn, ModelBuilder, ModelSource, WeightPiece};
use crate::mlx::{self, DeviceKind, Dtype};
use crate::model::config::ModelConfig;
use crate::model::dense::{self, DensePlan};
use crate::model::footprint::{Footprint, Storage};
use crate::model::tensors::{Arithmetic, dtype_of};
use crate::model::weights::{
    ElementType, Keep, LoadPlan, ModelFiles, PieceReader, PlannedLinear, Quantized, WeightFiles,
};
use crate::text::Tokenizer;

/// Context of models that do not tell theirs.
const DEFAULT_CONTEXT: u64 = 4096;

/// Pieces on their way from the reader to the builder.
const QUEUED_BYTES: u64 = 32 << 20;

/// Tokens of a prefill forward under `exact`: mlx-lm's.
const EXACT_CHUNK: u32 = 2048;

/// Tokens of a prefill forward under `fast`.
const FAST_CHUNK: u32 = 512;

pub(super) struct MlxSource {
    info: ModelInfo,
    tokenizer: Option<Arc<Tokenizer>>,
    file_bytes: u64,
    load_bytes: u64,
    pieces: PieceReader,
    blueprint: Blueprint,
    packer: Packer,
}

/// What headers and options settle before a tokenizer or a weight is read.
pub(super) struct Settled {
    files: ModelFiles,
    pub(super) family_plan: Arc<DensePlan>,
    pub(super) plan: LoadPlan,
    device: DeviceKind,
    pub(super) footprint: Footprint,
    pub(super) forms: CacheForms,
    /// Of activations.
    activation: ElementType,
    /// Most tokens of a sequence.
    pub(super) context_limit: u64,
    /// For the conversion of weights.
    threads: usize,
}

impl Settled {
    pub(super) fn open(
        path: &Path,
        engine: &EngineOptions,
        options: &ModelOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        cancel.check()?;
        let device = device_of(engine)?;
        let files = ModelFiles::open(path)?;
        let (config, weights) = (&files.config, &files.weights);
        cancel.check()?;
        let arithmetic = arithmetic(options, device);
        let keep = keep(options, arithmetic);
        let mut plan = LoadPlan::new(weights.clone(), config.quantization.clone(), keep);
        let family_plan = dense::plan(config, &mut plan)?;
        cancel.check()?;

        let activation = match arithmetic {
            Arithmetic::Kernels => ElementType::F32,
            Arithmetic::Exact | Arithmetic::Blas => activation(&plan, weights),
        };
        let kernels = arithmetic == Arithmetic::Kernels;
        let kv_dtype = if kernels { Dtype::Float16 } else { dtype_of(activation) };
        let footprint = family_plan.footprint(Storage {
            float_bytes: activation.size() as u64,
            kv_bytes: kv_dtype.size() as u64,
            scores: !kernels,
        });
        let chunk = match (options.prefill_chunk, options.numerics) {
            (0, Numerics::Exact) => EXACT_CHUNK,
            (0, Numerics::Fast) => FAST_CHUNK,
            // Chunks change no result there, and shorter ones are cancelled sooner.
            (chunk, _) if kernels => chunk.min(FAST_CHUNK),
            (chunk, _) => chunk,
        };
        let threads = if engine.threads == 0 { mlx::physical_cores() } else { engine.threads };
        Ok(Settled {
            family_plan,
            plan,
            device,
            footprint,
            forms: CacheForms { arithmetic, kv_dtype, chunk: u64::from(chunk) },
            activation,
            context_limit: context_limit(config, options)?,
            threads: threads as usize,
            files,
        })
    }

    /// The most bytes that a load takes at once, the weights included.
    pub(super) fn load_bytes(&self) -> u64 {
        let packing = match self.forms.arithmetic {
            Arithmetic::Kernels => packed::transient_bytes(&self.plan, self.threads),
            Arithmetic::Exact | Arithmetic::Blas => 0,
        };
        let transient = self.plan.transient_bytes(self.threads);
        resident_bytes(&self.plan, self.forms.arithmetic)
            + packing.saturating_add(transient).saturating_add(QUEUED_BYTES)
    }
}

impl MlxSource {
    pub(super) fn open(
        path: &Path,
        engine: &EngineOptions,
        options: &ModelOptions,
        cancel: &CancelToken,
    ) -> Result<Self> {
        let settled = Settled::open(path, engine, options, cancel)?;
        let load_bytes = settled.load_bytes();
        let Settled { files, family_plan, plan, device, footprint, forms, .. } = settled;
        let Settled { activation, context_limit, threads, .. } = settled;
        let ModelFiles { config, weights, format, name, root, gguf, .. } = files;
        let tokenizer = match &gguf {
            Some(metadata) => gguf_tokenizer::from_metadata(metadata)?,
            None => folder_tokenizer(&root)?,
        }
        .map(Arc::new);
        let mut eos = config.eos.clone();
        if let Some(tokenizer) = &tokenizer {
            eos.extend(tokenizer.eos());
        }
        let info = ModelInfo {
            family: config.family.to_owned(),
            name,
            format: format.name().to_owned(),
            weights: plan.description(),
            compute_type: activation.name().to_owned(),
            numerics: match options.numerics {
                Numerics::Fast => "fast",
                Numerics::Exact => "exact",
            }
            .to_owned(),
            vocabulary: config.vocabulary as u32,
            layers: config.layers.len() as u32,
            hidden: config.hidden as u32,
            heads: config.heads as u32,
            kv_heads: config.kv_heads as u32,
            head_dim: config.head_dim as u32,
            context_limit,
            prefill_chunk: forms.chunk as u32,
            parameters: family_plan.parameters(),
            weight_bytes: resident_bytes(&plan, forms.arithmetic),
            cache_bytes_per_token: footprint.cache_bytes_per_token(),
            eos: eos.into_iter().collect(),
            bos: config.bos.or_else(|| tokenizer.as_ref().and_then(|tokenizer| tokenizer.bos())),
            has_chat_template: tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.has_chat_template()),
        };
        let blueprint = Blueprint {
            family: family_plan,
            kept: plan.kept().into(),
            footprint,
            context_limit,
            device,
            forms,
            activation: dtype_of(activation),
            float: dtype_of(weights.float_type()),
            packed: PackedMatrices::default(),
        };
        let file_bytes = plan.file_bytes();
        // Where our kernels compute, matrices are packed by those who read them.
        let kernels = forms.arithmetic == Arithmetic::Kernels;
        let (matrices, pieces) =
            plan.readers(threads, |kept, linear| kernels && packed::form_of(kept, linear).is_some());
        let packer = Packer::new(&blueprint.kept, matrices, blueprint.packed.clone(), threads, cancel);
        Ok(MlxSource { info, tokenizer, file_bytes, load_bytes, blueprint, packer, pieces })
    }
}

impl MlxSource {
    pub(super) fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }
}

/// A folder need not have a tokenizer; one that it has must be understood.
fn folder_tokenizer(path: &Path) -> Result<Option<Tokenizer>> {
    small_file::optional(&path.join("tokenizer.json"), Tokenizer::load_dir(path))
}

fn device_of(engine: &EngineOptions) -> Result<DeviceKind> {
    match engine.device {
        Device::Cpu => Ok(DeviceKind::Cpu),
        Device::Auto if mlx::gpu_is_available() => Ok(DeviceKind::Gpu),
        Device::Auto => Ok(DeviceKind::Cpu),
        Device::Gpu if mlx::gpu_is_available() => Ok(DeviceKind::Gpu),
        Device::Gpu => Err(Error::unsupported("this machine has no GPU that MLX can use").field("device")),
    }
}

/// How the model will compute. Where activations are float32, `fast` on the CPU uses our kernels.
fn arithmetic(options: &ModelOptions, device: DeviceKind) -> Arithmetic {
    // On a GPU there is no faster way than MLX's own.
    if options.numerics == Numerics::Exact || device == DeviceKind::Gpu {
        return Arithmetic::Exact;
    }
    let float32 = matches!(options.compute_type, ComputeType::Auto | ComputeType::Float32);
    if float32 && mlx::has_cpu_kernels() { Arithmetic::Kernels } else { Arithmetic::Blas }
}

/// Kernels take weights as the file has them. MLX's own operations take one type, and on x86-64, where those on half
/// precision and quantised weights are scalar while float32 products go to the BLAS, `fast` makes all float32.
fn keep(options: &ModelOptions, arithmetic: Arithmetic) -> Keep {
    let through_blas = arithmetic == Arithmetic::Blas && cfg!(target_arch = "x86_64");
    let float = match options.compute_type {
        _ if arithmetic == Arithmetic::Kernels => None,
        ComputeType::Auto if through_blas => Some(ElementType::F32),
        ComputeType::Auto => None,
        ComputeType::Float32 => Some(ElementType::F32),
        ComputeType::Float16 => Some(ElementType::F16),
        ComputeType::Bfloat16 => Some(ElementType::Bf16),
    };
    let quantized = match arithmetic {
        Arithmetic::Kernels => Quantized::Kernels,
        _ if through_blas && float == Some(ElementType::F32) => Quantized::Dequantized,
        Arithmetic::Exact | Arithmetic::Blas => Quantized::Mlx,
    };
    Keep { float, quantized }
}

/// The type of activations: that of all floats, or float32 if they differ, to which MLX promotes
/// any mixture.
fn activation(plan: &LoadPlan, weights: &WeightFiles) -> ElementType {
    let floats = plan.kept().iter().map(|kept| kept.element).filter(|element| element.is_float());
    // The rows of a table of small floats come out in bfloat16.
    let table = plan.linears().iter().find(|linear| {
        matches!(linear, PlannedLinear::Microscaled { weight, .. } if plan.kept()[*weight].name.contains("embed"))
    });
    let mut floats = floats.chain(table.map(|_| ElementType::Bf16));
    match floats.next() {
        Some(first) if floats.all(|element| element == first) => first,
        Some(_) => ElementType::F32,
        None => weights.float_type(),
    }
}

fn context_limit(config: &ModelConfig, options: &ModelOptions) -> Result<u64> {
    let own = config.context().map_or(DEFAULT_CONTEXT, |positions| positions as u64);
    match u64::from(options.context_limit) {
        0 => Ok(own),
        asked => Ok(asked.min(own)),
    }
}

impl ModelSource for MlxSource {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn tokenizer(&self) -> Option<Arc<Tokenizer>> {
        self.tokenizer.clone()
    }

    fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    fn load_bytes(&self) -> u64 {
        self.load_bytes
    }

    fn next_piece(&mut self) -> Result<Option<WeightPiece>> {
        if let Some(packed) = self.packer.next()? {
            return Ok(Some(packed));
        }
        let Some(piece) = self.pieces.next_piece()? else {
            return Ok(None);
        };
        Ok(Some(WeightPiece {
            tensor: piece.tensor,
            offset: piece.offset,
            memory: piece.bytes.len() as u64,
            bytes: piece.bytes,
            file_bytes: piece.file_bytes,
        }))
    }

    fn builder(&self) -> BuilderFn {
        let blueprint = self.blueprint().clone();
        Box::new(move |_runtime| Ok(Box::new(MlxBuilder::new(blueprint)?) as Box<dyn ModelBuilder>))
    }
}
