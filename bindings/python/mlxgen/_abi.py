"""The C ABI as ctypes sees it: numbers, structs and prototypes of `include/mlxgen.h`.

Nothing here is checked against the library at run time, because a wrong size would already have
done its harm then. `tests/python` compares every number, every field's offset and every
prototype with the header through a C compiler.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any, Dict, List, Tuple

ABI_VERSION = 1

# Status codes. The numbers are frozen.
OK = 0
DONE = 1
TIMEOUT = 2
CANCELLED = 3
INVALID_ARGUMENT = 4
NOT_FOUND = 5
INVALID_MODEL = 6
UNSUPPORTED = 7
OUT_OF_MEMORY = 8
CONTEXT_FULL = 9
BUSY = 10
WRONG_STATE = 11
INCOMPATIBLE_CHECKPOINT = 12
IO = 13
GPU_TIMEOUT = 14
GPU_NOT_PERMITTED = 15
INTERNAL = 16

WAIT_FOREVER = 0xFFFFFFFF

DEVICE_AUTO = 0
DEVICE_CPU = 1
DEVICE_GPU = 2

NUMERICS_FAST = 0
NUMERICS_EXACT = 1

COMPUTE_AUTO = 0
COMPUTE_FLOAT32 = 1
COMPUTE_FLOAT16 = 2
COMPUTE_BFLOAT16 = 3
KV_AUTO = 0
KV_FLOAT32 = 1
KV_FLOAT16 = 2
KV_BFLOAT16 = 3

TOKENIZE_ADD_SPECIAL = 1
TOKENIZE_PARSE_SPECIAL = 2
DETOKENIZE_SKIP_SPECIAL = 1

PART_TOKENS = 1
PART_EMBEDDINGS = 2

EVENT_PREFILL = 1
EVENT_TEXT = 2
EVENT_END = 6

TOOL_ARGUMENTS_AS_GIVEN = 0
TOOL_ARGUMENTS_OBJECT = 1
TOOL_ARGUMENTS_TEXT = 2

LOAD_OPEN = 0
LOAD_WEIGHTS = 1
LOAD_FINISH = 2

REUSE_NOTHING_CACHED = 0
REUSE_CACHE_EXHAUSTED = 1
REUSE_DIVERGED = 2
REUSE_PROMPT_COVERED = 3
REUSE_REDUCED = 4

END_EOS = 0
END_STOP_STRING = 1
END_MAX_TOKENS = 2
END_GRAMMAR = 3
END_CANCELLED = 4
END_CONTEXT_FULL = 5

LOG_OFF = 0
LOG_ERROR = 1
LOG_WARNING = 2
LOG_INFO = 3
LOG_DEBUG = 4
LOG_TRACE = 5

LogCallback = CFUNCTYPE(None, c_void_p, c_int32, c_void_p, c_size_t)
DropCallback = CFUNCTYPE(None, c_void_p)
ProgressCallback = CFUNCTYPE(None, c_void_p, c_int32, c_uint64, c_uint64)
WakeupCallback = CFUNCTYPE(None, c_void_p)


class EngineOptions(Structure):
    C_NAME = "mlxgen_engine_options"
    _fields_ = [
        ("struct_size", c_size_t),
        ("memory_limit", c_uint64),
        ("pool_limit", c_uint64),
        ("threads", c_uint32),
        ("device", c_int32),
    ]


class MemoryInfo(Structure):
    C_NAME = "mlxgen_memory_info"
    _fields_ = [
        ("struct_size", c_size_t),
        ("active", c_uint64),
        ("pooled", c_uint64),
        ("peak", c_uint64),
        ("limit", c_uint64),
        ("pool_limit", c_uint64),
        ("available", c_uint64),
        ("models", c_uint64),
        ("caches", c_uint64),
    ]


class ChatOptions(Structure):
    C_NAME = "mlxgen_chat_options"
    _fields_ = [
        ("struct_size", c_size_t),
        ("tools_json", c_char_p),
        ("tools_json_size", c_size_t),
        ("template_name", c_char_p),
        ("template_name_size", c_size_t),
        ("extra_json", c_char_p),
        ("extra_json_size", c_size_t),
        ("add_generation_prompt", c_int32),
        ("tool_arguments", c_int32),
        ("parse_special_in_content", c_int32),
        ("reserved", c_int32),
    ]


class ModelOptions(Structure):
    C_NAME = "mlxgen_model_options"
    _fields_ = [
        ("struct_size", c_size_t),
        ("numerics", c_int32),
        ("compute_type", c_int32),
        ("prefill_chunk", c_uint32),
        ("context_limit", c_uint32),
        ("cancel", c_void_p),
        ("progress", ProgressCallback),
        ("progress_user", c_void_p),
    ]


class ModelDescription(Structure):
    C_NAME = "mlxgen_model_description"
    _fields_ = [
        ("struct_size", c_size_t),
        ("family", c_char_p),
        ("name", c_char_p),
        ("format", c_char_p),
        ("weights", c_char_p),
        ("compute_type", c_char_p),
        ("numerics", c_char_p),
        ("vocabulary", c_uint32),
        ("layers", c_uint32),
        ("hidden", c_uint32),
        ("heads", c_uint32),
        ("kv_heads", c_uint32),
        ("head_dim", c_uint32),
        ("context_limit", c_uint64),
        ("prefill_chunk", c_uint32),
        ("parameters", c_uint64),
        ("weight_bytes", c_uint64),
        ("cache_bytes_per_token", c_uint64),
        ("eos", POINTER(c_uint32)),
        ("eos_count", c_size_t),
        ("bos", c_int64),
        ("has_chat_template", c_int32),
        ("reserved", c_int32),
    ]


class MemoryEstimate(Structure):
    C_NAME = "mlxgen_memory_estimate"
    _fields_ = [
        ("struct_size", c_size_t),
        ("weight_bytes", c_uint64),
        ("file_bytes", c_uint64),
        ("load_bytes", c_uint64),
        ("cache_bytes_per_token", c_uint64),
        ("cache_bytes", c_uint64),
        ("workspace_bytes", c_uint64),
        ("total_bytes", c_uint64),
        ("context", c_uint64),
        ("context_limit", c_uint64),
        ("budget", c_uint64),
        ("max_context", c_uint64),
        ("fits", c_int32),
        ("reserved", c_int32),
    ]


class CacheOptions(Structure):
    C_NAME = "mlxgen_cache_options"
    _fields_ = [
        ("struct_size", c_size_t),
        ("capacity", c_uint64),
        ("kv_type", c_int32),
        ("kv_bits", c_uint32),
        ("kv_start", c_int64),
        ("kv_group", c_uint32),
        ("turboquant_key_bits", c_uint32),
        ("turboquant_value_bits", c_uint32),
        ("turboquant_deferred", c_int32),
        ("kv_config", c_char_p),
        ("kv_config_size", c_size_t),
        ("window", c_uint64),
        ("window_keep", c_uint64),
        ("page_tokens", c_uint32),
        ("reserved", c_int32),
        ("page_capacity", c_uint64),
    ]


class CacheDescription(Structure):
    C_NAME = "mlxgen_cache_description"
    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens", c_uint64),
        ("capacity", c_uint64),
        ("bytes", c_uint64),
        ("layers", c_uint32),
        ("trimmable", c_int32),
    ]


class PromptPart(Structure):
    C_NAME = "mlxgen_prompt_part"
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int32),
        ("tokens", c_void_p),
        ("token_count", c_size_t),
        ("embeddings", c_void_p),
        ("embedding_rows", c_size_t),
        ("embedding_width", c_size_t),
        ("key", c_void_p),
        ("key_size", c_size_t),
    ]


class Text(Structure):
    C_NAME = "mlxgen_text"
    _fields_ = [("data", c_char_p), ("size", c_size_t)]


class GenerateOptions(Structure):
    C_NAME = "mlxgen_generate_options"
    _fields_ = [
        ("struct_size", c_size_t),
        ("temperature", c_float),
        ("top_p", c_float),
        ("min_p", c_float),
        ("top_k", c_uint32),
        ("seed", c_uint64),
        ("has_seed", c_int32),
        ("max_tokens", c_uint64),
        ("has_max_tokens", c_int32),
        ("stop", POINTER(Text)),
        ("stop_count", c_size_t),
        ("extra_eos", POINTER(c_uint32)),
        ("extra_eos_count", c_size_t),
        ("ignore_eos", c_int32),
        ("logprobs", c_int32),
        ("top_logprobs", c_uint32),
        ("cancel", c_void_p),
    ]


class Event(Structure):
    C_NAME = "mlxgen_event"
    # Texts are c_void_p: ctypes would cut a c_char_p at the first NUL.
    _fields_ = [
        ("struct_size", c_size_t),
        ("kind", c_int32),
        ("prefill_done", c_uint64),
        ("prefill_total", c_uint64),
        ("prefill_reused", c_uint64),
        ("reuse_stop", c_int32),
        ("text", c_void_p),
        ("text_size", c_size_t),
        ("tokens", POINTER(c_uint32)),
        ("token_count", c_size_t),
        ("logprobs", POINTER(c_float)),
        ("top_tokens", POINTER(c_uint32)),
        ("top_logprobs", POINTER(c_float)),
        ("top_count", c_size_t),
        ("replayed", c_int32),
        ("end_reason", c_int32),
        ("stop_text", c_void_p),
        ("stop_text_size", c_size_t),
        ("prompt_tokens", c_uint64),
        ("reused_tokens", c_uint64),
        ("generated_tokens", c_uint64),
        ("queued_seconds", c_double),
        ("prefill_seconds", c_double),
        ("decode_seconds", c_double),
        ("first_token_seconds", c_double),
    ]


STRUCTS = (
    EngineOptions,
    MemoryInfo,
    ChatOptions,
    ModelOptions,
    ModelDescription,
    MemoryEstimate,
    CacheOptions,
    CacheDescription,
    PromptPart,
    Text,
    GenerateOptions,
    Event,
)

_status = c_int32
_handle = c_void_p
_out = POINTER(c_void_p)
_size = c_size_t
_text = c_char_p
_tokens = POINTER(c_uint32)

# Name without the prefix -> result, parameters.
PROTOTYPES: Dict[str, Tuple[Any, List[Any]]] = {
    "abi_version": (c_uint32, []),
    "version_string": (c_char_p, []),
    "build_info": (_status, [_out, _out]),
    "has_feature": (c_int32, [_text, _size]),
    "status_name": (c_char_p, [_status]),
    "set_log_sink": (_status, [LogCallback, c_void_p, DropCallback, c_int32, _out]),
    "live_handles": (c_uint64, []),
    "shutdown": (_status, [c_uint32, _out]),
    "error_status": (_status, [_handle]),
    "error_message": (c_void_p, [_handle, POINTER(c_size_t)]),
    "error_detail": (c_void_p, [_handle, POINTER(c_size_t)]),
    "buffer_data": (c_void_p, [_handle]),
    "buffer_size": (_size, [_handle]),
    "cancel_new": (_status, [_out, _out]),
    "cancel_request": (_status, [_handle]),
    "cancel_is_requested": (c_int32, [_handle]),
    "engine_options_init": (_status, [POINTER(EngineOptions), _size]),
    "memory_info_init": (_status, [POINTER(MemoryInfo), _size]),
    "engine_new": (_status, [POINTER(EngineOptions), _out, _out]),
    "engine_memory": (_status, [_handle, POINTER(MemoryInfo), _out]),
    "engine_set_limits": (_status, [_handle, c_uint64, c_uint64, _out]),
    "engine_trim": (_status, [_handle, POINTER(c_uint64), _out]),
    "engine_suspend": (_status, [_handle, c_uint32, _out]),
    "engine_resume": (_status, [_handle, _out]),
    "tokenizer_load": (_status, [_text, _size, _out, _out]),
    "tokenize": (_status, [_handle, _text, _size, c_uint32, _out, _out]),
    "detokenize": (_status, [_handle, _tokens, _size, c_uint32, _out, _out]),
    "chat_options_init": (_status, [POINTER(ChatOptions), _size]),
    "chat_render": (_status, [_handle, _text, _size, POINTER(ChatOptions), _out, _out, _out]),
    "model_options_init": (_status, [POINTER(ModelOptions), _size]),
    "model_description_init": (_status, [POINTER(ModelDescription), _size]),
    "memory_estimate_init": (_status, [POINTER(MemoryEstimate), _size]),
    "model_estimate": (
        _status,
        [
            _handle,
            _text,
            _size,
            POINTER(ModelOptions),
            POINTER(CacheOptions),
            c_uint64,
            c_uint64,
            POINTER(MemoryEstimate),
            _out,
        ],
    ),
    "model_load": (_status, [_handle, _text, _size, POINTER(ModelOptions), _out, _out]),
    "model_info": (_status, [_handle, POINTER(ModelDescription), _out]),
    "model_tokenizer": (_status, [_handle, _out, _out]),
    "cache_options_init": (_status, [POINTER(CacheOptions), _size]),
    "cache_description_init": (_status, [POINTER(CacheDescription), _size]),
    "cache_new": (_status, [_handle, POINTER(CacheOptions), _out, _out]),
    "cache_append_parts": (_status, [_handle, POINTER(PromptPart), _size, _handle, _out]),
    "cache_append": (_status, [_handle, _tokens, _size, _handle, _out]),
    "cache_logits": (_status, [_handle, _out, _out]),
    "cache_token_count": (_status, [_handle, POINTER(c_size_t), _out]),
    "cache_tokens": (_status, [_handle, _out, _out]),
    "cache_truncate": (_status, [_handle, _size, POINTER(c_size_t), _out]),
    "cache_fork": (_status, [_handle, _out, _out]),
    "cache_info": (_status, [_handle, POINTER(CacheDescription), _out, _out]),
    "generate_options_init": (_status, [POINTER(GenerateOptions), _size]),
    "prompt_part_init": (_status, [POINTER(PromptPart), _size]),
    "stream_open": (
        _status,
        [_handle, _handle, POINTER(PromptPart), _size, POINTER(GenerateOptions), _out, _out],
    ),
    "event_init": (_status, [POINTER(Event), _size]),
    "stream_next": (_status, [_handle, c_uint32, POINTER(Event), _out]),
    "stream_set_wakeup": (_status, [_handle, WakeupCallback, c_void_p, DropCallback, _out]),
    "stream_close": (_status, [_handle, _out]),
}

OBJECTS = ("error", "buffer", "cancel", "engine", "tokenizer", "model", "cache", "stream")
for _name in OBJECTS:
    PROTOTYPES[f"{_name}_retain"] = (c_void_p, [_handle])
    PROTOTYPES[f"{_name}_release"] = (None, [_handle])
