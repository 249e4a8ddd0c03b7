/* Functions of the library as a whole, of errors, buffers and cancel handles. */
#include "check.h"

static void versions(void)
{
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", MLXGEN_VERSION_MAJOR, MLXGEN_VERSION_MINOR,
             MLXGEN_VERSION_PATCH);
    CHECK(strcmp(mlxgen_version_string(), version) == 0);
    CHECK(MLXGEN_WAIT_FOREVER == UINT32_MAX);
    CHECK(mlxgen_has_feature(TEXT("fake")) == 1);
    CHECK(mlxgen_has_feature(TEXT("chat_template")) == 1);
    CHECK(mlxgen_has_feature(TEXT("fake ")) == 0);
    CHECK(mlxgen_has_feature(TEXT("fast_kernels")) == 0 && mlxgen_has_feature(TEXT("gguf")) == 0);
    CHECK(mlxgen_has_feature(NULL, 0) == 0);
    CHECK(mlxgen_has_feature(NULL, 5) == 0);
    CHECK(mlxgen_has_feature(TEXT("\xff")) == 0);

    mlxgen_buffer *info = NULL;
    CALL(OK, mlxgen_build_info, &info, &error);
    const char *json = mlxgen_buffer_data(info);
    CHECK(json[0] == '{' && strlen(json) == mlxgen_buffer_size(info));
    CHECK(strstr(json, "\"abi\":1") != NULL && strstr(json, "\"backend\":\"fake\"") != NULL);
    CHECK(strstr(json, version) != NULL && strstr(json, "\"fake\"") != NULL);
    mlxgen_buffer_release(info);
    CALL(INVALID_ARGUMENT, mlxgen_build_info, NULL, &error);
    check_field("out_json", -1);
}

static void names(void)
{
    static const char *const known[] = {
        "OK", "DONE", "TIMEOUT", "CANCELLED", "INVALID_ARGUMENT", "NOT_FOUND", "INVALID_MODEL",
        "UNSUPPORTED", "OUT_OF_MEMORY", "CONTEXT_FULL", "BUSY", "WRONG_STATE",
        "INCOMPATIBLE_CHECKPOINT", "IO", "GPU_TIMEOUT", "GPU_NOT_PERMITTED", "INTERNAL"};
    for (int32_t status = 0; status < (int32_t)COUNT(known); status++) {
        CHECK(strncmp(mlxgen_status_name(status), "MLXGEN_", 7) == 0);
        CHECK(strcmp(mlxgen_status_name(status) + 7, known[status]) == 0);
    }
    CHECK(strcmp(mlxgen_status_name(COUNT(known)), "MLXGEN_UNKNOWN") == 0);
    CHECK(strcmp(mlxgen_status_name(INT32_MIN), "MLXGEN_UNKNOWN") == 0);
}

static void errors(void)
{
    mlxgen_error *fault = NULL;
    CHECK(mlxgen_cancel_new(NULL, &fault) == MLXGEN_INVALID_ARGUMENT);
    CHECK(mlxgen_error_status(fault) == MLXGEN_INVALID_ARGUMENT);
    size_t size = 1234;
    const char *text = mlxgen_error_message(fault, &size);
    CHECK(size > 0 && size == strlen(text) && strstr(text, "out") != NULL);
    CHECK(mlxgen_error_retain(fault) == fault);
    mlxgen_error_release(fault);
    /* One reference is left, so the borrowed text still stands. */
    CHECK(mlxgen_error_message(fault, NULL) == text && strstr(text, "out") != NULL);
    text = mlxgen_error_detail(fault, &size);
    CHECK(strcmp(text, "{\"field\":\"out\"}") == 0 && size == strlen(text));
    mlxgen_error_release(fault);
    CHECK(mlxgen_error_status(fault) == MLXGEN_INVALID_ARGUMENT);
    CHECK(strcmp(mlxgen_error_message(fault, &size), "") == 0 && size == 0);
    size = 1234;
    CHECK(strcmp(mlxgen_error_detail(NULL, &size), "") == 0 && size == 0);
    CHECK(mlxgen_error_retain(fault) == NULL && mlxgen_error_retain(NULL) == NULL);
    mlxgen_error_release(fault);
    mlxgen_error_release(NULL);
    /* Nobody need ask for the error. */
    CHECK(mlxgen_cancel_new(NULL, NULL) == MLXGEN_INVALID_ARGUMENT);
    /* What was in the variable is overwritten by success too. */
    fault = (mlxgen_error *)&size;
    mlxgen_cancel *cancel = NULL;
    CHECK(mlxgen_cancel_new(&cancel, &fault) == MLXGEN_OK && fault == NULL);
    mlxgen_cancel_release(cancel);
}

