//! Loading of a fake model.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::heap::FakeHeap;
use super::model::FakeModel;
use super::spec::{FILE_NAME, FakeSpec, Place};
use crate::base::info::ModelInfo;
use crate::base::options::{ModelOptions, Numerics};
use crate::base::{Code, Error, Result};
use crate::generate::runtime::{BuilderFn, ModelBuilder, ModelSource, TokenModel, WeightPiece};
use crate::text::Tokenizer;

/// A model's description and how often each of its faults was passed.
pub struct Faulty {
    pub spec: FakeSpec,
    passed: Vec<AtomicU64>,
}

impl Faulty {
    pub fn new(spec: FakeSpec) -> Self {
        let passed = spec.faults.iter().map(|_| AtomicU64::new(0)).collect();
        Faulty { spec, passed }
    }

    /// Fails or panics if a fault of the file says so.
    pub fn pass(&self, place: Place) -> Result<()> {
        for (fault, passed) in self.spec.faults.iter().zip(&self.passed) {
            if fault.at != place {
                continue;
            }
            let number = passed.fetch_add(1, Ordering::Relaxed);
            if number >= fault.after && number - fault.after < fault.count {
                let text = format!("the file asks for a fault at {place:?}");
                match fault.code.and_then(Code::from_number) {
                    Some(code) => return Err(Error::new(code, text)),
                    None => panic!("{text}"),
                }
            }
        }
        Ok(())
    }
}

/// Most tokens of a sequence.
pub fn context_limit_of(spec: &FakeSpec, options: &ModelOptions) -> u64 {
    match u64::from(options.context_limit) {
        0 => spec.context_limit,
        asked => asked.min(spec.context_limit),
    }
}

/// Tokens of a forward of a prompt.
pub fn chunk_of(spec: &FakeSpec, options: &ModelOptions) -> u32 {
    let chunk = if options.prefill_chunk == 0 { spec.prefill_chunk } else { options.prefill_chunk };
    chunk.max(1)
}

pub struct FakeSource {
    faulty: Arc<Faulty>,
    info: ModelInfo,
    tokenizer: Option<Arc<Tokenizer>>,
    heap: Arc<FakeHeap>,
    read: u64,
}

impl FakeSource {
    pub fn open(path: &Path, options: &ModelOptions, heap: &Arc<FakeHeap>) -> Result<Self> {
        let spec = FakeSpec::read(path)?;
        let tokenizer = if spec.tokenizer { Some(Arc::new(Tokenizer::bytes()?)) } else { None };
        let folder = if path.is_dir() { Some(path) } else { path.parent() };
        let name = folder.and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        let info = ModelInfo {
            family: "fake".into(),
            name: if name.is_empty() { FILE_NAME.into() } else { name },
            format: "fake".into(),
            weights: "none".into(),
            compute_type: "float32".into(),
            numerics: if options.numerics == Numerics::Exact { "exact" } else { "fast" }.into(),
            vocabulary: spec.vocabulary,
            layers: spec.layers,
            hidden: 8,
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            context_limit: context_limit_of(&spec, options),
            prefill_chunk: chunk_of(&spec, options),
            parameters: spec.weight_bytes / 4,
            weight_bytes: spec.weight_bytes,
            cache_bytes_per_token: spec.cache_bytes_per_token,
            eos: spec.eos.clone(),
            bos: tokenizer.as_ref().and_then(|tokenizer| tokenizer.bos()),
            has_chat_template: tokenizer.as_ref().is_some_and(|tokenizer| tokenizer.has_chat_template()),
        };
        let faulty = Arc::new(Faulty::new(spec));
        faulty.pass(Place::Open)?;
        Ok(FakeSource { faulty, info, tokenizer, heap: Arc::clone(heap), read: 0 })
    }
}

impl ModelSource for FakeSource {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn tokenizer(&self) -> Option<Arc<Tokenizer>> {
        self.tokenizer.clone()
    }

    fn file_bytes(&self) -> u64 {
        self.faulty.spec.weight_bytes
    }

    fn load_bytes(&self) -> u64 {
        self.faulty.spec.load_bytes.unwrap_or(self.faulty.spec.weight_bytes)
    }

    fn next_piece(&mut self) -> Result<Option<WeightPiece>> {
        let spec = &self.faulty.spec;
        if self.read >= spec.weight_bytes {
            return Ok(None);
        }
        self.faulty.pass(Place::Piece)?;
        thread::sleep(spec.piece_time());
        let size = spec.piece_bytes.min(spec.weight_bytes - self.read);
        let piece = WeightPiece {
            tensor: 0,
            offset: self.read as usize,
            bytes: vec![1; size as usize],
            memory: size,
            file_bytes: size,
        };
        self.read += size;
        Ok(Some(piece))
    }

    fn builder(&self) -> BuilderFn {
        let faulty = Arc::clone(&self.faulty);
        let heap = Arc::clone(&self.heap);
        Box::new(move |_| {
            faulty.pass(Place::Builder)?;
            Ok(Box::new(FakeBuilder { faulty, weights: FakeWeights { heap, pieces: Vec::new(), bytes: 0 } }))
        })
    }
}

/// Pieces as they came, counted in the heap until they are dropped.
pub struct FakeWeights {
    pub heap: Arc<FakeHeap>,
    pieces: Vec<Vec<u8>>,
    bytes: u64,
}

impl Drop for FakeWeights {
    fn drop(&mut self) {
        self.heap.free(self.bytes);
    }
}

struct FakeBuilder {
    faulty: Arc<Faulty>,
    weights: FakeWeights,
}

impl ModelBuilder for FakeBuilder {
    fn accept(&mut self, piece: WeightPiece) -> Result<()> {
        self.faulty.pass(Place::Accept)?;
        if piece.offset as u64 != self.weights.bytes {
            return Err(Error::internal("a piece is missing"));
        }
        let bytes = piece.bytes.len() as u64;
        self.weights.heap.allocate(bytes);
        self.weights.bytes += bytes;
        self.weights.pieces.push(piece.bytes);
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn TokenModel>> {
        self.faulty.pass(Place::Finish)?;
        if self.weights.bytes != self.faulty.spec.weight_bytes {
            return Err(Error::invalid_model("weights are missing"));
        }
        Ok(Box::new(FakeModel::new(self.faulty, self.weights)))
    }
}
