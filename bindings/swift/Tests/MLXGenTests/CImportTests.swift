import CMLXGen
import Foundation
import Testing

/// Swift sees all of the C header. A name that the header gains must be added here.
@Suite struct CImportTests {
    static var functions: [String: Any] {
        [
            "mlxgen_abi_version": mlxgen_abi_version,
            "mlxgen_version_string": mlxgen_version_string,
            "mlxgen_build_info": mlxgen_build_info,
            "mlxgen_has_feature": mlxgen_has_feature,
            "mlxgen_status_name": mlxgen_status_name,
            "mlxgen_set_log_sink": mlxgen_set_log_sink,
            "mlxgen_live_handles": mlxgen_live_handles,
            "mlxgen_shutdown": mlxgen_shutdown,
            "mlxgen_error_status": mlxgen_error_status,
            "mlxgen_error_message": mlxgen_error_message,
            "mlxgen_error_detail": mlxgen_error_detail,
            "mlxgen_error_retain": mlxgen_error_retain,
            "mlxgen_error_release": mlxgen_error_release,
            "mlxgen_buffer_data": mlxgen_buffer_data,
            "mlxgen_buffer_size": mlxgen_buffer_size,
            "mlxgen_buffer_retain": mlxgen_buffer_retain,
            "mlxgen_buffer_release": mlxgen_buffer_release,
            "mlxgen_cancel_new": mlxgen_cancel_new,
            "mlxgen_cancel_request": mlxgen_cancel_request,
            "mlxgen_cancel_is_requested": mlxgen_cancel_is_requested,
            "mlxgen_cancel_retain": mlxgen_cancel_retain,
            "mlxgen_cancel_release": mlxgen_cancel_release,
            "mlxgen_engine_options_init": mlxgen_engine_options_init,
            "mlxgen_memory_info_init": mlxgen_memory_info_init,
            "mlxgen_engine_new": mlxgen_engine_new,
            "mlxgen_engine_memory": mlxgen_engine_memory,
            "mlxgen_engine_set_limits": mlxgen_engine_set_limits,
            "mlxgen_engine_trim": mlxgen_engine_trim,
            "mlxgen_engine_suspend": mlxgen_engine_suspend,
            "mlxgen_engine_resume": mlxgen_engine_resume,
            "mlxgen_engine_retain": mlxgen_engine_retain,
            "mlxgen_engine_release": mlxgen_engine_release,
            "mlxgen_tokenizer_load": mlxgen_tokenizer_load,
            "mlxgen_tokenize": mlxgen_tokenize,
            "mlxgen_detokenize": mlxgen_detokenize,
            "mlxgen_chat_options_init": mlxgen_chat_options_init,
            "mlxgen_chat_render": mlxgen_chat_render,
            "mlxgen_tokenizer_retain": mlxgen_tokenizer_retain,
            "mlxgen_tokenizer_release": mlxgen_tokenizer_release,
            "mlxgen_model_options_init": mlxgen_model_options_init,
            "mlxgen_model_description_init": mlxgen_model_description_init,
            "mlxgen_memory_estimate_init": mlxgen_memory_estimate_init,
            "mlxgen_model_estimate": mlxgen_model_estimate,
            "mlxgen_model_load": mlxgen_model_load,
            "mlxgen_model_info": mlxgen_model_info,
            "mlxgen_model_tokenizer": mlxgen_model_tokenizer,
            "mlxgen_model_retain": mlxgen_model_retain,
            "mlxgen_model_release": mlxgen_model_release,
            "mlxgen_cache_options_init": mlxgen_cache_options_init,
            "mlxgen_cache_description_init": mlxgen_cache_description_init,
            "mlxgen_cache_new": mlxgen_cache_new,
            "mlxgen_cache_append": mlxgen_cache_append,
            "mlxgen_cache_append_parts": mlxgen_cache_append_parts,
            "mlxgen_cache_logits": mlxgen_cache_logits,
            "mlxgen_cache_token_count": mlxgen_cache_token_count,
            "mlxgen_cache_tokens": mlxgen_cache_tokens,
            "mlxgen_cache_truncate": mlxgen_cache_truncate,
            "mlxgen_cache_fork": mlxgen_cache_fork,
            "mlxgen_cache_info": mlxgen_cache_info,
            "mlxgen_cache_retain": mlxgen_cache_retain,
            "mlxgen_cache_release": mlxgen_cache_release,
            "mlxgen_event_init": mlxgen_event_init,
            "mlxgen_generate_options_init": mlxgen_generate_options_init,
            "mlxgen_prompt_part_init": mlxgen_prompt_part_init,
            "mlxgen_stream_open": mlxgen_stream_open,
            "mlxgen_stream_next": mlxgen_stream_next,
            "mlxgen_stream_set_wakeup": mlxgen_stream_set_wakeup,
            "mlxgen_stream_close": mlxgen_stream_close,
            "mlxgen_stream_retain": mlxgen_stream_retain,
            "mlxgen_stream_release": mlxgen_stream_release,
        ]
    }

