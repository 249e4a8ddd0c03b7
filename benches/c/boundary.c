/* What the library costs outside MLX, measured on the fake back end, whose forwards take no time.
 *
 *   boundary MODEL ROUNDS
 *
 * Prints one JSON object:
 *   token_microseconds   from one token's event to the next through owner thread, queue, decoder
 *                        and boundary: the host's whole work for a token (median of the rounds)
 *   next_microseconds    mlxgen_stream_next when an event is ready (median of single calls) */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mlxgen.h"

#define TOKENS 2000
#define MOST_CALLS 65536

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void rest(long milliseconds) {
    struct timespec t = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static void check(mlxgen_status status, mlxgen_error *error, const char *what) {
    if (status == MLXGEN_OK) return;
    fprintf(stderr, "%s: %s: %s\n", what, mlxgen_status_name(status),
            mlxgen_error_message(error, NULL));
    exit(1);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return count == 0 ? 0 : values[count / 2];
}

static mlxgen_stream *open_stream(mlxgen_model *model) {
    static const uint32_t prompt[] = {1, 2, 3, 4};
    mlxgen_prompt_part part;
    mlxgen_prompt_part_init(&part, sizeof part);
    part.tokens = prompt;
    part.token_count = 4;
    mlxgen_generate_options options;
    mlxgen_generate_options_init(&options, sizeof options);
    options.max_tokens = TOKENS;
    options.has_max_tokens = 1;
    options.ignore_eos = 1;
    mlxgen_text stop = {"never in the text", 17}; /* stop handling is part of the work */
    options.stop = &stop;
    options.stop_count = 1;
    mlxgen_stream *stream = NULL;
    mlxgen_error *error = NULL;
    check(mlxgen_stream_open(model, NULL, &part, 1, &options, &stream, &error), error, "open");
    return stream;
}

/* Seconds per token of a whole generation, from its first token to its last. */
static double token_seconds(mlxgen_model *model) {
    mlxgen_stream *stream = open_stream(model);
    mlxgen_error *error = NULL;
    double first = 0, last = 0;
    uint64_t tokens = 0;
    for (;;) {
        mlxgen_event event;
        mlxgen_event_init(&event, sizeof event);
        mlxgen_status status = mlxgen_stream_next(stream, MLXGEN_WAIT_FOREVER, &event, &error);
        if (status == MLXGEN_DONE) break;
        check(status, error, "next");
        if (event.kind != MLXGEN_EVENT_TEXT) continue;
        last = now();
        if (tokens == 0) first = last;
        tokens += event.token_count;
    }
    mlxgen_stream_release(stream);
    if (tokens != TOKENS) {
        fprintf(stderr, "%llu tokens instead of %d\n", (unsigned long long)tokens, TOKENS);
        exit(1);
    }
    return (last - first) / (double)(tokens - 1);
}

/* Seconds of single calls on ready events: the consumer rests until the queue is full, then takes
 * half of what may be in it. */
static size_t ready_calls(mlxgen_model *model, double *calls, size_t room) {
    mlxgen_stream *stream = open_stream(model);
    mlxgen_error *error = NULL;
    size_t count = 0;
    mlxgen_event event;
    mlxgen_event_init(&event, sizeof event);
    for (int burst = 0; burst < 20 && count < room; burst++) {
        rest(5);
        for (int i = 0; i < 8 && count < room; i++) {
            double before = now();
            mlxgen_status status = mlxgen_stream_next(stream, 0, &event, &error);
            double after = now();
            if (status == MLXGEN_TIMEOUT) {
                mlxgen_error_release(error);
                break;
            }
            if (status == MLXGEN_DONE) break;
            check(status, error, "next");
            calls[count++] = after - before;
        }
    }
    mlxgen_stream_release(stream);
    return count;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: boundary MODEL ROUNDS\n");
        return 2;
    }
    int rounds = atoi(argv[2]);
    mlxgen_error *error = NULL;
    mlxgen_engine *engine = NULL;
    mlxgen_model *model = NULL;
    check(mlxgen_engine_new(NULL, &engine, &error), error, "engine");
    check(mlxgen_model_load(engine, argv[1], strlen(argv[1]), NULL, &model, &error), error, "load");

    double *tokens = calloc((size_t)rounds, sizeof *tokens);
    double *calls = calloc(MOST_CALLS, sizeof *calls);
    if (tokens == NULL || calls == NULL) return 1;
    size_t count = 0;
    for (int round = 0; round < rounds; round++) {
        tokens[round] = token_seconds(model);
        count += ready_calls(model, calls + count, MOST_CALLS - count);
    }
    printf("{\"token_microseconds\": %.3f, \"next_microseconds\": %.3f, \"next_calls\": %zu}\n",
           median(tokens, (size_t)rounds) * 1e6, median(calls, count) * 1e6, count);
    free(tokens);
    free(calls);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
    return 0;
}
