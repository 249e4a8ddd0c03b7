/*
 * The layout of every struct on 64-bit machines, frozen: offset and size of each member. A member
 * that is added gets a line at the end of its struct; a line that changes is a break of the ABI.
 * Compiled as C11 and as C++11.
 */
#include <mlxgen.h>

#ifdef __cplusplus
#define ASSERT(condition) static_assert(condition, #condition)
#else
#define ASSERT(condition) _Static_assert(condition, #condition)
#endif
#define SIZE(type, size) ASSERT(sizeof(type) == (size))
#define FIELD(type, member, offset, size)                                                         \
    ASSERT(offsetof(type, member) == (offset) && sizeof(((type *)0)->member) == (size))

SIZE(mlxgen_engine_options, 32);
FIELD(mlxgen_engine_options, struct_size, 0, 8);
FIELD(mlxgen_engine_options, memory_limit, 8, 8);
FIELD(mlxgen_engine_options, pool_limit, 16, 8);
FIELD(mlxgen_engine_options, threads, 24, 4);
FIELD(mlxgen_engine_options, device, 28, 4);

SIZE(mlxgen_memory_info, 72);
FIELD(mlxgen_memory_info, struct_size, 0, 8);
FIELD(mlxgen_memory_info, active, 8, 8);
FIELD(mlxgen_memory_info, pooled, 16, 8);
FIELD(mlxgen_memory_info, peak, 24, 8);
FIELD(mlxgen_memory_info, limit, 32, 8);
FIELD(mlxgen_memory_info, pool_limit, 40, 8);
FIELD(mlxgen_memory_info, available, 48, 8);
FIELD(mlxgen_memory_info, models, 56, 8);
FIELD(mlxgen_memory_info, caches, 64, 8);

SIZE(mlxgen_chat_options, 72);
FIELD(mlxgen_chat_options, struct_size, 0, 8);
FIELD(mlxgen_chat_options, tools_json, 8, 8);
FIELD(mlxgen_chat_options, tools_json_size, 16, 8);
FIELD(mlxgen_chat_options, template_name, 24, 8);
FIELD(mlxgen_chat_options, template_name_size, 32, 8);
FIELD(mlxgen_chat_options, extra_json, 40, 8);
FIELD(mlxgen_chat_options, extra_json_size, 48, 8);
FIELD(mlxgen_chat_options, add_generation_prompt, 56, 4);
FIELD(mlxgen_chat_options, tool_arguments, 60, 4);
FIELD(mlxgen_chat_options, parse_special_in_content, 64, 4);
FIELD(mlxgen_chat_options, reserved, 68, 4);

SIZE(mlxgen_model_options, 48);
FIELD(mlxgen_model_options, struct_size, 0, 8);
FIELD(mlxgen_model_options, numerics, 8, 4);
FIELD(mlxgen_model_options, compute_type, 12, 4);
FIELD(mlxgen_model_options, prefill_chunk, 16, 4);
FIELD(mlxgen_model_options, context_limit, 20, 4);
FIELD(mlxgen_model_options, cancel, 24, 8);
FIELD(mlxgen_model_options, progress, 32, 8);
FIELD(mlxgen_model_options, progress_user, 40, 8);

SIZE(mlxgen_model_description, 152);
FIELD(mlxgen_model_description, struct_size, 0, 8);
FIELD(mlxgen_model_description, family, 8, 8);
FIELD(mlxgen_model_description, name, 16, 8);
FIELD(mlxgen_model_description, format, 24, 8);
FIELD(mlxgen_model_description, weights, 32, 8);
FIELD(mlxgen_model_description, compute_type, 40, 8);
FIELD(mlxgen_model_description, numerics, 48, 8);
FIELD(mlxgen_model_description, vocabulary, 56, 4);
FIELD(mlxgen_model_description, layers, 60, 4);
FIELD(mlxgen_model_description, hidden, 64, 4);
FIELD(mlxgen_model_description, heads, 68, 4);
FIELD(mlxgen_model_description, kv_heads, 72, 4);
FIELD(mlxgen_model_description, head_dim, 76, 4);
FIELD(mlxgen_model_description, context_limit, 80, 8);
FIELD(mlxgen_model_description, prefill_chunk, 88, 4);
FIELD(mlxgen_model_description, parameters, 96, 8);
FIELD(mlxgen_model_description, weight_bytes, 104, 8);
FIELD(mlxgen_model_description, cache_bytes_per_token, 112, 8);
FIELD(mlxgen_model_description, eos, 120, 8);
FIELD(mlxgen_model_description, eos_count, 128, 8);
FIELD(mlxgen_model_description, bos, 136, 8);
FIELD(mlxgen_model_description, has_chat_template, 144, 4);
FIELD(mlxgen_model_description, reserved, 148, 4);

SIZE(mlxgen_cache_options, 96);
FIELD(mlxgen_cache_options, struct_size, 0, 8);
FIELD(mlxgen_cache_options, capacity, 8, 8);
FIELD(mlxgen_cache_options, kv_type, 16, 4);
FIELD(mlxgen_cache_options, kv_bits, 20, 4);
FIELD(mlxgen_cache_options, kv_start, 24, 8);
FIELD(mlxgen_cache_options, kv_group, 32, 4);
FIELD(mlxgen_cache_options, turboquant_key_bits, 36, 4);
FIELD(mlxgen_cache_options, turboquant_value_bits, 40, 4);
FIELD(mlxgen_cache_options, turboquant_deferred, 44, 4);
FIELD(mlxgen_cache_options, kv_config, 48, 8);
FIELD(mlxgen_cache_options, kv_config_size, 56, 8);
FIELD(mlxgen_cache_options, window, 64, 8);
FIELD(mlxgen_cache_options, window_keep, 72, 8);
FIELD(mlxgen_cache_options, page_tokens, 80, 4);
FIELD(mlxgen_cache_options, reserved, 84, 4);
FIELD(mlxgen_cache_options, page_capacity, 88, 8);

