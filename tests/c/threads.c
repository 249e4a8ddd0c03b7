/* B142, B144: eight threads open, pull, cancel and close streams of shared models, while models
 * are loaded and freed. Each finished text must equal that of a thread alone. */
#include "check.h"

enum { THREADS = 8, PROMPTS = 4, MODELS = 2 };

static mlxgen_engine *engine;
static mlxgen_model *models[MODELS];
static const char *paths[MODELS];
static const char *const prompts[PROMPTS] = {"a", "seven77", "a longer prompt of many tokens", "zz"};
static char expected[MODELS][PROMPTS][128];
static double until;
static atomic_int finished, cancelled, closed;

static mlxgen_generate_options options_of(int prompt)
{
    mlxgen_generate_options options = generate_options();
    options.has_max_tokens = 1;
    options.max_tokens = 40;
    options.temperature = prompt % 2 == 0 ? 0.0f : 1.0f;
    options.has_seed = 1;
    options.seed = (uint64_t)prompt;
    return options;
}

static void complete(mlxgen_model *model, mlxgen_cache *cache, int which, int prompt)
{
    mlxgen_generate_options options = options_of(prompt);
    char text[128];
    mlxgen_stream *stream = open_stream(model, cache, prompts[prompt], &options);
    CHECK(drain(stream, text, sizeof text) == MLXGEN_END_MAX_TOKENS);
    if (expected[which][prompt][0] == '\0')
        strcpy(expected[which][prompt], text);
    CHECK(strcmp(text, expected[which][prompt]) == 0);
    mlxgen_stream_release(stream);
}

static void *work(void *argument)
{
    unsigned state = (unsigned)(uintptr_t)argument * 2654435761u + 12345u;
    mlxgen_cache *cache[MODELS];
    for (int which = 0; which < MODELS; which++)
        cache[which] = new_cache(models[which]);
    while (seconds_now() < until || !atomic_load(&finished) || !atomic_load(&cancelled) ||
           !atomic_load(&closed)) {
        state = state * 1664525u + 1013904223u;
        int which = (int)(state >> 10) % MODELS, prompt = (int)(state >> 12) % PROMPTS;
        switch ((state >> 16) % 5) {
        case 0:
            complete(models[which], NULL, which, prompt);
            atomic_fetch_add(&finished, 1);
            break;
        case 1: /* whatever the set holds from before */
            complete(models[which], cache[which], which, prompt);
            atomic_fetch_add(&finished, 1);
            break;
        case 2: {
            mlxgen_generate_options options = options_of(prompt);
            options.has_max_tokens = 0;
            EXPECT(OK, mlxgen_cancel_new, &options.cancel, &error);
            mlxgen_stream *stream = open_stream(models[which], cache[which], prompts[prompt], &options);
            mlxgen_event event;
            mlxgen_event_init(&event, sizeof event);
            for (unsigned pulls = (state >> 20) % 4; pulls > 0; pulls--)
                EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
            EXPECT(OK, mlxgen_cancel_request, options.cancel);
            mlxgen_cancel_release(options.cancel);
            CHECK(drain(stream, NULL, 0) == MLXGEN_END_CANCELLED);
            mlxgen_stream_release(stream);
            atomic_fetch_add(&cancelled, 1);
            break;
        }
        case 3: {
            mlxgen_stream *stream = open_stream(models[which], cache[which], prompts[prompt], NULL);
            if (state & 0x100)
                EXPECT(OK, mlxgen_stream_close, stream, &error);
            mlxgen_stream_release(stream);
            EXPECT(OK, mlxgen_cache_truncate, cache[which], 0, NULL, &error);
            atomic_fetch_add(&closed, 1);
            break;
        }
        default: {
            /* A model of this thread's own comes and goes. */
            mlxgen_model *own = NULL;
            EXPECT(OK, mlxgen_model_load, engine, paths[which], strlen(paths[which]), NULL, &own, &error);
            complete(own, NULL, which, prompt);
            mlxgen_model_release(own);
        }
        }
    }
    for (int which = 0; which < MODELS; which++)
        mlxgen_cache_release(cache[which]);
    return NULL;
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    engine = new_engine();
    paths[0] = fake_model("{\"prefill_chunk\": 8}");
    paths[1] = fake_model("{\"vocabulary\": 300, \"step_micros\": 50}");
    for (int which = 0; which < MODELS; which++) {
        EXPECT(OK, mlxgen_model_load, engine, paths[which], strlen(paths[which]), NULL, &models[which],
               &error);
        for (int prompt = 0; prompt < PROMPTS; prompt++)
            complete(models[which], NULL, which, prompt);
    }
    CHECK(strcmp(expected[0][0], expected[0][1]) != 0);
    until = seconds_now() + test_seconds(2.0);
    pthread_t threads[THREADS];
    for (int index = 0; index < THREADS; index++)
        CHECK(pthread_create(&threads[index], NULL, work, (void *)(uintptr_t)index) == 0);
    for (int index = 0; index < THREADS; index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    /* After the releases, which nobody waits for. */
    EXPECT(OK, mlxgen_engine_trim, engine, NULL, &error);
    mlxgen_memory_info memory = {.struct_size = sizeof memory};
    EXPECT(OK, mlxgen_engine_memory, engine, &memory, &error);
    CHECK(memory.caches == 0);
    for (int which = 0; which < MODELS; which++)
        mlxgen_model_release(models[which]);
    mlxgen_engine_release(engine);
    check_no_handles();
    return 0;
}
