"""What objects tell: plain immutable data. Sizes are bytes, times are seconds."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional, Tuple, Union

from . import _abi


class Device(enum.IntEnum):
    """Where arithmetic runs."""

    AUTO = _abi.DEVICE_AUTO
    CPU = _abi.DEVICE_CPU
    GPU = _abi.DEVICE_GPU


class Numerics(enum.IntEnum):
    """How arithmetic is done."""

    #: The fastest way whose results are the library's own.
    FAST = _abi.NUMERICS_FAST
    #: Only MLX's operations in mlx-lm's order: bit-equal to mlx-lm.
    EXACT = _abi.NUMERICS_EXACT


class ComputeType(enum.IntEnum):
    """Element type of activations, unquantised weights, scales, keys and values."""

    #: The file's under EXACT; under FAST what is fastest on the machine.
    AUTO = _abi.COMPUTE_AUTO
    FLOAT32 = _abi.COMPUTE_FLOAT32
    FLOAT16 = _abi.COMPUTE_FLOAT16
    BFLOAT16 = _abi.COMPUTE_BFLOAT16


class KvType(enum.IntEnum):
    """Element type of a cache set's keys and values."""

    #: float16 under FAST on the CPU where the library has kernels of its own; else the compute type.
    AUTO = _abi.KV_AUTO
    FLOAT32 = _abi.KV_FLOAT32
    FLOAT16 = _abi.KV_FLOAT16
    BFLOAT16 = _abi.KV_BFLOAT16


@dataclass(frozen=True)
class AffineKv:
    """Keys and values in affine groups, as mlx-lm's ``kv_bits``.

    Args:
        bits: 4 or 8 for each element.
        group: elements that share a scale and a bias: 32, 64 or 128.
        start: tokens from which on keys and values are quantised, those before too; None: 5000.
    """

    bits: int
    group: int = 64
    start: Optional[int] = None


@dataclass(frozen=True)
class KvTable:
    """Affine groups layer by layer, as a ``kv_config.json`` tells them.

    Args:
        text: the file's text: a list of ``{"layer_idx": ..., "bits": ..., "group_size": ...}``.
        start: as in :class:`AffineKv`; None: 0.
    """

    text: str
    start: Optional[int] = None


@dataclass(frozen=True)
class TurboQuantKv:
    """TurboQuant codes for keys and values. Heads have 64, 128, 256 or 512 elements.

    Args:
        key_bits: 2, 4, 5 or 8.
        value_bits: 2, 3, 4, 5 or 8.
        start: tokens from which on keys and values are quantised, those before too.
        deferred: values are read rotated and attention's result is rotated back: faster, and not
            the same to the last bit. The library's own kernels always do that.
    """

    key_bits: int = 8
    value_bits: int = 3
    start: int = 0
    deferred: bool = False


@dataclass(frozen=True)
class KvWindow:
    """Only some tokens are kept: the first ``keep`` and the latest, ``tokens`` together."""

    tokens: int
    keep: int = 4


@dataclass(frozen=True)
class KvPages:
    """Keys and values in pages that a cache set and its forks take from one pool.

    Args:
        tokens: of a page; a multiple of 16 where the library's own kernels compute.
        capacity: most tokens in pages, of the set and its forks together; 0: no limit.
    """

    tokens: int = 256
    capacity: int = 0


#: How keys and values are reduced; None where this is asked for: they are not.
KvPrecision = Union[AffineKv, KvTable, TurboQuantKv]


class LoadPhase(enum.IntEnum):
    """What a load is doing when it reports progress."""

    #: Configuration, tokenizer and headers.
    OPEN = _abi.LOAD_OPEN
    #: Weights; ``done`` and ``total`` are bytes of the files.
    WEIGHTS = _abi.LOAD_WEIGHTS
    #: Evaluation of what the load prepared.
    FINISH = _abi.LOAD_FINISH


class ReuseStop(enum.IntEnum):
    """Why the reuse of a cache set's tokens ended where it did."""

    #: The cache set was empty or none was given.
    NOTHING_CACHED = _abi.REUSE_NOTHING_CACHED
    #: The whole cache set is a prefix of the prompt.
    CACHE_EXHAUSTED = _abi.REUSE_CACHE_EXHAUSTED
    #: They differ there; the rest of the cache set was cut.
    DIVERGED = _abi.REUSE_DIVERGED
    #: The cache set covers the whole prompt; its last token is forwarded again.
    PROMPT_COVERED = _abi.REUSE_PROMPT_COVERED
    #: The tokens in common were reduced in precision together with others behind them: all are read again.
    REDUCED = _abi.REUSE_REDUCED


class EndReason(enum.IntEnum):
    """Why a generation ended. An error is an exception, never an end."""

    EOS = _abi.END_EOS
    STOP_STRING = _abi.END_STOP_STRING
    MAX_TOKENS = _abi.END_MAX_TOKENS
    GRAMMAR = _abi.END_GRAMMAR
    CANCELLED = _abi.END_CANCELLED
    CONTEXT_FULL = _abi.END_CONTEXT_FULL


class ToolArguments(enum.IntEnum):
    """In which form a chat template gets the arguments of a tool call."""

    AS_GIVEN = _abi.TOOL_ARGUMENTS_AS_GIVEN
    OBJECT = _abi.TOOL_ARGUMENTS_OBJECT
    TEXT = _abi.TOOL_ARGUMENTS_TEXT


