/* How fast memory can be copied: one pass over a buffer, divided among threads.
 *
 *   copy BYTES THREADS FILE
 *
 * Prints one JSON object: bytes per second into memory that is there (the best of some passes), into memory that the
 * system has to give first, and from the first bytes of a file, in the page cache already, into such memory. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PASSES = 4, MOST_THREADS = 64, PIECE = 1 << 20 };

struct share {
    char *to;
    /* Memory, or NULL: the file, from `offset` on. */
    const char *from;
    int file;
    size_t offset, bytes;
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
    if (share->from != NULL) {
        memcpy(share->to, share->from, share->bytes);
        return NULL;
    }
    for (size_t done = 0; done < share->bytes;) {
        size_t piece = share->bytes - done < PIECE ? share->bytes - done : PIECE;
        ssize_t count = pread(share->file, share->to + done, piece, (off_t)(share->offset + done));
        if (count <= 0) exit(1);
        done += (size_t)count;
    }
    return NULL;
}

/* From memory, or from the file if `from` is NULL. */
static double copy(char *to, const char *from, int file, size_t bytes, size_t threads) {
    struct share shares[MOST_THREADS];
    pthread_t handles[MOST_THREADS];
    size_t each = bytes / threads;
    double start = now();
    for (size_t i = 0; i < threads; i++) {
        const char *part = from == NULL ? NULL : from + i * each;
        shares[i] = (struct share){to + i * each, part, file, i * each, each};
        if (pthread_create(&handles[i], NULL, work, &shares[i]) != 0) exit(1);
    }
    for (size_t i = 0; i < threads; i++) pthread_join(handles[i], NULL);
    return (double)(each * threads) / (now() - start);
}

int main(int argc, char **argv) {
    size_t bytes = argc == 4 ? strtoull(argv[1], NULL, 10) : 0;
    size_t threads = argc == 4 ? strtoull(argv[2], NULL, 10) : 0;
    int file = argc == 4 ? open(argv[3], O_RDONLY) : -1;
    if (bytes < 4096 || threads < 1 || threads > MOST_THREADS || file < 0) {
        fprintf(stderr, "usage: copy BYTES THREADS FILE\n");
        return 2;
    }
    /* First, while nothing else has been taken: as a process that loads a model. */
    char *to = fresh(bytes);
    double read = copy(to, NULL, file, bytes, threads);
    munmap(to, bytes);
    char *from = fresh(bytes);
    to = fresh(bytes);
    memset(from, 1, bytes);
    double first = copy(to, from, -1, bytes, threads), best = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        double speed = copy(to, from, -1, bytes, threads);
        if (speed > best) best = speed;
    }
    printf("{\"bytes_per_second\": %.0f, \"fresh_bytes_per_second\": %.0f, \"file_bytes_per_second\": %.0f, \"last\": %d}\n",
           best, first, read, to[bytes - 1]);
    return 0;
}
