/*
 * libmlxgen: an embeddable LLM inference core over MLX.
 *
 * Made from the library's sources by `cargo xtask header`: do not edit. The rules that hold for
 * every function (threads, ownership, errors, handles, options, callbacks, fork, versions) are in
 * CONVENTIONS.md, which is installed in share/doc/mlxgen. In short: outputs come last; on failure
 * pointer outputs are NULL and others are untouched; `out_error` may be NULL, else it receives an
 * error object with each status except MLXGEN_OK, MLXGEN_DONE and MLXGEN_TIMEOUT; (NULL, 0) is the
 * empty text; handles are numbers, so that a wrong or released one gives MLXGEN_INVALID_ARGUMENT.
 *
 * Besides the codes that its comment lists, every function that returns mlxgen_status can give
 * MLXGEN_WRONG_STATE (called inside a callback, in a child made by fork, or while the process
 * exits), MLXGEN_OUT_OF_MEMORY (a million objects of the kind it makes are alive) and
 * MLXGEN_INTERNAL (a defect of the library).
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */

#ifndef MLXGEN_H
#define MLXGEN_H

#include <stddef.h>
#include <stdint.h>

/**
 * The ABI that this header describes; mlxgen_abi_version gives that of the library in use. A
 * library serves all programs that were built for its ABI, older and newer.
 */
#define MLXGEN_ABI_VERSION 1

/**
 * The version of this header, as MLXGEN_VERSION_MAJOR.MLXGEN_VERSION_MINOR.MLXGEN_VERSION_PATCH.
 */
#define MLXGEN_VERSION_MAJOR 0

/**
 * See MLXGEN_VERSION_MAJOR.
 */
#define MLXGEN_VERSION_MINOR 1

/**
 * See MLXGEN_VERSION_MAJOR.
 */
#define MLXGEN_VERSION_PATCH 0

/**
 * No log lines.
 */
#define MLXGEN_LOG_OFF 0

/**
 * Something failed that no call could report.
 */
#define MLXGEN_LOG_ERROR 1

/**
 * A load or a generation failed, or something works less well than it should.
 */
#define MLXGEN_LOG_WARNING 2

/**
 * What the library does, in few lines: its thread begins, a model was loaded.
 */
#define MLXGEN_LOG_INFO 3

/**
 * Details for the search of a fault: the steps of a load, the begin and end of each generation.
 */
#define MLXGEN_LOG_DEBUG 4

/**
 * Everything; as yet no more than MLXGEN_LOG_DEBUG.
 */
#define MLXGEN_LOG_TRACE 5

/**
 * Waits as long as it takes.
 */
#define MLXGEN_WAIT_FOREVER 4294967295

/**
 * The GPU where there is one, else the CPU.
 */
#define MLXGEN_DEVICE_AUTO 0

/**
 * The CPU.
 */
#define MLXGEN_DEVICE_CPU 1

/**
 * The GPU; mlxgen_engine_new gives MLXGEN_UNSUPPORTED where there is none.
 */
#define MLXGEN_DEVICE_GPU 2

/**
 * For mlxgen_tokenize: add what the tokenizer puts around a text, such as the
 * begin-of-sequence token.
 */
#define MLXGEN_TOKENIZE_ADD_SPECIAL 1

/**
 * For mlxgen_tokenize: the texts of special tokens become those tokens, instead of the tokens that
 * spell them.
 */
#define MLXGEN_TOKENIZE_PARSE_SPECIAL 2

/**
 * For mlxgen_detokenize: special tokens give no text.
 */
#define MLXGEN_DETOKENIZE_SKIP_SPECIAL 1

/**
 * Arguments of tool calls go to the template as the messages have them.
 */
#define MLXGEN_TOOL_ARGUMENTS_AS_GIVEN 0

/**
 * Arguments that are JSON text go to the template as what the text says.
 */
#define MLXGEN_TOOL_ARGUMENTS_OBJECT 1

/**
 * Arguments go to the template as JSON text.
 */
#define MLXGEN_TOOL_ARGUMENTS_TEXT 2

/**
 * The fastest arithmetic; results are the library's own.
 */
#define MLXGEN_NUMERICS_FAST 0

/**
 * Only MLX's operations in mlx-lm's order: the same tokens as mlx-lm on the same machine.
 */
#define MLXGEN_NUMERICS_EXACT 1

/**
 * The element type of the file under MLXGEN_NUMERICS_EXACT; else what is fastest.
 */
#define MLXGEN_COMPUTE_AUTO 0

/**
 * 32 bits.
 */
#define MLXGEN_COMPUTE_FLOAT32 1

/**
 * 16 bits, IEEE half precision.
 */
#define MLXGEN_COMPUTE_FLOAT16 2

/**
 * 16 bits with the exponent of float32.
 */
#define MLXGEN_COMPUTE_BFLOAT16 3

/**
 * Progress of a load: configuration, tokenizer and weight headers.
 */
#define MLXGEN_LOAD_OPEN 0

/**
 * Progress of a load: weights; the numbers are bytes of the files.
 */
#define MLXGEN_LOAD_WEIGHTS 1

/**
 * Progress of a load: the last preparations.
 */
#define MLXGEN_LOAD_FINISH 2

/**
 * float16 where the library's own kernels compute (Linux, MLXGEN_NUMERICS_FAST, compute type float32); else the
 * model's compute type, which is then the only one that can be asked for.
 */
#define MLXGEN_KV_AUTO 0

/**
 * float32.
 */
#define MLXGEN_KV_FLOAT32 1

/**
 * float16.
 */
#define MLXGEN_KV_FLOAT16 2

/**
 * bfloat16.
 */
#define MLXGEN_KV_BFLOAT16 3

/**
 * A part of the prompt was read: `prefill_done` of `prefill_total` tokens.
 */
#define MLXGEN_EVENT_PREFILL 1

/**
 * Text was generated: whole UTF-8 characters and the tokens they came with; either may be empty.
 */
#define MLXGEN_EVENT_TEXT 2

/**
 * The generation has ended; the last event.
 */
#define MLXGEN_EVENT_END 6

/**
 * Nothing was cached.
 */
#define MLXGEN_REUSE_NOTHING_CACHED 0

/**
 * All cached tokens were used.
 */
#define MLXGEN_REUSE_CACHE_EXHAUSTED 1

/**
 * The cached tokens and the prompt differ there; the rest of the cache was cut off.
 */
#define MLXGEN_REUSE_DIVERGED 2

/**
 * The cache holds the whole prompt; its last token is read again.
 */
#define MLXGEN_REUSE_PROMPT_COVERED 3

/**
 * The tokens in common were reduced in precision together with others behind them (kv_start): all are read again.
 */
#define MLXGEN_REUSE_REDUCED 4

/**
 * An end-of-sequence token was generated.
 */
#define MLXGEN_END_EOS 0

/**
 * A stop text was generated.
 */
#define MLXGEN_END_STOP_STRING 1

/**
 * As many tokens as asked for were generated.
 */
#define MLXGEN_END_MAX_TOKENS 2

/**
 * The grammar allows nothing more.
 */
#define MLXGEN_END_GRAMMAR 3

/**
 * A cancel handle was asked to stop.
 */
#define MLXGEN_END_CANCELLED 4

/**
 * The context limit or the cache set's capacity was reached.
 */
#define MLXGEN_END_CONTEXT_FULL 5

/**
 * Token ids.
 */
#define MLXGEN_PART_TOKENS 1

/**
 * Rows of embeddings, as an encoder of pictures or sound makes them.
 */
#define MLXGEN_PART_EMBEDDINGS 2

/**
 * Bytes, a text or an array that the library made. Immutable; any thread. Release it with
 * mlxgen_buffer_release.
 */
typedef struct mlxgen_buffer mlxgen_buffer;

/**
 * What a model keeps of the tokens it has read, so that they are not computed again. One call at
 * a time; a stream that was given it holds it until it is closed. Release it with
 * mlxgen_cache_release.
 */
typedef struct mlxgen_cache mlxgen_cache;

/**
 * Asks work to stop. Made before the work starts, given to as much work as you like, and usable
 * once: it stays requested. Any thread; mlxgen_cancel_request also in a signal handler. Release
 * it with mlxgen_cancel_release; work that was given it keeps its own share.
 */
typedef struct mlxgen_cancel mlxgen_cancel;

/**
 * A budget of memory for models and everything made from them. All engines of a process share
 * one worker, which does their work in turn, and the threads that compute for it. Any thread.
 * Release it with mlxgen_engine_release; models keep their engine alive.
 */
typedef struct mlxgen_engine mlxgen_engine;

