/* Functions of the cache set. */
#include "check.h"

static const uint32_t some[] = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19};

static size_t token_count(mlxgen_cache *cache)
{
    size_t count = 0;
    CALL(OK, mlxgen_cache_token_count, cache, &count, &error);
    return count;
}

/* A copy of the scores after the last token. */
static float *scores(mlxgen_cache *cache)
{
    static float copy[4][260];
    static int next;
    mlxgen_buffer *buffer = NULL;
    CALL(OK, mlxgen_cache_logits, cache, &buffer, &error);
    CHECK(mlxgen_buffer_size(buffer) == sizeof copy[0]);
    float *place = copy[next++ % 4];
    memcpy(place, mlxgen_buffer_data(buffer), sizeof copy[0]);
    mlxgen_buffer_release(buffer);
    return place;
}

static mlxgen_prompt_part tokens_part(const uint32_t *tokens, size_t count)
{
    mlxgen_prompt_part part;
    EXPECT(OK, mlxgen_prompt_part_init, &part, sizeof part);
    part.tokens = tokens;
    part.token_count = count;
    return part;
}

/* Rows of embeddings take the place of tokens, and what they are tells their key. */
static void parts(mlxgen_model *model)
{
    mlxgen_model_description about = {.struct_size = sizeof about};
    EXPECT(OK, mlxgen_model_info, model, &about, &error);
    float *rows = calloc(3 * about.hidden, sizeof *rows);
    CHECK(rows != NULL);
    for (size_t index = 0; index < 3 * about.hidden; index++)
        rows[index] = (float)index / 7;
    mlxgen_prompt_part prompt[] = {tokens_part(some, 2), tokens_part(NULL, 0), tokens_part(some, 1)};
    prompt[1].kind = MLXGEN_PART_EMBEDDINGS;
    prompt[1].embeddings = rows;
    prompt[1].embedding_rows = 3;
    prompt[1].embedding_width = about.hidden;
    prompt[1].key = "a";
    prompt[1].key_size = 1;
    mlxgen_cache *cache = new_cache(model), *other = new_cache(model);
    CALL(OK, mlxgen_cache_append_parts, cache, prompt, 3, NULL, &error);
    CHECK(token_count(cache) == 6);
    mlxgen_buffer *held = NULL;
    EXPECT(OK, mlxgen_cache_tokens, cache, &held, &error);
    const uint32_t *ids = mlxgen_buffer_data(held);
    CHECK(ids[1] == some[1] && ids[2] == UINT32_MAX && ids[4] == UINT32_MAX && ids[5] == some[0]);
    mlxgen_buffer_release(held);
    float *first = scores(cache);
    rows[about.hidden] = 9;
    EXPECT(OK, mlxgen_cache_append_parts, other, prompt, 3, NULL, &error);
    CHECK(memcmp(first, scores(other), 260 * sizeof *first) != 0);
    /* A generation goes on behind what is common: tokens, and rows of the same content. */
    mlxgen_stream *stream = NULL;
    mlxgen_event event = {.struct_size = sizeof event};
    prompt[2] = tokens_part(some + 1, 1);
    for (int same = 1; same >= 0; same--) {
        prompt[1].key = same ? "a" : "b";
        EXPECT(OK, mlxgen_stream_open, model, cache, prompt, 3, NULL, &stream, &error);
        EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
        CHECK(event.kind == MLXGEN_EVENT_PREFILL && event.prefill_reused == (same ? 5 : 2));
        EXPECT(OK, mlxgen_stream_close, stream, &error);
        mlxgen_stream_release(stream);
    }
    mlxgen_cache_release(cache);
    cache = new_cache(model);
    prompt[1].key_size = 0;
    CALL(INVALID_ARGUMENT, mlxgen_cache_append_parts, cache, prompt, 3, NULL, &error);
    prompt[1].key_size = 1;
    prompt[1].embedding_width--;
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_append_parts, cache, prompt, 3, NULL, &error);
    prompt[1].embedding_width = SIZE_MAX / 2;
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_append_parts, cache, prompt, 3, NULL, &error);
    prompt[1].embeddings = NULL;
    prompt[1].embedding_width = about.hidden;
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_append_parts, cache, prompt, 3, NULL, &error);
    prompt[1].kind = 77;
    CALL(UNSUPPORTED, mlxgen_cache_append_parts, cache, prompt, 3, NULL, &error);
    CHECK(token_count(cache) == 0);
    free(rows);
    mlxgen_cache_release(other);
    mlxgen_cache_release(cache);
}

