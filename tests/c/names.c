/* A program that defines names which the library uses inside: they stay apart. The runner exports
 * the program's symbols, so that they would win if the library looked for them outside. */
#include "check.h"

static _Noreturn void called(const char *name)
{
    fprintf(stderr, "the library called the program's %s\n", name);
    abort();
}

#define OURS(name)                                                                                \
    void name(void);                                                                              \
    void name(void)                                                                               \
    {                                                                                             \
        called(#name);                                                                            \
    }

OURS(mlx_array_new)
OURS(mlx_array_free)
OURS(mlx_array_new_data)
OURS(mlx_set_error_handler)
OURS(mlx_eval)
OURS(mlx_string_new)
OURS(mlx_default_cpu_stream_new)
OURS(mlx_get_active_memory)
OURS(mlx_matmul)
OURS(gguf_open)
OURS(gguf_init_from_file)
OURS(ggml_init)
OURS(onig_new)
OURS(onig_search)
OURS(onig_free)
OURS(llama_model_load)
OURS(rust_panic)
OURS(rust_begin_unwind)
OURS(rust_eh_personality)
OURS(__rust_alloc)
OURS(__rust_dealloc)

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    mlxgen_engine *engine = new_engine();
    const char *path = getenv("MLXGEN_TEST_MODEL");
    if (path == NULL)
        path = fake_model("{\"script\": {\"text\": \"apart\"}}");
    mlxgen_model *model = NULL;
    EXPECT(OK, mlxgen_model_load, engine, path, strlen(path), NULL, &model, &error);
    mlxgen_generate_options options = generate_options();
    options.has_max_tokens = 1;
    options.max_tokens = 5;
    mlxgen_stream *stream = open_stream(model, NULL, "abc", &options);
    char text[256];
    drain(stream, text, sizeof text);
    CHECK(text[0] != '\0');
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);

    mlxgen_tokenizer *tokenizer = NULL;
    mlxgen_buffer *tokens = NULL;
    path = word_tokenizer();
    EXPECT(OK, mlxgen_tokenizer_load, path, strlen(path), &tokenizer, &error);
    EXPECT(OK, mlxgen_tokenize, tokenizer, TEXT("ab ba"), 0, &tokens, &error);
    mlxgen_buffer_release(tokens);
    mlxgen_tokenizer_release(tokenizer);
    mlxgen_engine_release(engine);
    check_no_handles();
    return 0;
}