/**
 * What a failed call tells: a status, a sentence for people, and where the fault lies.
 * Immutable; any thread. Release it with mlxgen_error_release.
 */
typedef struct mlxgen_error mlxgen_error;

/**
 * A loaded model. Immutable; any thread; serves any number of cache sets and streams. Release it
 * with mlxgen_model_release; what was made from it keeps it alive.
 */
typedef struct mlxgen_model mlxgen_model;

/**
 * One generation. Events are pulled with mlxgen_stream_next; a stream that is not pulled pauses.
 * Close or release it with mlxgen_stream_close and mlxgen_stream_release.
 */
typedef struct mlxgen_stream mlxgen_stream;

/**
 * Turns text into token ids and back, and conversations into prompts. Immutable; any thread.
 * Release it with mlxgen_tokenizer_release.
 */
typedef struct mlxgen_tokenizer mlxgen_tokenizer;

/**
 * What became of a call: one of the MLXGEN_ numbers from MLXGEN_OK to MLXGEN_INTERNAL. They
 * never change. Later versions may add numbers: treat an unknown one as a failure.
 */
typedef int32_t mlxgen_status;

/**
 * Receives one log line: UTF-8, `size` bytes, not NUL-terminated, borrowed for the call. `level`
 * is one of the MLXGEN_LOG_ numbers. Called on any thread, also by several at once; it must
 * return soon and normally, and may only signal: see mlxgen_set_log_sink.
 */
typedef void (*mlxgen_log_callback)(void *user, int32_t level, const char *message, size_t size);

/**
 * Lets go of `user`: called exactly once, on any thread, when the library will not use `user`
 * any more. May be NULL. Like every callback it must return normally and may only signal.
 */
typedef void (*mlxgen_drop_callback)(void *user);

/**
 * How to make an engine. Set it up with mlxgen_engine_options_init.
 */
typedef struct {
    /**
     * Bytes of this struct, as the caller knows it.
     */
    size_t struct_size;
    /**
     * Bytes that models, cache sets and work may take together; 0: three quarters of the machine's
     * memory.
     */
    uint64_t memory_limit;
    /**
     * Bytes of freed memory that may be kept for reuse; 0: 256 MiB or an eighth of the limit, the
     * smaller. The memory is that of the process: the limit that was set last holds for all engines.
     */
    uint64_t pool_limit;
    /**
     * Threads that compute, at most 1024; 0: one for each physical core. They are those of the
     * process: the engine that was made last decides for all, also after its release.
     */
    uint32_t threads;
    /**
     * One of the MLXGEN_DEVICE_ numbers.
     */
    int32_t device;
} mlxgen_engine_options;

/**
 * What an engine's memory is used for, in bytes. Set it up with mlxgen_memory_info_init.
 */
typedef struct {
    /**
     * Bytes of this struct, as the caller knows it.
     */
    size_t struct_size;
    /**
     * In use for arrays, of all engines.
     */
    uint64_t active;
    /**
     * Freed and kept for reuse, of all engines.
     */
    uint64_t pooled;
    /**
     * The most that `active` has been since the engine was made.
     */
    uint64_t peak;
    /**
     * The engine's limit.
     */
    uint64_t limit;
    /**
     * The engine's limit for `pooled`.
     */
    uint64_t pool_limit;
    /**
     * What the machine could still give to this process.
     */
    uint64_t available;
    /**
     * Weights of this engine's models.
     */
    uint64_t models;
    /**
     * This engine's cache sets.
     */
    uint64_t caches;
} mlxgen_memory_info;

/**
 * How to render a conversation. Set it up with mlxgen_chat_options_init. All texts are UTF-8 and
 * may be (NULL, 0).
 */
typedef struct {
    /**
     * Bytes of this struct, as the caller knows it.
     */
    size_t struct_size;
    /**
     * A JSON array of tools for the template.
     */
    const char *tools_json;
    size_t tools_json_size;
    /**
     * Which of the model's templates to use; none: its default.
     */
    const char *template_name;
    size_t template_name_size;
    /**
     * A JSON object whose members the template sees as variables.
     */
    const char *extra_json;
    size_t extra_json_size;
    /**
     * 1 (the default): end with the head of the assistant's answer. 0: do not.
     */
    int32_t add_generation_prompt;
    /**
     * One of the MLXGEN_TOOL_ARGUMENTS_ numbers.
     */
    int32_t tool_arguments;
    /**
     * 0 (the default): texts of special tokens inside the messages stay plain text, so that a
     * message cannot end its own turn. 1: they become special tokens.
     */
    int32_t parse_special_in_content;
    /**
     * Must be 0.
     */
    int32_t reserved;
} mlxgen_chat_options;

/**
 * Tells the progress of a load. `phase` is one of the MLXGEN_LOAD_ numbers; `done` never falls
 * within a phase and reaches `total` at its end. Called on the thread that called
 * mlxgen_model_load, before that returns; it must return normally and may only signal, such as
 * with mlxgen_cancel_request.
 */
typedef void (*mlxgen_progress_callback)(void *user, int32_t phase, uint64_t done, uint64_t total);

/**
 * How to load a model. Set it up with mlxgen_model_options_init.
 */
typedef struct {
    /**
     * Bytes of this struct, as the caller knows it.
     */
    size_t struct_size;
    /**
     * One of the MLXGEN_NUMERICS_ numbers.
     */
    int32_t numerics;
    /**
     * One of the MLXGEN_COMPUTE_ numbers.
     */
    int32_t compute_type;
    /**
     * Tokens of a prompt that are computed at once; 0: chosen by the library.
     */
    uint32_t prefill_chunk;
    /**
     * Most tokens of a sequence; 0: the model's own limit. Never above the model's.
     */
    uint32_t context_limit;
    /**
     * Stops the load; may be NULL.
     */
    mlxgen_cancel *cancel;
    /**
     * Told the progress; may be NULL.
     */
    mlxgen_progress_callback progress;
    /**
     * Passed to `progress`.
     */
    void *progress_user;
} mlxgen_model_options;

/**
 * What a model is. Texts are UTF-8 and NUL-terminated; they and the array are borrowed while you
 * hold the model's handle. Set it up with mlxgen_model_description_init.
 */
typedef struct {
    /**
     * Bytes of this struct, as the caller knows it.
     */
    size_t struct_size;
    /**
     * The kind of network, such as "llama".
     */
    const char *family;
    /**
     * The name that the files give, else that of the folder or file.
     */
    const char *name;
    /**
     * "safetensors", "gguf" or "fake".
     */
    const char *format;
    /**
     * How the weights are kept, such as "affine 4-bit group 32".
     */
    const char *weights;
    /**
     * "float32", "float16" or "bfloat16".
     */
    const char *compute_type;
    /**
     * "fast" or "exact".
     */
    const char *numerics;
    /**
     * Token ids are below it.
     */
    uint32_t vocabulary;
    uint32_t layers;
    uint32_t hidden;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    /**
     * Most tokens of a sequence.
     */
    uint64_t context_limit;
    /**
     * Tokens of a prompt that are computed at once.
     */
    uint32_t prefill_chunk;
    /**
     * Numbers that were trained.
     */
    uint64_t parameters;
    /**
     * Bytes that the weights occupy in memory.
     */
    uint64_t weight_bytes;
    /**
     * Bytes of a cache set of MLXGEN_KV_AUTO for each token. Sets grow by 256 tokens at a time.
     */
    uint64_t cache_bytes_per_token;
    /**
     * Token ids that end a generation, ascending.
     */
    const uint32_t *eos;
    size_t eos_count;
    /**
     * The token id that begins a sequence; -1: none.
     */
    int64_t bos;
    /**
     * 1 if the model has a default chat template that mlxgen_chat_render understands, else 0.
     */
    int32_t has_chat_template;
    /**
     * 0.
     */
    int32_t reserved;
} mlxgen_model_description;

/**
 * How to make a cache set. Set it up with mlxgen_cache_options_init.
 */