static void cancels(void)
{
    mlxgen_cancel *cancel = NULL;
    CALL(OK, mlxgen_cancel_new, &cancel, &error);
    CHECK(mlxgen_cancel_is_requested(cancel) == 0);
    CALL(OK, mlxgen_cancel_request, cancel);
    CALL(OK, mlxgen_cancel_request, cancel);
    CHECK(mlxgen_cancel_is_requested(cancel) == 1);
    CHECK(mlxgen_cancel_retain(cancel) == cancel);
    mlxgen_cancel_release(cancel);
    CHECK(mlxgen_cancel_is_requested(cancel) == 1);
    mlxgen_cancel_release(cancel);
    CHECK(mlxgen_cancel_is_requested(cancel) == 0 && mlxgen_cancel_retain(cancel) == NULL);
    CALL(INVALID_ARGUMENT, mlxgen_cancel_request, cancel);
    EXPECT(INVALID_ARGUMENT, mlxgen_cancel_request, NULL);
    mlxgen_cancel_release(cancel);
    mlxgen_cancel_release(NULL);
    CALL(INVALID_ARGUMENT, mlxgen_cancel_new, NULL, &error);

    /* A million handles of a kind, and then no more; too many where each access is checked. */
    if (getenv("MLXGEN_TEST_CHECKED") != NULL)
        return;
    enum { MOST = 1 << 20 };
    mlxgen_cancel **all = malloc((MOST + 1) * sizeof *all);
    CHECK(all != NULL);
    size_t made = 0;
    mlxgen_status status;
    while ((status = mlxgen_cancel_new(&all[made], &error)) == MLXGEN_OK)
        CHECK(++made < MOST + 1);
    CHECK(made > 1000000 - 2000);
    check_status(__FILE__, __LINE__, "mlxgen_cancel_new", MLXGEN_OUT_OF_MEMORY, status);
    check_note("mlxgen_cancel_new", "OUT_OF_MEMORY");
    CHECK(mlxgen_live_handles() == made);
    for (size_t index = 0; index < made; index++)
        mlxgen_cancel_release(all[index]);
    free(all);
    check_no_handles();
    CALL(OK, mlxgen_cancel_new, &cancel, &error);
    mlxgen_cancel_release(cancel);
}

static void count_drop(void *user)
{
    ++*(int *)user;
}

static void ignore_line(void *user, int32_t level, const char *text, size_t size)
{
    (void)user, (void)level, (void)text, (void)size;
}

static void sinks(void)
{
    int drops[3] = {0, 0, 0};
    CALL(OK, mlxgen_set_log_sink, ignore_line, &drops[0], count_drop, MLXGEN_LOG_TRACE, &error);
    CALL(INVALID_ARGUMENT, mlxgen_set_log_sink, ignore_line, &drops[1], count_drop, 6, &error);
    check_field("max_level", -1);
    EXPECT(INVALID_ARGUMENT, mlxgen_set_log_sink, NULL, NULL, NULL, -1, &error);
    CHECK(drops[0] == 0 && drops[1] == 0);
    CALL(OK, mlxgen_set_log_sink, ignore_line, &drops[1], count_drop, MLXGEN_LOG_OFF, &error);
    CHECK(drops[0] == 1 && drops[1] == 0);
    CALL(OK, mlxgen_set_log_sink, NULL, &drops[2], count_drop, MLXGEN_LOG_INFO, &error);
    CHECK(drops[0] == 1 && drops[1] == 1 && drops[2] == 1);
    CALL(OK, mlxgen_set_log_sink, NULL, NULL, NULL, MLXGEN_LOG_INFO, &error);
}

