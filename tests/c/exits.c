/* The process ends during generations: by return from main, by exit() in another thread, in the
 * middle of a step, inside a callback. Each must end with its own code, within a bound. */
#define _GNU_SOURCE
#include "check.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* When the child began to leave; both processes see it. */
static double *leaving;

static int now_leave(int code)
{
    *leaving = seconds_now();
    return code;
}

static mlxgen_stream *begin(const char *json)
{
    mlxgen_engine *engine = new_engine();
    mlxgen_model *model = load_model(engine, json);
    mlxgen_stream *stream = open_stream(model, NULL, "ab", NULL);
    mlxgen_event event;
    mlxgen_event_init(&event, sizeof event);
    EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
    return stream;
}

static void *pull(void *stream)
{
    mlxgen_event event;
    mlxgen_event_init(&event, sizeof event);
    mlxgen_status status;
    while ((status = mlxgen_stream_next(stream, MLXGEN_WAIT_FOREVER, &event, &error)) == MLXGEN_OK)
        ;
    return NULL;
}

static void pull_in_thread(mlxgen_stream *stream)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, pull, stream) == 0);
    CHECK(pthread_detach(thread) == 0);
    sleep_ms(10);
}

static void *leave(void *code)
{
    exit(now_leave((int)(intptr_t)code));
}

static void leave_in_callback(void *user)
{
    exit(now_leave((int)(intptr_t)user));
}

struct load {
    mlxgen_engine *engine;
    const char *path;
};

static void *load_slowly(void *argument)
{
    struct load *load = argument;
    mlxgen_model *model = NULL;
    mlxgen_model_load(load->engine, load->path, strlen(load->path), NULL, &model, NULL);
    return NULL;
}

static mlxgen_stream *late;
static void use_after_exit(void)
{
    /* Handlers that were registered before the library's run after it has stopped. */
    mlxgen_event event = {.struct_size = sizeof event};
    mlxgen_status status = mlxgen_stream_next(late, 0, &event, NULL);
    if (status != MLXGEN_WRONG_STATE)
        _exit(1);
    mlxgen_stream_release(late);
}

/* Runs in a process of its own, which has not used the library before. */
static int way(int number)
{
    switch (number) {
    case 0: /* nothing but an engine */
        new_engine();
        return now_leave(10);
    case 1: /* nobody pulls */
        begin("{}");
        return now_leave(11);
    case 2: /* somebody waits for an event */
        pull_in_thread(begin("{\"step_micros\": 1000}"));
        return now_leave(12);
    case 3: /* in the middle of a long step */
        pull_in_thread(begin("{\"step_micros\": 400000}"));
        exit(now_leave(13));
    case 4: { /* from another thread, while main waits */
        mlxgen_stream *stream = begin("{\"step_micros\": 1000}");
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, leave, (void *)14) == 0);
        pull(stream);
        sleep_ms(50000);
        return 1;
    }
    case 5: /* from a wake-up callback, on the library's own thread */
        EXPECT(OK, mlxgen_stream_set_wakeup, begin("{\"step_micros\": 5000}"), leave_in_callback,
               (void *)15, NULL, &error);
        sleep_ms(50000);
        return 1;
    case 6: /* handlers that use the library */
        CHECK(atexit(use_after_exit) == 0);
        late = begin("{\"step_micros\": 1000}");
        return now_leave(16);
    case 7: /* without handlers */
        begin("{\"step_micros\": 1000}");
        _exit(now_leave(17));
    default: { /* during a load in another thread */
        static struct load load;
        load.engine = new_engine();
        load.path = fake_model("{\"weight_bytes\": 100000000, \"piece_micros\": 1000}");
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, load_slowly, &load) == 0);
        sleep_ms(50);
        return now_leave(18);
    }
    }
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    leaving = mmap(NULL, sizeof *leaving, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(leaving != MAP_FAILED);
    for (int number = 0; number < 9; number++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(60);
            exit(way(number));
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child);
        char what[64];
        snprintf(what, sizeof what, "way %d ended with wait status %#x", number, (unsigned)status);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 10 + number)
            check_failed(__FILE__, __LINE__, what);
        /* The library waits for the running piece of work, two seconds at most. */
        CHECK(seconds_now() - *leaving < 5.0);
    }
    return 0;
}
