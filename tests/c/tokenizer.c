/* Functions of the tokenizer. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <sys/resource.h>
#include <unistd.h>

#define HELLO "[{\"role\": \"user\", \"content\": \"ab\"}]"

static mlxgen_tokenizer *load(const char *path)
{
    mlxgen_tokenizer *tokenizer = NULL;
    CALL(OK, mlxgen_tokenizer_load, path, strlen(path), &tokenizer, &error);
    return tokenizer;
}

/* Runs `work` with too little address space for the stack of another thread. */
static void without_memory(void (*work)(void))
{
#ifdef __linux__
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1 && fclose(file) == 0);
    struct rlimit before, little;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    little = before;
    little.rlim_cur = pages * (rlim_t)sysconf(_SC_PAGESIZE) + (8u << 20);
    CHECK(setrlimit(RLIMIT_AS, &little) == 0);
    work();
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
#else
    (void)work;
    check_note("mlxgen_tokenizer_load", "OUT_OF_MEMORY");
    check_note("mlxgen_chat_render", "OUT_OF_MEMORY");
#endif
}

static const char *model_folder;
static mlxgen_tokenizer *loaded;

static void load_without_memory(void)
{
    mlxgen_tokenizer *tokenizer = (mlxgen_tokenizer *)model_folder;
    CALL(OUT_OF_MEMORY, mlxgen_tokenizer_load, model_folder, strlen(model_folder), &tokenizer, &error);
    CHECK(tokenizer == NULL);
}

static void render_without_memory(void)
{
    mlxgen_buffer *text = (mlxgen_buffer *)model_folder;
    CALL(OUT_OF_MEMORY, mlxgen_chat_render, loaded, TEXT(HELLO), NULL, &text, NULL, &error);
    CHECK(text == NULL);
}

/* Before anything else: the C library keeps the stacks of threads that have ended for the next. */
static void little_memory(void)
{
    /* The checkers reserve more than there is. */
    if (getenv("MLXGEN_TEST_CHECKED") != NULL)
        return;
    model_folder = word_tokenizer();
    without_memory(load_without_memory);
    loaded = load(model_folder);
    without_memory(render_without_memory);
    mlxgen_tokenizer_release(loaded);
}

static void loading(void)
{
    const char *path = word_tokenizer();
    mlxgen_tokenizer *tokenizer = load(path);
    CHECK(mlxgen_tokenizer_retain(tokenizer) == tokenizer);
    mlxgen_tokenizer_release(tokenizer);
    mlxgen_tokenizer_release(tokenizer);
    CHECK(mlxgen_tokenizer_retain(tokenizer) == NULL);
    /* A tokenizer.json alone, and a path that is longer than said. */
    char file[600];
    snprintf(file, sizeof file, "%s/tokenizer.json", path);
    mlxgen_tokenizer_release(load(file));
    strcat(file, "?");
    EXPECT(OK, mlxgen_tokenizer_load, file, strlen(file) - 1, &tokenizer, &error);
    mlxgen_tokenizer_release(tokenizer);

    tokenizer = (mlxgen_tokenizer *)path;
    CALL(NOT_FOUND, mlxgen_tokenizer_load, file, strlen(file), &tokenizer, &error);
    CHECK(tokenizer == NULL && strstr(detail, "\"file\":") != NULL);
    CALL(INVALID_ARGUMENT, mlxgen_tokenizer_load, NULL, 0, &tokenizer, &error);
    check_field("path", -1);
    EXPECT(INVALID_ARGUMENT, mlxgen_tokenizer_load, TEXT("a\0b"), &tokenizer, &error);
    check_field("path", 1);
    EXPECT(INVALID_ARGUMENT, mlxgen_tokenizer_load, TEXT("a\xff"), &tokenizer, &error);
    check_field("path", 1);
    EXPECT(INVALID_ARGUMENT, mlxgen_tokenizer_load, path, strlen(path), NULL, &error);

    const char *damaged = write_file("damaged.json", "{\"model\": ");
    CALL(INVALID_MODEL, mlxgen_tokenizer_load, damaged, strlen(damaged), &tokenizer, &error);
    CHECK(strstr(detail, "damaged.json") != NULL);
    /* A decoder that looks at tokens after they were joined: it cannot stream. */
    const char *unknown = write_file(
        "unknown.json",
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [],"
        " \"normalizer\": null, \"pre_tokenizer\": null, \"post_processor\": null,"
        " \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"},"
        "  {\"type\": \"ByteFallback\"}]},"
        " \"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}, \"unk_token\": \"a\"}}");
    CALL(UNSUPPORTED, mlxgen_tokenizer_load, unknown, strlen(unknown), &tokenizer, &error);
    /* The system refuses to read what is below a file. */
    char below[600];
    snprintf(below, sizeof below, "%s/below", damaged);
    CALL(IO, mlxgen_tokenizer_load, below, strlen(below), &tokenizer, &error);
    CHECK(tokenizer == NULL);
}