static void growing(mlxgen_model *model)
{
    mlxgen_cache *cache = NULL;
    mlxgen_cache_options options;
    CALL(OK, mlxgen_cache_options_init, &options, sizeof options);
    CALL(OK, mlxgen_cache_new, model, &options, &cache, &error);
    CHECK(token_count(cache) == 0);
    CALL(OK, mlxgen_cache_append, cache, some, 10, NULL, &error);
    CHECK(token_count(cache) == 10);
    float *ten = scores(cache);

    /* The same tokens in two calls give the same scores. */
    mlxgen_cache *second = new_cache(model);
    EXPECT(OK, mlxgen_cache_append, second, some, 4, NULL, &error);
    EXPECT(OK, mlxgen_cache_append, second, some + 4, 6, NULL, &error);
    CHECK(memcmp(ten, scores(second), 260 * sizeof *ten) == 0);

    size_t dropped = 0;
    CALL(OK, mlxgen_cache_truncate, second, 4, &dropped, &error);
    CHECK(dropped == 6 && token_count(second) == 4);
    EXPECT(OK, mlxgen_cache_truncate, second, 4, NULL, &error);
    mlxgen_cache *fork = NULL;
    CALL(OK, mlxgen_cache_fork, second, &fork, &error);
    mlxgen_cache_release(second);
    EXPECT(OK, mlxgen_cache_append, fork, some + 4, 6, NULL, &error);
    CHECK(memcmp(ten, scores(fork), 260 * sizeof *ten) == 0);
    mlxgen_buffer *tokens = NULL;
    CALL(OK, mlxgen_cache_tokens, fork, &tokens, &error);
    CHECK(mlxgen_buffer_size(tokens) == sizeof some);
    CHECK(memcmp(mlxgen_buffer_data(tokens), some, sizeof some) == 0);
    mlxgen_buffer_release(tokens);

    mlxgen_cache_description about;
    CALL(OK, mlxgen_cache_description_init, &about, sizeof about);
    mlxgen_buffer *layers = NULL;
    CALL(OK, mlxgen_cache_info, fork, &about, &layers, &error);
    CHECK(about.tokens == 10 && about.layers == 2 && about.trimmable == 1);
    CHECK(about.capacity == 4096 && about.bytes == 640);
    const char *json = mlxgen_buffer_data(layers);
    CHECK(json[0] == '[' && strstr(json, "\"signature\":\"fake\"") != NULL);
    CHECK(strstr(json, "\"offset\":10") != NULL && strstr(json, "\"trimmable\":true") != NULL);
    mlxgen_buffer_release(layers);
    EXPECT(OK, mlxgen_cache_info, fork, &about, NULL, &error);
    CHECK(mlxgen_cache_retain(fork) == fork);
    mlxgen_cache_release(fork);
    mlxgen_cache_release(fork);
    CHECK(mlxgen_cache_retain(fork) == NULL);
    mlxgen_cache_release(cache);
}

