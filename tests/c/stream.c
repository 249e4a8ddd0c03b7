/* Functions of the stream. */
#include "check.h"

static mlxgen_event event;

static mlxgen_status next(mlxgen_stream *stream, uint32_t timeout_ms)
{
    return mlxgen_stream_next(stream, timeout_ms, &event, &error);
}

/* Pulls until a status other than OK, which must be MLXGEN_<code>. */
#define PULL(code, stream)                                                                        \
    do {                                                                                          \
        mlxgen_status status_;                                                                    \
        while ((status_ = next(stream, MLXGEN_WAIT_FOREVER)) == MLXGEN_OK)                        \
            ;                                                                                     \
        check_note("mlxgen_stream_next", #code);                                                  \
        check_status(__FILE__, __LINE__, "mlxgen_stream_next", MLXGEN_##code, status_);           \
    } while (0)

static void script(mlxgen_engine *engine)
{
    mlxgen_model *model = load_model(engine, "{\"script\": {\"text\": \"h\\u00e9llo\"}}");
    mlxgen_prompt_part parts[2];
    CALL(OK, mlxgen_prompt_part_init, &parts[0], sizeof parts[0]);
    mlxgen_prompt_part_init(&parts[1], sizeof parts[1]);
    const uint32_t first[] = {1, 2, 3}, second[] = {4, 5};
    parts[0].tokens = first;
    parts[0].token_count = COUNT(first);
    parts[1].tokens = second;
    parts[1].token_count = COUNT(second);
    mlxgen_generate_options options;
    CALL(OK, mlxgen_generate_options_init, &options, sizeof options);
    CHECK(options.top_p == 1.0f && options.temperature == 0.0f && options.has_max_tokens == 0);
    options.logprobs = 1;
    options.top_logprobs = 3;
    mlxgen_cache *cache = new_cache(model);
    mlxgen_stream *stream = NULL;
    CALL(OK, mlxgen_stream_open, model, cache, parts, 2, &options, &stream, &error);
    CALL(OK, mlxgen_event_init, &event, sizeof event);

    char text[32] = "";
    size_t tokens = 0;
    int ends = 0;
    while (ends == 0) {
        CALL(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
        CHECK(event.struct_size == sizeof event);
        switch (event.kind) {
        case MLXGEN_EVENT_PREFILL:
            CHECK(event.prefill_total == 5 && event.prefill_done <= 5 && event.prefill_reused == 0);
            CHECK(event.reuse_stop == MLXGEN_REUSE_NOTHING_CACHED);
            CHECK(event.text == NULL && event.tokens == NULL && event.text_size == 0);
            break;
        case MLXGEN_EVENT_TEXT:
            CHECK(event.text != NULL && strlen(event.text) == event.text_size);
            /* Never half of the two bytes of the letter. */
            CHECK(event.text_size == 0 || (event.text[event.text_size - 1] & 0xff) != 0xc3);
            strcat(text, event.text);
            for (size_t index = 0; index < event.token_count; index++) {
                CHECK(event.logprobs[index] <= 0.0f && event.top_count == 3);
                const float *top = event.top_logprobs + index * 3;
                CHECK(top[0] >= top[1] && top[1] >= top[2] && event.top_tokens[index * 3] < 260);
                tokens++;
            }
            CHECK(event.replayed == 0 && event.stop_text == NULL);
            break;
        default:
            CHECK(event.kind == MLXGEN_EVENT_END && event.end_reason == MLXGEN_END_EOS);
            CHECK(event.prompt_tokens == 5 && event.reused_tokens == 0);
            CHECK(event.generated_tokens == 7 && event.first_token_seconds > 0.0);
            CHECK(event.queued_seconds >= 0.0 && event.decode_seconds >= 0.0);
            ends++;
        }
    }
    CHECK(strcmp(text, "h\xc3\xa9llo") == 0 && (tokens == 6 || tokens == 7));
    CALL(DONE, mlxgen_stream_next, stream, 0, &event, &error);
    EXPECT(DONE, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
    CHECK(event.kind == MLXGEN_EVENT_END);
    CALL(OK, mlxgen_stream_close, stream, &error);
    EXPECT(OK, mlxgen_stream_close, stream, &error);
    CALL(WRONG_STATE, mlxgen_stream_next, stream, 0, &event, &error);
    CALL(WRONG_STATE, mlxgen_stream_set_wakeup, stream, NULL, NULL, NULL, &error);
    mlxgen_stream_release(stream);

    /* After EOS the set holds the prompt and all that was told; the next prompt reuses it. */
    size_t count = 0;
    EXPECT(OK, mlxgen_cache_token_count, cache, &count, &error);
    CHECK(count == 5 + 6);
    mlxgen_buffer *held = NULL;
    EXPECT(OK, mlxgen_cache_tokens, cache, &held, &error);
    parts[0].tokens = mlxgen_buffer_data(held);
    parts[0].token_count = count;
    EXPECT(OK, mlxgen_stream_open, model, cache, parts, 2, NULL, &stream, &error);
    do
        EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
    while (event.kind == MLXGEN_EVENT_PREFILL && event.prefill_reused != count);
    CHECK(event.reuse_stop == MLXGEN_REUSE_CACHE_EXHAUSTED);
    CHECK(drain(stream, text, sizeof text) == MLXGEN_END_EOS);
    CHECK(mlxgen_stream_retain(stream) == stream);
    mlxgen_stream_release(stream);
    EXPECT(BUSY, mlxgen_cache_truncate, cache, 0, NULL, &error);
    mlxgen_stream_release(stream);
    CHECK(mlxgen_stream_retain(stream) == NULL);
    EXPECT(OK, mlxgen_cache_truncate, cache, 0, NULL, &error);
    mlxgen_buffer_release(held);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);
}

static void endings(mlxgen_engine *engine)
{
    char text[64];
    mlxgen_model *model = load_model(engine, "{\"script\": {\"text\": \"one two three\"},"
                                             " \"context_limit\": 12}");
    mlxgen_generate_options options = generate_options();
    mlxgen_text stops[2] = {{TEXT("xyz")}, {TEXT(" two")}};
    options.stop = stops;
    options.stop_count = 2;
    mlxgen_stream *stream = open_stream(model, NULL, "ab", &options);
    do
        EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
    while (event.kind != MLXGEN_EVENT_END);
    CHECK(event.end_reason == MLXGEN_END_STOP_STRING);
    CHECK(strcmp(event.stop_text, " two") == 0 && event.stop_text_size == 4);
    mlxgen_stream_release(stream);

    options.stop_count = 0;
    options.has_max_tokens = 1;
    options.max_tokens = 3;
    stream = open_stream(model, NULL, "ab", &options);
    CHECK(drain(stream, text, sizeof text) == MLXGEN_END_MAX_TOKENS && strcmp(text, "one") == 0);
    mlxgen_stream_release(stream);
    options.max_tokens = 0;
    stream = open_stream(model, NULL, "ab", &options);
    CHECK(drain(stream, text, sizeof text) == MLXGEN_END_MAX_TOKENS && text[0] == '\0');
    mlxgen_stream_release(stream);

    /* B150: the limit is an END, and a prompt beyond it an error up front. */
    stream = open_stream(model, NULL, "ab", NULL);
    CHECK(drain(stream, text, sizeof text) == MLXGEN_END_CONTEXT_FULL);
    mlxgen_stream_release(stream);
    mlxgen_prompt_part part = prompt_part("0123456789abc");
    stream = (mlxgen_stream *)text;
    CALL(CONTEXT_FULL, mlxgen_stream_open, model, NULL, &part, 1, NULL, &stream, &error);
    CHECK(stream == NULL);
    mlxgen_model_release(model);

    /* Ids of the caller's own end the generation; the model's own need not. */
    model = load_model(engine, "{\"script\": {\"ids\": [65, 257, 66, 67, 257]}}");
    const uint32_t end[] = {67};
    options = generate_options();
    options.ignore_eos = 1;
    options.extra_eos = end;
    options.extra_eos_count = 1;
    stream = open_stream(model, NULL, "ab", &options);
    CHECK(drain(stream, text, sizeof text) == MLXGEN_END_EOS);
    CHECK(text[0] == 'A' && text[strlen(text) - 1] == 'B');
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);
}

/* The same seed gives the same tokens; without one they differ. */
static void seeds(mlxgen_engine *engine)
{
    mlxgen_model *model = load_model(engine, "{}");
    mlxgen_generate_options options = generate_options();
    char text[4][600];
    options.temperature = 1.0f;
    options.has_max_tokens = 1;
    options.max_tokens = 100;
    for (int index = 0; index < 4; index++) {
        options.has_seed = index < 2;
        options.seed = 42;
        mlxgen_stream *stream = open_stream(model, NULL, "ab", &options);
        drain(stream, text[index], sizeof text[index]);
        mlxgen_stream_release(stream);
    }
    CHECK(strcmp(text[0], text[1]) == 0 && strcmp(text[2], text[3]) != 0);
    CHECK(strlen(text[0]) > 20 && strcmp(text[0], text[2]) != 0);
    mlxgen_model_release(model);
}

static void refusals(mlxgen_engine *engine)
{
    mlxgen_model *model = load_model(engine, "{}");
    mlxgen_model *other = load_model(engine, "{}");
    mlxgen_cache *foreign = new_cache(other);
    mlxgen_stream *stream = (mlxgen_stream *)model;
    mlxgen_prompt_part part = prompt_part("ab");
    mlxgen_generate_options options = generate_options();
    /* B148: no tokens to start from. */
    CALL(INVALID_ARGUMENT, mlxgen_stream_open, model, NULL, NULL, 0, NULL, &stream, &error);
    check_field("tokens", -1);
    CHECK(stream == NULL);
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, NULL, NULL, 1, NULL, &stream, &error);
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, foreign, &part, 1, NULL, &stream, &error);
    check_field("cache", -1);
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, NULL, &part, 1, NULL, NULL, &error);
    part.token_count = 0;
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, NULL, &part, 1, NULL, &stream, &error);
    const uint32_t beyond[] = {1, 2, 260};
    part.tokens = beyond;
    part.token_count = 3;
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, NULL, &part, 1, NULL, &stream, &error);
    check_field("tokens", 2);
    part = prompt_part("ab");
    part.kind = 3;
    CALL(UNSUPPORTED, mlxgen_stream_open, model, NULL, &part, 1, NULL, &stream, &error);
    check_field("parts", 0);
    part.kind = 0;
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, NULL, &part, 1, NULL, &stream, &error);
    part.kind = MLXGEN_PART_TOKENS;