typedef struct {
    /**
     * Bytes of this struct, as the caller knows it.
     */
    size_t struct_size;
    /**
     * Most tokens; 0: the model's context limit.
     */
    uint64_t capacity;
    /**
     * One of the MLXGEN_KV_ numbers.
     */
    int32_t kv_type;
    /**
     * Keys and values in affine groups of 4 or 8 bits each; 0: as they are.
     */
    uint32_t kv_bits;
    /**
     * Tokens from which on keys and values are reduced, those before too; -1: 0 for kv_config and TurboQuant, else
     * 5000, as in mlx-lm.
     */
    int64_t kv_start;
    /**
     * Elements that share a scale: 32, 64 or 128; 0: 64.
     */
    uint32_t kv_group;
    /**
     * TurboQuant for keys: 2, 4, 5 or 8 bits; 0: off. It needs heads of 64, 128, 256 or 512 elements and wins over
     * kv_bits and kv_config. Layers with a window stay as they are.
     */
    uint32_t turboquant_key_bits;
    /**
     * TurboQuant for values: 2, 3, 4, 5 or 8 bits. Set both or none.
     */
    uint32_t turboquant_value_bits;
    /**
     * 1: attention reads TurboQuant's values rotated and rotates its result back, which is faster and not the same to
     * the last bit. The library's own kernels always do.
     */
    int32_t turboquant_deferred;
    /**
     * Affine groups layer by layer: the text of a kv_config.json, a list of
     * {"layer_idx": …, "bits": …, "group_size": …}. It wins over kv_bits. May be NULL.
     */
    const char *kv_config;
    /**
     * Bytes of kv_config.
     */
    size_t kv_config_size;
    /**
     * Layers without a window of their own keep that many tokens only: the first window_keep and the latest; 0: all.
     */
    uint64_t window;
    /**
     * The default is 4.
     */
    uint64_t window_keep;
    /**
     * Keys and values in pages of that many tokens, which the set and its forks take from one pool; 0: no pages. The
     * library's own kernels need a multiple of 16.
     */
    uint32_t page_tokens;
    /**
     * Zero.
     */
    int32_t reserved;
    /**
     * Most tokens in the pages of the set and its forks together; 0: as many as the engine's memory takes.
     */
    uint64_t page_capacity;
} mlxgen_cache_options;

/**
 * What a cache set holds. Set it up with mlxgen_cache_description_init.
 */
typedef struct {
    /**
     * Bytes of this struct, as the caller knows it.
     */
    size_t struct_size;
    /**
     * Tokens held.
     */
    uint64_t tokens;
    /**
     * Most tokens.
     */
    uint64_t capacity;
    /**
     * Bytes occupied or granted, those that forks share included, as of the last change of this set.
     */
    uint64_t bytes;
    /**
     * Layers that keep something.
     */
    uint32_t layers;
    /**
     * 1 if mlxgen_cache_truncate can cut the latest token from every layer now, else 0. See "trimmable" of
     * mlxgen_cache_info for how many more.
     */
    int32_t trimmable;
} mlxgen_cache_description;

/**
 * A part of a prompt. In an array all elements have the `struct_size` of the first, which is the
 * distance between them. Set it up with mlxgen_prompt_part_init.
 */
typedef struct {
    /**
     * Bytes of this struct, as the caller knows it.
     */
    size_t struct_size;
    /**
     * One of the MLXGEN_PART_ numbers.
     */
    int32_t kind;
    /**
     * With MLXGEN_PART_TOKENS: the token ids.
     */
    const uint32_t *tokens;
    size_t token_count;
    /**
     * With MLXGEN_PART_EMBEDDINGS: `embedding_rows` rows of `embedding_width` numbers, a row in the place of a token.
     * The width is the model's `hidden`. They take the place of what the model's own table gives, and come in its
     * scale.
     */
    const float *embeddings;
    size_t embedding_rows;
    size_t embedding_width;
    /**
     * With MLXGEN_PART_EMBEDDINGS: bytes that name the content, such as a hash of the picture and of what encoded it.
     * What a cache set has read is reused where keys are equal: equal keys have to mean equal numbers.
     */
    const char *key;
    size_t key_size;
} mlxgen_prompt_part;

/**
 * What a generation tells. Fields that do not belong to the event's kind are 0, empty or NULL.
 * What the pointers lead to is borrowed until the next call on the stream. Set it up with
 * mlxgen_event_init.
 */
typedef struct {
    /**
     * Bytes of this struct, as the caller knows it.
     */
    size_t struct_size;
    /**
     * One of the MLXGEN_EVENT_ numbers. Skip events of a kind that you do not know.
     */
    int32_t kind;
    /**
     * PREFILL: prompt tokens read so far, the reused ones included.
     */
    uint64_t prefill_done;
    /**
     * PREFILL: tokens of the prompt.
     */
    uint64_t prefill_total;
    /**
     * PREFILL: prompt tokens that were taken from the cache set.
     */
    uint64_t prefill_reused;
    /**
     * PREFILL: why not more were reused: one of the MLXGEN_REUSE_ numbers.
     */
    int32_t reuse_stop;
    /**
     * TEXT: UTF-8, NUL-terminated.
     */
    const char *text;
    /**
     * TEXT: bytes of `text`, without the NUL.
     */
    size_t text_size;
    /**
     * TEXT: token ids.
     */
    const uint32_t *tokens;
    /**
     * TEXT: number of `tokens`.
     */
    size_t token_count;
    /**
     * TEXT: one natural logarithm of the probability for each token, if asked for; else NULL.
     */
    const float *logprobs;
    /**
     * TEXT: the likeliest tokens, `top_count` for each token, descending; if asked for.
     */
    const uint32_t *top_tokens;
    /**
     * TEXT: the log-probabilities of `top_tokens`.
     */
    const float *top_logprobs;
    /**
     * TEXT: see `top_tokens`.
     */
    size_t top_count;
    /**
     * TEXT: 1 if this was told before, by the generation that a checkpoint interrupted; else 0.
     */
    int32_t replayed;
    /**
     * END: one of the MLXGEN_END_ numbers.
     */
    int32_t end_reason;
    /**
     * END with MLXGEN_END_STOP_STRING: the stop text, NUL-terminated.
     */
    const char *stop_text;
    /**
     * END: bytes of `stop_text`, without the NUL.
     */
    size_t stop_text_size;
    /**
     * END: tokens of the prompt.
     */
    uint64_t prompt_tokens;
    /**
     * END: prompt tokens that were taken from the cache set.
     */
    uint64_t reused_tokens;
    /**
     * END: tokens generated, an end-of-sequence token included.
     */
    uint64_t generated_tokens;
    /**
     * END: seconds from mlxgen_stream_open until work began.
     */
    double queued_seconds;
    /**
     * END: seconds from then to the first token.
     */
    double prefill_seconds;
    /**
     * END: seconds from the first token to the end.
     */
    double decode_seconds;
    /**
     * END: seconds from mlxgen_stream_open to the first token.
     */
    double first_token_seconds;
} mlxgen_event;

/**
 * A text: UTF-8, `size` bytes at `data`. This struct will never grow.
 */
typedef struct {
    const char *data;
    size_t size;
} mlxgen_text;

/**
 * How to generate. Set it up with mlxgen_generate_options_init.
 */
typedef struct {
    /**
     * Bytes of this struct, as the caller knows it.
     */
    size_t struct_size;
    /**
     * 0 (the default): always the likeliest token. Greater: more random.
     */
    float temperature;
    /**
     * Sample among the likeliest tokens that have this share of the probability; 1 (the default):
     * among all. 0 is the same as 1, as in mlx-lm: for the likeliest alone set `top_k` to 1.
     */
    float top_p;
    /**
     * Sample among the tokens that have this share of the likeliest one's probability; 0 (the
     * default): among all.
     */
    float min_p;
    /**
     * Sample among that many of the likeliest tokens; 0 (the default): among all.
     */
    uint32_t top_k;
    /**
     * With `has_seed` 1: the same seed gives the same tokens.
     */
    uint64_t seed;
    /**
     * 0 (the default): a random seed.
     */
    int32_t has_seed;
    /**
     * With `has_max_tokens` 1: most tokens to generate; with 0 tokens the prompt is read and
     * nothing is generated.
     */
    uint64_t max_tokens;
    /**
     * 0 (the default): generate up to the context limit.
     */
    int32_t has_max_tokens;
    /**
     * Texts that end the generation and are not part of the output.
     */
    const mlxgen_text *stop;
    size_t stop_count;
    /**
     * Token ids that end the generation, besides the model's own.
     */
    const uint32_t *extra_eos;
    size_t extra_eos_count;
    /**
     * 1: the model's own end-of-sequence tokens do not end the generation. 0 is the default.
     */
    int32_t ignore_eos;
    /**
     * 1: report the log-probability of each token. 0 is the default.
     */
    int32_t logprobs;
    /**
     * With `logprobs` 1: report that many of the likeliest tokens too, at most 20.
     */
    uint32_t top_logprobs;
    /**
     * Ends the generation; may be NULL.
     */
    mlxgen_cancel *cancel;
} mlxgen_generate_options;

/**
 * Tells that an event is ready. Called on a thread of the library; it must return soon and
 * normally, must not wait for a thread that is in a call on the same stream, and may only signal.
 */
