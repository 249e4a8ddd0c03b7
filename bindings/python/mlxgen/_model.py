"""Models."""

from __future__ import annotations

import os
from ctypes import byref, c_void_p, sizeof
from typing import TYPE_CHECKING, Any, Callable, List, Mapping, Optional, Sequence, Union

from . import _abi, _callbacks
from ._cache import CacheSet
from ._cancel import Cancel
from ._handle import Handle, Tokens, call, whole
from ._library import library
from ._prompt import Prompt
from ._stream import Stream
from ._tokenizer import Tokenizer
from ._types import (
    ComputeType,
    KvPages,
    KvPrecision,
    KvType,
    KvWindow,
    LoadPhase,
    ModelInfo,
    Numerics,
)

if TYPE_CHECKING:
    from ._engine import Engine

#: Called with the phase, and what is done of how much. In ``LoadPhase.WEIGHTS`` both are bytes.
ProgressFunction = Callable[[LoadPhase, int, int], None]


def model_options(
    numerics: Numerics, compute_type: ComputeType, prefill_chunk: int, context_limit: int
) -> _abi.ModelOptions:
    """The options as the library takes them, without cancel and progress."""
    options = _abi.ModelOptions()
    library().model_options_init(byref(options), sizeof(options))
    options.numerics = whole("numerics", numerics, 31)
    options.compute_type = whole("compute_type", compute_type, 31)
    options.prefill_chunk = whole("prefill_chunk", prefill_chunk, 32)
    options.context_limit = whole("context_limit", context_limit, 32)
    return options


