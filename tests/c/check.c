#define _POSIX_C_SOURCE 200809L
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

_Thread_local mlxgen_error *error;
_Thread_local char message[512];
_Thread_local char detail[512];
const char *folder;
int errors_expected = 1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char paths[64][512];
static int path_count;

_Noreturn void check_failed(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: %s\n  latest error: %s %s\n", file, line, what, message, detail);
    _exit(1);
}

void check_note(const char *function, const char *code)
{
    const char *path = getenv("MLXGEN_TEST_PAIRS");
    if (path == NULL)
        return;
    char line[160];
    int size = snprintf(line, sizeof line, "%s %s\n", function, code);
    int file = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
    CHECK(file >= 0 && write(file, line, (size_t)size) == size);
    close(file);
}

/* Notes what a failed call gave, and what was at fault, once for each function: loops bring the same often. */
static void note_error(const char *function, mlxgen_status status)
{
    static char noted[512][96];
    static int noted_count;
    char lines[2][96] = {"", ""};
    snprintf(lines[0], sizeof lines[0], "gave:%s", mlxgen_status_name(status) + strlen("MLXGEN_"));
    if (status == MLXGEN_INVALID_ARGUMENT) {
        const char *field = strstr(detail, "\"field\":\"");
        field = field == NULL ? "" : field + strlen("\"field\":\"");
        snprintf(lines[1], sizeof lines[1], "field:%.*s", (int)strcspn(field, "\""), field);
    }
    for (int which = 0; which < 2 && lines[which][0] != '\0'; which++) {
        char line[96];
        snprintf(line, sizeof line, "%.40s %.50s", function, lines[which]);
        pthread_mutex_lock(&lock);
        int index = 0;
        while (index < noted_count && strcmp(noted[index], line) != 0)
            index++;
        int is_new = index == noted_count;
        if (is_new) {
            CHECK(noted_count < (int)COUNT(noted));
            strcpy(noted[noted_count++], line);
        }
        pthread_mutex_unlock(&lock);
        if (is_new)
            check_note(function, lines[which]);
    }
}

void check_status(const char *file, int line, const char *function, mlxgen_status expected,
                  mlxgen_status status)
{
    char what[256];
    message[0] = detail[0] = '\0';
    if (error != NULL) {
        size_t size;
        snprintf(message, sizeof message, "%s", mlxgen_error_message(error, &size));
        if (size == 0 || size != strlen(mlxgen_error_message(error, NULL)))
            check_failed(file, line, "the error's message has a wrong size");
        snprintf(detail, sizeof detail, "%s", mlxgen_error_detail(error, &size));
        if (detail[0] != '{' || size != strlen(mlxgen_error_detail(error, NULL)))
            check_failed(file, line, "the error's detail is not JSON, or has a wrong size");
    }
    if (status != expected) {
        snprintf(what, sizeof what, "%s gave %s, not %s", function, mlxgen_status_name(status),
                 mlxgen_status_name(expected));
        check_failed(file, line, what);
    }
    int plain = status == MLXGEN_OK || status == MLXGEN_DONE || status == MLXGEN_TIMEOUT;
    if (plain && error != NULL)
        check_failed(file, line, "an error object came without an error");
    int has_error = strstr(function, "_init") == NULL && strcmp(function, "mlxgen_cancel_request") != 0;
    if (!plain && has_error && errors_expected && error == NULL)
        check_failed(file, line, "a failure came without an error object");
    if (error != NULL) {
        if (mlxgen_error_status(error) != status)
            check_failed(file, line, "the error has another status");
        note_error(function, status);
        mlxgen_error_release(error);
        error = NULL;
    }
}

void check_field(const char *field, long position)
{
    char part[128];
    snprintf(part, sizeof part, "\"field\":\"%s\"", field);
    CHECK(strstr(detail, part) != NULL);
    snprintf(part, sizeof part, "\"position\":%ld}", position);
    CHECK(position < 0 || strstr(detail, part) != NULL);
}

void check_no_handles(void)
{
    if (mlxgen_live_handles() != 0) {
        snprintf(message, sizeof message, "%llu handles are alive",
                 (unsigned long long)mlxgen_live_handles());
        check_failed(__FILE__, __LINE__, "handles are left");
    }
}

void check_begin(int argc, char **argv)
{
    CHECK(argc == 2);
    folder = argv[1];
    CHECK(mlxgen_abi_version() == MLXGEN_ABI_VERSION);
}

/* The path of something in the test's folder. */
static char *path_of(const char *name)
{
    pthread_mutex_lock(&lock);
    CHECK(path_count < (int)COUNT(paths));
    char *path = paths[path_count++];
    pthread_mutex_unlock(&lock);
    CHECK(snprintf(path, sizeof paths[0], "%s/%s", folder, name) < (int)sizeof paths[0]);
    return path;
}

const char *make_folder(const char *name)
{
    const char *path = path_of(name);
    CHECK(mkdir(path, 0755) == 0 || errno == EEXIST);
    return path;
}