#define REFUSED(member, value, field)                                                             \
    do {                                                                                          \
        options = generate_options();                                                             \
        options.member = (value);                                                                 \
        EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, NULL, &part, 1, &options, &stream,    \
               &error);                                                                           \
        check_field(field, -1);                                                                   \
        CHECK(stream == NULL);                                                                    \
    } while (0)
    REFUSED(temperature, -1.0f, "temperature");
    REFUSED(temperature, (float)strtod("nan", NULL), "temperature");
    REFUSED(top_p, 1.5f, "top_p");
    REFUSED(min_p, -0.1f, "min_p");
    REFUSED(has_seed, 2, "has_seed");
    REFUSED(has_max_tokens, -1, "has_max_tokens");
    REFUSED(ignore_eos, 7, "ignore_eos");
    REFUSED(logprobs, 2, "logprobs");
    REFUSED(top_logprobs, 21, "top_logprobs");
    REFUSED(stop_count, 1, "stop");
    REFUSED(extra_eos_count, 1, "extra_eos");
    REFUSED(cancel, (mlxgen_cancel *)model, "cancel");
#undef REFUSED
    options = generate_options();
    mlxgen_text stops[2] = {{TEXT("a")}, {TEXT("")}};
    options.stop = stops;
    options.stop_count = 2;
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, NULL, &part, 1, &options, &stream, &error);
    check_field("stop", 1);

    mlxgen_cache *cache = new_cache(model);
    mlxgen_stream *holder = open_stream(model, cache, "ab", NULL);
    CALL(BUSY, mlxgen_stream_open, model, cache, &part, 1, NULL, &stream, &error);
    CHECK(stream == NULL);
    mlxgen_stream_release(holder);
    mlxgen_cache_release(cache);
    CALL(INVALID_ARGUMENT, mlxgen_stream_next, NULL, 0, &event, &error);
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_next, holder, 0, &event, &error);
    CALL(INVALID_ARGUMENT, mlxgen_stream_close, holder, &error);
    CALL(INVALID_ARGUMENT, mlxgen_stream_set_wakeup, NULL, NULL, NULL, NULL, &error);
    CALL(INVALID_ARGUMENT, mlxgen_event_init, &event, 8);
    CALL(INVALID_ARGUMENT, mlxgen_generate_options_init, NULL, sizeof options);
    CALL(INVALID_ARGUMENT, mlxgen_prompt_part_init, NULL, sizeof part);
    mlxgen_event_init(&event, sizeof event);
    mlxgen_cache_release(foreign);
    mlxgen_model_release(other);
    mlxgen_model_release(model);

    model = load_model(engine, "{\"trimmable\": false}");
    cache = new_cache(model);
    EXPECT(OK, mlxgen_cache_append, cache, beyond, 2, NULL, &error);
    part = prompt_part("ab");
    stream = (mlxgen_stream *)model;
    CALL(WRONG_STATE, mlxgen_stream_open, model, cache, &part, 1, NULL, &stream, &error);
    CHECK(stream == NULL && strstr(message, "layer 0") != NULL);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);
}

