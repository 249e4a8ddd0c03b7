/* B140: handles that are NULL, stale, foreign or made up; any order of releases. */
#include "check.h"

static void made_up(void)
{
    /* Addresses, small numbers, and a live handle with single bits changed. */
    mlxgen_engine *engine = new_engine();
    uint64_t value = (uint64_t)(uintptr_t)engine;
    int local = 0;
    uint64_t odd[64 + 6] = {0, 1, UINT64_MAX, (uint64_t)(uintptr_t)&local, value + 1, value - 1};
    for (int bit = 0; bit < 64; bit++)
        odd[6 + bit] = value ^ (UINT64_C(1) << bit);
    for (size_t index = 0; index < COUNT(odd); index++) {
        uintptr_t number = (uintptr_t)odd[index];
        mlxgen_memory_info memory = {.struct_size = sizeof memory};
        EXPECT(INVALID_ARGUMENT, mlxgen_engine_memory, (mlxgen_engine *)number, &memory, &error);
        check_field("engine", -1);
        mlxgen_engine_release((mlxgen_engine *)number);
        CHECK(mlxgen_engine_retain((mlxgen_engine *)number) == NULL);
        mlxgen_model_release((mlxgen_model *)number);
        mlxgen_stream_release((mlxgen_stream *)number);
        mlxgen_buffer_release((mlxgen_buffer *)number);
        mlxgen_cancel_release((mlxgen_cancel *)number);
        mlxgen_error_release((mlxgen_error *)number);
        CHECK(mlxgen_buffer_data((mlxgen_buffer *)number) == NULL);
        CHECK(mlxgen_buffer_size((mlxgen_buffer *)number) == 0);
        CHECK(mlxgen_cancel_request((mlxgen_cancel *)number) == MLXGEN_INVALID_ARGUMENT);
        CHECK(mlxgen_error_status((mlxgen_error *)number) == MLXGEN_INVALID_ARGUMENT);
    }
    CHECK(mlxgen_live_handles() == 1);
    mlxgen_engine_release(engine);
}

/* A handle of each kind is refused where another kind is wanted, and says what it is. */
static void foreign(void)
{
    mlxgen_engine *engine = new_engine();
    mlxgen_model *model = load_model(engine, "{}");
    mlxgen_cache *cache = new_cache(model);
    mlxgen_stream *stream = open_stream(model, NULL, "ab", NULL);
    mlxgen_tokenizer *tokenizer = NULL;
    EXPECT(OK, mlxgen_model_tokenizer, model, &tokenizer, &error);
    mlxgen_cancel *cancel = NULL;
    EXPECT(OK, mlxgen_cancel_new, &cancel, &error);
    mlxgen_buffer *buffer = NULL;
    EXPECT(OK, mlxgen_cache_tokens, cache, &buffer, &error);
    mlxgen_error *fault = NULL;
    CHECK(mlxgen_cancel_new(NULL, &fault) == MLXGEN_INVALID_ARGUMENT);
    struct {
        void *handle;
        const char *kind;
    } const all[] = {{engine, "engine"}, {model, "model"},   {cache, "cache"},   {stream, "stream"},
                     {tokenizer, "tokenizer"}, {cancel, "cancel"}, {buffer, "buffer"}, {fault, "error"}};
    uint64_t live = mlxgen_live_handles();
    CHECK(live == COUNT(all));
    for (size_t index = 0; index < COUNT(all); index++) {
        void *handle = all[index].handle;
        char said[64];
        const char *article = strchr("aeiou", all[index].kind[0]) != NULL ? "an" : "a";
        snprintf(said, sizeof said, " is %s %s handle", article, all[index].kind);
        mlxgen_memory_info memory = {.struct_size = sizeof memory};
        size_t count = 0;
        if (handle != engine) {
            EXPECT(INVALID_ARGUMENT, mlxgen_engine_memory, handle, &memory, &error);
            CHECK(strstr(message, said) != NULL);
            mlxgen_engine_release(handle);
        }
        if (handle != cache) {
            EXPECT(INVALID_ARGUMENT, mlxgen_cache_token_count, handle, &count, &error);
            CHECK(strstr(message, said) != NULL);
            mlxgen_cache_release(handle);
        }
        if (handle != model)
            mlxgen_model_release(handle);
        if (handle != stream)
            mlxgen_stream_release(handle);
        if (handle != tokenizer)
            mlxgen_tokenizer_release(handle);
        if (handle != cancel) {
            CHECK(mlxgen_cancel_request(handle) == MLXGEN_INVALID_ARGUMENT);
            mlxgen_cancel_release(handle);
        }
        if (handle != buffer)
            mlxgen_buffer_release(handle);
        if (handle != fault)
            mlxgen_error_release(handle);
        CHECK(mlxgen_live_handles() == live);
    }
    mlxgen_error_release(fault);
    mlxgen_buffer_release(buffer);
    mlxgen_cancel_release(cancel);
    mlxgen_tokenizer_release(tokenizer);
    mlxgen_stream_release(stream);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
}

