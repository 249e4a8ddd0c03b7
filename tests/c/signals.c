/* Cancelling from a signal handler, while other threads make and release cancel handles. */
#define _DEFAULT_SOURCE
#include "check.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

static _Atomic(mlxgen_cancel *) target;
static atomic_int handled, stop;

static void on_signal(int number)
{
    (void)number;
    mlxgen_cancel *cancel = atomic_load(&target);
    mlxgen_status status = mlxgen_cancel_request(cancel);
    /* Either it lived, or it had been released already. */
    if (status != MLXGEN_OK && status != MLXGEN_INVALID_ARGUMENT)
        _exit(2);
    if (status == MLXGEN_OK && mlxgen_cancel_is_requested(cancel) < 0)
        _exit(3);
    atomic_fetch_add(&handled, 1);
}

static void *churn(void *argument)
{
    mlxgen_cancel *own[16] = {NULL};
    while (!atomic_load(&stop)) {
        for (size_t index = 0; index < COUNT(own); index++) {
            EXPECT(OK, mlxgen_cancel_new, &own[index], &error);
            CHECK(mlxgen_cancel_retain(own[index]) == own[index]);
        }
        for (size_t index = 0; index < COUNT(own); index++) {
            /* Nobody asked for these: a request never reaches another handle. */
            CHECK(mlxgen_cancel_is_requested(own[index]) == 0);
            mlxgen_cancel_release(own[index]);
            mlxgen_cancel_release(own[index]);
        }
    }
    (void)argument;
    return NULL;
}

/* Signals interrupt this thread in the middle of its calls; the handler uses its handles. */
static void *be_interrupted(void *argument)
{
    while (!atomic_load(&stop)) {
        mlxgen_cancel *cancel = NULL;
        EXPECT(OK, mlxgen_cancel_new, &cancel, &error);
        atomic_store(&target, cancel);
        mlxgen_cancel_retain(cancel);
        mlxgen_cancel_release(cancel);
        mlxgen_cancel_release(cancel);
    }
    (void)argument;
    return NULL;
}

#ifdef __linux__
/* The value of a line such as "SigBlk:\t0000000000000000" of a thread's status. */
static void read_status(const char *thread, const char *name, char *value, size_t capacity)
{
    char path[300], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *file = fopen(path, "r");
    value[0] = '\0';
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        size_t size = strlen(name);
        if (strncmp(line, name, size) == 0 && line[size] == ':')
            snprintf(value, capacity, "%.*s", (int)strcspn(line + size + 2, "\n"), line + size + 2);
    }
    if (file != NULL)
        fclose(file);
}

/* No handler of the program's runs on a thread of the library's. */
static void threads_of_the_library_hold_signals_back(void)
{
    DIR *threads = opendir("/proc/self/task");
    CHECK(threads != NULL);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(threads)) != NULL;) {
        char name[64], mask[64];
        read_status(entry->d_name, "Name", name, sizeof name);
        read_status(entry->d_name, "SigBlk", mask, sizeof mask);
        if (strncmp(name, "mlxgen-", 7) != 0)
            continue;
        found++;
        unsigned long long blocked = strtoull(mask, NULL, 16);
        for (int number = 1; number < 32; number++) {
            /* Nobody can hold back the first two; the others are of a thread's own faults. */
            int is_free = number == SIGKILL || number == SIGSTOP || number == SIGSEGV || number == SIGBUS ||
                          number == SIGFPE || number == SIGILL || number == SIGTRAP || number == SIGSYS ||
                          number == SIGABRT;
            CHECK((int)(blocked >> (number - 1) & 1) == !is_free);
        }
    }
    closedir(threads);
    CHECK(found > 0);
}
#endif

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);

    pthread_t threads[3], interrupted;
    for (size_t index = 0; index < COUNT(threads); index++)
        CHECK(pthread_create(&threads[index], NULL, churn, NULL) == 0);
    CHECK(pthread_create(&interrupted, NULL, be_interrupted, NULL) == 0);
    double until = seconds_now() + test_seconds(0.5);
    while (seconds_now() < until || atomic_load(&handled) <= 10) {
        CHECK(pthread_kill(interrupted, SIGUSR1) == 0);
        struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
    }
    atomic_store(&stop, 1);
    for (size_t index = 0; index < COUNT(threads); index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    CHECK(pthread_join(interrupted, NULL) == 0);
    check_no_handles();

    /* The usual case: a signal ends a generation. */
    mlxgen_engine *engine = new_engine();
    mlxgen_model *model = load_model(engine, "{\"step_micros\": 1000}");
    mlxgen_generate_options options = generate_options();
    EXPECT(OK, mlxgen_cancel_new, &options.cancel, &error);
    atomic_store(&target, options.cancel);
    mlxgen_stream *stream = open_stream(model, NULL, "ab", &options);
    mlxgen_event event;
    mlxgen_event_init(&event, sizeof event);
    EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
#ifdef __linux__
    threads_of_the_library_hold_signals_back();
#endif
    CHECK(raise(SIGUSR1) == 0);
    CHECK(drain(stream, NULL, 0) == MLXGEN_END_CANCELLED);
    mlxgen_stream_release(stream);
    mlxgen_cancel_release(options.cancel);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
    check_no_handles();
    return 0;
}
