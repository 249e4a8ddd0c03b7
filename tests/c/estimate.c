/* The estimate of a model that is not loaded. */
#include "check.h"

static const char *const MODEL = "{\"weight_bytes\": 100000, \"load_bytes\": 150000, \"context_limit\": 1000,"
                                 " \"prefill_chunk\": 64, \"cache_bytes_per_token\": 100,"
                                 " \"workspace_bytes_per_token\": 10}";

static mlxgen_memory_estimate estimate_of(const char *path, uint64_t context, uint64_t budget)
{
    mlxgen_memory_estimate estimate;
    EXPECT(OK, mlxgen_memory_estimate_init, &estimate, sizeof estimate);
    EXPECT(OK, mlxgen_model_estimate, NULL, path, strlen(path), NULL, NULL, context, budget, &estimate, &error);
    return estimate;
}

static void figures(void)
{
    const char *path = fake_model(MODEL);
    mlxgen_memory_estimate all = {.struct_size = 77};
    CALL(OK, mlxgen_memory_estimate_init, &all, sizeof all);
    CHECK(all.struct_size == sizeof all && all.weight_bytes == 0 && all.fits == 0);
    CALL(OK, mlxgen_model_estimate, NULL, path, strlen(path), NULL, NULL, 0, 0, &all, &error);
    CHECK(all.weight_bytes == 100000 && all.file_bytes == 100000 && all.load_bytes == 150000);
    CHECK(all.context == 1000 && all.context_limit == 1000 && all.max_context == 1000 && all.fits == 1);
    CHECK(all.cache_bytes_per_token == 100 && all.cache_bytes == 100000 && all.workspace_bytes == 640);
    CHECK(all.total_bytes == 200640 && all.budget > 1 << 20);

    /* 160640 bytes are the weights, 600 tokens and a chunk. */
    mlxgen_memory_estimate most = estimate_of(path, 600, 160640);
    CHECK(most.fits == 1 && most.max_context == 600 && most.total_bytes == most.budget);
    CHECK(estimate_of(path, 601, 160640).fits == 0);
    CHECK(estimate_of(path, 600, 160639).max_context == 599);
    /* The load takes more than a few tokens do. */
    CHECK(estimate_of(path, 1, 160640).total_bytes == 150000);
    CHECK(estimate_of(path, 1, 149999).max_context == 0 && estimate_of(path, 1, 149999).fits == 0);
    CHECK(estimate_of(path, 1001, UINT64_MAX).fits == 0);

    mlxgen_model_options options;
    mlxgen_model_options_init(&options, sizeof options);
    options.context_limit = 500;
    options.prefill_chunk = 10;
    mlxgen_cache_options cache;
    mlxgen_cache_options_init(&cache, sizeof cache);
    CALL(OK, mlxgen_model_estimate, NULL, path, strlen(path), &options, &cache, 0, 0, &all, &error);
    CHECK(all.context == 500 && all.workspace_bytes == 100);
    cache.capacity = 300;
    CALL(OK, mlxgen_model_estimate, NULL, path, strlen(path), &options, &cache, 0, 0, &all, &error);
    CHECK(all.context == 300 && all.context_limit == 300 && all.max_context == 300);
}

/* With an engine its limit is the budget, also while it is suspended. Nothing is loaded. */
static void engines(void)
{
    const char *path = fake_model(MODEL);
    mlxgen_engine_options options;
    mlxgen_engine_options_init(&options, sizeof options);
    options.memory_limit = 160640;
    mlxgen_engine *engine = NULL;
    EXPECT(OK, mlxgen_engine_new, &options, &engine, &error);
    mlxgen_memory_estimate estimate = {.struct_size = sizeof estimate};
    CALL(OK, mlxgen_model_estimate, engine, path, strlen(path), NULL, NULL, 0, 0, &estimate, &error);
    CHECK(estimate.budget == 160640 && estimate.max_context == 600 && estimate.fits == 0);
    EXPECT(OK, mlxgen_engine_suspend, engine, 1000, &error);
    CALL(OK, mlxgen_model_estimate, engine, path, strlen(path), NULL, NULL, 600, 0, &estimate, &error);
    CHECK(estimate.fits == 1);
    mlxgen_memory_info memory = {.struct_size = sizeof memory};
    EXPECT(OK, mlxgen_engine_memory, engine, &memory, &error);
    CHECK(memory.models == 0 && memory.caches == 0);
    EXPECT(OK, mlxgen_engine_resume, engine, &error);

    /* What it says is what a load and a cache set take. */
    mlxgen_model *model = NULL;
    EXPECT(OK, mlxgen_model_load, engine, path, strlen(path), NULL, &model, &error);
    mlxgen_model_description about = {.struct_size = sizeof about};
    EXPECT(OK, mlxgen_model_info, model, &about, &error);
    CHECK(about.weight_bytes == estimate.weight_bytes);
    mlxgen_cache *cache = new_cache(model);
    uint32_t tokens[607];
    for (size_t i = 0; i < 607; i++)
        tokens[i] = 65;
    EXPECT(OUT_OF_MEMORY, mlxgen_cache_append, cache, tokens, 607, NULL, &error);
    mlxgen_cache_release(cache);
    cache = new_cache(model);
    EXPECT(OK, mlxgen_cache_append, cache, tokens, 600, NULL, &error);
    EXPECT(OK, mlxgen_engine_memory, engine, &memory, &error);
    CHECK(memory.models == estimate.weight_bytes && memory.caches == estimate.cache_bytes);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
    CALL(INVALID_ARGUMENT, mlxgen_model_estimate, engine, path, strlen(path), NULL, NULL, 0, 0, &estimate, &error);
    check_field("engine", -1);
}