static void tokens(void)
{
    mlxgen_tokenizer *tokenizer = load(word_tokenizer());
    mlxgen_buffer *buffer = NULL;
    CALL(OK, mlxgen_tokenize, tokenizer, TEXT("abba"), 0, &buffer, &error);
    const uint32_t *ids = mlxgen_buffer_data(buffer);
    CHECK(mlxgen_buffer_size(buffer) == 3 * sizeof *ids);
    CHECK(ids[0] == 2 && ids[1] == 1 && ids[2] == 0);
    mlxgen_buffer *text = NULL;
    CALL(OK, mlxgen_detokenize, tokenizer, ids, 3, 0, &text, &error);
    CHECK(strcmp(mlxgen_buffer_data(text), "abba") == 0 && mlxgen_buffer_size(text) == 4);
    mlxgen_buffer_release(text);
    mlxgen_buffer_release(buffer);

    EXPECT(OK, mlxgen_tokenize, tokenizer, TEXT("a<end>"), MLXGEN_TOKENIZE_PARSE_SPECIAL, &buffer,
           &error);
    ids = mlxgen_buffer_data(buffer);
    CHECK(mlxgen_buffer_size(buffer) == 2 * sizeof *ids && ids[1] == 3);
    EXPECT(OK, mlxgen_detokenize, tokenizer, ids, 2, 0, &text, &error);
    CHECK(strcmp(mlxgen_buffer_data(text), "a<end>") == 0);
    mlxgen_buffer_release(text);
    EXPECT(OK, mlxgen_detokenize, tokenizer, ids, 2, MLXGEN_DETOKENIZE_SKIP_SPECIAL, &text, &error);
    CHECK(strcmp(mlxgen_buffer_data(text), "a") == 0);
    mlxgen_buffer_release(text);
    mlxgen_buffer_release(buffer);

    /* Empty in, empty out. B148 */
    EXPECT(OK, mlxgen_tokenize, tokenizer, NULL, 0, 0, &buffer, &error);
    CHECK(mlxgen_buffer_size(buffer) == 0 && mlxgen_buffer_data(buffer) != NULL);
    mlxgen_buffer_release(buffer);
    EXPECT(OK, mlxgen_detokenize, tokenizer, NULL, 0, 0, &text, &error);
    CHECK(mlxgen_buffer_size(text) == 0 && strcmp(mlxgen_buffer_data(text), "") == 0);
    mlxgen_buffer_release(text);

    buffer = text = (mlxgen_buffer *)&tokenizer;
    CALL(INVALID_ARGUMENT, mlxgen_tokenize, tokenizer, TEXT("a\xf0\x9f"), 0, &buffer, &error);
    check_field("text", 1);
    CHECK(buffer == NULL);
    EXPECT(INVALID_ARGUMENT, mlxgen_tokenize, tokenizer, TEXT("a"), 4, &buffer, &error);
    check_field("flags", -1);
    EXPECT(INVALID_ARGUMENT, mlxgen_tokenize, tokenizer, TEXT("a"), 0, NULL, &error);
    EXPECT(INVALID_ARGUMENT, mlxgen_tokenize, NULL, TEXT("a"), 0, &buffer, &error);
    check_field("tokenizer", -1);
    const uint32_t beyond[] = {0, 1, 4};
    CALL(INVALID_ARGUMENT, mlxgen_detokenize, tokenizer, beyond, 3, 0, &text, &error);
    check_field("tokens", 2);
    CHECK(text == NULL);
    EXPECT(INVALID_ARGUMENT, mlxgen_detokenize, tokenizer, beyond, 1, 2, &text, &error);
    check_field("flags", -1);
    mlxgen_tokenizer_release(tokenizer);

    /* The token that stands for unknown words is not there: only a text that has one shows it. */
    tokenizer = load(write_file(
        "unready.json",
        "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [],"
        " \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"Whitespace\"},"
        " \"post_processor\": null, \"decoder\": null,"
        " \"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}, \"unk_token\": \"u\"}}"));
    EXPECT(OK, mlxgen_tokenize, tokenizer, TEXT("a a"), 0, &buffer, &error);
    mlxgen_buffer_release(buffer);
    CALL(INVALID_MODEL, mlxgen_tokenize, tokenizer, TEXT("a b"), 0, &buffer, &error);
    CHECK(buffer == NULL);
    mlxgen_tokenizer_release(tokenizer);
}