/* What was made before a shutdown answers WRONG_STATE; a new engine starts afresh. */
static void shutdowns(void)
{
    CALL(OK, mlxgen_shutdown, 0, &error);
    mlxgen_engine *engine = new_engine();
    mlxgen_model *model = load_model(engine, "{\"step_micros\": 2000}");
    mlxgen_cache *cache = new_cache(model);
    mlxgen_cache *other = new_cache(model);
    mlxgen_stream *stream = open_stream(model, cache, "ab", NULL);
    mlxgen_event event;
    mlxgen_event_init(&event, sizeof event);
    EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
    CALL(OK, mlxgen_shutdown, MLXGEN_WAIT_FOREVER, &error);

    const char *path = fake_model("{}");
    mlxgen_memory_info memory = {.struct_size = sizeof memory};
    mlxgen_cache_description description = {.struct_size = sizeof description};
    mlxgen_model_description about = {.struct_size = sizeof about};
    mlxgen_model *second = (mlxgen_model *)path;
    mlxgen_cache *fork = (mlxgen_cache *)path;
    mlxgen_stream *late = (mlxgen_stream *)path;
    mlxgen_buffer *buffer = (mlxgen_buffer *)path;
    mlxgen_prompt_part part = prompt_part("ab");
    size_t count = 77;
    int drops = 0;
    CALL(WRONG_STATE, mlxgen_engine_memory, engine, &memory, &error);
    CALL(WRONG_STATE, mlxgen_engine_set_limits, engine, 0, 0, &error);
    CALL(WRONG_STATE, mlxgen_engine_trim, engine, NULL, &error);
    CALL(WRONG_STATE, mlxgen_engine_suspend, engine, 0, &error);
    CALL(WRONG_STATE, mlxgen_engine_resume, engine, &error);
    CALL(WRONG_STATE, mlxgen_model_load, engine, path, strlen(path), NULL, &second, &error);
    CHECK(second == NULL);
    EXPECT(OK, mlxgen_model_info, model, &about, &error);
    CHECK(strcmp(about.family, "fake") == 0);
    CALL(WRONG_STATE, mlxgen_cache_new, model, NULL, &fork, &error);
    CALL(WRONG_STATE, mlxgen_cache_append, other, part.tokens, 1, NULL, &error);
    CALL(WRONG_STATE, mlxgen_cache_logits, other, &buffer, &error);
    CHECK(fork == NULL && buffer == NULL);
    CALL(WRONG_STATE, mlxgen_cache_token_count, other, &count, &error);
    CHECK(count == 77);
    CALL(WRONG_STATE, mlxgen_cache_tokens, other, &buffer, &error);
    CALL(WRONG_STATE, mlxgen_cache_truncate, other, 0, &count, &error);
    CALL(WRONG_STATE, mlxgen_cache_fork, other, &fork, &error);
    CALL(WRONG_STATE, mlxgen_cache_info, other, &description, &buffer, &error);
    CALL(WRONG_STATE, mlxgen_stream_open, model, NULL, &part, 1, NULL, &late, &error);
    CHECK(late == NULL);
    /* Its row was cancelled, or was told that the work has ended. */
    mlxgen_status status;
    int ended = 0;
    while ((status = mlxgen_stream_next(stream, 0, &event, &error)) == MLXGEN_OK)
        if (event.kind == MLXGEN_EVENT_END)
            ended = event.end_reason == MLXGEN_END_CANCELLED;
    check_status(__FILE__, __LINE__, "mlxgen_stream_next", ended ? MLXGEN_DONE : MLXGEN_WRONG_STATE, status);
    EXPECT(DONE, mlxgen_stream_next, stream, 0, &event, &error);
    CALL(WRONG_STATE, mlxgen_stream_set_wakeup, stream, count_drop, &drops, count_drop, &error);
    CHECK(drops == 0);
    EXPECT(OK, mlxgen_stream_close, stream, &error);
    mlxgen_stream_release(stream);
    mlxgen_cache_release(other);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);

    engine = new_engine();
    model = load_model(engine, "{\"script\": {\"text\": \"yes\"}}");
    stream = open_stream(model, NULL, "ab", NULL);
    char text[16];
    CHECK(drain(stream, text, sizeof text) == MLXGEN_END_EOS && strcmp(text, "yes") == 0);
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);

    /* Work that cannot be cut short outlasts the time given. */
    engine = new_engine();
    model = load_model(engine, "{\"step_micros\": 300000}");
    stream = open_stream(model, NULL, "ab", NULL);
    EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
    sleep_ms(30);
    CALL(TIMEOUT, mlxgen_shutdown, 0, &error);
    CALL(OK, mlxgen_shutdown, MLXGEN_WAIT_FOREVER, &error);
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    versions();
    names();
    errors();
    cancels();
    sinks();
    shutdowns();
    check_no_handles();
    return 0;
}