const char *write_file(const char *name, const char *text)
{
    const char *path = path_of(name);
    FILE *file = fopen(path, "wb");
    CHECK(file != NULL && fwrite(text, 1, strlen(text), file) == strlen(text));
    CHECK(fclose(file) == 0);
    return path;
}

const char *fake_model(const char *json)
{
    static atomic_int count;
    char name[64];
    snprintf(name, sizeof name, "model-%d", atomic_fetch_add(&count, 1));
    const char *path = make_folder(name);
    strcat(name, "/fake-model.json");
    write_file(name, json);
    return path;
}

const char *word_tokenizer(void)
{
    const char *path = make_folder("words");
    write_file("words/tokenizer.json",
               "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null,"
               " \"added_tokens\": [{\"id\": 3, \"content\": \"<end>\", \"single_word\": false,"
               "  \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}],"
               " \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\","
               "  \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true},"
               " \"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\","
               "  \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true},"
               " \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null,"
               "  \"continuing_subword_prefix\": null, \"end_of_word_suffix\": null,"
               "  \"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false,"
               "  \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [[\"a\", \"b\"]]}}");
    write_file("words/tokenizer_config.json",
               "{\"eos_token\": \"<end>\", \"chat_template\": [{\"name\": \"default\", \"template\":"
               " \"{% for message in messages %}{{ message.content }}<end>{% endfor %}"
               "{% if add_generation_prompt %}a{% endif %}{{ tail }}\"},"
               " {\"name\": \"strict\", \"template\": \"{{ raise_exception('no such talk') }}\"},"
               " {\"name\": \"newer\", \"template\": \"{{ 1 | later }}\"},"
               " {\"name\": \"broken\", \"template\": \"{% if %}\"}]}");
    return path;
}

mlxgen_engine *new_engine(void)
{
    mlxgen_engine *engine = NULL;
    EXPECT(OK, mlxgen_engine_new, NULL, &engine, &error);
    CHECK(engine != NULL);
    return engine;
}

mlxgen_model *load_model(mlxgen_engine *engine, const char *json)
{
    const char *path = fake_model(json);
    mlxgen_model *model = NULL;
    EXPECT(OK, mlxgen_model_load, engine, path, strlen(path), NULL, &model, &error);
    CHECK(model != NULL);
    return model;
}

mlxgen_cache *new_cache(mlxgen_model *model)
{
    mlxgen_cache *cache = NULL;
    EXPECT(OK, mlxgen_cache_new, model, NULL, &cache, &error);
    CHECK(cache != NULL);
    return cache;
}

mlxgen_generate_options generate_options(void)
{
    mlxgen_generate_options options;
    EXPECT(OK, mlxgen_generate_options_init, &options, sizeof options);
    return options;
}

mlxgen_prompt_part prompt_part(const char *prompt)
{
    static _Thread_local uint32_t tokens[64];
    mlxgen_prompt_part part;
    EXPECT(OK, mlxgen_prompt_part_init, &part, sizeof part);
    part.tokens = tokens;
    part.token_count = strlen(prompt);
    CHECK(part.token_count <= COUNT(tokens));
    for (size_t index = 0; index < part.token_count; index++)
        tokens[index] = (unsigned char)prompt[index];
    return part;
}

mlxgen_stream *open_stream(mlxgen_model *model, mlxgen_cache *cache, const char *prompt,
                           const mlxgen_generate_options *options)
{
    mlxgen_prompt_part part = prompt_part(prompt);
    mlxgen_stream *stream = NULL;
    EXPECT(OK, mlxgen_stream_open, model, cache, &part, 1, options, &stream, &error);
    CHECK(stream != NULL);
    return stream;
}

int32_t drain(mlxgen_stream *stream, char *text, size_t capacity)
{
    int32_t reason = -1;
    size_t size = 0;
    mlxgen_event event;
    EXPECT(OK, mlxgen_event_init, &event, sizeof event);
    for (;;) {
        mlxgen_status status = mlxgen_stream_next(stream, MLXGEN_WAIT_FOREVER, &event, &error);
        if (status == MLXGEN_DONE)
            break;
        check_status(__FILE__, __LINE__, "mlxgen_stream_next", MLXGEN_OK, status);
        CHECK(reason == -1);
        if (event.kind == MLXGEN_EVENT_TEXT && size + event.text_size < capacity) {
            CHECK(strlen(event.text) == event.text_size);
            memcpy(text + size, event.text, event.text_size);
            size += event.text_size;
        }
        if (event.kind == MLXGEN_EVENT_END)
            reason = event.end_reason;
    }
    CHECK(error == NULL && reason >= 0);
    if (capacity > 0)
        text[size] = '\0';
    return reason;
}

double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void sleep_ms(unsigned milliseconds)
{
    struct timespec time = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000};
    nanosleep(&time, NULL);
}

double test_seconds(double otherwise)
{
    const char *text = getenv("MLXGEN_TEST_SECONDS");
    return text == NULL ? otherwise : atof(text);
}