typedef void (*mlxgen_wakeup_callback)(void *user);

/**
 * What a model with one cache set would take, told from its headers. All sizes are bytes. Set it up with
 * mlxgen_memory_estimate_init.
 */
typedef struct {
    /**
     * Bytes of this struct, as the caller knows it.
     */
    size_t struct_size;
    /**
     * That the weights would occupy: the `weight_bytes` of the loaded model.
     */
    uint64_t weight_bytes;
    /**
     * Of the files that a load would read.
     */
    uint64_t file_bytes;
    /**
     * The most that a load would take at once, the weights included.
     */
    uint64_t load_bytes;
    /**
     * Of each further token in a cache set, once precision is reduced and as long as no window is full.
     */
    uint64_t cache_bytes_per_token;
    /**
     * Of a cache set with `context` tokens, its room for the next ones included.
     */
    uint64_t cache_bytes;
    /**
     * Transient, of the greatest forward up to `context` tokens.
     */
    uint64_t workspace_bytes;
    /**
     * Weights, cache set and workspace together, or `load_bytes` if that is more.
     */
    uint64_t total_bytes;
    /**
     * The tokens that `cache_bytes`, `workspace_bytes`, `total_bytes` and `fits` are about.
     */
    uint64_t context;
    /**
     * Most tokens of the cache set, memory aside.
     */
    uint64_t context_limit;
    /**
     * What `total_bytes` was compared with.
     */
    uint64_t budget;
    /**
     * Most tokens whose `total_bytes` are within the budget; 0 if the model itself is not.
     */
    uint64_t max_context;
    /**
     * 1 if `context` is at most `max_context`, else 0.
     */
    int32_t fits;
    /**
     * 0.
     */
    int32_t reserved;
} mlxgen_memory_estimate;

/**
 * Success.
 */
#define MLXGEN_OK 0

/**
 * The stream has told everything. Not a failure: no error object comes with it.
 */
#define MLXGEN_DONE 1

/**
 * The time given is over. Not a failure: no error object comes with it.
 */
#define MLXGEN_TIMEOUT 2

/**
 * A cancel handle was asked to stop this work.
 */
#define MLXGEN_CANCELLED 3

/**
 * An argument has no meaning: NULL where something is needed, a handle that is not alive, text
 * that is not UTF-8, a number out of its range. The error's detail names the argument.
 */
#define MLXGEN_INVALID_ARGUMENT 4

/**
 * A file, or something asked for by name, is not there.
 */
#define MLXGEN_NOT_FOUND 5

/**
 * A model's or tokenizer's files are damaged or contradict each other.
 */
#define MLXGEN_INVALID_MODEL 6

/**
 * Sound, but beyond what this version or this machine can do.
 */
#define MLXGEN_UNSUPPORTED 7

/**
 * The work does not fit in the engine's limit or the machine's memory. Nothing was changed.
 */
#define MLXGEN_OUT_OF_MEMORY 8

/**
 * The tokens do not fit in the model's context or the cache set's capacity.
 */
#define MLXGEN_CONTEXT_FULL 9

/**
 * Another call, or an open stream, is using the object.
 */
#define MLXGEN_BUSY 10

/**
 * The object, the library or the calling thread is not in a state that allows this call.
 */
#define MLXGEN_WRONG_STATE 11

/**
 * A checkpoint does not fit the model.
 */
#define MLXGEN_INCOMPATIBLE_CHECKPOINT 12

/**
 * The system failed to read or write.
 */
#define MLXGEN_IO 13

/**
 * The system's watchdog ended work on the GPU that took too long.
 */
#define MLXGEN_GPU_TIMEOUT 14

/**
 * The system does not let this process use the GPU now, such as an app in the background.
 */
#define MLXGEN_GPU_NOT_PERMITTED 15

/**
 * A defect of the library, caught at its boundary. Please report the error's message.
 */
#define MLXGEN_INTERNAL 16

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Gives the ABI of the library in use; compare it with MLXGEN_ABI_VERSION.
 *
 * Threads: any thread; also in callbacks.
 * Ownership: nothing changes hands.
 * Codes: none.
 * Since: 0.1.
 */
uint32_t mlxgen_abi_version(void);

/**
 * Gives the version of the library in use, such as "0.1.0".
 *
 * Threads: any thread; also in callbacks.
 * Ownership: the text is NUL-terminated and lives as long as the process.
 * Codes: none.
 * Since: 0.1.
 */
const char *mlxgen_version_string(void);

/**
 * Tells how the library was built, as a JSON object: "version", "abi" (number), "backend" (such
 * as "MLX 0.32.2, CPU"), "target", "features" (array of texts), "debug" (true or false).
 *
 * Threads: any thread.
 * Ownership: `out_json` receives a text buffer that you release with mlxgen_buffer_release.
 * Codes: OK, INVALID_ARGUMENT (`out_json` is NULL).
 * Since: 0.1.
 */
mlxgen_status mlxgen_build_info(mlxgen_buffer **out_json, mlxgen_error **out_error);

/**
 * Tells whether this build of the library has a feature: 1 or 0. The names:
 * "mlx": models are computed by MLX;
 * "fake": a back end without numerics, for tests, is built in. Without "mlx" it is what serves;
 * "safetensors", "gguf": such weight files can be loaded;
 * "chat_template": mlxgen_chat_render renders the templates of models;
 * "metal": MLX computes on Apple's GPU where the machine has one that it can use, which "backend" of
 * mlxgen_build_info tells;
 * "fast_kernels": with MLXGEN_NUMERICS_FAST, the compute type float32 and the CPU, the library's own
 * kernels compute. On Linux they do on every processor, elsewhere on none.
 * A name that this version does not know gives 0.
 *
 * Threads: any thread; also in callbacks.
 * Ownership: the `size` bytes at `name` are read during the call.
 * Codes: none.
 * Since: 0.1.
 */
int32_t mlxgen_has_feature(const char *name,
                           size_t size);

/**
 * Gives the name of a status, such as "MLXGEN_OK"; "MLXGEN_UNKNOWN" for a number that this version
 * does not know.
 *
 * Threads: any thread; also in callbacks.
 * Ownership: the text is NUL-terminated and lives as long as the process.
 * Codes: none.
 * Since: 0.1.
 */
const char *mlxgen_status_name(mlxgen_status status);

/**
 * Sends the library's log lines up to `max_level` to `sink`, in place of an earlier sink. Without
 * a sink, as at the start, the library is silent. NULL as `sink` makes it silent again. Lines speak
 * of files, sizes and times, never of prompts or of what is generated; none come while the process exits.
 *
 * Threads: any thread. `sink` is called on any thread, by several at once, and possibly once more
 * after it was replaced, until `drop` was called. It must return soon and normally. In it every
 * call of the library is refused with MLXGEN_WRONG_STATE, except mlxgen_cancel_request and those
 * whose comment allows callbacks.
 * Ownership: on success the library holds `user` until it calls `drop` (which may be NULL) with
 * it, exactly once: when the sink was replaced and its last call has returned. Without `sink` that
 * is at once. On failure `user` stays yours and `drop` is not called.
 * Codes: OK, INVALID_ARGUMENT (`max_level` is not one of the MLXGEN_LOG_ numbers).
 * Since: 0.1.
 */
mlxgen_status mlxgen_set_log_sink(mlxgen_log_callback sink,
                                  void *user,
                                  mlxgen_drop_callback drop,
                                  int32_t max_level,
                                  mlxgen_error **out_error);

/**
 * Counts the handles that are alive: errors, buffers and everything else that you have not
 * released as often as it was handed out or retained.
 *
 * Threads: any thread.
 * Ownership: nothing changes hands.
 * Codes: none.
 * Since: 0.1.
 */
uint64_t mlxgen_live_handles(void);

/**
 * Cancels all work, closes all streams and waits until the library's own threads have stopped. Afterwards
 * engines, models, cache sets and streams that were made before answer MLXGEN_WRONG_STATE, and
 * are still to be released; a new engine starts afresh. A program need not call this before it
 * exits.
 *
 * Threads: any thread.
 * Ownership: nothing changes hands.
 * Codes: OK, TIMEOUT (work was still running after `timeout_ms`; call again to go on waiting).
 * Since: 0.1.
 */
mlxgen_status mlxgen_shutdown(uint32_t timeout_ms,
                              mlxgen_error **out_error);

/**
 * Gives an error's status.
 *
 * Threads: any thread.
 * Ownership: nothing changes hands.
 * Codes: none; MLXGEN_INVALID_ARGUMENT for a handle that is not alive.
 * Since: 0.1.
 */
mlxgen_status mlxgen_error_status(const mlxgen_error *error);