SIZE(mlxgen_cache_description, 40);
FIELD(mlxgen_cache_description, struct_size, 0, 8);
FIELD(mlxgen_cache_description, tokens, 8, 8);
FIELD(mlxgen_cache_description, capacity, 16, 8);
FIELD(mlxgen_cache_description, bytes, 24, 8);
FIELD(mlxgen_cache_description, layers, 32, 4);
FIELD(mlxgen_cache_description, trimmable, 36, 4);

SIZE(mlxgen_memory_estimate, 104);
FIELD(mlxgen_memory_estimate, struct_size, 0, 8);
FIELD(mlxgen_memory_estimate, weight_bytes, 8, 8);
FIELD(mlxgen_memory_estimate, file_bytes, 16, 8);
FIELD(mlxgen_memory_estimate, load_bytes, 24, 8);
FIELD(mlxgen_memory_estimate, cache_bytes_per_token, 32, 8);
FIELD(mlxgen_memory_estimate, cache_bytes, 40, 8);
FIELD(mlxgen_memory_estimate, workspace_bytes, 48, 8);
FIELD(mlxgen_memory_estimate, total_bytes, 56, 8);
FIELD(mlxgen_memory_estimate, context, 64, 8);
FIELD(mlxgen_memory_estimate, context_limit, 72, 8);
FIELD(mlxgen_memory_estimate, budget, 80, 8);
FIELD(mlxgen_memory_estimate, max_context, 88, 8);
FIELD(mlxgen_memory_estimate, fits, 96, 4);
FIELD(mlxgen_memory_estimate, reserved, 100, 4);

SIZE(mlxgen_event, 192);
FIELD(mlxgen_event, struct_size, 0, 8);
FIELD(mlxgen_event, kind, 8, 4);
FIELD(mlxgen_event, prefill_done, 16, 8);
FIELD(mlxgen_event, prefill_total, 24, 8);
FIELD(mlxgen_event, prefill_reused, 32, 8);
FIELD(mlxgen_event, reuse_stop, 40, 4);
FIELD(mlxgen_event, text, 48, 8);
FIELD(mlxgen_event, text_size, 56, 8);
FIELD(mlxgen_event, tokens, 64, 8);
FIELD(mlxgen_event, token_count, 72, 8);
FIELD(mlxgen_event, logprobs, 80, 8);
FIELD(mlxgen_event, top_tokens, 88, 8);
FIELD(mlxgen_event, top_logprobs, 96, 8);
FIELD(mlxgen_event, top_count, 104, 8);
FIELD(mlxgen_event, replayed, 112, 4);
FIELD(mlxgen_event, end_reason, 116, 4);
FIELD(mlxgen_event, stop_text, 120, 8);
FIELD(mlxgen_event, stop_text_size, 128, 8);
FIELD(mlxgen_event, prompt_tokens, 136, 8);
FIELD(mlxgen_event, reused_tokens, 144, 8);
FIELD(mlxgen_event, generated_tokens, 152, 8);
FIELD(mlxgen_event, queued_seconds, 160, 8);
FIELD(mlxgen_event, prefill_seconds, 168, 8);
FIELD(mlxgen_event, decode_seconds, 176, 8);
FIELD(mlxgen_event, first_token_seconds, 184, 8);

SIZE(mlxgen_text, 16);
FIELD(mlxgen_text, data, 0, 8);
FIELD(mlxgen_text, size, 8, 8);

SIZE(mlxgen_generate_options, 112);
FIELD(mlxgen_generate_options, struct_size, 0, 8);
FIELD(mlxgen_generate_options, temperature, 8, 4);
FIELD(mlxgen_generate_options, top_p, 12, 4);
FIELD(mlxgen_generate_options, min_p, 16, 4);
FIELD(mlxgen_generate_options, top_k, 20, 4);
FIELD(mlxgen_generate_options, seed, 24, 8);
FIELD(mlxgen_generate_options, has_seed, 32, 4);
FIELD(mlxgen_generate_options, max_tokens, 40, 8);
FIELD(mlxgen_generate_options, has_max_tokens, 48, 4);
FIELD(mlxgen_generate_options, stop, 56, 8);
FIELD(mlxgen_generate_options, stop_count, 64, 8);
FIELD(mlxgen_generate_options, extra_eos, 72, 8);
FIELD(mlxgen_generate_options, extra_eos_count, 80, 8);
FIELD(mlxgen_generate_options, ignore_eos, 88, 4);
FIELD(mlxgen_generate_options, logprobs, 92, 4);
FIELD(mlxgen_generate_options, top_logprobs, 96, 4);
FIELD(mlxgen_generate_options, cancel, 104, 8);

SIZE(mlxgen_prompt_part, 72);
FIELD(mlxgen_prompt_part, struct_size, 0, 8);
FIELD(mlxgen_prompt_part, kind, 8, 4);
FIELD(mlxgen_prompt_part, tokens, 16, 8);
FIELD(mlxgen_prompt_part, token_count, 24, 8);
FIELD(mlxgen_prompt_part, embeddings, 32, 8);
FIELD(mlxgen_prompt_part, embedding_rows, 40, 8);
FIELD(mlxgen_prompt_part, embedding_width, 48, 8);
FIELD(mlxgen_prompt_part, key, 56, 8);
FIELD(mlxgen_prompt_part, key_size, 64, 8);
