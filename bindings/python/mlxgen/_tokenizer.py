"""Text to token ids and back, and chat templates."""

from __future__ import annotations

import json
import os
from ctypes import byref, c_void_p, sizeof
from dataclasses import replace
from typing import Any, List, Mapping, Optional, Sequence, Union

from . import _abi
from ._handle import Handle, Tokens, call, take_bytes, take_text, take_tokens, token_array, whole
from ._library import library
from ._types import RenderedChat, ToolArguments
from .errors import MlxgenError


#: Arguments of :meth:`Tokenizer.render_chat` by what the C interface calls them.
_ARGUMENTS = {
    "messages_json": "messages",
    "tools_json": "tools",
    "extra_json": "extra",
    "template_name": "template",
}


def json_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")


class Tokenizer(Handle):
    """Immutable; may be used from any thread.

    Args:
        path: a model folder, a repository's folder in the cache of the Hugging Face hub (its
            revision main), a ``tokenizer.json`` or a ``.gguf`` file.

    Raises:
        NotFoundError: there is no tokenizer at the path.
        InvalidModelError: the file is damaged.
        UnsupportedError: its kind is not supported.
    """

    KIND = "tokenizer"

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        super().__init__(None)
        name = os.fsencode(path)
        made = c_void_p()
        call(library().tokenizer_load, name, len(name), byref(made))
        super().__init__(made.value)

    def encode(
        self,
        text: Union[str, bytes],
        *,
        add_special: bool = False,
        parse_special: bool = False,
    ) -> List[int]:
        """The text's token ids.

        Args:
            text: a text, or UTF-8 bytes.
            add_special: add what the tokenizer puts around a text, such as BOS.
            parse_special: let the texts of special tokens become those tokens. Leave it off for
                text that comes from users.

        Raises:
            InvalidArgumentError: bytes that are not UTF-8.
            InvalidModelError: the tokenizer's rules have no way for this text.
        """
        data = text.encode("utf-8") if isinstance(text, str) else text
        flags = _abi.TOKENIZE_ADD_SPECIAL * add_special | _abi.TOKENIZE_PARSE_SPECIAL * parse_special
        made = c_void_p()
        call(library().tokenize, self._pointer, data, len(data), flags, byref(made))
        return take_tokens(made)

    def decode(self, tokens: Tokens, *, skip_special: bool = False) -> str:
        """The text of token ids. An id without a piece gives no text.

        Args:
            tokens: ids.
            skip_special: leave special tokens out.
        """
        ids, count = token_array(tokens)
        flags = _abi.DETOKENIZE_SKIP_SPECIAL * skip_special
        made = c_void_p()
        call(library().detokenize, self._pointer, ids, count, flags, byref(made))
        return take_bytes(made).decode("utf-8")

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Optional[Sequence[Mapping[str, Any]]] = None,
        template: Optional[str] = None,
        extra: Optional[Mapping[str, Any]] = None,
        add_generation_prompt: bool = True,
        tool_arguments: ToolArguments = ToolArguments.AS_GIVEN,
        parse_special_in_content: bool = False,
    ) -> RenderedChat:
        """Renders a conversation with the model's chat template.

        Args:
            messages: such as ``[{"role": "user", "content": "Hello"}]``.
            tools: tool descriptions for the template.
            template: name of one of several templates.
            extra: more variables for the template.
            add_generation_prompt: end with the opening of the assistant's turn.
            tool_arguments: in which form the template gets the arguments of tool calls.
            parse_special_in_content: let special tokens' texts inside messages become those
                tokens. Leave it off for text that comes from users.

        Raises:
            InvalidArgumentError: the messages are not what the template can render.
            NotFoundError: there is no (such) template.
            InvalidModelError: the template is damaged.
            UnsupportedError: the template uses what this version does not have.
        """
        lib = library()
        options = _abi.ChatOptions()
        lib.chat_options_init(byref(options), sizeof(options))
        if tools is not None:
            options.tools_json = data = json_bytes(tools)
            options.tools_json_size = len(data)
        if template is not None:
            options.template_name = data = template.encode("utf-8")
            options.template_name_size = len(data)
        if extra is not None:
            options.extra_json = data = json_bytes(extra)
            options.extra_json_size = len(data)
        options.add_generation_prompt = add_generation_prompt
        options.tool_arguments = whole("tool_arguments", tool_arguments, 31)
        options.parse_special_in_content = parse_special_in_content
        data = json_bytes(messages)
        text, tokens = c_void_p(), c_void_p()
        try:
            call(
                lib.chat_render,
                self._pointer,
                data,
                len(data),
                byref(options),
                byref(text),
                byref(tokens),
            )
        except MlxgenError as error:
            field = error.detail.field or ""
            error.detail = replace(error.detail, field=_ARGUMENTS.get(field, error.detail.field))
            raise
        return RenderedChat(take_text(text), tuple(take_tokens(tokens)))