/**
 * Gives an error's sentence for people: UTF-8, NUL-terminated, never NULL.
 *
 * Threads: any thread.
 * Ownership: the text is borrowed until you release `error`; for a handle that is not alive it is
 * the empty text. `out_size` receives its size in bytes without the NUL, and may be NULL.
 * Codes: none.
 * Since: 0.1.
 */
const char *mlxgen_error_message(const mlxgen_error *error, size_t *out_size);

/**
 * Gives where the fault lies, as a JSON object with those of the keys "file", "tensor", "field"
 * and "position" that are known. "field" is the name of a parameter, of a struct's member or of a
 * configuration key: with INVALID_ARGUMENT always one of the first two. "position" counts from 0:
 * with "file": bytes of the file; if "field" is a list in it (such as "tokenizer.ggml.tokens"), its
 * elements;
 * with INVALID_ARGUMENT: bytes of a text (not UTF-8, a NUL in a path, not JSON) or of a struct
 * (newer than the library); elements of an array or of a JSON list; for "tokens" and "embeddings"
 * of a prompt of parts, the tokens of the whole prompt;
 * with an option of mlxgen_cache_options (such as "kv_config"), and with "layer" of WRONG_STATE:
 * layers, as mlxgen_cache_info lists them;
 * with CONTEXT_FULL it is the number of tokens that there is room for.
 *
 * Threads: any thread.
 * Ownership: the text is borrowed until you release `error`; for a handle that is not alive it is
 * the empty text. `out_size` receives its size in bytes without the NUL, and may be NULL.
 * Codes: none.
 * Since: 0.1.
 */
const char *mlxgen_error_detail(const mlxgen_error *error, size_t *out_size);

/**
 * Adds a reference to an error.
 *
 * Threads: any thread.
 * Ownership: gives back `error`, to be released once more; NULL if it is not alive.
 * Codes: none.
 * Since: 0.1.
 */
mlxgen_error *mlxgen_error_retain(mlxgen_error *error);

/**
 * Gives up a reference to an error; the last one ends it. NULL and a handle that is not alive
 * are left alone.
 *
 * Threads: any thread.
 * Ownership: takes your reference; texts borrowed from the error end with it.
 * Codes: none.
 * Since: 0.1.
 */
void mlxgen_error_release(mlxgen_error *error);

/**
 * Gives the first byte of a buffer's contents. Arrays are aligned for their element type. A text
 * is UTF-8 and followed by a NUL that its size does not count.
 *
 * Threads: any thread.
 * Ownership: the bytes are borrowed until you release `buffer`; never NULL while it is alive, even
 * when it is empty; NULL if it is not alive.
 * Codes: none.
 * Since: 0.1.
 */
const void *mlxgen_buffer_data(const mlxgen_buffer *buffer);

/**
 * Gives the size of a buffer's contents in bytes.
 *
 * Threads: any thread.
 * Ownership: nothing changes hands; the size is 0 if `buffer` is not alive.
 * Codes: none.
 * Since: 0.1.
 */
size_t mlxgen_buffer_size(const mlxgen_buffer *buffer);

/**
 * Adds a reference to a buffer.
 *
 * Threads: any thread.
 * Ownership: gives back `buffer`, to be released once more; NULL if it is not alive.
 * Codes: none.
 * Since: 0.1.
 */
mlxgen_buffer *mlxgen_buffer_retain(mlxgen_buffer *buffer);

/**
 * Gives up a reference to a buffer; the last one frees its contents. NULL and a handle that is
 * not alive are left alone.
 *
 * Threads: any thread.
 * Ownership: takes your reference; the bytes borrowed from the buffer end with it.
 * Codes: none.
 * Since: 0.1.
 */
void mlxgen_buffer_release(mlxgen_buffer *buffer);

/**
 * Makes a cancel handle.
 *
 * Threads: any thread.
 * Ownership: `out` receives a handle that you release with mlxgen_cancel_release.
 * Codes: OK, INVALID_ARGUMENT (`out` is NULL), OUT_OF_MEMORY (a million are alive).
 * Since: 0.1.
 */
mlxgen_status mlxgen_cancel_new(mlxgen_cancel **out, mlxgen_error **out_error);

/**
 * Asks the work that was given this handle to stop. It ends within one group of layers; asking
 * again, or after the work has ended, changes nothing.
 *
 * Threads: async-signal-safe: any thread, signal handlers and callbacks.
 * Ownership: nothing changes hands.
 * Codes: OK, INVALID_ARGUMENT (the handle is not alive), WRONG_STATE (in a child made by fork).
 * Since: 0.1.
 */
mlxgen_status mlxgen_cancel_request(mlxgen_cancel *cancel);

/**
 * Tells whether a cancel handle was asked to stop its work: 1 or 0.
 *
 * Threads: async-signal-safe: any thread, signal handlers and callbacks.
 * Ownership: nothing changes hands; 0 if the handle is not alive.
 * Codes: none.
 * Since: 0.1.
 */
int32_t mlxgen_cancel_is_requested(const mlxgen_cancel *cancel);

/**
 * Adds a reference to a cancel handle.
 *
 * Threads: any thread.
 * Ownership: gives back `cancel`, to be released once more; NULL if it is not alive.
 * Codes: none.
 * Since: 0.1.
 */
mlxgen_cancel *mlxgen_cancel_retain(mlxgen_cancel *cancel);

/**
 * Gives up a reference to a cancel handle; work that was given it can go on, and can no longer be
 * cancelled through it. NULL and a handle that is not alive are left alone.
 *
 * Threads: any thread.
 * Ownership: takes your reference.
 * Codes: none.
 * Since: 0.1.
 */
void mlxgen_cancel_release(mlxgen_cancel *cancel);

/**
 * Sets options to their defaults. Pass `sizeof(mlxgen_engine_options)` as `struct_size`.
 *
 * Threads: any thread.
 * Ownership: `struct_size` bytes at `options` are written.
 * Codes: OK, INVALID_ARGUMENT (`options` is NULL, or `struct_size` is not that of this struct in
 * any version).
 * Since: 0.1.
 */
mlxgen_status mlxgen_engine_options_init(mlxgen_engine_options *options, size_t struct_size);

/**
 * Sets a memory report to zeros. Pass `sizeof(mlxgen_memory_info)` as `struct_size`.
 *
 * Threads: any thread.
 * Ownership: `struct_size` bytes at `info` are written.
 * Codes: OK, INVALID_ARGUMENT (`info` is NULL, or `struct_size` is not that of this struct in any
 * version).
 * Since: 0.1.
 */
mlxgen_status mlxgen_memory_info_init(mlxgen_memory_info *info, size_t struct_size);

/**
 * Makes an engine. NULL as `options` means the defaults.
 *
 * Threads: any thread.
 * Ownership: `options` is read during the call. `out` receives a handle that you release with
 * mlxgen_engine_release.
 * Codes: OK, INVALID_ARGUMENT (also for more than 1024 threads), UNSUPPORTED (no such device).
 * Since: 0.1.
 */
mlxgen_status mlxgen_engine_new(const mlxgen_engine_options *options,
                                mlxgen_engine **out,
                                mlxgen_error **out_error);

/**
 * Tells what an engine's memory is used for. Does not wait for running work.
 *
 * Threads: any thread.
 * Ownership: `out` is yours; set its `struct_size` before the call.
 * Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_engine_memory(const mlxgen_engine *engine,
                                   mlxgen_memory_info *out,
                                   mlxgen_error **out_error);

/**
 * Changes an engine's limits, in bytes; 0 means the default. What already lives stays: a limit
 * below it refuses further loads and growth.
 *
 * Threads: any thread.
 * Ownership: nothing changes hands.
 * Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_engine_set_limits(mlxgen_engine *engine,
                                       uint64_t memory_limit,
                                       uint64_t pool_limit,
                                       mlxgen_error **out_error);

/**
 * Gives freed memory that was kept for reuse back to the system.
 *
 * Threads: any thread; waits for the running piece of work.
 * Ownership: `out_freed` receives the bytes given back, and may be NULL.
 * Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_engine_trim(mlxgen_engine *engine,
                                 uint64_t *out_freed,
                                 mlxgen_error **out_error);

/**
 * Stops all work of an engine until mlxgen_engine_resume: when the call returns, nothing runs,
 * streams have paused at a whole token, and freed memory is given back. Meanwhile
 * mlxgen_stream_next waits, and calls that need work give MLXGEN_WRONG_STATE. Suspending twice is
 * the same as once. Made for apps that go to the background.
 *
 * Threads: any thread.
 * Ownership: nothing changes hands.
 * Codes: OK, TIMEOUT (a piece of work was still running after `timeout_ms`; the engine is
 * suspended when it ends, call again to wait for that), INVALID_ARGUMENT, WRONG_STATE (after
 * mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_engine_suspend(mlxgen_engine *engine,
                                    uint32_t timeout_ms,
                                    mlxgen_error **out_error);

/**
 * Lets a suspended engine work again; streams go on where they paused. Without effect on an
 * engine that is not suspended.
 *
 * Threads: any thread.
 * Ownership: nothing changes hands.
 * Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_engine_resume(mlxgen_engine *engine, mlxgen_error **out_error);

/**
 * Adds a reference to an engine.
 *
 * Threads: any thread.
 * Ownership: gives back `engine`, to be released once more; NULL if it is not alive.
 * Codes: none.
 * Since: 0.1.
 */
