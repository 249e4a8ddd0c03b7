/* Functions of the model. */
#include "check.h"

/* Loads a model that must fail with MLXGEN_<code>. */
#define FAIL(code, json)                                                                          \
    do {                                                                                          \
        const char *path_ = fake_model(json);                                                     \
        mlxgen_model *model_ = (mlxgen_model *)path_;                                             \
        CALL(code, mlxgen_model_load, engine, path_, strlen(path_), NULL, &model_, &error);       \
        CHECK(model_ == NULL);                                                                    \
    } while (0)

struct progress {
    mlxgen_cancel *cancel;
    pthread_t thread;
    int calls;
    int32_t phase;
    uint64_t done, total;
};

static void note_progress(void *user, int32_t phase, uint64_t done, uint64_t total)
{
    struct progress *progress = user;
    CHECK(pthread_equal(pthread_self(), progress->thread));
    CHECK(done <= total && phase >= progress->phase);
    CHECK(phase != progress->phase || done >= progress->done);
    CHECK(phase == progress->phase || progress->done == progress->total);
    progress->calls++;
    progress->phase = phase;
    progress->done = done;
    progress->total = total;
    if (progress->cancel != NULL && phase == MLXGEN_LOAD_WEIGHTS)
        CHECK(mlxgen_cancel_request(progress->cancel) == MLXGEN_OK);
}

static void loading(mlxgen_engine *engine)
{
    const char *path = fake_model("{\"weight_bytes\": 100000, \"piece_bytes\": 10000}");
    mlxgen_model *model = NULL;
    mlxgen_model_options options;
    struct progress progress = {.thread = pthread_self()};
    CALL(OK, mlxgen_model_options_init, &options, sizeof options);
    CHECK(options.numerics == MLXGEN_NUMERICS_FAST && options.cancel == NULL);
    options.progress = note_progress;
    options.progress_user = &progress;
    options.numerics = MLXGEN_NUMERICS_EXACT;
    options.context_limit = 100;
    options.prefill_chunk = 7;
    CALL(OK, mlxgen_model_load, engine, path, strlen(path), &options, &model, &error);
    CHECK(progress.calls > 10 && progress.phase == MLXGEN_LOAD_FINISH);
    CHECK(progress.done == progress.total);

    mlxgen_model_description about;
    CALL(OK, mlxgen_model_description_init, &about, sizeof about);
    CHECK(about.bos == -1);
    CALL(OK, mlxgen_model_info, model, &about, &error);
    CHECK(strcmp(about.family, "fake") == 0 && strcmp(about.format, "fake") == 0);
    CHECK(strncmp(about.name, "model-", 6) == 0 && strcmp(about.numerics, "exact") == 0);
    CHECK(strcmp(about.compute_type, "float32") == 0 && about.weights[0] != '\0');
    CHECK(about.vocabulary == 260 && about.layers == 2 && about.context_limit == 100);
    CHECK(about.prefill_chunk == 7 && about.weight_bytes == 100000 && about.bos == 256);
    CHECK(about.eos_count == 2 && about.eos[0] == 257 && about.eos[1] == 259);
    CHECK(about.has_chat_template == 1 && about.heads == 2 && about.kv_heads == 1);

    mlxgen_tokenizer *tokenizer = NULL;
    CALL(OK, mlxgen_model_tokenizer, model, &tokenizer, &error);
    mlxgen_model_retain(model);
    mlxgen_model_release(model);
    mlxgen_model_release(model);
    CHECK(mlxgen_model_retain(model) == NULL);
    /* The tokenizer outlives its model. */
    mlxgen_buffer *ids = NULL;
    EXPECT(OK, mlxgen_tokenize, tokenizer, TEXT("A"), 0, &ids, &error);
    CHECK(*(const uint32_t *)mlxgen_buffer_data(ids) == 'A');
    mlxgen_buffer_release(ids);
    mlxgen_tokenizer_release(tokenizer);
    CALL(INVALID_ARGUMENT, mlxgen_model_info, model, &about, &error);
    check_field("model", -1);
    CALL(INVALID_ARGUMENT, mlxgen_model_tokenizer, model, &tokenizer, &error);
    CHECK(tokenizer == NULL);
    CALL(INVALID_ARGUMENT, mlxgen_model_options_init, &options, 0);
    CALL(INVALID_ARGUMENT, mlxgen_model_description_init, NULL, sizeof about);

    model = load_model(engine, "{\"tokenizer\": false}");
    CALL(NOT_FOUND, mlxgen_model_tokenizer, model, &tokenizer, &error);
    EXPECT(INVALID_ARGUMENT, mlxgen_model_tokenizer, model, NULL, &error);
    EXPECT(OK, mlxgen_model_info, model, &about, &error);
    CHECK(about.has_chat_template == 0 && strcmp(about.numerics, "fast") == 0);
    mlxgen_model_release(model);
}

