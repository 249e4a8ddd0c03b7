/* Functions of the engine. */
#include "check.h"

static void making(void)
{
    mlxgen_engine *engine = NULL;
    mlxgen_engine_options options;
    CALL(OK, mlxgen_engine_options_init, &options, sizeof options);
    CHECK(options.struct_size == sizeof options && options.device == MLXGEN_DEVICE_AUTO);
    options.threads = 1;
    options.memory_limit = 1 << 20;
    CALL(OK, mlxgen_engine_new, &options, &engine, &error);

    mlxgen_memory_info memory;
    CALL(OK, mlxgen_memory_info_init, &memory, sizeof memory);
    CALL(OK, mlxgen_engine_memory, engine, &memory, &error);
    CHECK(memory.struct_size == sizeof memory && memory.limit == 1 << 20);
    CHECK(memory.models == 0 && memory.caches == 0 && memory.available > 0);
    CALL(INVALID_ARGUMENT, mlxgen_engine_memory, NULL, &memory, &error);
    check_field("engine", -1);
    EXPECT(INVALID_ARGUMENT, mlxgen_engine_memory, engine, NULL, &error);
    check_field("out", -1);
    CHECK(mlxgen_engine_retain(engine) == engine);
    mlxgen_engine_release(engine);
    mlxgen_engine_release(engine);
    CHECK(mlxgen_engine_retain(engine) == NULL);

    engine = (mlxgen_engine *)&options;
    options.device = 3;
    CALL(INVALID_ARGUMENT, mlxgen_engine_new, &options, &engine, &error);
    check_field("device", -1);
    CHECK(engine == NULL);
    options.device = MLXGEN_DEVICE_GPU;
    CALL(UNSUPPORTED, mlxgen_engine_new, &options, &engine, &error);
    check_field("device", -1);
    options.device = MLXGEN_DEVICE_CPU;
    CALL(OK, mlxgen_engine_new, &options, &engine, &error);
    mlxgen_engine_release(engine);
    const uint32_t too_many[] = {1025, INT32_MAX, UINT32_MAX};
    for (size_t index = 0; index < COUNT(too_many); index++) {
        options.threads = too_many[index];
        EXPECT(INVALID_ARGUMENT, mlxgen_engine_new, &options, &engine, &error);
        check_field("threads", -1);
        CHECK(engine == NULL);
    }
    options.threads = 1024;
    EXPECT(OK, mlxgen_engine_new, &options, &engine, &error);
    mlxgen_engine_release(engine);
    EXPECT(INVALID_ARGUMENT, mlxgen_engine_new, &options, NULL, &error);
    CALL(INVALID_ARGUMENT, mlxgen_engine_options_init, NULL, sizeof options);
    EXPECT(INVALID_ARGUMENT, mlxgen_engine_options_init, &options, 8);
    CALL(INVALID_ARGUMENT, mlxgen_memory_info_init, NULL, sizeof memory);
}

static void limits(void)
{
    mlxgen_engine *engine = new_engine();
    mlxgen_memory_info before = {.struct_size = sizeof before};
    mlxgen_memory_info after = {.struct_size = sizeof after};
    EXPECT(OK, mlxgen_engine_memory, engine, &before, &error);
    CALL(OK, mlxgen_engine_set_limits, engine, 100000, 5000, &error);
    EXPECT(OK, mlxgen_engine_memory, engine, &after, &error);
    CHECK(after.limit == 100000 && after.pool_limit == 5000);
    const char *path = fake_model("{\"weight_bytes\": 200000}");
    mlxgen_model *model = NULL;
    CALL(OUT_OF_MEMORY, mlxgen_model_load, engine, path, strlen(path), NULL, &model, &error);
    CALL(OK, mlxgen_engine_set_limits, engine, 0, 0, &error);
    EXPECT(OK, mlxgen_engine_memory, engine, &after, &error);
    CHECK(after.limit == before.limit && after.pool_limit == before.pool_limit);
    CALL(OK, mlxgen_model_load, engine, path, strlen(path), NULL, &model, &error);
    EXPECT(OK, mlxgen_engine_memory, engine, &after, &error);
    CHECK(after.models == 200000 && after.peak >= 200000);
    mlxgen_model_release(model);
    CALL(INVALID_ARGUMENT, mlxgen_engine_set_limits, (mlxgen_engine *)path, 0, 0, &error);

    uint64_t freed = 7;
    CALL(OK, mlxgen_engine_trim, engine, &freed, &error);
    CHECK(freed != 7);
    EXPECT(OK, mlxgen_engine_trim, engine, NULL, &error);
    freed = 7;
    CALL(INVALID_ARGUMENT, mlxgen_engine_trim, NULL, &freed, &error);
    CHECK(freed == 7);
    mlxgen_engine_release(engine);
}