/* A failure is told once, and then comes DONE; the cache set stays usable. B139 */
static void failures(mlxgen_engine *engine)
{
    mlxgen_model *model =
        load_model(engine, "{\"faults\": [{\"at\": \"read\", \"after\": 3, \"count\": 1, \"code\": 14}]}");
    mlxgen_cache *cache = new_cache(model);
    mlxgen_stream *stream = open_stream(model, cache, "ab", NULL);
    PULL(GPU_TIMEOUT, stream);
    EXPECT(DONE, mlxgen_stream_next, stream, 0, &event, &error);
    mlxgen_stream_release(stream);
    mlxgen_generate_options options = generate_options();
    options.has_max_tokens = 1;
    options.max_tokens = 5;
    stream = open_stream(model, cache, "ab", &options);
    char text[64];
    CHECK(drain(stream, text, sizeof text) == MLXGEN_END_MAX_TOKENS);
    mlxgen_stream_release(stream);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);

    model = load_model(engine, "{\"faults\": [{\"at\": \"read\", \"after\": 3, \"code\": 6}]}");
    stream = open_stream(model, NULL, "ab", NULL);
    PULL(INVALID_MODEL, stream);
    EXPECT(DONE, mlxgen_stream_next, stream, 0, &event, &error);
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);

    model = load_model(engine, "{\"faults\": [{\"at\": \"step\", \"after\": 3, \"code\": 15}]}");
    stream = open_stream(model, NULL, "ab", NULL);
    PULL(GPU_NOT_PERMITTED, stream);
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);

    model = load_model(engine, "{\"faults\": [{\"at\": \"step\", \"after\": 3, \"code\": 8}]}");
    stream = open_stream(model, NULL, "ab", NULL);
    PULL(OUT_OF_MEMORY, stream);
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);

    model = load_model(engine, "{\"weight_bytes\": 0, \"cache_bytes_per_token\": 1000000}");
    EXPECT(OK, mlxgen_engine_set_limits, engine, 1000000, 0, &error);
    mlxgen_prompt_part part = prompt_part("abcdef");
    CALL(OUT_OF_MEMORY, mlxgen_stream_open, model, NULL, &part, 1, NULL, &stream, &error);
    EXPECT(OK, mlxgen_engine_set_limits, engine, 0, 0, &error);
    mlxgen_model_release(model);
}

