/* One session from process start: load a model, read a prompt, generate.
 *
 *   session MODEL PROMPT_TOKENS NEW_TOKENS
 *
 * Prints one JSON object: seconds of the parts, bytes of weights and cache, and the greatest
 * resident set of the process. The prompt is ids without meaning. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "mlxgen.h"

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check(mlxgen_status status, mlxgen_error *error, const char *what) {
    if (status == MLXGEN_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, mlxgen_status_name(status),
            mlxgen_error_message(error, NULL));
    exit(1);
}

int main(int argc, char **argv) {
    double start = now();
    if (argc != 4) {
        fprintf(stderr, "usage: session MODEL PROMPT_TOKENS NEW_TOKENS\n");
        return 2;
    }
    size_t prompt_size = (size_t)strtoul(argv[2], NULL, 10);
    mlxgen_error *error = NULL;
    mlxgen_engine *engine = NULL;
    mlxgen_model *model = NULL;
    mlxgen_cache *cache = NULL;
    mlxgen_stream *stream = NULL;

    check(mlxgen_engine_new(NULL, &engine, &error), error, "engine");
    double before_load = now();
    check(mlxgen_model_load(engine, argv[1], strlen(argv[1]), NULL, &model, &error), error, "load");
    double loaded = now();

    mlxgen_model_description about;
    mlxgen_model_description_init(&about, sizeof about);
    check(mlxgen_model_info(model, &about, &error), error, "info");

    uint32_t *prompt = calloc(prompt_size, sizeof *prompt);
    if (prompt == NULL) return 1;
    for (size_t i = 0; i < prompt_size; i++) prompt[i] = (uint32_t)(i * 7919u % about.vocabulary);
    mlxgen_prompt_part part;
    mlxgen_prompt_part_init(&part, sizeof part);
    part.tokens = prompt;
    part.token_count = prompt_size;
    mlxgen_generate_options options;
    mlxgen_generate_options_init(&options, sizeof options);
    options.max_tokens = strtoull(argv[3], NULL, 10);
    options.has_max_tokens = 1;
    options.ignore_eos = 1;

    check(mlxgen_cache_new(model, NULL, &cache, &error), error, "cache");
    check(mlxgen_stream_open(model, cache, &part, 1, &options, &stream, &error), error, "open");
    double first = 0;
    uint64_t generated = 0;
    for (;;) {
        mlxgen_event event;
        mlxgen_event_init(&event, sizeof event);
        mlxgen_status status = mlxgen_stream_next(stream, MLXGEN_WAIT_FOREVER, &event, &error);
        if (status == MLXGEN_DONE) break;
        check(status, error, "next");
        if (event.kind == MLXGEN_EVENT_TEXT && event.token_count > 0 && first == 0) first = now();
        if (event.kind == MLXGEN_EVENT_END) generated = event.generated_tokens;
    }
    double end = now();
    check(mlxgen_stream_close(stream, &error), error, "close");

    mlxgen_cache_description held;
    mlxgen_cache_description_init(&held, sizeof held);
    check(mlxgen_cache_info(cache, &held, NULL, &error), error, "cache info");
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
    uint64_t peak = (uint64_t)usage.ru_maxrss;
#else
    uint64_t peak = (uint64_t)usage.ru_maxrss * 1024u;
#endif
    printf("{\"load_seconds\": %.6f, \"first_token_seconds\": %.6f, \"total_seconds\": %.6f, "
           "\"generated\": %llu, \"weight_bytes\": %llu, \"cache_bytes\": %llu, "
           "\"peak_resident_bytes\": %llu}\n",
           loaded - before_load, first - start, end - start, (unsigned long long)generated,
           (unsigned long long)about.weight_bytes, (unsigned long long)held.bytes,
           (unsigned long long)peak);
    free(prompt);
    mlxgen_stream_release(stream);
    mlxgen_cache_release(cache);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
    return 0;
}