/* One option set to what it cannot be is an argument error that names it. */
#define REFUSED(FIELD, VALUE)                                                                   \
    do {                                                                                        \
        mlxgen_cache *none = NULL;                                                              \
        mlxgen_cache_options asked;                                                             \
        mlxgen_cache_options_init(&asked, sizeof asked);                                        \
        asked.FIELD = (VALUE);                                                                  \
        EXPECT(INVALID_ARGUMENT, mlxgen_cache_new, model, &asked, &none, &error);               \
        check_field(#FIELD, -1);                                                                \
        CHECK(none == NULL);                                                                    \
    } while (0)

static void refused_options(mlxgen_model *model)
{
    REFUSED(kv_bits, 7);
    REFUSED(kv_start, -2);
    REFUSED(turboquant_key_bits, 3);
    REFUSED(turboquant_deferred, 2);
    REFUSED(reserved, 1);
    REFUSED(page_capacity, 100);
    mlxgen_cache *none = NULL;
    mlxgen_cache_options asked;
    mlxgen_cache_options_init(&asked, sizeof asked);
    asked.kv_config_size = 3;
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_new, model, &asked, &none, &error);
    check_field("kv_config", -1);
    asked.kv_config_size = 0;
    asked.kv_bits = 4;
    asked.kv_group = 48;
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_new, model, &asked, &none, &error);
    check_field("kv_group", -1);
    asked.kv_group = 0;
    asked.turboquant_key_bits = 8;
    asked.turboquant_value_bits = 6;
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_new, model, &asked, &none, &error);
    check_field("turboquant_value_bits", -1);
    asked.kv_config = "[{\"layer_idx\": 0}]";
    asked.kv_config_size = strlen(asked.kv_config);
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_new, model, &asked, &none, &error);
    check_field("kv_config", -1);
}

static void refusals(mlxgen_model *model)
{
    mlxgen_cache *cache = NULL;
    mlxgen_cache_options options;
    CALL(INVALID_ARGUMENT, mlxgen_cache_options_init, NULL, sizeof options);
    mlxgen_cache_description about = {.struct_size = sizeof about};
    CALL(INVALID_ARGUMENT, mlxgen_cache_description_init, &about, 4097);
    mlxgen_cache_options_init(&options, sizeof options);
    options.capacity = 8;
    options.kv_type = 4;
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_new, model, &options, &cache, &error);
    check_field("kv_type", -1);
    options.kv_type = MLXGEN_KV_BFLOAT16;
    CALL(UNSUPPORTED, mlxgen_cache_new, model, &options, &cache, &error);
    check_field("kv_type", -1);
    options.kv_type = MLXGEN_KV_AUTO;
    refused_options(model);
    EXPECT(OK, mlxgen_cache_new, model, &options, &cache, &error);
    mlxgen_buffer *buffer = (mlxgen_buffer *)&about;
    CALL(WRONG_STATE, mlxgen_cache_logits, cache, &buffer, &error);
    CHECK(buffer == NULL);
    CALL(INVALID_ARGUMENT, mlxgen_cache_append, cache, NULL, 0, NULL, &error);
    check_field("tokens", -1);
    const uint32_t beyond[] = {1, 260};
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_append, cache, beyond, 2, NULL, &error);
    check_field("tokens", 1);
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_append, cache, NULL, 1, NULL, &error);
    CALL(CONTEXT_FULL, mlxgen_cache_append, cache, some, 9, NULL, &error);
    mlxgen_prompt_part part = tokens_part(some, 9);
    CALL(CONTEXT_FULL, mlxgen_cache_append_parts, cache, &part, 1, NULL, &error);
    CHECK(token_count(cache) == 0);
    EXPECT(OK, mlxgen_cache_append, cache, some, 8, NULL, &error);
    CALL(CONTEXT_FULL, mlxgen_cache_append, cache, some, 1, NULL, &error);
    size_t dropped = 99;
    CALL(INVALID_ARGUMENT, mlxgen_cache_truncate, cache, 9, &dropped, &error);
    check_field("keep", -1);
    CHECK(dropped == 99);
    EXPECT(OK, mlxgen_cache_truncate, cache, 7, &dropped, &error);
    EXPECT(WRONG_STATE, mlxgen_cache_logits, cache, &buffer, &error);

    mlxgen_cache *none = (mlxgen_cache *)&about;
    size_t count = 99;
    CALL(INVALID_ARGUMENT, mlxgen_cache_new, (mlxgen_model *)cache, NULL, &none, &error);
    CHECK(none == NULL && strstr(message, "cache handle") != NULL);
    CALL(INVALID_ARGUMENT, mlxgen_cache_logits, NULL, &buffer, &error);
    CALL(INVALID_ARGUMENT, mlxgen_cache_token_count, cache, NULL, &error);
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_token_count, NULL, &count, &error);
    CHECK(count == 99);
    CALL(INVALID_ARGUMENT, mlxgen_cache_tokens, NULL, &buffer, &error);
    CALL(INVALID_ARGUMENT, mlxgen_cache_fork, NULL, &none, &error);
    CALL(INVALID_ARGUMENT, mlxgen_cache_info, cache, NULL, &buffer, &error);
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_info, NULL, &about, &buffer, &error);
    mlxgen_cache_release(cache);
}

