/* Panics of the back end, at every place where it is called: each is INTERNAL for the call that
 * it happened in, or one log line, and harms nothing else. B139 */
#include "check.h"

static const uint32_t some[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};

#define INTERNAL(function, ...)                                                                   \
    do {                                                                                          \
        EXPECT(INTERNAL, function, __VA_ARGS__);                                                  \
        CHECK(strstr(message, "the file asks for a fault") != NULL);                              \
    } while (0)

/* The engine still works. */
static void works(mlxgen_engine *engine)
{
    static const char *path;
    if (path == NULL)
        path = fake_model("{\"script\": {\"text\": \"fine\"}}");
    mlxgen_model *model = NULL;
    EXPECT(OK, mlxgen_model_load, engine, path, strlen(path), NULL, &model, &error);
    char text[16];
    mlxgen_stream *stream = open_stream(model, NULL, "ab", NULL);
    CHECK(drain(stream, text, sizeof text) == MLXGEN_END_EOS && strcmp(text, "fine") == 0);
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);
}

static void loads(mlxgen_engine *engine)
{
    static const char *const places[] = {"open", "piece", "builder", "accept", "finish"};
    for (size_t index = 0; index < COUNT(places); index++) {
        char json[80];
        snprintf(json, sizeof json, "{\"faults\": [{\"at\": \"%s\"}]}", places[index]);
        const char *path = fake_model(json);
        mlxgen_model *model = (mlxgen_model *)path;
        INTERNAL(mlxgen_model_load, engine, path, strlen(path), NULL, &model, &error);
        CHECK(model == NULL);
        works(engine);
    }
}

static void caches(mlxgen_engine *engine)
{
    mlxgen_model *model = load_model(
        engine, "{\"faults\": [{\"at\": \"new_state\", \"count\": 1}, {\"at\": \"prefill\", \"count\": 1},"
                " {\"at\": \"logits\", \"count\": 1}, {\"at\": \"truncate\", \"count\": 1},"
                " {\"at\": \"fork\", \"count\": 1}]}");
    mlxgen_cache *cache = (mlxgen_cache *)model, *fork = cache;
    INTERNAL(mlxgen_cache_new, model, NULL, &cache, &error);
    CHECK(cache == NULL);
    cache = new_cache(model);
    INTERNAL(mlxgen_cache_append, cache, some, COUNT(some), NULL, &error);
    mlxgen_cache_release(cache);
    cache = new_cache(model);
    INTERNAL(mlxgen_cache_append, cache, some, COUNT(some), NULL, &error);
    mlxgen_cache_release(cache);
    cache = new_cache(model);
    EXPECT(OK, mlxgen_cache_append, cache, some, COUNT(some), NULL, &error);
    size_t dropped = 99;
    INTERNAL(mlxgen_cache_fork, cache, &fork, &error);
    CHECK(fork == NULL);
    EXPECT(OK, mlxgen_cache_fork, cache, &fork, &error);
    INTERNAL(mlxgen_cache_truncate, fork, 5, &dropped, &error);
    CHECK(dropped == 99);
    mlxgen_cache_release(fork);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);
    works(engine);
}

static void streams(mlxgen_engine *engine)
{
    static const char *const places[] = {"step", "read"};
    for (size_t index = 0; index < COUNT(places); index++) {
        char json[80];
        snprintf(json, sizeof json, "{\"faults\": [{\"at\": \"%s\", \"after\": 3}]}", places[index]);
        mlxgen_model *model = load_model(engine, json);
        mlxgen_stream *stream = open_stream(model, NULL, "ab", NULL);
        mlxgen_event event;
        mlxgen_event_init(&event, sizeof event);
        mlxgen_status status;
        while ((status = mlxgen_stream_next(stream, MLXGEN_WAIT_FOREVER, &event, &error)) == MLXGEN_OK)
            CHECK(event.kind != MLXGEN_EVENT_END);
        check_status(__FILE__, __LINE__, "mlxgen_stream_next", MLXGEN_INTERNAL, status);
        EXPECT(DONE, mlxgen_stream_next, stream, 0, &event, &error);
        mlxgen_stream_release(stream);
        mlxgen_model_release(model);
        works(engine);
    }
}

static void drops(mlxgen_engine *engine)
{
    mlxgen_model *model = load_model(
        engine, "{\"weight_bytes\": 1000, \"faults\": [{\"at\": \"drop_state\"}, {\"at\": \"drop_model\"}]}");
    mlxgen_cache *cache = new_cache(model);
    EXPECT(OK, mlxgen_cache_append, cache, some, COUNT(some), NULL, &error);
    mlxgen_cache_release(cache);
    mlxgen_stream *stream = open_stream(model, NULL, "ab", NULL);
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);
    works(engine);
    /* After the releases, which nobody waits for. */
    EXPECT(OK, mlxgen_engine_trim, engine, NULL, &error);
    mlxgen_memory_info memory = {.struct_size = sizeof memory};
    EXPECT(OK, mlxgen_engine_memory, engine, &memory, &error);
    CHECK(memory.models == 0 && memory.caches == 0);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    mlxgen_engine *engine = new_engine();
    works(engine);
    loads(engine);
    caches(engine);
    streams(engine);
    drops(engine);
    mlxgen_engine_release(engine);
    check_no_handles();
    return 0;
}
