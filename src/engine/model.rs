//! A loaded model.

use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use super::budget::{ModelCharge, Promise};
use super::engine_handle::Engine;
use super::owner::Reply;
use super::process::{self, ExitStage};
use super::slab::EngineBox;
use crate::base::info::ModelInfo;
use crate::base::options::ModelOptions;
use crate::base::{CancelToken, Code, LoadPhase, Progress, Result, panics, signals};
use crate::generate::backend::backend;
use crate::generate::runtime::{ModelBuilder, ModelSource, TokenModel};
use crate::text::Tokenizer;

/// Pieces on their way to the owner thread at once.
const PIECES_AHEAD: usize = 3;

/// A clone is another share of the same model. It lives as long as anything that uses it.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    engine: Engine,
    info: ModelInfo,
    tokenizer: Option<Arc<Tokenizer>>,
    model: EngineBox<LoadedModel>,
}

/// On the owner thread. The model goes before its charge.
pub(super) struct LoadedModel {
    pub(super) model: Rc<dyn TokenModel>,
    _charge: ModelCharge,
}

/// A model in the making, on the owner thread.
struct Unfinished {
    builder: Box<dyn ModelBuilder>,
    promise: Promise,
}

impl Model {
    /// Reads on this thread, keeps on the owner thread. `progress` is called on this thread.
    /// Cancelled between two pieces; after any failure nothing is kept.
    pub fn load(
        engine: &Engine,
        path: &Path,
        options: &ModelOptions,
        cancel: Option<&CancelToken>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model> {
        let begin = Instant::now();
        let outcome = Model::load_untold(engine, path, options, cancel, progress);
        let seconds = begin.elapsed().as_secs_f64();
        match &outcome {
            Ok(model) => {
                let ModelInfo { family, format, weights, weight_bytes, .. } = model.info();
                log::info!(
                    "loaded a model in {seconds:.3} s: {family}, {format}, {weights}, {weight_bytes} bytes"
                );
            }
            Err(error) if error.code() == Code::Cancelled => {
                log::debug!("a load was cancelled after {seconds:.3} s");
            }
            Err(error) => log::warn!("a load failed after {seconds:.3} s: {error}"),
        }
        outcome
    }

    fn load_untold(
        engine: &Engine,
        path: &Path,
        options: &ModelOptions,
        cancel: Option<&CancelToken>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Model> {
        engine.check_work()?;
        let cancel = cancel.cloned().map_or_else(CancelToken::try_new, Ok)?;
        let mut tell = |phase, done, total| {
            panics::catch("a progress callback", || {
                progress(Progress { phase, done, total });
                Ok(())
            })
        };
        tell(LoadPhase::Open, 0, 1)?;
        let mut source = panics::catch("the opening of a model", || {
            signals::held_back(|| backend().open_model(path, engine.options(), options, &cancel))
        })?;
        tell(LoadPhase::Open, 1, 1)?;
        cancel.check()?;

        let (file, memory) = (source.file_bytes(), source.load_bytes());
        log::debug!("a load begins: {file} bytes to read, {memory} bytes of memory to take");
        let unfinished = begin(engine, source.as_ref())?;
        let loaded = feed(engine, source.as_mut(), &unfinished, &cancel, &mut tell)
            .inspect(|()| log::debug!("a load has read its weights"))
            .and_then(|()| tell(LoadPhase::Finish, 0, 1))
            .and_then(|()| cancel.check())
            .and_then(|()| finish(engine, source.info(), &unfinished));
        let model = match loaded {
            Ok(model) => {
                unfinished.drop_now();
                model
            }
            Err(error) => {
                give_up(engine, source, unfinished);
                return Err(error);
            }
        };
        tell(LoadPhase::Finish, 1, 1)?;
        let tokenizer = source.tokenizer();
        Ok(Model(Arc::new(Inner { engine: engine.clone(), info: source.info().clone(), tokenizer, model })))
    }

    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// `None` when the model has none.
    pub fn tokenizer(&self) -> Option<Arc<Tokenizer>> {
        self.0.tokenizer.clone()
    }

    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    pub(super) fn slot(&self) -> &EngineBox<LoadedModel> {
        &self.0.model
    }

    pub(super) fn is_same(&self, other: &Model) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Sets the memory aside and makes the receiver of the pieces.
fn begin(engine: &Engine, source: &dyn ModelSource) -> Result<EngineBox<Option<Unfinished>>> {
    let bytes = source.load_bytes();
    let budget = Arc::clone(engine.budget());
    let gate = Arc::clone(engine.gate());
    let builder = panics::catch("the opening of a model", || Ok(source.builder()))?;
    let key = engine.owner().call("the begin of a load", move |context| {
        gate.check()?;
        let promise = budget.promise("loading the model", bytes, context.runtime.as_mut())?;
        let builder = builder(context.runtime.as_mut())?;
        Ok(context.slab.insert(Some(Unfinished { builder, promise })))
    })?;
    Ok(EngineBox::adopt(engine.owner(), key))
}

/// Reads all pieces and hands them over, a few ahead.
fn feed(
    engine: &Engine,
    source: &mut dyn ModelSource,
    unfinished: &EngineBox<Option<Unfinished>>,
    cancel: &CancelToken,
    tell: &mut dyn FnMut(LoadPhase, u64, u64) -> Result<()>,
) -> Result<()> {
    let total = source.file_bytes();
    let key = unfinished.key();
    let mut ahead: VecDeque<Reply<()>> = VecDeque::new();
    let mut done = 0;
    tell(LoadPhase::Weights, 0, total)?;
    loop {
        engine.gate().wait_open(cancel)?;
        // Whoever reads may start threads for it, which must not run the host's signal handlers.
        let read = || signals::held_back(|| source.next_piece());
        let Some(piece) = panics::catch("the reading of a model", read)? else { break };
        if ahead.len() >= PIECES_AHEAD
            && let Some(oldest) = ahead.pop_front()
        {
            oldest.wait()?;
        }
        let file_bytes = piece.file_bytes;
        ahead.push_back(engine.owner().begin("a piece of a load", move |context| {
            let Some(unfinished) = context.slab.get_mut::<Option<Unfinished>>(key)? else { return Ok(()) };
            unfinished.promise.take(piece.memory);
            unfinished.builder.accept(piece)
        })?);
        done = (done + file_bytes).min(total);
        tell(LoadPhase::Weights, done, total)?;
    }
    for reply in ahead {
        reply.wait()?;
    }
    if done < total {
        tell(LoadPhase::Weights, total, total)?;
    }
    Ok(())
}

/// Ends a load that failed or was cancelled: when the caller hears of it the memory is free again, and no figure tells
/// of it any more.
fn give_up(engine: &Engine, source: Box<dyn ModelSource>, unfinished: EngineBox<Option<Unfinished>>) {
    // First, because it counts too: a source may hold weights that it has made ready and not handed over, all of a
    // group of matrices, or of one that is larger than a group.
    drop(source);
    unfinished.drop_now();
    // The allocator keeps what is freed, and here nobody is going to take it again.
    if let Err(error) = engine.trim() {
        log::debug!("after a load that did not end well: {error}");
    }
}

fn finish(
    engine: &Engine,
    info: &ModelInfo,
    unfinished: &EngineBox<Option<Unfinished>>,
) -> Result<EngineBox<LoadedModel>> {
    let key = unfinished.key();
    let bytes = info.weight_bytes;
    let budget = Arc::clone(engine.budget());
    let key = engine.owner().call("the end of a load", move |context| {
        let unfinished = context.slab.get_mut::<Option<Unfinished>>(key)?.take();
        let Some(Unfinished { builder, promise }) = unfinished else {
            return Err(crate::base::Error::internal("a load was ended twice"));
        };
        let model: Rc<dyn TokenModel> = Rc::from(builder.finish()?);
        drop(promise);
        process::register_exit(ExitStage::Load);
        Ok(context.slab.insert(LoadedModel { model, _charge: budget.charge_model(bytes) }))
    })?;
    Ok(EngineBox::adopt(engine.owner(), key))
}