static void failures(mlxgen_engine *engine)
{
    mlxgen_model *model = load_model(engine, "{\"faults\": [{\"at\": \"new_state\", \"code\": 8}]}");
    mlxgen_cache *cache = (mlxgen_cache *)model;
    CALL(OUT_OF_MEMORY, mlxgen_cache_new, model, NULL, &cache, &error);
    CHECK(cache == NULL);
    mlxgen_model_release(model);

    /* A growth beyond the engine's limit is refused before it starts, and nothing is lost. */
    model = load_model(engine, "{\"weight_bytes\": 0, \"cache_bytes_per_token\": 1000}");
    cache = new_cache(model);
    EXPECT(OK, mlxgen_cache_append, cache, some, 1, NULL, &error);
    EXPECT(OK, mlxgen_engine_set_limits, engine, 5000, 0, &error);
    CALL(OUT_OF_MEMORY, mlxgen_cache_append, cache, some, 10, NULL, &error);
    mlxgen_prompt_part part = tokens_part(some, 10);
    CALL(OUT_OF_MEMORY, mlxgen_cache_append_parts, cache, &part, 1, NULL, &error);
    CHECK(token_count(cache) == 1);
    EXPECT(OK, mlxgen_engine_set_limits, engine, 1500, 0, &error);
    mlxgen_cache *fork = (mlxgen_cache *)model;
    CALL(OUT_OF_MEMORY, mlxgen_cache_fork, cache, &fork, &error);
    CHECK(fork == NULL);
    EXPECT(OK, mlxgen_engine_set_limits, engine, 0, 0, &error);
    EXPECT(OK, mlxgen_cache_append, cache, some, 10, NULL, &error);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);

    model = load_model(engine, "{\"faults\": [{\"at\": \"logits\", \"count\": 1, \"code\": 14},"
                               " {\"at\": \"prefill\", \"after\": 1, \"count\": 1, \"code\": 15}]}");
    cache = new_cache(model);
    CALL(GPU_TIMEOUT, mlxgen_cache_append, cache, some, 10, NULL, &error);
    EXPECT(OK, mlxgen_cache_truncate, cache, 0, NULL, &error);
    CALL(GPU_NOT_PERMITTED, mlxgen_cache_append, cache, some, 10, NULL, &error);
    EXPECT(OK, mlxgen_cache_truncate, cache, 0, NULL, &error);
    EXPECT(OK, mlxgen_cache_append, cache, some, 10, NULL, &error);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);

    model = load_model(engine, "{\"faults\": [{\"at\": \"logits\", \"count\": 1, \"code\": 14},"
                               " {\"at\": \"prefill\", \"after\": 1, \"count\": 1, \"code\": 15}]}");
    cache = new_cache(model);
    CALL(GPU_TIMEOUT, mlxgen_cache_append_parts, cache, &part, 1, NULL, &error);
    EXPECT(OK, mlxgen_cache_truncate, cache, 0, NULL, &error);
    CALL(GPU_NOT_PERMITTED, mlxgen_cache_append_parts, cache, &part, 1, NULL, &error);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);

    model = load_model(engine, "{\"trimmable\": false}");
    cache = new_cache(model);
    EXPECT(OK, mlxgen_cache_append, cache, some, 10, NULL, &error);
    CALL(WRONG_STATE, mlxgen_cache_truncate, cache, 5, NULL, &error);
    CHECK(strstr(message, "layer 0") != NULL && token_count(cache) == 10);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);
}