static void cancelled(mlxgen_engine *engine)
{
    const char *path = fake_model("{\"weight_bytes\": 1000000, \"piece_micros\": 1000}");
    mlxgen_model *model = NULL;
    struct progress progress = {.thread = pthread_self()};
    EXPECT(OK, mlxgen_cancel_new, &progress.cancel, &error);
    mlxgen_model_options options;
    EXPECT(OK, mlxgen_model_options_init, &options, sizeof options);
    options.progress = note_progress;
    options.progress_user = &progress;
    options.cancel = progress.cancel;
    CALL(CANCELLED, mlxgen_model_load, engine, path, strlen(path), &options, &model, &error);
    CHECK(model == NULL);
    mlxgen_memory_info memory = {.struct_size = sizeof memory};
    EXPECT(OK, mlxgen_engine_memory, engine, &memory, &error);
    CHECK(memory.models == 0 && memory.active == 0);
    /* Requested before the start, too. */
    options.progress = NULL;
    CALL(CANCELLED, mlxgen_model_load, engine, path, strlen(path), &options, &model, &error);
    mlxgen_cancel_release(progress.cancel);
    EXPECT(INVALID_ARGUMENT, mlxgen_model_load, engine, path, strlen(path), &options, &model, &error);
    check_field("cancel", -1);
}

/* B139: every failure is a code and a message, and the next load works. */
static void failures(mlxgen_engine *engine)
{
    const char *path = fake_model("{}");
    mlxgen_model *model = (mlxgen_model *)path;
    mlxgen_model_options options;
    mlxgen_model_options_init(&options, sizeof options);
    options.numerics = 2;
    CALL(INVALID_ARGUMENT, mlxgen_model_load, engine, path, strlen(path), &options, &model, &error);
    check_field("numerics", -1);
    CHECK(model == NULL);
    options.numerics = 0;
    options.compute_type = -1;
    EXPECT(INVALID_ARGUMENT, mlxgen_model_load, engine, path, strlen(path), &options, &model, &error);
    check_field("compute_type", -1);
    EXPECT(INVALID_ARGUMENT, mlxgen_model_load, engine, NULL, 0, NULL, &model, &error);
    check_field("path", -1);
    EXPECT(INVALID_ARGUMENT, mlxgen_model_load, engine, path, strlen(path), NULL, NULL, &error);
    EXPECT(INVALID_ARGUMENT, mlxgen_model_load, NULL, path, strlen(path), NULL, &model, &error);
    CALL(NOT_FOUND, mlxgen_model_load, engine, TEXT("/no/such/model"), NULL, &model, &error);

    FAIL(INVALID_MODEL, "{\"layers\": \"two\"}");
    CHECK(strstr(detail, "fake-model.json") != NULL);
    FAIL(UNSUPPORTED, "{\"faults\": [{\"at\": \"open\", \"code\": 7}]}");
    FAIL(OUT_OF_MEMORY, "{\"load_bytes\": 1000000000000000}");
    FAIL(IO, "{\"faults\": [{\"at\": \"piece\", \"after\": 1, \"code\": 13}]}");
    FAIL(GPU_TIMEOUT, "{\"faults\": [{\"at\": \"finish\", \"code\": 14}]}");
    FAIL(GPU_NOT_PERMITTED, "{\"faults\": [{\"at\": \"accept\", \"code\": 15}]}");
    mlxgen_memory_info memory = {.struct_size = sizeof memory};
    EXPECT(OK, mlxgen_engine_memory, engine, &memory, &error);
    CHECK(memory.models == 0 && memory.active == 0);
    EXPECT(OK, mlxgen_model_load, engine, path, strlen(path), NULL, &model, &error);
    mlxgen_model_release(model);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    mlxgen_engine *engine = new_engine();
    loading(engine);
    cancelled(engine);
    failures(engine);
    mlxgen_engine_release(engine);
    check_no_handles();
    return 0;
}
