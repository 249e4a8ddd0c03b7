#include "every.h"

void make_objects(struct objects *objects)
{
    objects->path = fake_model("{\"step_micros\": 500}");
    objects->engine = new_engine();
    objects->model = NULL;
    EXPECT(OK, mlxgen_model_load, objects->engine, objects->path, strlen(objects->path), NULL,
           &objects->model, &error);
    objects->tokenizer = NULL;
    EXPECT(OK, mlxgen_model_tokenizer, objects->model, &objects->tokenizer, &error);
    objects->cache = new_cache(objects->model);
    objects->stream = open_stream(objects->model, NULL, "ab", NULL);
}

void release_objects(struct objects *objects)
{
    mlxgen_stream_release(objects->stream);
    mlxgen_cache_release(objects->cache);
    mlxgen_tokenizer_release(objects->tokenizer);
    mlxgen_model_release(objects->model);
    mlxgen_engine_release(objects->engine);
}

#define REFUSED(function, ...)                                                                    \
    (check_note(#function, mark), EXPECT(WRONG_STATE, function, __VA_ARGS__))
/* With an object as output, which must be NULL afterwards. */
#define NONE(type, out) type *out = (type *)objects
#define IS_NULL(out) CHECK((out) == NULL)

void every_function_is_refused(const struct objects *objects, const char *mark)
{
    const struct objects *all = objects;
    const char *path = all->path;
    const uint32_t token = 1;
    mlxgen_engine_options engine_options = {.struct_size = 77};
    mlxgen_memory_info memory = {.struct_size = sizeof memory, .limit = 77};
    mlxgen_chat_options chat_options = {.struct_size = 77};
    mlxgen_model_options model_options = {.struct_size = 77};
    mlxgen_model_description about = {.struct_size = sizeof about, .bos = 77};
    mlxgen_memory_estimate estimate = {.struct_size = sizeof estimate, .budget = 77};
    mlxgen_cache_options cache_options = {.struct_size = 77};
    mlxgen_cache_description held = {.struct_size = sizeof held, .tokens = 77};
    mlxgen_event event = {.struct_size = sizeof event, .kind = 77};
    mlxgen_prompt_part part = {.struct_size = 77};
    mlxgen_generate_options generate_options = {.struct_size = 77};

    REFUSED(mlxgen_engine_options_init, &engine_options, sizeof engine_options);
    REFUSED(mlxgen_memory_info_init, &memory, sizeof memory);
    REFUSED(mlxgen_chat_options_init, &chat_options, sizeof chat_options);
    REFUSED(mlxgen_model_options_init, &model_options, sizeof model_options);
    REFUSED(mlxgen_model_description_init, &about, sizeof about);
    REFUSED(mlxgen_memory_estimate_init, &estimate, sizeof estimate);
    REFUSED(mlxgen_cache_options_init, &cache_options, sizeof cache_options);
    REFUSED(mlxgen_cache_description_init, &held, sizeof held);
    REFUSED(mlxgen_event_init, &event, sizeof event);
    REFUSED(mlxgen_prompt_part_init, &part, sizeof part);
    REFUSED(mlxgen_generate_options_init, &generate_options, sizeof generate_options);
    CHECK(engine_options.struct_size == 77 && chat_options.struct_size == 77);
    CHECK(model_options.struct_size == 77 && cache_options.struct_size == 77);
    CHECK(part.struct_size == 77 && generate_options.struct_size == 77);

    NONE(mlxgen_buffer, buffer);
    REFUSED(mlxgen_build_info, &buffer, &error);
    IS_NULL(buffer);
    REFUSED(mlxgen_set_log_sink, NULL, NULL, NULL, MLXGEN_LOG_OFF, &error);
    REFUSED(mlxgen_shutdown, 0, &error);
    NONE(mlxgen_cancel, cancel);
    REFUSED(mlxgen_cancel_new, &cancel, &error);
    IS_NULL(cancel);

    NONE(mlxgen_engine, engine);
    REFUSED(mlxgen_engine_new, NULL, &engine, &error);
    IS_NULL(engine);
    REFUSED(mlxgen_engine_memory, all->engine, &memory, &error);
    CHECK(memory.limit == 77);
    REFUSED(mlxgen_engine_set_limits, all->engine, 0, 0, &error);
    uint64_t freed = 77;
    REFUSED(mlxgen_engine_trim, all->engine, &freed, &error);
    CHECK(freed == 77);
    REFUSED(mlxgen_engine_suspend, all->engine, 0, &error);
    REFUSED(mlxgen_engine_resume, all->engine, &error);

    NONE(mlxgen_tokenizer, tokenizer);
    REFUSED(mlxgen_tokenizer_load, path, strlen(path), &tokenizer, &error);
    IS_NULL(tokenizer);
    buffer = (mlxgen_buffer *)objects;
    REFUSED(mlxgen_tokenize, all->tokenizer, TEXT("a"), 0, &buffer, &error);
    IS_NULL(buffer);
    buffer = (mlxgen_buffer *)objects;
    REFUSED(mlxgen_detokenize, all->tokenizer, &token, 1, 0, &buffer, &error);
    IS_NULL(buffer);
    NONE(mlxgen_buffer, second);
    buffer = (mlxgen_buffer *)objects;
    REFUSED(mlxgen_chat_render, all->tokenizer, TEXT("[]"), NULL, &buffer, &second, &error);
    CHECK(buffer == NULL && second == NULL);

    NONE(mlxgen_model, model);
    REFUSED(mlxgen_model_load, all->engine, path, strlen(path), NULL, &model, &error);
    IS_NULL(model);
    REFUSED(mlxgen_model_estimate, NULL, path, strlen(path), NULL, NULL, 0, 0, &estimate, &error);
    CHECK(estimate.budget == 77);
    REFUSED(mlxgen_model_info, all->model, &about, &error);
    CHECK(about.bos == 77);
    tokenizer = (mlxgen_tokenizer *)objects;
    REFUSED(mlxgen_model_tokenizer, all->model, &tokenizer, &error);
    IS_NULL(tokenizer);

    NONE(mlxgen_cache, cache);
    REFUSED(mlxgen_cache_new, all->model, NULL, &cache, &error);
    IS_NULL(cache);
    REFUSED(mlxgen_cache_append, all->cache, &token, 1, NULL, &error);
    REFUSED(mlxgen_cache_append_parts, all->cache, &part, 1, NULL, &error);
    buffer = (mlxgen_buffer *)objects;
    REFUSED(mlxgen_cache_logits, all->cache, &buffer, &error);
    IS_NULL(buffer);
    size_t count = 77;
    REFUSED(mlxgen_cache_token_count, all->cache, &count, &error);
    buffer = (mlxgen_buffer *)objects;
    REFUSED(mlxgen_cache_tokens, all->cache, &buffer, &error);
    IS_NULL(buffer);
    REFUSED(mlxgen_cache_truncate, all->cache, 0, &count, &error);
    CHECK(count == 77);
    cache = (mlxgen_cache *)objects;
    REFUSED(mlxgen_cache_fork, all->cache, &cache, &error);
    IS_NULL(cache);
    buffer = (mlxgen_buffer *)objects;
    REFUSED(mlxgen_cache_info, all->cache, &held, &buffer, &error);
    CHECK(buffer == NULL && held.tokens == 77);

    part.struct_size = sizeof part;
    part.kind = MLXGEN_PART_TOKENS;
    part.tokens = &token;
    part.token_count = 1;
    NONE(mlxgen_stream, stream);
    REFUSED(mlxgen_stream_open, all->model, NULL, &part, 1, NULL, &stream, &error);
    IS_NULL(stream);
    REFUSED(mlxgen_stream_next, all->stream, 0, &event, &error);
    CHECK(event.kind == 77);
    REFUSED(mlxgen_stream_set_wakeup, all->stream, NULL, NULL, NULL, &error);
    REFUSED(mlxgen_stream_close, all->stream, &error);
}

void every_getter_answers(const struct objects *objects, int alive)
{
    CHECK(mlxgen_abi_version() == MLXGEN_ABI_VERSION && mlxgen_version_string()[0] != '\0');
    CHECK(strcmp(mlxgen_status_name(0), "MLXGEN_OK") == 0);
    CHECK((mlxgen_live_handles() > 0) == alive && (mlxgen_has_feature(TEXT("fake")) == alive));
    CHECK((mlxgen_engine_retain(objects->engine) != NULL) == alive);
    CHECK((mlxgen_model_retain(objects->model) != NULL) == alive);
    CHECK((mlxgen_tokenizer_retain(objects->tokenizer) != NULL) == alive);
    CHECK((mlxgen_cache_retain(objects->cache) != NULL) == alive);
    CHECK((mlxgen_stream_retain(objects->stream) != NULL) == alive);
    mlxgen_engine_release(objects->engine);
    mlxgen_model_release(objects->model);
    mlxgen_tokenizer_release(objects->tokenizer);
    mlxgen_cache_release(objects->cache);
    mlxgen_stream_release(objects->stream);
}
