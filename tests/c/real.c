/* The shipped library with a real model, whose file is in MLXGEN_TEST_MODEL: bad input, small
 * memory, eight threads, cancelling, fork and exit during a generation. B139, B142, B144 */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 8, TOKENS = 8 };

static const char *path;
static mlxgen_engine *engine;
static mlxgen_model *model;
static uint32_t prompts[2][256];
static size_t prompt_sizes[2];
static char expected[2][256];
static double until;

static mlxgen_model *load(void)
{
    mlxgen_model *loaded = NULL;
    EXPECT(OK, mlxgen_model_load, engine, path, strlen(path), NULL, &loaded, &error);
    return loaded;
}

/* Renders a question and keeps its tokens. */
static void ask(int which, const char *messages)
{
    mlxgen_tokenizer *tokenizer = NULL;
    mlxgen_buffer *tokens = NULL;
    EXPECT(OK, mlxgen_model_tokenizer, model, &tokenizer, &error);
    EXPECT(OK, mlxgen_chat_render, tokenizer, messages, strlen(messages), NULL, NULL, &tokens, &error);
    CHECK(mlxgen_buffer_size(tokens) <= sizeof prompts[0]);
    memcpy(prompts[which], mlxgen_buffer_data(tokens), mlxgen_buffer_size(tokens));
    prompt_sizes[which] = mlxgen_buffer_size(tokens) / sizeof(uint32_t);
    mlxgen_buffer_release(tokens);
    mlxgen_tokenizer_release(tokenizer);
}

static mlxgen_stream *begin(int which, mlxgen_cache *cache, uint64_t most, mlxgen_cancel *cancel)
{
    mlxgen_generate_options options = generate_options();
    options.has_max_tokens = 1;
    options.max_tokens = most;
    options.cancel = cancel;
    mlxgen_prompt_part part;
    EXPECT(OK, mlxgen_prompt_part_init, &part, sizeof part);
    part.tokens = prompts[which];
    part.token_count = prompt_sizes[which];
    mlxgen_stream *stream = NULL;
    EXPECT(OK, mlxgen_stream_open, model, cache, &part, 1, &options, &stream, &error);
    return stream;
}

static void first_event(mlxgen_stream *stream)
{
    mlxgen_event event;
    mlxgen_event_init(&event, sizeof event);
    do
        EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
    while (event.kind != MLXGEN_EVENT_TEXT);
}

static void prepare(void)
{
    engine = new_engine();
    model = load();
    ask(0, "[{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]");
    ask(1, "[{\"role\": \"user\", \"content\": \"Count from one to ten.\"}]");
}

/* In processes of their own, before this one has used the library. */
static int leave(int way)
{
    prepare();
    mlxgen_stream *stream = begin(1, NULL, 1000, NULL);
    if (way == 0)
        return 20; /* in the prompt */
    first_event(stream);
    if (way == 1)
        return 21;
    /* A child is refused, and the parent goes on. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        mlxgen_event event = {.struct_size = sizeof event};
        int refused = mlxgen_stream_next(stream, 0, &event, NULL) == MLXGEN_WRONG_STATE &&
                      mlxgen_engine_trim(engine, NULL, NULL) == MLXGEN_WRONG_STATE;
        mlxgen_stream_release(stream);
        mlxgen_engine_release(engine);
        exit(refused ? 3 : 4);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    first_event(stream);
    return 22;
}

static void leave_all(void)
{
    for (int way = 0; way < 3; way++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(120);
            exit(leave(way));
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child);
        snprintf(message, sizeof message, "way %d ended with wait status %#x", way, (unsigned)status);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 20 + way);
    }
}

static void small_memory(void)
{
    mlxgen_engine_options options;
    EXPECT(OK, mlxgen_engine_options_init, &options, sizeof options);
    options.memory_limit = 64 << 20;
    EXPECT(OK, mlxgen_engine_new, &options, &engine, &error);
    mlxgen_model *none = (mlxgen_model *)path;
    EXPECT(OUT_OF_MEMORY, mlxgen_model_load, engine, path, strlen(path), NULL, &none, &error);
    CHECK(none == NULL);
    const char *bad = write_file("bad.gguf", "GGUF\003");
    EXPECT(INVALID_MODEL, mlxgen_model_load, engine, bad, strlen(bad), NULL, &none, &error);
    EXPECT(NOT_FOUND, mlxgen_model_load, engine, TEXT("/no/such/model"), NULL, &none, &error);
    EXPECT(OK, mlxgen_engine_set_limits, engine, 0, 0, &error);
    model = load();
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
}

static void complete(int which, mlxgen_cache *cache)
{
    char text[256];
    mlxgen_stream *stream = begin(which, cache, TOKENS, NULL);
    int32_t reason = drain(stream, text, sizeof text);
    CHECK(reason == MLXGEN_END_MAX_TOKENS || reason == MLXGEN_END_EOS);
    if (expected[which][0] == '\0')
        strcpy(expected[which], text);
    if (strcmp(text, expected[which]) != 0) {
        snprintf(message, sizeof message, "\"%s\", not \"%s\"", text, expected[which]);
        check_failed(__FILE__, __LINE__, "another text than alone");
    }
    mlxgen_stream_release(stream);
}

static void *work(void *argument)
{
    unsigned state = (unsigned)(uintptr_t)argument * 2654435761u + 99u;
    do {
        state = state * 1664525u + 1013904223u;
        int which = (int)(state >> 10) % 2;
        if ((state >> 16) % 3 == 0) {
            complete(which, NULL);
        } else if ((state >> 16) % 3 == 1) {
            mlxgen_cancel *cancel = NULL;
            EXPECT(OK, mlxgen_cancel_new, &cancel, &error);
            mlxgen_stream *stream = begin(which, NULL, 1000, cancel);
            if (state & 0x100)
                first_event(stream);
            EXPECT(OK, mlxgen_cancel_request, cancel);
            CHECK(drain(stream, NULL, 0) == MLXGEN_END_CANCELLED);
            mlxgen_stream_release(stream);
            mlxgen_cancel_release(cancel);
        } else {
            mlxgen_stream *stream = begin(which, NULL, 1000, NULL);
            if (state & 0x100)
                first_event(stream);
            EXPECT(OK, mlxgen_stream_close, stream, &error);
            mlxgen_stream_release(stream);
        }
    } while (seconds_now() < until);
    return NULL;
}

int main(int argc, char **argv)
{
    path = getenv("MLXGEN_TEST_MODEL");
    CHECK(path != NULL);
    leave_all();
    check_begin(argc, argv);
    CHECK(mlxgen_has_feature(TEXT("mlx")) == 1);
#ifdef __linux__
    CHECK(mlxgen_has_feature(TEXT("fast_kernels")) == 1 && mlxgen_has_feature(TEXT("metal")) == 0);
#endif
    small_memory();
    check_no_handles();

    prepare();
    mlxgen_cache *cache = new_cache(model);
    complete(0, cache);
    complete(1, cache);
    CHECK(strstr(expected[0], "Paris") != NULL && strcmp(expected[0], expected[1]) != 0);
    mlxgen_cache_release(cache);
    until = seconds_now() + test_seconds(5.0);
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++)
        CHECK(pthread_create(&threads[index], NULL, work, (void *)(uintptr_t)index) == 0);
    for (int index = 0; index < THREADS; index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
    check_no_handles();
    return 0;
}