    static var constants: [String: any BinaryInteger] {
        [
            "MLXGEN_ABI_VERSION": MLXGEN_ABI_VERSION,
            "MLXGEN_VERSION_MAJOR": MLXGEN_VERSION_MAJOR,
            "MLXGEN_VERSION_MINOR": MLXGEN_VERSION_MINOR,
            "MLXGEN_VERSION_PATCH": MLXGEN_VERSION_PATCH,
            "MLXGEN_LOG_OFF": MLXGEN_LOG_OFF,
            "MLXGEN_LOG_ERROR": MLXGEN_LOG_ERROR,
            "MLXGEN_LOG_WARNING": MLXGEN_LOG_WARNING,
            "MLXGEN_LOG_INFO": MLXGEN_LOG_INFO,
            "MLXGEN_LOG_DEBUG": MLXGEN_LOG_DEBUG,
            "MLXGEN_LOG_TRACE": MLXGEN_LOG_TRACE,
            "MLXGEN_WAIT_FOREVER": MLXGEN_WAIT_FOREVER,
            "MLXGEN_DEVICE_AUTO": MLXGEN_DEVICE_AUTO,
            "MLXGEN_DEVICE_CPU": MLXGEN_DEVICE_CPU,
            "MLXGEN_DEVICE_GPU": MLXGEN_DEVICE_GPU,
            "MLXGEN_TOKENIZE_ADD_SPECIAL": MLXGEN_TOKENIZE_ADD_SPECIAL,
            "MLXGEN_TOKENIZE_PARSE_SPECIAL": MLXGEN_TOKENIZE_PARSE_SPECIAL,
            "MLXGEN_DETOKENIZE_SKIP_SPECIAL": MLXGEN_DETOKENIZE_SKIP_SPECIAL,
            "MLXGEN_TOOL_ARGUMENTS_AS_GIVEN": MLXGEN_TOOL_ARGUMENTS_AS_GIVEN,
            "MLXGEN_TOOL_ARGUMENTS_OBJECT": MLXGEN_TOOL_ARGUMENTS_OBJECT,
            "MLXGEN_TOOL_ARGUMENTS_TEXT": MLXGEN_TOOL_ARGUMENTS_TEXT,
            "MLXGEN_NUMERICS_FAST": MLXGEN_NUMERICS_FAST,
            "MLXGEN_NUMERICS_EXACT": MLXGEN_NUMERICS_EXACT,
            "MLXGEN_COMPUTE_AUTO": MLXGEN_COMPUTE_AUTO,
            "MLXGEN_COMPUTE_FLOAT32": MLXGEN_COMPUTE_FLOAT32,
            "MLXGEN_COMPUTE_FLOAT16": MLXGEN_COMPUTE_FLOAT16,
            "MLXGEN_COMPUTE_BFLOAT16": MLXGEN_COMPUTE_BFLOAT16,
            "MLXGEN_KV_AUTO": MLXGEN_KV_AUTO,
            "MLXGEN_KV_FLOAT32": MLXGEN_KV_FLOAT32,
            "MLXGEN_KV_FLOAT16": MLXGEN_KV_FLOAT16,
            "MLXGEN_KV_BFLOAT16": MLXGEN_KV_BFLOAT16,
            "MLXGEN_LOAD_OPEN": MLXGEN_LOAD_OPEN,
            "MLXGEN_LOAD_WEIGHTS": MLXGEN_LOAD_WEIGHTS,
            "MLXGEN_LOAD_FINISH": MLXGEN_LOAD_FINISH,
            "MLXGEN_EVENT_PREFILL": MLXGEN_EVENT_PREFILL,
            "MLXGEN_EVENT_TEXT": MLXGEN_EVENT_TEXT,
            "MLXGEN_EVENT_END": MLXGEN_EVENT_END,
            "MLXGEN_REUSE_NOTHING_CACHED": MLXGEN_REUSE_NOTHING_CACHED,
            "MLXGEN_REUSE_CACHE_EXHAUSTED": MLXGEN_REUSE_CACHE_EXHAUSTED,
            "MLXGEN_REUSE_DIVERGED": MLXGEN_REUSE_DIVERGED,
            "MLXGEN_REUSE_PROMPT_COVERED": MLXGEN_REUSE_PROMPT_COVERED,
            "MLXGEN_REUSE_REDUCED": MLXGEN_REUSE_REDUCED,
            "MLXGEN_END_EOS": MLXGEN_END_EOS,
            "MLXGEN_END_STOP_STRING": MLXGEN_END_STOP_STRING,
            "MLXGEN_END_MAX_TOKENS": MLXGEN_END_MAX_TOKENS,
            "MLXGEN_END_GRAMMAR": MLXGEN_END_GRAMMAR,
            "MLXGEN_END_CANCELLED": MLXGEN_END_CANCELLED,
            "MLXGEN_END_CONTEXT_FULL": MLXGEN_END_CONTEXT_FULL,
            "MLXGEN_PART_TOKENS": MLXGEN_PART_TOKENS, "MLXGEN_PART_EMBEDDINGS": MLXGEN_PART_EMBEDDINGS,
            "MLXGEN_OK": MLXGEN_OK,
            "MLXGEN_DONE": MLXGEN_DONE,
            "MLXGEN_TIMEOUT": MLXGEN_TIMEOUT,
            "MLXGEN_CANCELLED": MLXGEN_CANCELLED,
            "MLXGEN_INVALID_ARGUMENT": MLXGEN_INVALID_ARGUMENT,
            "MLXGEN_NOT_FOUND": MLXGEN_NOT_FOUND,
            "MLXGEN_INVALID_MODEL": MLXGEN_INVALID_MODEL,
            "MLXGEN_UNSUPPORTED": MLXGEN_UNSUPPORTED,
            "MLXGEN_OUT_OF_MEMORY": MLXGEN_OUT_OF_MEMORY,
            "MLXGEN_CONTEXT_FULL": MLXGEN_CONTEXT_FULL,
            "MLXGEN_BUSY": MLXGEN_BUSY,
            "MLXGEN_WRONG_STATE": MLXGEN_WRONG_STATE,
            "MLXGEN_INCOMPATIBLE_CHECKPOINT": MLXGEN_INCOMPATIBLE_CHECKPOINT,
            "MLXGEN_IO": MLXGEN_IO,
            "MLXGEN_GPU_TIMEOUT": MLXGEN_GPU_TIMEOUT,
            "MLXGEN_GPU_NOT_PERMITTED": MLXGEN_GPU_NOT_PERMITTED,
            "MLXGEN_INTERNAL": MLXGEN_INTERNAL,
        ]
    }

