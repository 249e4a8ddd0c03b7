/* How fast memory can be read: a plain pass over a buffer, divided among threads.
 *
 *   read BYTES THREADS
 *
 * Prints one JSON object with the bytes per second of the best of some passes. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PASSES = 8, MOST_THREADS = 64 };

struct share {
    const uint64_t *words;
    size_t count;
    uint64_t sum;
    pthread_barrier_t *barrier;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t sum_of(const uint64_t *words, size_t count) {
    uint64_t sums[32] = {0};
    for (size_t i = 0; i + 32 <= count; i += 32) {
        __builtin_prefetch(words + i + 1024);
        __builtin_prefetch(words + i + 1032);
        __builtin_prefetch(words + i + 1040);
        __builtin_prefetch(words + i + 1048);
        for (size_t lane = 0; lane < 32; lane++) sums[lane] += words[i + lane];
    }
    uint64_t sum = 0;
    for (size_t lane = 0; lane < 32; lane++) sum += sums[lane];
    return sum;
}

static void *work(void *argument) {
    struct share *share = argument;
    for (int pass = 0; pass < PASSES; pass++) {
        pthread_barrier_wait(share->barrier);
        share->sum += sum_of(share->words, share->count);
        pthread_barrier_wait(share->barrier);
    }
    return NULL;
}

int main(int argc, char **argv) {
    size_t bytes = argc == 3 ? strtoull(argv[1], NULL, 10) : 0;
    size_t threads = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (bytes < 4096 || threads < 1 || threads > MOST_THREADS) {
        fprintf(stderr, "usage: read BYTES THREADS\n");
        return 2;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return 1;
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 1, bytes);
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    struct share shares[MOST_THREADS];
    pthread_t handles[MOST_THREADS];
    size_t each = bytes / 8 / threads;
    for (size_t i = 0; i < threads; i++) {
        shares[i] = (struct share){(const uint64_t *)memory + i * each, each, 0, &barrier};
        if (pthread_create(&handles[i], NULL, work, &shares[i]) != 0) return 1;
    }
    double best = 1e9;
    for (int pass = 0; pass < PASSES; pass++) {
        double start = now();
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        double seconds = now() - start;
        if (seconds < best) best = seconds;
    }
    uint64_t sum = 0;
    for (size_t i = 0; i < threads; i++) {
        pthread_join(handles[i], NULL);
        sum += shares[i].sum;
    }
    printf("{\"bytes_per_second\": %.0f, \"sum\": %llu}\n", (double)(each * 8 * threads) / best, (unsigned long long)sum);
    return 0;
}
