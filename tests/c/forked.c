/* A fork during a generation: the child is refused, the parent goes on. */
#define _POSIX_C_SOURCE 200809L
#include "every.h"

#include <sys/wait.h>
#include <unistd.h>

static atomic_int stop;

/* Keeps the library's locks busy, so that some are held at the time of the fork. */
static void *churn(void *model)
{
    while (!atomic_load(&stop)) {
        mlxgen_cancel *cancel = NULL;
        EXPECT(OK, mlxgen_cancel_new, &cancel, &error);
        mlxgen_stream *stream = open_stream(model, NULL, "abc", NULL);
        mlxgen_event event;
        mlxgen_event_init(&event, sizeof event);
        EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event, &error);
        mlxgen_stream_release(stream);
        mlxgen_cancel_release(cancel);
    }
    return NULL;
}

static void in_child(const struct objects *objects, mlxgen_cancel *cancel, mlxgen_error *old)
{
    /* An error object cannot be made there: its status is all there is. */
    errors_expected = 0;
    error = NULL;
    mlxgen_buffer *buffer = (mlxgen_buffer *)objects;
    CHECK(mlxgen_build_info(&buffer, &error) == MLXGEN_WRONG_STATE && buffer == NULL && error == NULL);
    every_function_is_refused(objects, "in-child");
    every_getter_answers(objects, 0);
    CALL(WRONG_STATE, mlxgen_cancel_request, cancel);
    mlxgen_cancel_release(cancel);
    CHECK(strcmp(mlxgen_error_message(old, NULL), "") == 0);
    mlxgen_error_release(old);
    struct objects copy = *objects;
    release_objects(&copy);
}

/* A fork before there is an engine, and so a thread of the library's. */
static void without_an_engine(void)
{
    mlxgen_cancel *cancel = NULL;
    EXPECT(OK, mlxgen_cancel_new, &cancel, &error);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(20);
        _exit(mlxgen_cancel_request(cancel) == MLXGEN_WRONG_STATE ? 0 : 1);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    mlxgen_cancel_release(cancel);
}

/* Ends the library's thread, without waiting for that, and starts the next one. */
static void *start_and_end(void *argument)
{
    while (!atomic_load(&stop)) {
        mlxgen_engine *engine = NULL;
        /* The other of these threads may have ended it at once. */
        mlxgen_status status = mlxgen_engine_new(NULL, &engine, NULL);
        CHECK(status == MLXGEN_OK || status == MLXGEN_WRONG_STATE);
        status = mlxgen_shutdown(0, NULL);
        CHECK(status == MLXGEN_OK || status == MLXGEN_TIMEOUT);
        mlxgen_engine_release(engine);
    }
    (void)argument;
    return NULL;
}

/* Forks while the library's thread ends and another is waited for: neither waits for the other. */
static void while_the_library_ends(void)
{
    pthread_t threads[2];
    /* What is made once is made by one thread, whose order with the others ThreadSanitizer can see. */
    mlxgen_engine_release(new_engine());
    for (size_t index = 0; index < COUNT(threads); index++)
        CHECK(pthread_create(&threads[index], NULL, start_and_end, NULL) == 0);
    double until = seconds_now() + test_seconds(2);
    while (seconds_now() < until) {
        double begin = seconds_now();
        pid_t child = fork();
        double took = seconds_now() - begin;
        CHECK(child >= 0);
        if (child == 0)
            _exit(0);
        /* It gives up after two seconds. */
        CHECK(took < 1.5);
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    atomic_store(&stop, 1);
    for (size_t index = 0; index < COUNT(threads); index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    atomic_store(&stop, 0);
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    without_an_engine();
    while_the_library_ends();
    struct objects objects;
    make_objects(&objects);
    mlxgen_cancel *cancel = NULL;
    EXPECT(OK, mlxgen_cancel_new, &cancel, &error);
    mlxgen_error *old = NULL;
    CHECK(mlxgen_cancel_new(NULL, &old) == MLXGEN_INVALID_ARGUMENT);
    pthread_t threads[4];
    for (size_t index = 0; index < COUNT(threads); index++)
        CHECK(pthread_create(&threads[index], NULL, churn, objects.model) == 0);
    mlxgen_event event;
    mlxgen_event_init(&event, sizeof event);
    for (int round = 0; round < 10; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            if (round > 0)
                unsetenv("MLXGEN_TEST_PAIRS");
            in_child(&objects, cancel, old);
            /* Half of the children leave through exit(), which runs the handlers. */
            if (round % 2 == 0)
                _exit(0);
            exit(0);
        }
        int status = -1;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        EXPECT(OK, mlxgen_stream_next, objects.stream, MLXGEN_WAIT_FOREVER, &event, &error);
    }
    atomic_store(&stop, 1);
    for (size_t index = 0; index < COUNT(threads); index++)
        CHECK(pthread_join(threads[index], NULL) == 0);
    mlxgen_error_release(old);
    mlxgen_cancel_release(cancel);
    release_objects(&objects);
    check_no_handles();
    return 0;
}