class Model(Handle):
    """A loaded model. Immutable; may be used from any thread, by many streams at once.

    Args:
        engine: whose memory it takes.
        path: a model folder (safetensors), a repository's folder in the cache of the Hugging Face
            hub (its revision main) or a ``.gguf`` file.
        numerics: ``FAST``, or ``EXACT`` for results bit-equal to mlx-lm's.
        compute_type: element type of activations.
        prefill_chunk: tokens of one prefill forward; 0: a default.
        context_limit: most tokens of a sequence; 0: the model's own limit.
        cancel: stops the load.
        progress: called on this thread while loading. An exception from it cancels the load and
            comes out of this call.

    Raises:
        NotFoundError: there is no such file or folder.
        InvalidModelError: a file is damaged; ``detail`` has the file and the tensor.
        UnsupportedError: the architecture or a tensor's type is not supported.
        OutOfMemoryError: the model does not fit; nothing was loaded.
        CancelledError: ``cancel`` was requested.
    """

    KIND = "model"

    def __init__(
        self,
        engine: Engine,
        path: Union[str, "os.PathLike[str]"],
        *,
        numerics: Numerics = Numerics.FAST,
        compute_type: ComputeType = ComputeType.AUTO,
        prefill_chunk: int = 0,
        context_limit: int = 0,
        cancel: Optional[Cancel] = None,
        progress: Optional[ProgressFunction] = None,
    ) -> None:
        super().__init__(None)
        lib = library()
        options = model_options(numerics, compute_type, prefill_chunk, context_limit)
        name = os.fsencode(path)
        made = c_void_p()
        if progress is None:
            options.cancel = cancel._pointer if cancel is not None else None
            call(lib.model_load, engine._pointer, name, len(name), byref(options), byref(made))
        else:
            self._load_with_progress(engine, name, options, made, cancel, progress)
        super().__init__(made.value)
        self._info: Optional[ModelInfo] = None

    @staticmethod
    def _load_with_progress(
        engine: Engine,
        name: bytes,
        options: _abi.ModelOptions,
        made: c_void_p,
        cancel: Optional[Cancel],
        progress: ProgressFunction,
    ) -> None:
        stop = cancel if cancel is not None else Cancel()
        raised: List[BaseException] = []

        def report(phase: int, done: int, total: int) -> None:
            if raised:
                return
            try:
                progress(LoadPhase(phase), done, total)
            except BaseException as error:  # Ctrl-C too: it must not get lost in the callback
                raised.append(error)
                stop.request()

        number = _callbacks.register(report)
        options.cancel = stop._pointer
        options.progress = _callbacks.progress
        options.progress_user = number
        lib = library()
        try:
            call(lib.model_load, engine._pointer, name, len(name), byref(options), byref(made))
        except Exception:
            if raised:
                raise raised[0] from None
            raise
        finally:
            _callbacks.forget(number)
        if raised:  # too late to stop the load
            lib.model_release(made)
            raise raised[0]

    @property
    def info(self) -> ModelInfo:
        """What the model is."""
        if self._info is None:
            raw = _abi.ModelDescription(struct_size=sizeof(_abi.ModelDescription))
            call(library().model_info, self._pointer, byref(raw))
            self._info = ModelInfo(
                family=raw.family.decode("utf-8"),
                name=raw.name.decode("utf-8"),
                format=raw.format.decode("utf-8"),
                weights=raw.weights.decode("utf-8"),
                compute_type=raw.compute_type.decode("utf-8"),
                numerics=raw.numerics.decode("utf-8"),
                vocabulary=raw.vocabulary,
                layers=raw.layers,
                hidden=raw.hidden,
                heads=raw.heads,
                kv_heads=raw.kv_heads,
                head_dim=raw.head_dim,
                context_limit=raw.context_limit,
                prefill_chunk=raw.prefill_chunk,
                parameters=raw.parameters,
                weight_bytes=raw.weight_bytes,
                cache_bytes_per_token=raw.cache_bytes_per_token,
                eos=tuple(raw.eos[: raw.eos_count]) if raw.eos_count else (),
                bos=raw.bos if raw.bos >= 0 else None,
                has_chat_template=bool(raw.has_chat_template),
            )
        return self._info

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, as an object of its own.

        Raises:
            NotFoundError: the model came without one.
        """
        made = c_void_p()
        call(library().model_tokenizer, self._pointer, byref(made))
        return Tokenizer._adopt(made)

    def new_cache(
        self,
        capacity: int = 0,
        kv_type: KvType = KvType.AUTO,
        precision: Optional[KvPrecision] = None,
        window: Optional[KvWindow] = None,
        pages: Optional[KvPages] = None,
    ) -> CacheSet:
        """An empty cache set. Arguments and errors are those of :class:`CacheSet`."""
        return CacheSet(self, capacity, kv_type, precision, window, pages)

    def generate(
        self,
        prompt: Union[str, Prompt],
        *,
        cache: Optional[CacheSet] = None,
        temperature: float = 0.0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        top_k: int = 0,
        seed: Optional[int] = None,
        max_tokens: Optional[int] = None,
        stop: Sequence[Union[str, bytes]] = (),
        extra_eos: Tokens = (),
        ignore_eos: bool = False,
        logprobs: bool = False,
        top_logprobs: int = 0,
        cancel: Optional[Cancel] = None,
    ) -> Stream:
        """Starts a generation; see :class:`Stream`. A text is tokenized with BOS and the like."""
        if isinstance(prompt, str):
            with self.tokenizer as tokenizer:
                prompt = tokenizer.encode(prompt, add_special=True)
        return Stream(
            self,
            prompt,
            cache=cache,
            temperature=temperature,
            top_p=top_p,
            min_p=min_p,
            top_k=top_k,
            seed=seed,
            max_tokens=max_tokens,
            stop=stop,
            extra_eos=extra_eos,
            ignore_eos=ignore_eos,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            cancel=cancel,
        )

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Stream:
        """Renders the messages with the model's chat template and starts the answer.

        Args:
            messages: such as ``[{"role": "user", "content": "Hello"}]``.
            options: those of :meth:`generate`, and ``tools``.

        Raises:
            NotFoundError: the model has no chat template.
        """
        tools = options.pop("tools", None)
        with self.tokenizer as tokenizer:
            rendered = tokenizer.render_chat(messages, tools=tools)
        return self.generate(rendered.tokens, **options)