static void *wait_for_event(void *stream)
{
    mlxgen_event own;
    mlxgen_event_init(&own, sizeof own);
    mlxgen_status status;
    do {
        status = mlxgen_stream_next(stream, MLXGEN_WAIT_FOREVER, &own, &error);
        /* Who looks whether this thread waits already may be inside the call at that moment. */
        if (status == MLXGEN_BUSY)
            check_status(__FILE__, __LINE__, "mlxgen_stream_next", MLXGEN_BUSY, status);
    } while (status == MLXGEN_OK || status == MLXGEN_BUSY);
    check_status(__FILE__, __LINE__, "mlxgen_stream_next", MLXGEN_WRONG_STATE, status);
    return NULL;
}

static void waiting(mlxgen_engine *engine)
{
    mlxgen_model *model = load_model(engine, "{\"step_micros\": 20000, \"script\": {\"ids\": [65]}}");
    mlxgen_stream *stream = open_stream(model, NULL, "ab", NULL);
    /* Time that is over, and events that come later. */
    mlxgen_status status;
    while ((status = next(stream, 0)) == MLXGEN_OK)
        ;
    check_note("mlxgen_stream_next", "TIMEOUT");
    check_status(__FILE__, __LINE__, "mlxgen_stream_next", MLXGEN_TIMEOUT, status);
    CHECK(drain(stream, NULL, 0) == MLXGEN_END_EOS);
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);

    /* Another thread waits: a second one is refused, and closing ends the wait. */
    model = load_model(engine, "{\"step_micros\": 200000}");
    stream = open_stream(model, NULL, "ab", NULL);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, wait_for_event, stream) == 0);
    while ((status = next(stream, 0)) != MLXGEN_BUSY) {
        CHECK(status == MLXGEN_OK || status == MLXGEN_TIMEOUT);
        sleep_ms(1);
    }
    check_note("mlxgen_stream_next", "BUSY");
    check_status(__FILE__, __LINE__, "mlxgen_stream_next", MLXGEN_BUSY, status);
    EXPECT(OK, mlxgen_stream_close, stream, &error);
    CHECK(pthread_join(thread, NULL) == 0);
    mlxgen_stream_release(stream);

    /* Releasing the last handle closes, too. */
    stream = open_stream(model, NULL, "ab", NULL);
    CHECK(pthread_create(&thread, NULL, wait_for_event, stream) == 0);
    while ((status = next(stream, 0)) != MLXGEN_BUSY) {
        CHECK(status == MLXGEN_OK || status == MLXGEN_TIMEOUT);
        sleep_ms(1);
    }
    check_status(__FILE__, __LINE__, "mlxgen_stream_next", MLXGEN_BUSY, status);
    mlxgen_stream_release(stream);
    CHECK(pthread_join(thread, NULL) == 0);
    mlxgen_model_release(model);
}

