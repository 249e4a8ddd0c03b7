/* NOT LINKED: opened and closed at run time. The library stays, because its threads do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mlxgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition)                                                                          \
    ((condition) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), exit(1)))

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    (void)argv;
    const char *path = getenv("MLXGEN_TEST_LIBRARY");
    CHECK(path != NULL);
    for (int round = 0; round < 3; round++) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL)
            fprintf(stderr, "%s\n", dlerror());
        CHECK(library != NULL);
        mlxgen_status (*engine_new)(const mlxgen_engine_options *, mlxgen_engine **, mlxgen_error **);
        void (*engine_release)(mlxgen_engine *);
        uint64_t (*live_handles)(void);
        *(void **)&engine_new = dlsym(library, "mlxgen_engine_new");
        *(void **)&engine_release = dlsym(library, "mlxgen_engine_release");
        *(void **)&live_handles = dlsym(library, "mlxgen_live_handles");
        CHECK(engine_new != NULL && engine_release != NULL && live_handles != NULL);
        CHECK(live_handles() == 0);
        mlxgen_engine *engine = NULL;
        CHECK(engine_new(NULL, &engine, NULL) == MLXGEN_OK);
        /* Its thread may still be ending when the library is closed. */
        engine_release(engine);
        CHECK(dlclose(library) == 0);
        struct timespec pause = {0, 20000000};
        nanosleep(&pause, NULL);
        /* Still there. */
        CHECK(dlopen(path, RTLD_NOW | RTLD_NOLOAD) != NULL);
        CHECK(live_handles() == 0);
    }
    return 0;
}