static void suspension(void)
{
    mlxgen_engine *engine = new_engine();
    mlxgen_model *model = load_model(engine, "{\"step_micros\": 1000}");
    mlxgen_cache *cache = new_cache(model);
    mlxgen_cache *free_cache = new_cache(model);
    mlxgen_prompt_part part = prompt_part("ab");
    EXPECT(OK, mlxgen_cache_append, free_cache, part.tokens, 2, NULL, &error);
    mlxgen_stream *stream = open_stream(model, cache, "ab", NULL);
    mlxgen_event event;
    mlxgen_event_init(&event, sizeof event);
    EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);

    CALL(OK, mlxgen_engine_suspend, engine, MLXGEN_WAIT_FOREVER, &error);
    EXPECT(OK, mlxgen_engine_suspend, engine, MLXGEN_WAIT_FOREVER, &error);
    mlxgen_status status;
    while ((status = mlxgen_stream_next(stream, 20, &event, &error)) == MLXGEN_OK)
        ;
    check_status(__FILE__, __LINE__, "mlxgen_stream_next", MLXGEN_TIMEOUT, status);
    size_t paused = 0, later = 0;
    EXPECT(OK, mlxgen_cache_token_count, cache, &paused, &error);
    sleep_ms(20);
    EXPECT(OK, mlxgen_cache_token_count, cache, &later, &error);
    CHECK(paused == later);
    const char *path = fake_model("{}");
    mlxgen_model *refused = NULL;
    mlxgen_cache *fork = NULL;
    mlxgen_stream *second = NULL;
    EXPECT(WRONG_STATE, mlxgen_model_load, engine, path, strlen(path), NULL, &refused, &error);
    EXPECT(WRONG_STATE, mlxgen_cache_new, model, NULL, &fork, &error);
    EXPECT(WRONG_STATE, mlxgen_cache_fork, free_cache, &fork, &error);
    EXPECT(WRONG_STATE, mlxgen_cache_append, free_cache, part.tokens, 1, NULL, &error);
    CALL(WRONG_STATE, mlxgen_cache_append_parts, free_cache, &part, 1, NULL, &error);
    EXPECT(WRONG_STATE, mlxgen_cache_truncate, free_cache, 0, NULL, &error);
    EXPECT(WRONG_STATE, mlxgen_stream_open, model, NULL, &part, 1, NULL, &second, &error);
    EXPECT(OK, mlxgen_engine_trim, engine, NULL, &error);
    CALL(OK, mlxgen_engine_resume, engine, &error);
    EXPECT(OK, mlxgen_engine_resume, engine, &error);
    EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
    mlxgen_stream_release(stream);

    CALL(INVALID_ARGUMENT, mlxgen_engine_suspend, NULL, 0, &error);
    CALL(INVALID_ARGUMENT, mlxgen_engine_resume, NULL, &error);
    mlxgen_cache_release(free_cache);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);

    /* A step that cannot be cut short outlasts the time given. */
    model = load_model(engine, "{\"step_micros\": 300000}");
    stream = open_stream(model, NULL, "ab", NULL);
    EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
    sleep_ms(30);
    CALL(TIMEOUT, mlxgen_engine_suspend, engine, 0, &error);
    CALL(OK, mlxgen_engine_suspend, engine, MLXGEN_WAIT_FOREVER, &error);
    CALL(OK, mlxgen_engine_resume, engine, &error);
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    making();
    limits();
    suspension();
    check_no_handles();
    return 0;
}