static void chats(void)
{
    mlxgen_tokenizer *tokenizer = load(word_tokenizer());
    mlxgen_buffer *text = NULL, *ids = NULL;
    CALL(OK, mlxgen_chat_render, tokenizer, TEXT(HELLO), NULL, &text, &ids, &error);
    CHECK(strcmp(mlxgen_buffer_data(text), "ab<end>a") == 0);
    const uint32_t expected[] = {2, 3, 0};
    CHECK(mlxgen_buffer_size(ids) == sizeof expected);
    CHECK(memcmp(mlxgen_buffer_data(ids), expected, sizeof expected) == 0);
    mlxgen_buffer_release(text);
    mlxgen_buffer_release(ids);

    mlxgen_chat_options options;
    CALL(OK, mlxgen_chat_options_init, &options, sizeof options);
    CHECK(options.add_generation_prompt == 1);
    options.add_generation_prompt = 0;
    options.extra_json = "{\"tail\": \"bb\"}";
    options.extra_json_size = strlen(options.extra_json);
    EXPECT(OK, mlxgen_chat_render, tokenizer, TEXT(HELLO), &options, &text, NULL, &error);
    CHECK(strcmp(mlxgen_buffer_data(text), "ab<end>bb") == 0);
    mlxgen_buffer_release(text);
    EXPECT(OK, mlxgen_chat_render, tokenizer, TEXT(HELLO), &options, NULL, NULL, &error);
    CHECK(mlxgen_live_handles() == 1);

    text = ids = (mlxgen_buffer *)&options;
    CALL(INVALID_ARGUMENT, mlxgen_chat_render, tokenizer, TEXT("[{"), NULL, &text, &ids, &error);
    check_field("messages_json", 1);
    CHECK(text == NULL && ids == NULL);
    EXPECT(INVALID_ARGUMENT, mlxgen_chat_render, tokenizer, NULL, 0, NULL, &text, &ids, &error);
    check_field("messages_json", -1);
    EXPECT(INVALID_ARGUMENT, mlxgen_chat_render, tokenizer, TEXT("[7]"), NULL, &text, &ids, &error);
    check_field("messages_json", 0);
    options.tools_json = options.extra_json = "[7]";
    options.tools_json_size = options.extra_json_size = strlen("[7]");
    EXPECT(INVALID_ARGUMENT, mlxgen_chat_render, tokenizer, TEXT(HELLO), &options, &text, &ids, &error);
    check_field("tools_json", 0);
    options.tools_json_size = 0;
    EXPECT(INVALID_ARGUMENT, mlxgen_chat_render, tokenizer, TEXT(HELLO), &options, &text, &ids, &error);
    check_field("extra_json", -1);
    options.extra_json_size = 0;
    EXPECT(INVALID_ARGUMENT, mlxgen_chat_render, NULL, TEXT(HELLO), NULL, &text, &ids, &error);
    options.tool_arguments = 3;
    EXPECT(INVALID_ARGUMENT, mlxgen_chat_render, tokenizer, TEXT(HELLO), &options, &text, &ids, &error);
    check_field("tool_arguments", -1);
    options.tool_arguments = MLXGEN_TOOL_ARGUMENTS_OBJECT;
    options.add_generation_prompt = 2;
    EXPECT(INVALID_ARGUMENT, mlxgen_chat_render, tokenizer, TEXT(HELLO), &options, &text, &ids, &error);
    check_field("add_generation_prompt", -1);
    options.add_generation_prompt = 1;
    options.template_name = "strict";
    options.template_name_size = strlen("strict");
    EXPECT(INVALID_ARGUMENT, mlxgen_chat_render, tokenizer, TEXT(HELLO), &options, &text, &ids, &error);
    CHECK(strstr(message, "no such talk") != NULL);
    check_field("messages_json", -1);
    options.template_name = "newer";
    options.template_name_size = strlen("newer");
    CALL(UNSUPPORTED, mlxgen_chat_render, tokenizer, TEXT(HELLO), &options, &text, &ids, &error);
    options.template_name = "broken";
    options.template_name_size = strlen("broken");
    CALL(INVALID_MODEL, mlxgen_chat_render, tokenizer, TEXT(HELLO), &options, &text, &ids, &error);
    options.template_name = "absent";
    options.template_name_size = strlen("absent");
    CALL(NOT_FOUND, mlxgen_chat_render, tokenizer, TEXT(HELLO), &options, &text, &ids, &error);
    CALL(INVALID_ARGUMENT, mlxgen_chat_options_init, NULL, sizeof options);
    mlxgen_tokenizer_release(tokenizer);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    little_memory();
    loading();
    tokens();
    chats();
    check_no_handles();
    return 0;
}