mlxgen_engine *mlxgen_engine_retain(mlxgen_engine *engine);

/**
 * Gives up a reference to an engine; it ends when its models, cache sets and streams have ended
 * too. With the last engine of the process the library's threads end, soon after: mlxgen_shutdown
 * waits for that. NULL and a handle that is not alive are left alone.
 *
 * Threads: any thread.
 * Ownership: takes your reference.
 * Codes: none.
 * Since: 0.1.
 */
void mlxgen_engine_release(mlxgen_engine *engine);

/**
 * Loads a tokenizer without a model: from a model folder, a repository's folder in the cache of the Hugging Face hub (its
 * revision main), a tokenizer.json or a .gguf file.
 *
 * Threads: any thread.
 * Ownership: `path` is read during the call. `out` receives a handle that you release with
 * mlxgen_tokenizer_release.
 * Codes: OK, INVALID_ARGUMENT, NOT_FOUND, INVALID_MODEL, UNSUPPORTED, OUT_OF_MEMORY, IO.
 * Since: 0.1.
 */
mlxgen_status mlxgen_tokenizer_load(const char *path,
                                    size_t path_size,
                                    mlxgen_tokenizer **out,
                                    mlxgen_error **out_error);

/**
 * Turns a text into token ids. `flags` is 0 or a sum of MLXGEN_TOKENIZE_ADD_SPECIAL and
 * MLXGEN_TOKENIZE_PARSE_SPECIAL.
 *
 * Threads: any thread.
 * Ownership: `text` is read during the call. `out_tokens` receives a buffer of uint32_t that you
 * release with mlxgen_buffer_release.
 * Codes: OK, INVALID_ARGUMENT, INVALID_MODEL (the tokenizer's rules have no way for this text).
 * Since: 0.1.
 */
mlxgen_status mlxgen_tokenize(const mlxgen_tokenizer *tokenizer,
                              const char *text,
                              size_t size,
                              uint32_t flags,
                              mlxgen_buffer **out_tokens,
                              mlxgen_error **out_error);

/**
 * Turns token ids into a text. `flags` is 0 or MLXGEN_DETOKENIZE_SKIP_SPECIAL. Bytes that form no
 * UTF-8 character become U+FFFD.
 *
 * Threads: any thread.
 * Ownership: `tokens` is read during the call. `out_text` receives a text buffer that you release
 * with mlxgen_buffer_release.
 * Codes: OK, INVALID_ARGUMENT (also for an id that the tokenizer does not have, with its position).
 * Since: 0.1.
 */
mlxgen_status mlxgen_detokenize(const mlxgen_tokenizer *tokenizer,
                                const uint32_t *tokens,
                                size_t count,
                                uint32_t flags,
                                mlxgen_buffer **out_text,
                                mlxgen_error **out_error);

/**
 * Sets options to their defaults. Pass `sizeof(mlxgen_chat_options)` as `struct_size`.
 *
 * Threads: any thread.
 * Ownership: `struct_size` bytes at `options` are written.
 * Codes: OK, INVALID_ARGUMENT (`options` is NULL, or `struct_size` is not that of this struct in
 * any version).
 * Since: 0.1.
 */
mlxgen_status mlxgen_chat_options_init(mlxgen_chat_options *options, size_t struct_size);

/**
 * Renders a conversation with the model's chat template. `messages_json` is a JSON array of
 * messages, such as [{"role": "user", "content": "Hello"}]. NULL as `options` means the defaults.
 *
 * Threads: any thread.
 * Ownership: `messages_json` and `options` are read during the call. `out_text` receives a text buffer and
 * `out_tokens` a buffer of uint32_t, the same prompt as token ids; you release both with
 * mlxgen_buffer_release; each may be NULL.
 * Codes: OK, INVALID_ARGUMENT (also for a conversation that the template refuses, or for which it takes
 * too many steps), NOT_FOUND (there is no template, or none of that name), INVALID_MODEL (the template
 * is damaged or too long, or as for mlxgen_tokenize), UNSUPPORTED (it uses a filter, test or function that is not known),
 * OUT_OF_MEMORY.
 * Since: 0.1.
 */
mlxgen_status mlxgen_chat_render(const mlxgen_tokenizer *tokenizer,
                                 const char *messages_json,
                                 size_t size,
                                 const mlxgen_chat_options *options,
                                 mlxgen_buffer **out_text,
                                 mlxgen_buffer **out_tokens,
                                 mlxgen_error **out_error);

/**
 * Adds a reference to a tokenizer.
 *
 * Threads: any thread.
 * Ownership: gives back `tokenizer`, to be released once more; NULL if it is not alive.
 * Codes: none.
 * Since: 0.1.
 */
mlxgen_tokenizer *mlxgen_tokenizer_retain(mlxgen_tokenizer *tokenizer);

/**
 * Gives up a reference to a tokenizer. NULL and a handle that is not alive are left alone.
 *
 * Threads: any thread.
 * Ownership: takes your reference.
 * Codes: none.
 * Since: 0.1.
 */
void mlxgen_tokenizer_release(mlxgen_tokenizer *tokenizer);

/**
 * Sets options to their defaults. Pass `sizeof(mlxgen_model_options)` as `struct_size`.
 *
 * Threads: any thread.
 * Ownership: `struct_size` bytes at `options` are written.
 * Codes: OK, INVALID_ARGUMENT (`options` is NULL, or `struct_size` is not that of this struct in
 * any version).
 * Since: 0.1.
 */
mlxgen_status mlxgen_model_options_init(mlxgen_model_options *options, size_t struct_size);

/**
 * Clears a model description. Pass `sizeof(mlxgen_model_description)` as `struct_size`.
 *
 * Threads: any thread.
 * Ownership: `struct_size` bytes at `description` are written.
 * Codes: OK, INVALID_ARGUMENT (`description` is NULL, or `struct_size` is not that of this struct
 * in any version).
 * Since: 0.1.
 */
mlxgen_status mlxgen_model_description_init(mlxgen_model_description *description,
                                            size_t struct_size);

/**
 * Loads a model from a folder (config.json and safetensors), a repository's folder in the cache of the Hugging Face hub
 * (its revision main), or a .gguf file. NULL as `options`
 * means the defaults. The files are not needed afterwards. Nothing is kept of a load that fails.
 *
 * Threads: any thread.
 * Ownership: `path` and `options` are read during the call. `out` receives a handle that you
 * release with mlxgen_model_release.
 * Codes: OK, CANCELLED, INVALID_ARGUMENT, NOT_FOUND, INVALID_MODEL, UNSUPPORTED, OUT_OF_MEMORY (the
 * engine's limit or the machine's memory), WRONG_STATE (suspended, or after mlxgen_shutdown), IO,
 * GPU_TIMEOUT, GPU_NOT_PERMITTED.
 * Since: 0.1.
 */
mlxgen_status mlxgen_model_load(mlxgen_engine *engine,
                                const char *path,
                                size_t path_size,
                                const mlxgen_model_options *options,
                                mlxgen_model **out,
                                mlxgen_error **out_error);

/**
 * Tells what a model is.
 *
 * Threads: any thread.
 * Ownership: `out` is yours; set its `struct_size` before the call. What its pointers lead to is
 * borrowed while you hold `model`.
 * Codes: OK, INVALID_ARGUMENT.
 * Since: 0.1.
 */
mlxgen_status mlxgen_model_info(const mlxgen_model *model,
                                mlxgen_model_description *out,
                                mlxgen_error **out_error);

/**
 * Gives a model's own tokenizer.
 *
 * Threads: any thread.
 * Ownership: `out` receives a handle that you release with mlxgen_tokenizer_release; it may outlive
 * the model.
 * Codes: OK, INVALID_ARGUMENT, NOT_FOUND (the model has none).
 * Since: 0.1.
 */
