/* Odd pointers and sizes, for which nothing may be read. */
#include "check.h"

#define HUGE_SIZE ((size_t)PTRDIFF_MAX + 1)

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    mlxgen_engine *engine = new_engine();
    mlxgen_model *model = load_model(engine, "{}");
    mlxgen_cache *cache = new_cache(model);
    mlxgen_tokenizer *tokenizer = NULL;
    EXPECT(OK, mlxgen_model_tokenizer, model, &tokenizer, &error);

    const size_t sizes[] = {1, 1000, PTRDIFF_MAX, HUGE_SIZE, SIZE_MAX};
    mlxgen_buffer *buffer = NULL;
    mlxgen_tokenizer *none = NULL;
    mlxgen_model *no_model = NULL;
    mlxgen_stream *stream = NULL;
    for (size_t index = 0; index < COUNT(sizes); index++) {
        size_t size = sizes[index];
        EXPECT(INVALID_ARGUMENT, mlxgen_tokenize, tokenizer, NULL, size, 0, &buffer, &error);
        check_field("text", -1);
        EXPECT(INVALID_ARGUMENT, mlxgen_detokenize, tokenizer, NULL, size, 0, &buffer, &error);
        check_field("tokens", -1);
        EXPECT(INVALID_ARGUMENT, mlxgen_chat_render, tokenizer, NULL, size, NULL, &buffer, NULL, &error);
        check_field("messages_json", -1);
        EXPECT(INVALID_ARGUMENT, mlxgen_tokenizer_load, NULL, size, &none, &error);
        check_field("path", -1);
        EXPECT(INVALID_ARGUMENT, mlxgen_model_load, engine, NULL, size, NULL, &no_model, &error);
        check_field("path", -1);
        EXPECT(INVALID_ARGUMENT, mlxgen_cache_append, cache, NULL, size, NULL, &error);
        check_field("tokens", -1);
        EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, cache, NULL, size, NULL, &stream, &error);
        check_field("parts", -1);
        CHECK(mlxgen_has_feature(NULL, size) == 0);
    }
    /* Sizes that no object has, at places where something is. */
    const uint32_t token = 1;
    mlxgen_prompt_part part = prompt_part("ab");
    EXPECT(INVALID_ARGUMENT, mlxgen_tokenize, tokenizer, "a", HUGE_SIZE, 0, &buffer, &error);
    EXPECT(INVALID_ARGUMENT, mlxgen_detokenize, tokenizer, &token, HUGE_SIZE / 4, 0, &buffer, &error);
    check_field("tokens", -1);
    EXPECT(INVALID_ARGUMENT, mlxgen_cache_append, cache, &token, SIZE_MAX, NULL, &error);
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, cache, &part, SIZE_MAX / 8, NULL, &stream, &error);
    check_field("parts", -1);
    part.token_count = HUGE_SIZE / 4;
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, cache, &part, 1, NULL, &stream, &error);
    CHECK(mlxgen_has_feature("mlx", HUGE_SIZE) == 0);
    /* An array that is not aligned for its elements. */
    const unsigned char bytes[9] = {0};
    const uint32_t *odd = (const uint32_t *)(const void *)(bytes + 1 - ((uintptr_t)bytes & 1));
    EXPECT(INVALID_ARGUMENT, mlxgen_detokenize, tokenizer, odd, 1, 0, &buffer, &error);
    check_field("tokens", -1);
    /* Texts without a NUL, and with one inside. */
    const char four[4] = {'a', 'b', '\0', 'c'};
    EXPECT(OK, mlxgen_tokenize, tokenizer, four, sizeof four, 0, &buffer, &error);
    CHECK(mlxgen_buffer_size(buffer) == 16);
    mlxgen_buffer *text = NULL;
    EXPECT(OK, mlxgen_detokenize, tokenizer, mlxgen_buffer_data(buffer), 4, 0, &text, &error);
    CHECK(mlxgen_buffer_size(text) == 4 && memcmp(mlxgen_buffer_data(text), four, 4) == 0);
    mlxgen_buffer_release(text);
    mlxgen_buffer_release(buffer);
    /* Not UTF-8: cut short, overlong, a surrogate, beyond the last code point. */
    const char *const wrong[] = {"ab\xc3", "ab\xc0\x80", "ab\xed\xa0\x80", "ab\xf4\x90\x80\x80", "ab\xff"};
    for (size_t index = 0; index < COUNT(wrong); index++) {
        EXPECT(INVALID_ARGUMENT, mlxgen_tokenize, tokenizer, wrong[index], strlen(wrong[index]), 0,
               &buffer, &error);
        check_field("text", 2);
    }
    /* An error's text may quote any argument; the name is too long for a file. */
    char *path = malloc(100000);
    CHECK(path != NULL);
    memset(path, 'x', 100000);
    mlxgen_status status = mlxgen_model_load(engine, path, 100000, NULL, &no_model, &error);
    CHECK(status == MLXGEN_IO || status == MLXGEN_NOT_FOUND || status == MLXGEN_INVALID_ARGUMENT);
    check_status(__FILE__, __LINE__, "mlxgen_model_load", status, status);
    free(path);

    mlxgen_tokenizer_release(tokenizer);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
    check_no_handles();
    return 0;
}