/* All orders of releasing engine, model, cache set and stream, each twice. */
static void orders(void)
{
    for (int order = 0; order < 24; order++) {
        mlxgen_engine *engine = new_engine();
        mlxgen_model *model = NULL;
        static const char *path;
        if (path == NULL)
            path = fake_model("{\"step_micros\": 200}");
        EXPECT(OK, mlxgen_model_load, engine, path, strlen(path), NULL, &model, &error);
        mlxgen_cache *cache = new_cache(model);
        mlxgen_stream *stream = open_stream(model, cache, "ab", NULL);
        mlxgen_event event;
        mlxgen_event_init(&event, sizeof event);
        int left[4] = {0, 1, 2, 3};
        for (int rest = 4, code = order; rest > 0; code /= rest, rest--) {
            int which = left[code % rest];
            left[code % rest] = left[rest - 1];
            for (int twice = 0; twice < 2; twice++) {
                if (which == 0)
                    mlxgen_engine_release(engine);
                else if (which == 1)
                    mlxgen_model_release(model);
                else if (which == 2)
                    mlxgen_cache_release(cache);
                else
                    mlxgen_stream_release(stream);
            }
            /* The model is kept alive by its users. */
            if (mlxgen_stream_retain(stream) == stream) {
                mlxgen_stream_release(stream);
                EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
            }
        }
        CHECK(mlxgen_live_handles() == 0);
    }
}

/* A handle's slot is used again, and the old handle stays dead. */
static void generations(void)
{
    mlxgen_cancel *seen[1000];
    mlxgen_engine *engines[50];
    for (size_t index = 0; index < COUNT(seen); index++) {
        EXPECT(OK, mlxgen_cancel_new, &seen[index], &error);
        mlxgen_cancel_release(seen[index]);
    }
    for (size_t index = 0; index < COUNT(engines); index++) {
        engines[index] = new_engine();
        mlxgen_engine_release(engines[index]);
    }
    mlxgen_cancel *cancel = NULL;
    EXPECT(OK, mlxgen_cancel_new, &cancel, &error);
    mlxgen_engine *engine = new_engine();
    for (size_t index = 0; index < COUNT(seen); index++) {
        CHECK(seen[index] != cancel);
        EXPECT(INVALID_ARGUMENT, mlxgen_cancel_request, seen[index]);
    }
    for (size_t index = 0; index < COUNT(engines); index++) {
        CHECK(engines[index] != engine);
        EXPECT(INVALID_ARGUMENT, mlxgen_engine_trim, engines[index], NULL, &error);
    }
    CHECK(mlxgen_cancel_is_requested(cancel) == 0);
    mlxgen_cancel_release(cancel);
    mlxgen_engine_release(engine);
}

/* Eight threads retain, release and use the same few handles, most of them at the wrong time. */
enum { SHARED = 4 };
static _Atomic(mlxgen_buffer *) shared[SHARED];
static mlxgen_tokenizer *tokenizer;
static double until;

static void *abuse(void *argument)
{
    unsigned state = (unsigned)(uintptr_t)argument * 2654435761u + 1u;
    while (seconds_now() < until) {
        state = state * 1664525u + 1013904223u;
        _Atomic(mlxgen_buffer *) *slot = &shared[(state >> 8) % SHARED];
        mlxgen_buffer *buffer = atomic_load(slot);
        switch ((state >> 16) % 4) {
        case 0: {
            mlxgen_buffer *made = NULL;
            EXPECT(OK, mlxgen_tokenize, tokenizer, TEXT("abcd"), 0, &made, &error);
            mlxgen_buffer_release(atomic_exchange(slot, made));
            break;
        }
        case 1:
            if (mlxgen_buffer_retain(buffer) != NULL)
                mlxgen_buffer_release(buffer);
            break;
        case 2: {
            size_t size = mlxgen_buffer_size(buffer);
            CHECK(size == 0 || size == 16);
            break;
        }
        default:
            /* A release too many: it ends the object for all, and harms no other. */
            mlxgen_buffer_release(buffer);
        }
    }
    return NULL;
}

static void threads(void)
{
    mlxgen_engine *engine = new_engine();
    mlxgen_model *model = load_model(engine, "{}");
    EXPECT(OK, mlxgen_model_tokenizer, model, &tokenizer, &error);
    until = seconds_now() + test_seconds(0.5);
    pthread_t all[8];
    for (size_t index = 0; index < COUNT(all); index++)
        CHECK(pthread_create(&all[index], NULL, abuse, (void *)(uintptr_t)index) == 0);
    for (size_t index = 0; index < COUNT(all); index++)
        CHECK(pthread_join(all[index], NULL) == 0);
    for (int index = 0; index < SHARED; index++)
        mlxgen_buffer_release(shared[index]);
    mlxgen_tokenizer_release(tokenizer);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    made_up();
    foreign();
    orders();
    generations();
    check_no_handles();
    threads();
    check_no_handles();
    return 0;
}