mlxgen_status mlxgen_model_tokenizer(const mlxgen_model *model,
                                     mlxgen_tokenizer **out,
                                     mlxgen_error **out_error);

/**
 * Adds a reference to a model.
 *
 * Threads: any thread.
 * Ownership: gives back `model`, to be released once more; NULL if it is not alive.
 * Codes: none.
 * Since: 0.1.
 */
mlxgen_model *mlxgen_model_retain(mlxgen_model *model);

/**
 * Gives up a reference to a model; its memory is given back when its cache sets and streams have
 * ended too. NULL and a handle that is not alive are left alone.
 *
 * Threads: any thread.
 * Ownership: takes your reference; what was borrowed from the model ends with the last one.
 * Codes: none.
 * Since: 0.1.
 */
void mlxgen_model_release(mlxgen_model *model);

/**
 * Sets options to their defaults. Pass `sizeof(mlxgen_cache_options)` as `struct_size`.
 *
 * Threads: any thread.
 * Ownership: `struct_size` bytes at `options` are written.
 * Codes: OK, INVALID_ARGUMENT (`options` is NULL, or `struct_size` is not that of this struct in
 * any version).
 * Since: 0.1.
 */
mlxgen_status mlxgen_cache_options_init(mlxgen_cache_options *options, size_t struct_size);

/**
 * Clears a cache description. Pass `sizeof(mlxgen_cache_description)` as `struct_size`.
 *
 * Threads: any thread.
 * Ownership: `struct_size` bytes at `description` are written.
 * Codes: OK, INVALID_ARGUMENT (`description` is NULL, or `struct_size` is not that of this struct
 * in any version).
 * Since: 0.1.
 */
mlxgen_status mlxgen_cache_description_init(mlxgen_cache_description *description,
                                            size_t struct_size);

/**
 * Makes an empty cache set for a model. NULL as `options` means the defaults.
 *
 * Threads: any thread.
 * Ownership: `options` is read during the call. `out` receives a handle that you release with
 * mlxgen_cache_release.
 * Codes: OK, INVALID_ARGUMENT (an option without a meaning, or two that exclude each other: the error names it, and
 * the layer where one is the reason), UNSUPPORTED (keys and values of another type than the model computes with, where
 * no kernels of the library's own compute; heads that the options cannot take), OUT_OF_MEMORY, WRONG_STATE (suspended,
 * or after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_cache_new(mlxgen_model *model,
                               const mlxgen_cache_options *options,
                               mlxgen_cache **out,
                               mlxgen_error **out_error);

/**
 * Reads tokens into a cache set. Afterwards mlxgen_cache_logits gives the scores for the token
 * after the last. A call that is cancelled, or fails in its work, keeps whole chunks of the
 * tokens: mlxgen_cache_token_count tells. One that is refused before has added nothing.
 *
 * Threads: one call at a time per handle: a second one gives BUSY.
 * Ownership: `tokens` is read during the call. `cancel` may be NULL; nothing changes hands.
 * Codes: OK, CANCELLED, INVALID_ARGUMENT (also for no tokens, and for an id beyond the vocabulary,
 * with its position), OUT_OF_MEMORY, CONTEXT_FULL, BUSY (also while a stream holds the set),
 * WRONG_STATE (suspended, or after mlxgen_shutdown), GPU_TIMEOUT, GPU_NOT_PERMITTED.
 * Since: 0.1.
 */
mlxgen_status mlxgen_cache_append(mlxgen_cache *cache,
                                  const uint32_t *tokens,
                                  size_t count,
                                  mlxgen_cancel *cancel,
                                  mlxgen_error **out_error);

/**
 * As mlxgen_cache_append for tokens and embeddings, in parts.
 *
 * Threads: one call at a time per handle: a second one gives BUSY.
 * Ownership: `parts` and what they point to are read during the call. `cancel` may be NULL; nothing changes hands.
 * Codes: OK, CANCELLED, INVALID_ARGUMENT (also for no tokens, for an id beyond the vocabulary, with its position, and
 * for embeddings of another width than the model's or without a key), UNSUPPORTED (a kind of part that this version
 * does not know), OUT_OF_MEMORY, CONTEXT_FULL, BUSY (also while a stream holds the set), WRONG_STATE (suspended, or
 * after mlxgen_shutdown), GPU_TIMEOUT, GPU_NOT_PERMITTED.
 * Since: 0.1.
 */
mlxgen_status mlxgen_cache_append_parts(mlxgen_cache *cache,
                                        const mlxgen_prompt_part *parts,
                                        size_t part_count,
                                        mlxgen_cancel *cancel,
                                        mlxgen_error **out_error);

/**
 * Gives the model's scores for the token after the last one, of the call of mlxgen_cache_append
 * that came last.
 *
 * Threads: one call at a time per handle: a second one gives BUSY.
 * Ownership: `out` receives a buffer of float, one for each token id of the vocabulary, that you
 * release with mlxgen_buffer_release.
 * Codes: OK, INVALID_ARGUMENT, BUSY (also while a stream holds the set), WRONG_STATE (the last
 * change of the set was not a successful append; or after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_cache_logits(mlxgen_cache *cache,
                                  mlxgen_buffer **out,
                                  mlxgen_error **out_error);

/**
 * Counts the tokens that a cache set holds. While a stream holds the set, these are the tokens
 * committed so far: the chunks of the prompt that were finished, then the generated tokens except
 * the latest. An ending EOS counts as generated, so after it the set holds what was delivered.
 *
 * Threads: any thread.
 * Ownership: `out` receives the count.
 * Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_cache_token_count(const mlxgen_cache *cache,
                                       size_t *out,
                                       mlxgen_error **out_error);

/**
 * Gives the tokens that a cache set holds, with UINT32_MAX in the place of each row of embeddings. While a stream holds the set, these are the tokens
 * committed so far.
 *
 * Threads: any thread.
 * Ownership: `out` receives a buffer of uint32_t that you release with mlxgen_buffer_release.
 * Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_cache_tokens(const mlxgen_cache *cache,
                                  mlxgen_buffer **out,
                                  mlxgen_error **out_error);

/**
 * Forgets all but the first `keep` tokens.
 *
 * Threads: one call at a time per handle: a second one gives BUSY.
 * Ownership: `out_dropped` receives the number of tokens forgotten, and may be NULL.
 * Codes: OK, INVALID_ARGUMENT (also if the set holds fewer than `keep`), BUSY (also while a stream
 * holds the set), WRONG_STATE (a layer cannot be cut there, or was reduced in precision when it held more: the error
 * names it, and nothing has changed; suspended; or after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_cache_truncate(mlxgen_cache *cache,
                                    size_t keep,
                                    size_t *out_dropped,
                                    mlxgen_error **out_error);

/**
 * Makes an independent cache set that holds the same tokens.
 *
 * Threads: one call at a time per handle: a second one gives BUSY.
 * Ownership: `out` receives a handle that you release with mlxgen_cache_release.
 * Codes: OK, INVALID_ARGUMENT, OUT_OF_MEMORY, BUSY (also while a stream holds the set), WRONG_STATE
 * (suspended, or after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_cache_fork(mlxgen_cache *cache, mlxgen_cache **out, mlxgen_error **out_error);

/**
 * Tells what a cache set holds, and if wanted each layer's part as JSON: an array of objects, one
 * for each layer that keeps something, in their order, with
 * "signature": the kind of storage, such as "kv:plain";
 * "offset": the tokens that the layer has read;
 * "bytes": what it occupies;
 * "shared_bytes": how many of these forks of the set hold too;
 * "trimmable": true if its latest token can be forgotten now. So can then all the others, but not
 * in a layer that keeps a window and has given up tokens: there the 64 that were read last can go
 * under MLXGEN_NUMERICS_FAST on Linux, and none elsewhere. mlxgen_cache_truncate cuts all or none;
 * "minimum_reusable_offset": the shortest prefix, in tokens, for which what the layer keeps is good;
 * above 0 where older tokens were reduced in precision after the fact (kv_start).
 * While a stream holds the set, this is the state last committed.
 *
 * Threads: any thread.
 * Ownership: `out` is yours; set its `struct_size` before the call. `out_layers_json` receives a
 * text buffer that you release with mlxgen_buffer_release, and may be NULL.
 * Codes: OK, INVALID_ARGUMENT, WRONG_STATE (after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_cache_info(const mlxgen_cache *cache,
                                mlxgen_cache_description *out,
                                mlxgen_buffer **out_layers_json,
                                mlxgen_error **out_error);

/**
 * Adds a reference to a cache set.
 *
 * Threads: any thread.
 * Ownership: gives back `cache`, to be released once more; NULL if it is not alive.
 * Codes: none.
 * Since: 0.1.
 */
