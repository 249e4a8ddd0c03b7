/* Log, progress, wake-up and drop callbacks: what may be called inside, and when they come. */
#include "every.h"

static struct objects objects;
static atomic_int lines, wakes, drops, wanted;
static mlxgen_buffer *spare;
static mlxgen_cancel *cancel;

/* What every callback does here. */
static void use_library(const char *mark)
{
    every_function_is_refused(&objects, mark);
    every_getter_answers(&objects, 1);
    CHECK(mlxgen_cancel_request(cancel) == MLXGEN_OK && mlxgen_cancel_is_requested(cancel) == 1);
    CHECK(mlxgen_buffer_size(spare) == 1);
}

static void on_drop(void *user)
{
    CHECK(user == &drops);
    atomic_fetch_add(&drops, 1);
    use_library("in-drop");
}

static void on_wake(void *user)
{
    CHECK(user == &drops);
    if (atomic_fetch_add(&wakes, 1) == 0)
        use_library("in-wakeup");
}

static void on_line(void *user, int32_t level, const char *text, size_t size)
{
    (void)user;
    CHECK(level >= MLXGEN_LOG_ERROR && level <= MLXGEN_LOG_TRACE && size > 0 && text != NULL);
    if (atomic_fetch_add(&lines, 1) == 0)
        use_library("in-log");
}

static void on_progress(void *user, int32_t phase, uint64_t done, uint64_t total)
{
    (void)phase, (void)done, (void)total;
    CHECK(user == &wanted);
    if (atomic_fetch_add(&wanted, 1) == 0)
        use_library("in-progress");
}

/* Something is released in a callback: it is dead at once, and its memory is free after the next
 * call. B140 */
static mlxgen_stream *victim;
static void release_in_callback(void *user)
{
    (void)user;
    mlxgen_stream *stream = victim;
    victim = NULL;
    if (stream == NULL)
        return;
    mlxgen_stream_release(stream);
    CHECK(mlxgen_stream_retain(stream) == NULL);
    atomic_fetch_add(&wakes, 1);
}

static void wakeups(mlxgen_model *model)
{
    mlxgen_event event;
    mlxgen_event_init(&event, sizeof event);
    /* With the wake-up alone, without ever waiting in a call. */
    atomic_store(&wakes, 0);
    mlxgen_generate_options options = generate_options();
    options.has_max_tokens = 1;
    options.max_tokens = 20;
    mlxgen_stream *stream = open_stream(model, NULL, "ab", &options);
    EXPECT(OK, mlxgen_stream_set_wakeup, stream, on_wake, &drops, on_drop, &error);
    int ended = 0, seen = 0;
    while (!ended) {
        while (atomic_load(&wakes) == seen)
            sleep_ms(1);
        seen = atomic_load(&wakes);
        while (!ended && mlxgen_stream_next(stream, 0, &event, &error) == MLXGEN_OK)
            ended = event.kind == MLXGEN_EVENT_END;
    }
    CHECK(atomic_load(&drops) == 0);
    /* Replaced, ended, set on a stream whose events wait, and closed. */
    EXPECT(OK, mlxgen_stream_set_wakeup, stream, on_wake, &drops, on_drop, &error);
    CHECK(atomic_load(&drops) == 1);
    CALL(OK, mlxgen_stream_set_wakeup, stream, NULL, &drops, on_drop, &error);
    CHECK(atomic_load(&drops) == 3);
    mlxgen_stream_release(stream);

    for (int round = 0; round < 100; round++) {
        int before = atomic_load(&drops);
        atomic_store(&wakes, 1);
        stream = open_stream(model, NULL, "ab", NULL);
        EXPECT(OK, mlxgen_stream_set_wakeup, stream, on_wake, &drops, on_drop, &error);
        if (round % 2 == 0)
            while (atomic_load(&wakes) == 1)
                sleep_ms(1);
        EXPECT(OK, mlxgen_stream_close, stream, &error);
        CHECK(atomic_load(&drops) == before + 1);
        int closed = atomic_load(&wakes);
        if (round % 10 == 0)
            sleep_ms(2);
        CHECK(atomic_load(&wakes) == closed);
        EXPECT(WRONG_STATE, mlxgen_stream_set_wakeup, stream, on_wake, NULL, on_drop, &error);
        mlxgen_stream_release(stream);
    }

    atomic_store(&wakes, 0);
    uint64_t live = mlxgen_live_handles();
    victim = open_stream(model, NULL, "ab", NULL);
    EXPECT(OK, mlxgen_stream_set_wakeup, victim, release_in_callback, NULL, NULL, &error);
    while (atomic_load(&wakes) == 0)
        sleep_ms(1);
    CHECK(mlxgen_live_handles() == live);
}