@dataclass(frozen=True)
class BuildInfo:
    """How the library was built."""

    version: str
    abi: int
    #: Such as ``MLX 0.32.2, CPU``.
    backend: str
    #: The target triple.
    target: str
    features: Tuple[str, ...]
    debug: bool


@dataclass(frozen=True)
class MemoryInfo:
    """Memory of an engine, in bytes."""

    #: In use by arrays.
    active: int
    #: Freed and kept for reuse.
    pooled: int
    #: Greatest ``active`` since the engine was made.
    peak: int
    limit: int
    pool_limit: int
    #: What the machine could still give to this process.
    available: int
    #: Weights of this engine's models.
    models: int
    #: Cache sets of this engine.
    caches: int


@dataclass(frozen=True)
class MemoryEstimate:
    """What a model with one cache set would take, in bytes; see :func:`mlxgen.estimate`."""

    #: That the weights would occupy.
    weight_bytes: int
    #: Of the files that a load would read.
    file_bytes: int
    #: The most that a load would take at once, the weights included.
    load_bytes: int
    #: Of each further token in a cache set, once precision is reduced and as long as no window is full.
    cache_bytes_per_token: int
    #: Of a cache set with ``context`` tokens, its room for the next ones included.
    cache_bytes: int
    #: Transient, of the greatest forward up to ``context`` tokens.
    workspace_bytes: int
    #: Weights, cache set and workspace together, or ``load_bytes`` if that is more.
    total_bytes: int
    #: The tokens that the last three and ``fits`` are about.
    context: int
    #: Most tokens of the cache set, memory aside.
    context_limit: int
    #: What ``total_bytes`` was compared with.
    budget: int
    #: Most tokens whose ``total_bytes`` are within the budget; 0 if the model itself is not.
    max_context: int
    #: Whether ``context`` is at most ``max_context``.
    fits: bool


@dataclass(frozen=True)
class ModelInfo:
    """A model as loaded."""

    #: The graph family, such as ``llama``.
    family: str
    name: str
    #: ``safetensors`` or ``gguf``.
    format: str
    #: How weights are kept, such as ``affine 4-bit group 32``.
    weights: str
    #: ``float32``, ``float16`` or ``bfloat16``.
    compute_type: str
    #: ``fast`` or ``exact``.
    numerics: str
    vocabulary: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    #: Most tokens of a sequence.
    context_limit: int
    #: Tokens of one prefill forward.
    prefill_chunk: int
    parameters: int
    weight_bytes: int
    cache_bytes_per_token: int
    #: Ids that end a generation, ascending.
    eos: Tuple[int, ...]
    bos: Optional[int]
    has_chat_template: bool


@dataclass(frozen=True)
class LayerCacheInfo:
    #: Storage identity, such as ``kv:plain``.
    signature: str
    #: Tokens covered.
    offset: int
    #: Bytes held, those that forks share included.
    bytes: int
    #: Bytes among them that forks hold too.
    shared_bytes: int
    trimmable: bool
    #: The least number of tokens that the state may be cut to and still be what they alone would have made.
    minimum_reusable_offset: int


@dataclass(frozen=True)
class CacheInfo:
    tokens: int
    capacity: int
    #: What the set stands for in the engine's limit: shared bytes count in equal parts for all who share them.
    bytes: int
    #: Whether every layer can forget its last tokens.
    trimmable: bool
    layers: Tuple[LayerCacheInfo, ...]


@dataclass(frozen=True)
class RenderedChat:
    """A conversation through the model's chat template."""

    text: str
    #: Its token ids, special tokens included: the prompt for a generation.
    tokens: Tuple[int, ...]


@dataclass(frozen=True)
class PrefillEvent:
    """The prompt is being processed."""

    #: Prompt tokens covered so far, the reused ones included.
    done: int
    total: int
    #: Tokens taken from the cache set instead of computed.
    reused: int
    reuse_stop: ReuseStop


@dataclass(frozen=True)
class TokenLogprob:
    token: int
    logprob: float


@dataclass(frozen=True)
class TextEvent:
    """Whole characters and the tokens they came with. Either may be empty."""

    text: str
    tokens: Tuple[int, ...]
    #: One for each token if asked for, else empty: natural logarithms, of the model's own
    #: distribution (before temperature and filters).
    logprobs: Tuple[float, ...] = ()
    #: For each token the likeliest ones, descending; empty unless asked for.
    top_logprobs: Tuple[Tuple[TokenLogprob, ...], ...] = ()
    #: Whether it repeats what was generated before an interruption.
    replayed: bool = False


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    #: Prompt tokens taken from the cache set instead of computed.
    reused_tokens: int
    #: Sampled tokens, an ending EOS included.
    generated_tokens: int


@dataclass(frozen=True)
class Timings:
    """Seconds."""

    #: From the opening of the stream until it was first served.
    queued: float
    #: Prompt forwards until the first token was read.
    prefill: float
    #: From the first token to the end.
    decode: float
    #: From the opening of the stream to the first token.
    first_token: float


@dataclass(frozen=True)
class EndEvent:
    """The generation is over; nothing follows."""

    reason: EndReason
    #: The stop text that was met, with ``EndReason.STOP_STRING``.
    stop: Optional[str]
    usage: Usage
    timings: Timings


Event = Union[PrefillEvent, TextEvent, EndEvent]


@dataclass(frozen=True)
class Completion:
    """A whole generation."""

    text: str
    tokens: Tuple[int, ...]
    end: EndEvent
