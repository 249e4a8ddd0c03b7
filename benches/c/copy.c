/* How fast memory can be copied: one pass over a buffer, divided among threads.
 *
 *   copy BYTES THREADS
 *
 * Prints one JSON object: bytes per second into memory that is there (the best of some passes), and into memory that
 * the system has to give first. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PASSES = 4, MOST_THREADS = 64 };

struct share {
    char *to;
    const char *from;
    size_t bytes;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static char *fresh(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(1);
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static void *work(void *argument) {
    const struct share *share = argument;
    memcpy(share->to, share->from, share->bytes);
    return NULL;
}

static double copy(char *to, const char *from, size_t bytes, size_t threads) {
    struct share shares[MOST_THREADS];
    pthread_t handles[MOST_THREADS];
    size_t each = bytes / threads;
    double start = now();
    for (size_t i = 0; i < threads; i++) {
        shares[i] = (struct share){to + i * each, from + i * each, each};
        if (pthread_create(&handles[i], NULL, work, &shares[i]) != 0) exit(1);
    }
    for (size_t i = 0; i < threads; i++) pthread_join(handles[i], NULL);
    return (double)(each * threads) / (now() - start);
}

int main(int argc, char **argv) {
    size_t bytes = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
    size_t threads = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (bytes < 4096 || threads < 1 || threads > MOST_THREADS) {
        fprintf(stderr, "usage: copy BYTES THREADS\n");
        return 2;
    }
    char *from = fresh(bytes), *to = fresh(bytes);
    memset(from, 1, bytes);
    double first = copy(to, from, bytes, threads), best = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        double speed = copy(to, from, bytes, threads);
        if (speed > best) best = speed;
    }
    printf("{\"bytes_per_second\": %.0f, \"fresh_bytes_per_second\": %.0f, \"last\": %d}\n", best, first, to[bytes - 1]);
    return 0;
}