    static var types: [String: Any.Type] {
        [
            "mlxgen_engine_options": mlxgen_engine_options.self,
            "mlxgen_memory_info": mlxgen_memory_info.self,
            "mlxgen_memory_estimate": mlxgen_memory_estimate.self,
            "mlxgen_chat_options": mlxgen_chat_options.self,
            "mlxgen_model_options": mlxgen_model_options.self,
            "mlxgen_model_description": mlxgen_model_description.self,
            "mlxgen_cache_options": mlxgen_cache_options.self,
            "mlxgen_cache_description": mlxgen_cache_description.self,
            "mlxgen_event": mlxgen_event.self,
            "mlxgen_text": mlxgen_text.self,
            "mlxgen_generate_options": mlxgen_generate_options.self,
            "mlxgen_prompt_part": mlxgen_prompt_part.self,
            "mlxgen_status": mlxgen_status.self,
            "mlxgen_log_callback": mlxgen_log_callback.self,
            "mlxgen_drop_callback": mlxgen_drop_callback.self,
            "mlxgen_progress_callback": mlxgen_progress_callback.self,
            "mlxgen_wakeup_callback": mlxgen_wakeup_callback.self,
        ]
    }

    /// The header without its comments.
    static let header: String = {
        let path =
            ProcessInfo.processInfo.environment["MLXGEN_HEADER"]
            ?? URL(fileURLWithPath: #filePath).appending(path: "../../../../../include/mlxgen.h")
            .standardized.path
        let text = (try? String(contentsOfFile: path, encoding: .utf8)) ?? ""
        return text.replacing(#/(?s)/\*.*?\*//#, with: "")
    }()

    @Test func everyFunctionIsNamed() {
        let declared = Self.header.matches(of: #/\b(mlxgen_[a-z0-9_]+)\s*\(/#).map { String($0.1) }
        #expect(declared.count > 60)
        #expect(Set(declared) == Set(Self.functions.keys))
    }

    @Test func everyConstantIsNamed() {
        let defined = Self.header.matches(of: #/#define (MLXGEN_[A-Z0-9_]+) /#).map { String($0.1) }
        #expect(defined.count > 40)
        #expect(Set(defined) == Set(Self.constants.keys))
    }

    @Test func everyTypeIsNamed() {
        let structs = Self.header.matches(of: #/}\s*(mlxgen_[a-z_]+);/#).map { String($0.1) }
        let callbacks = Self.header.matches(of: #/\(\*(mlxgen_[a-z_]+)\)/#).map { String($0.1) }
        #expect(structs.count > 10)
        #expect(Set(structs + callbacks + ["mlxgen_status"]) == Set(Self.types.keys))
    }

    /// Swift's size of a struct is what the library takes for the caller's.
    @Test func structSizesAreThoseOfC() {
        var event = mlxgen_event()
        #expect(mlxgen_event_init(&event, MemoryLayout.size(ofValue: event)) == MLXGEN_OK)
        #expect(event.struct_size == MemoryLayout<mlxgen_event>.size)
        #expect(MemoryLayout<mlxgen_event>.size == MemoryLayout<mlxgen_event>.stride)
        #expect(MemoryLayout<mlxgen_chat_options>.size == MemoryLayout<mlxgen_chat_options>.stride)
        #expect(MemoryLayout<mlxgen_generate_options>.size == MemoryLayout<mlxgen_generate_options>.stride)
    }
}