mlxgen_cache *mlxgen_cache_retain(mlxgen_cache *cache);

/**
 * Gives up a reference to a cache set. Its memory is given back when no stream holds it, soon after
 * this call: mlxgen_engine_memory may still count it then. NULL and a handle that is not alive are
 * left alone.
 *
 * Threads: any thread.
 * Ownership: takes your reference.
 * Codes: none.
 * Since: 0.1.
 */
void mlxgen_cache_release(mlxgen_cache *cache);

/**
 * Clears an event. Pass `sizeof(mlxgen_event)` as `struct_size`.
 *
 * Threads: any thread.
 * Ownership: `struct_size` bytes at `event` are written.
 * Codes: OK, INVALID_ARGUMENT (`event` is NULL, or `struct_size` is not that of this struct in any
 * version).
 * Since: 0.1.
 */
mlxgen_status mlxgen_event_init(mlxgen_event *event, size_t struct_size);

/**
 * Sets options to their defaults. Pass `sizeof(mlxgen_generate_options)` as `struct_size`.
 *
 * Threads: any thread.
 * Ownership: `struct_size` bytes at `options` are written.
 * Codes: OK, INVALID_ARGUMENT (`options` is NULL, or `struct_size` is not that of this struct in
 * any version).
 * Since: 0.1.
 */
mlxgen_status mlxgen_generate_options_init(mlxgen_generate_options *options, size_t struct_size);

/**
 * Starts a generation. The prompt is the whole conversation: what a given cache set already holds
 * of its beginning is not computed again, and what it holds beyond is cut off. NULL as `cache`
 * uses a set of the stream's own; NULL as `options` means the defaults.
 *
 * Threads: any thread; the cache set is used alone.
 * Ownership: `parts`, what they point to and `options` are read during the call. The stream holds `cache` alone until
 * it is closed; then the set holds exactly the tokens that were read and generated, but for the
 * last one if that was not read again. `out` receives a handle that you release with
 * mlxgen_stream_release.
 * Codes: OK, INVALID_ARGUMENT (also for an empty prompt, for an id beyond the vocabulary, with its
 * position, and for embeddings of another width than the model's or without a key), UNSUPPORTED (a kind of part that this version does not know), OUT_OF_MEMORY,
 * CONTEXT_FULL (the prompt alone is too long), BUSY (the cache set is in use), WRONG_STATE (the
 * cache set has diverged from the prompt and cannot be cut: the error names the layer; suspended;
 * or after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_stream_open(mlxgen_model *model,
                                 mlxgen_cache *cache,
                                 const mlxgen_prompt_part *parts,
                                 size_t part_count,
                                 const mlxgen_generate_options *options,
                                 mlxgen_stream **out,
                                 mlxgen_error **out_error);

/**
 * Waits up to `timeout_ms` for the next event. 0 only looks; MLXGEN_WAIT_FOREVER waits as long as
 * it takes. An error ends the generation: it is told once, and then comes DONE. A generation that
 * was cancelled, or has reached the context limit, is no error: its MLXGEN_EVENT_END says so.
 *
 * Threads: one call at a time per handle: a second one gives BUSY. While it waits,
 * mlxgen_stream_close may be called on another thread; then it gives WRONG_STATE.
 * Ownership: `event` is yours; set its `struct_size` before the call. It is filled only with OK.
 * What its pointers lead to is borrowed until the next call on this stream.
 * Codes: OK, DONE (after the END event, or after an error), TIMEOUT, INVALID_ARGUMENT,
 * INVALID_MODEL (scores that are NaN or infinite, of which none can be chosen), OUT_OF_MEMORY, BUSY, WRONG_STATE (closed, or after mlxgen_shutdown), GPU_TIMEOUT,
 * GPU_NOT_PERMITTED.
 * Since: 0.1.
 */
mlxgen_status mlxgen_stream_next(mlxgen_stream *stream,
                                 uint32_t timeout_ms,
                                 mlxgen_event *event,
                                 mlxgen_error **out_error);

/**
 * Has `wakeup` called when an event is ready for mlxgen_stream_next, in place of an earlier one;
 * NULL as `wakeup` ends that. If an event is ready already, it is called soon.
 *
 * Threads: any thread. `wakeup` is called on a thread of the library; none is running any more
 * when mlxgen_stream_close has returned. In it every call of the library is refused with
 * MLXGEN_WRONG_STATE, except mlxgen_cancel_request and those whose comment allows callbacks.
 * Ownership: on success the library holds `user` until it calls `drop` (which may be NULL) with
 * it, exactly once: when the wake-up was replaced or the stream closed. Without `wakeup` that is at
 * once. On failure `user` stays yours and `drop` is not called.
 * Codes: OK, INVALID_ARGUMENT, WRONG_STATE (closed, or after mlxgen_shutdown).
 * Since: 0.1.
 */
mlxgen_status mlxgen_stream_set_wakeup(mlxgen_stream *stream,
                                       mlxgen_wakeup_callback wakeup,
                                       void *user,
                                       mlxgen_drop_callback drop,
                                       mlxgen_error **out_error);

/**
 * Ends a generation and waits until the engine has let go of it: within one group of layers. A
 * given cache set is then free again. Closing twice is the same as once.
 *
 * Threads: any thread, also while mlxgen_stream_next waits on another.
 * Ownership: the handle is still to be released; views of the last event end.
 * Codes: OK, INVALID_ARGUMENT.
 * Since: 0.1.
 */
mlxgen_status mlxgen_stream_close(mlxgen_stream *stream, mlxgen_error **out_error);

/**
 * Adds a reference to a stream.
 *
 * Threads: any thread.
 * Ownership: gives back `stream`, to be released once more; NULL if it is not alive.
 * Codes: none.
 * Since: 0.1.
 */
mlxgen_stream *mlxgen_stream_retain(mlxgen_stream *stream);

/**
 * Gives up a reference to a stream; the last one closes it, as mlxgen_stream_close does. NULL and
 * a handle that is not alive are left alone.
 *
 * Threads: any thread.
 * Ownership: takes your reference; views of the last event end with it.
 * Codes: none.
 * Since: 0.1.
 */
void mlxgen_stream_release(mlxgen_stream *stream);

/**
 * Sets an estimate to zeros. Pass `sizeof(mlxgen_memory_estimate)` as `struct_size`.
 *
 * Threads: any thread.
 * Ownership: `struct_size` bytes at `estimate` are written.
 * Codes: OK, INVALID_ARGUMENT (`estimate` is NULL, or `struct_size` is not that of this struct in any version).
 * Since: 0.1.
 */
mlxgen_status mlxgen_memory_estimate_init(mlxgen_memory_estimate *estimate,
                                          size_t struct_size);

/**
 * Tells what a model and a cache set of it would take, from its configuration and the headers of its weights alone.
 * `engine` decides where it would compute and, for `budget` 0, what there is: its limit; NULL stands for an engine with
 * the defaults, whose limit is three quarters of the memory. NULL as `model_options` or `cache_options` means the
 * defaults; no progress is told. `context` 0 stands for the most tokens that there can be. Nothing
 * is loaded or set aside, what the engine holds already is not counted, and no later call depends on the answer.
 * The tokenizer and the data of the weights are not read: a load may still refuse a model that has an estimate.
 *
 * Threads: any thread.
 * Ownership: `path`, `model_options` and `cache_options` are read during the call. `out` is yours; set its `struct_size` before the call.
 * Codes: OK, CANCELLED, INVALID_ARGUMENT, NOT_FOUND, INVALID_MODEL, UNSUPPORTED, OUT_OF_MEMORY (for the headers), IO.
 * Since: 0.1.
 */
mlxgen_status mlxgen_model_estimate(const mlxgen_engine *engine,
                                    const char *path,
                                    size_t path_size,
                                    const mlxgen_model_options *model_options,
                                    const mlxgen_cache_options *cache_options,
                                    uint64_t context,
                                    uint64_t budget,
                                    mlxgen_memory_estimate *out,
                                    mlxgen_error **out_error);

/**
 * Makes an empty part of kind MLXGEN_PART_TOKENS. Pass `sizeof(mlxgen_prompt_part)` as
 * `struct_size`.
 *
 * Threads: any thread.
 * Ownership: `struct_size` bytes at `part` are written.
 * Codes: OK, INVALID_ARGUMENT (`part` is NULL, or `struct_size` is not that of this struct in any
 * version).
 * Since: 0.1.
 */
mlxgen_status mlxgen_prompt_part_init(mlxgen_prompt_part *part, size_t struct_size);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MLXGEN_H */