/* B144: before the start, in the prompt, between tokens, after the end; then a request at once. */
static void cancelling(mlxgen_engine *engine)
{
    mlxgen_model *model =
        load_model(engine, "{\"prefill_micros_per_token\": 100, \"step_micros\": 100, \"prefill_chunk\": 8}");
    mlxgen_cache *cache = new_cache(model);
    mlxgen_generate_options options = generate_options();
    for (int round = 0; round < 200; round++) {
        EXPECT(OK, mlxgen_cancel_new, &options.cancel, &error);
        if (round % 4 == 0)
            EXPECT(OK, mlxgen_cancel_request, options.cancel);
        mlxgen_stream *stream =
            open_stream(model, cache, "a prompt of several chunks, which takes some time", &options);
        if (round % 4 == 2)
            do
                EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
            while (event.kind != MLXGEN_EVENT_TEXT);
        if (round % 4 == 3) {
            options.has_max_tokens = 1;
            options.max_tokens = 2;
            mlxgen_stream_release(stream);
            stream = open_stream(model, cache, "short", &options);
            CHECK(drain(stream, NULL, 0) == MLXGEN_END_MAX_TOKENS);
            options.has_max_tokens = 0;
            EXPECT(OK, mlxgen_cancel_request, options.cancel);
            EXPECT(DONE, mlxgen_stream_next, stream, 0, &event, &error);
        } else {
            EXPECT(OK, mlxgen_cancel_request, options.cancel);
            double asked = seconds_now();
            CHECK(drain(stream, NULL, 0) == MLXGEN_END_CANCELLED);
            CHECK(seconds_now() - asked < 2.0);
        }
        mlxgen_stream_release(stream);
        mlxgen_cancel_release(options.cancel);
    }
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    mlxgen_engine *engine = new_engine();
    script(engine);
    endings(engine);
    seeds(engine);
    refusals(engine);
    failures(engine);
    waiting(engine);
    cancelling(engine);
    mlxgen_engine_release(engine);
    check_no_handles();
    return 0;
}