/* While a stream holds the set it can be asked, and not changed. */
static void lent(mlxgen_model *model)
{
    mlxgen_cache *cache = new_cache(model);
    mlxgen_stream *stream = open_stream(model, cache, "ab", NULL);
    mlxgen_event event;
    mlxgen_event_init(&event, sizeof event);
    do
        EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
    while (event.kind != MLXGEN_EVENT_TEXT);
    mlxgen_cache *fork = (mlxgen_cache *)model;
    mlxgen_buffer *buffer = (mlxgen_buffer *)model;
    CALL(BUSY, mlxgen_cache_append, cache, some, 1, NULL, &error);
    mlxgen_prompt_part part = tokens_part(some, 1);
    CALL(BUSY, mlxgen_cache_append_parts, cache, &part, 1, NULL, &error);
    CALL(BUSY, mlxgen_cache_logits, cache, &buffer, &error);
    CALL(BUSY, mlxgen_cache_truncate, cache, 0, NULL, &error);
    CALL(BUSY, mlxgen_cache_fork, cache, &fork, &error);
    CHECK(fork == NULL && buffer == NULL && token_count(cache) >= 2);
    EXPECT(OK, mlxgen_cache_tokens, cache, &buffer, &error);
    CHECK(*(const uint32_t *)mlxgen_buffer_data(buffer) == 'a');
    mlxgen_buffer_release(buffer);
    EXPECT(OK, mlxgen_stream_close, stream, &error);
    EXPECT(OK, mlxgen_cache_truncate, cache, 0, NULL, &error);
    mlxgen_stream_release(stream);
    mlxgen_cache_release(cache);
}

struct append {
    mlxgen_cache *cache;
    mlxgen_cancel *cancel;
    int in_parts;
};

static void *append_much(void *argument)
{
    struct append *append = argument;
    static uint32_t many[4000];
    if (!append->in_parts) {
        CALL(CANCELLED, mlxgen_cache_append, append->cache, many, COUNT(many), append->cancel, &error);
        return NULL;
    }
    mlxgen_prompt_part part = tokens_part(many, COUNT(many));
    CALL(CANCELLED, mlxgen_cache_append_parts, append->cache, &part, 1, append->cancel, &error);
    return NULL;
}

static void cancelled(mlxgen_engine *engine, int in_parts)
{
    mlxgen_model *model = load_model(engine, "{\"prefill_micros_per_token\": 500}");
    struct append append = {.cache = new_cache(model), .in_parts = in_parts};
    EXPECT(OK, mlxgen_cancel_new, &append.cancel, &error);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, append_much, &append) == 0);
    while (token_count(append.cache) == 0)
        sleep_ms(5);
    double asked = seconds_now();
    EXPECT(OK, mlxgen_cancel_request, append.cancel);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(seconds_now() - asked < 1.0);
    size_t kept = token_count(append.cache);
    CHECK(kept > 0 && kept < 4000 && kept % 64 == 0);
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_append, append.cache, some, 1, (mlxgen_cancel *)model, &error);
    check_field("cancel", -1);
    EXPECT(OK, mlxgen_cache_append, append.cache, some, 1, NULL, &error);
    CHECK(token_count(append.cache) == kept + 1);
    mlxgen_cancel_release(append.cancel);
    mlxgen_cache_release(append.cache);
    mlxgen_model_release(model);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    mlxgen_engine *engine = new_engine();
    mlxgen_model *model = load_model(engine, "{}");
    growing(model);
    parts(model);
    refusals(model);
    lent(model);
    mlxgen_model_release(model);
    failures(engine);
    cancelled(engine, 0);
    cancelled(engine, 1);
    mlxgen_engine_release(engine);
    check_no_handles();
    return 0;
}