static int told;

static void note(void *user, int32_t phase, uint64_t done, uint64_t total)
{
    (void)user, (void)phase, (void)done, (void)total;
    told++;
}

#define FAIL(code, json)                                                                          \
    do {                                                                                          \
        const char *path_ = fake_model(json);                                                     \
        CALL(code, mlxgen_model_estimate, NULL, path_, strlen(path_), NULL, NULL, 0, 0, &estimate, &error); \
        CHECK(estimate.budget == 77);                                                             \
    } while (0)

static void failures(void)
{
    const char *path = fake_model("{}");
    mlxgen_memory_estimate estimate = {.struct_size = sizeof estimate, .budget = 77};
    FAIL(INVALID_MODEL, "{\"layers\": \"two\"}");
    CHECK(strstr(detail, "fake-model.json") != NULL);
    FAIL(UNSUPPORTED, "{\"faults\": [{\"at\": \"open\", \"code\": 7}]}");
    FAIL(OUT_OF_MEMORY, "{\"faults\": [{\"at\": \"open\", \"code\": 8}]}");
    FAIL(IO, "{\"faults\": [{\"at\": \"open\", \"code\": 13}]}");
    CALL(NOT_FOUND, mlxgen_model_estimate, NULL, TEXT("/no/such/model"), NULL, NULL, 0, 0, &estimate, &error);
    CALL(INVALID_ARGUMENT, mlxgen_model_estimate, NULL, NULL, 0, NULL, NULL, 0, 0, &estimate, &error);
    check_field("path", -1);
    CALL(INVALID_ARGUMENT, mlxgen_model_estimate, NULL, path, strlen(path), NULL, NULL, 0, 0, NULL, &error);
    check_field("out", -1);
    CALL(INVALID_ARGUMENT, mlxgen_memory_estimate_init, NULL, sizeof estimate);
    CALL(INVALID_ARGUMENT, mlxgen_memory_estimate_init, &estimate, 0);

    mlxgen_model_options options;
    mlxgen_model_options_init(&options, sizeof options);
    mlxgen_cache_options cache;
    mlxgen_cache_options_init(&cache, sizeof cache);
    options.progress = note;
    EXPECT(OK, mlxgen_model_estimate, NULL, path, strlen(path), &options, &cache, 0, 0, &estimate, &error);
    CHECK(told == 0);
    estimate.budget = 77;
    options.numerics = 2;
    EXPECT(INVALID_ARGUMENT, mlxgen_model_estimate, NULL, path, strlen(path), &options, &cache, 0, 0, &estimate, &error);
    check_field("numerics", -1);
    options.numerics = 0;
    cache.kv_bits = 3;
    EXPECT(INVALID_ARGUMENT, mlxgen_model_estimate, NULL, path, strlen(path), &options, &cache, 0, 0, &estimate, &error);
    check_field("kv_bits", -1);
    cache.kv_bits = 0;
    cache.kv_type = MLXGEN_KV_FLOAT32;
    EXPECT(UNSUPPORTED, mlxgen_model_estimate, NULL, path, strlen(path), &options, &cache, 0, 0, &estimate, &error);
    check_field("kv_type", -1);
    cache.struct_size = 8;
    EXPECT(INVALID_ARGUMENT, mlxgen_model_estimate, NULL, path, strlen(path), &options, &cache, 0, 0, &estimate, &error);
    check_field("struct_size", -1);
    EXPECT(OK, mlxgen_cancel_new, &options.cancel, &error);
    EXPECT(OK, mlxgen_cancel_request, options.cancel);
    CALL(CANCELLED, mlxgen_model_estimate, NULL, path, strlen(path), &options, NULL, 0, 0, &estimate, &error);
    mlxgen_cancel_release(options.cancel);
    CHECK(estimate.budget == 77);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    figures();
    engines();
    failures();
    check_no_handles();
    return 0;
}