static void logs(mlxgen_engine *engine)
{
    /* A drop that fails on the owner's thread can only be logged. */
    atomic_store(&drops, 0);
    EXPECT(OK, mlxgen_set_log_sink, on_line, &drops, on_drop, MLXGEN_LOG_TRACE, &error);
    mlxgen_model *model = load_model(engine, "{\"faults\": [{\"at\": \"drop_model\"}]}");
    mlxgen_model_release(model);
    while (atomic_load(&lines) == 0)
        sleep_ms(1);
    EXPECT(OK, mlxgen_set_log_sink, NULL, NULL, NULL, MLXGEN_LOG_OFF, &error);
    while (atomic_load(&drops) == 0)
        sleep_ms(1);
    CHECK(atomic_load(&drops) == 1);
    int heard = atomic_load(&lines);
    mlxgen_model_release(load_model(engine, "{\"faults\": [{\"at\": \"drop_model\"}]}"));
    EXPECT(OK, mlxgen_engine_trim, engine, NULL, &error);
    CHECK(atomic_load(&lines) == heard);
}

/* What was logged, each line with its level before it. */
static char heard[20000];
static size_t heard_size;
static pthread_mutex_t heard_lock = PTHREAD_MUTEX_INITIALIZER;

static void hear(void *user, int32_t level, const char *text, size_t size)
{
    (void)user;
    pthread_mutex_lock(&heard_lock);
    CHECK(heard_size + size + 4 < sizeof heard);
    heard_size += (size_t)snprintf(heard + heard_size, sizeof heard - heard_size, "%d %.*s\n", (int)level,
                                   (int)size, text);
    pthread_mutex_unlock(&heard_lock);
}

static int has_heard(const char *line)
{
    pthread_mutex_lock(&heard_lock);
    int found = strstr(heard, line) != NULL;
    pthread_mutex_unlock(&heard_lock);
    return found;
}

/* A load, a generation and their failures, at the level that the header says. */
static void lines_of_work(mlxgen_engine *engine, int32_t level)
{
    heard[0] = '\0';
    heard_size = 0;
    EXPECT(OK, mlxgen_set_log_sink, hear, NULL, NULL, level, &error);
    int details = level >= MLXGEN_LOG_DEBUG, news = level >= MLXGEN_LOG_INFO;

    mlxgen_model *model = load_model(engine, "{\"script\": {\"text\": \"secret\"}}");
    CHECK(has_heard("4 a load begins: 65536 bytes to read") == details);
    CHECK(has_heard("3 loaded a model in ") == news && has_heard(" 65536 bytes\n") == news);
    char text[64];
    mlxgen_stream *stream = open_stream(model, NULL, "secret", NULL);
    drain(stream, text, sizeof text);
    CHECK(strcmp(text, "secret") == 0);
    mlxgen_stream_release(stream);
    CHECK(has_heard("4 a generation begins: a prompt of 6 tokens\n") == details);
    CHECK(has_heard("4 a generation ended (Eos): 6 tokens of prompt, 0 of them reused, 7 generated;") == details);
    mlxgen_prompt_part part = prompt_part("secret");
    mlxgen_generate_options options = generate_options();
    options.temperature = -1;
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, NULL, &part, 1, &options, &stream, &error);
    CHECK(has_heard("2 a generation could not begin: INVALID_ARGUMENT temperature\n"));
    mlxgen_model_release(model);

    const char *damaged = fake_model("{\"faults\": [{\"at\": \"finish\", \"code\": 6}]}");
    EXPECT(INVALID_MODEL, mlxgen_model_load, engine, damaged, strlen(damaged), NULL, &model, &error);
    CHECK(has_heard("2 a load failed after ") && has_heard(": INVALID_MODEL: "));
    model = load_model(engine, "{\"faults\": [{\"at\": \"step\", \"code\": 14}]}");
    stream = open_stream(model, NULL, "secret", NULL);
    mlxgen_event event;
    mlxgen_event_init(&event, sizeof event);
    mlxgen_status status;
    while ((status = mlxgen_stream_next(stream, MLXGEN_WAIT_FOREVER, &event, &error)) == MLXGEN_OK)
        ;
    check_status(__FILE__, __LINE__, "mlxgen_stream_next", MLXGEN_GPU_TIMEOUT, status);
    CHECK(has_heard("2 a generation failed: GPU_TIMEOUT: "));
    mlxgen_stream_release(stream);
    mlxgen_model_release(model);

    EXPECT(OK, mlxgen_set_log_sink, NULL, NULL, NULL, MLXGEN_LOG_OFF, &error);
    CHECK(!has_heard("secret"));
    CHECK((strstr(heard, "\n4 ") != NULL) == details);
}

