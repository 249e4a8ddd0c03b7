"""Prompts: token ids, and embeddings in their place."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_float, sizeof
from dataclasses import dataclass
from typing import Any, List, Sequence, Tuple, Union

from . import _abi
from ._handle import Tokens, token_array
from .errors import ErrorDetail, InvalidArgumentError


@dataclass(frozen=True)
class Embeddings:
    """Rows of numbers in the place of tokens, as an encoder of pictures or sound makes them.

    Args:
        values: float32 ``[rows, hidden]``: a numpy array, or anything whose ``memoryview`` is one
            without gaps. They take the place of what the model's own table gives, in its scale.
        key: names the content, such as a hash of the picture: what a cache set has read is reused
            where keys are equal, so equal keys have to mean equal numbers.
    """

    values: Any
    key: bytes


#: Token ids, or a list of parts.
Prompt = Union[Tokens, Sequence[Union[Tokens, Embeddings]]]


def has_embeddings(prompt: Prompt) -> bool:
    """Whether it is a list of parts, not one of ids."""
    return isinstance(prompt, (list, tuple)) and any(
        isinstance(part, Embeddings) for part in prompt
    )


def prompt_parts(prompt: Prompt) -> Tuple[Any, int, Any]:
    """A C array of parts, their number, and what must live as long as they.

    Raises:
        InvalidArgumentError: embeddings that are no rows of float32, or a token that is no id.
    """
    pieces: List[Any] = list(prompt) if has_embeddings(prompt) else [prompt]
    parts, alive = (_abi.PromptPart * len(pieces))(), []
    for part, piece in zip(parts, pieces):
        part.struct_size = sizeof(_abi.PromptPart)
        if isinstance(piece, Embeddings):
            part.kind = _abi.PART_EMBEDDINGS
            alive.append(_set_embeddings(part, piece))
            continue
        ids, count = token_array(piece)
        part.kind = _abi.PART_TOKENS
        # The address alone: what `ctypes.cast` gives refers to itself and lives until a collection.
        part.tokens, part.token_count = ctypes.addressof(ids), count
        alive.append(ids)
    return parts, len(pieces), alive


def _set_embeddings(part: _abi.PromptPart, piece: Embeddings) -> Any:
    view = memoryview(piece.values)
    if view.format != "f" or view.ndim != 2 or not view.c_contiguous or 0 in (view.shape or ()):
        raise InvalidArgumentError(
            "embeddings are rows of float32 without gaps", ErrorDetail(field="embeddings")
        )
    rows, width = view.shape or (0, 0)
    numbers = (c_float * (rows * width)).from_buffer_copy(view.cast("B"))
    key = (c_char * len(piece.key)).from_buffer_copy(piece.key)
    part.embeddings = ctypes.addressof(numbers)
    part.embedding_rows, part.embedding_width = rows, width
    part.key, part.key_size = ctypes.addressof(key), len(piece.key)
    return numbers, key
