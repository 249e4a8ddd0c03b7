/* minimal MODEL: answers one question. MODEL is a folder (safetensors) or a .gguf file. */
#include <mlxgen.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    const char *path = argc > 1 ? argv[1] : "model";
    const char *chat = "[{\"role\":\"user\",\"content\":\"What is the capital of France?\"}]";
    mlxgen_engine *engine = NULL;
    mlxgen_model *model = NULL;
    mlxgen_tokenizer *tokenizer = NULL;
    mlxgen_buffer *tokens = NULL;
    mlxgen_stream *stream = NULL;
    mlxgen_error *error = NULL;
    mlxgen_event event = {.struct_size = sizeof event};
    mlxgen_prompt_part prompt = {.struct_size = sizeof prompt, .kind = MLXGEN_PART_TOKENS};

    setvbuf(stdout, NULL, _IONBF, 0);
    if (mlxgen_engine_new(NULL, &engine, &error) == MLXGEN_OK &&
        mlxgen_model_load(engine, path, strlen(path), NULL, &model, &error) == MLXGEN_OK &&
        mlxgen_model_tokenizer(model, &tokenizer, &error) == MLXGEN_OK &&
        mlxgen_chat_render(tokenizer, chat, strlen(chat), NULL, NULL, &tokens, &error) == MLXGEN_OK) {
        prompt.tokens = mlxgen_buffer_data(tokens);
        prompt.token_count = mlxgen_buffer_size(tokens) / sizeof(uint32_t);
        mlxgen_stream_open(model, NULL, &prompt, 1, NULL, &stream, &error);
    }
    while (stream && mlxgen_stream_next(stream, MLXGEN_WAIT_FOREVER, &event, &error) == MLXGEN_OK)
        if (event.kind == MLXGEN_EVENT_TEXT) fwrite(event.text, 1, event.text_size, stdout);
    fprintf(error ? stderr : stdout, "%s\n", mlxgen_error_message(error, NULL));

    mlxgen_error_release(error);
    mlxgen_stream_release(stream);
    mlxgen_buffer_release(tokens);
    mlxgen_tokenizer_release(tokenizer);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
    return error != NULL;
}