/* Sinks are replaced while lines come; each is dropped once, and never called after. */
struct sink {
    atomic_int dropped;
};
static struct sink sinks[200];

static void sink_line(void *user, int32_t level, const char *text, size_t size)
{
    (void)level, (void)text, (void)size;
    CHECK(atomic_load(&((struct sink *)user)->dropped) == 0);
}

static void sink_drop(void *user)
{
    CHECK(atomic_fetch_add(&((struct sink *)user)->dropped, 1) == 0);
}

static atomic_int talking;
static void *talk(void *model)
{
    /* Closing a stream whose state's drop fails gives a log line. */
    while (atomic_load(&talking))
        mlxgen_stream_release(open_stream(model, NULL, "ab", NULL));
    return NULL;
}

static void swaps(mlxgen_engine *engine)
{
    mlxgen_model *model = load_model(engine, "{\"faults\": [{\"at\": \"drop_state\"}]}");
    atomic_store(&talking, 1);
    pthread_t threads[2];
    for (size_t index = 0; index < COUNT(threads); index++)
        CHECK(pthread_create(&threads[index], NULL, talk, model) == 0);
    for (size_t index = 0; index < COUNT(sinks); index++) {
        EXPECT(OK, mlxgen_set_log_sink, sink_line, &sinks[index], sink_drop, MLXGEN_LOG_TRACE, &error);
        sleep_ms(1);
    }
    EXPECT(OK, mlxgen_set_log_sink, NULL, NULL, NULL, MLXGEN_LOG_OFF, &error);
    atomic_store(&talking, 0);
    for (size_t index = 0; index < COUNT(threads); index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    for (size_t index = 0; index < COUNT(sinks); index++)
        while (atomic_load(&sinks[index].dropped) == 0)
            sleep_ms(1);
    mlxgen_model_release(model);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    make_objects(&objects);
    EXPECT(OK, mlxgen_tokenize, objects.tokenizer, TEXT(""), 0, &spare, &error);
    mlxgen_buffer_release(spare);
    EXPECT(OK, mlxgen_detokenize, objects.tokenizer, (const uint32_t[]){65}, 1, 0, &spare, &error);
    EXPECT(OK, mlxgen_cancel_new, &cancel, &error);

    mlxgen_model_options options;
    mlxgen_model_options_init(&options, sizeof options);
    options.progress = on_progress;
    options.progress_user = &wanted;
    mlxgen_model *model = NULL;
    EXPECT(OK, mlxgen_model_load, objects.engine, objects.path, strlen(objects.path), &options, &model,
           &error);
    CHECK(atomic_load(&wanted) > 2);
    mlxgen_model_release(model);

    wakeups(objects.model);
    logs(objects.engine);
    lines_of_work(objects.engine, MLXGEN_LOG_WARNING);
    lines_of_work(objects.engine, MLXGEN_LOG_INFO);
    lines_of_work(objects.engine, MLXGEN_LOG_TRACE);
    swaps(objects.engine);
    mlxgen_cancel_release(cancel);
    mlxgen_buffer_release(spare);
    release_objects(&objects);
    check_no_handles();
    return 0;
}
