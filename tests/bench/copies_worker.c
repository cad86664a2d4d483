/* SPDX-License-Identifier: Apache-2.0 */
/* A worker whose rounds can be watched: before and after ROUNDS pushpulls of
 * one key it tells the watcher, and waits for the word to go on.
 *
 *     copies_worker BYTES ROUNDS array|view|private
 *
 * array: shared memory in, the worker's own array out; view: the result is
 * read where the agent put it; private: ordinary memory in, a view out. */
#include "client/psclient.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                            \
    do {                                                                       \
        int rc_ = (call);                                                      \
        if (rc_ != 0) {                                                        \
            char detail_[PSC_TEXT_MAX];                                        \
            detail_[0] = '\0';                                                 \
            (void)psc_last_detail(client, detail_, sizeof(detail_));           \
            fprintf(stderr, "%s: %s %s\n", #call, psc_strerror(rc_), detail_); \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

/* Say that we are at a point, and wait for the word of the watcher. */
static void meet(struct psc_client *client, const char *point)
{
    char path[300];
    char byte;
    FILE *f;

    CHECK(psc_barrier(client));
    snprintf(path, sizeof(path), "%s/%s-%d", getenv("COPIES_DIR"), point,
             psc_rank(client));
    f = fopen(path, "re"); /* A pipe: opens when the watcher does. */
    if (f == NULL || fread(&byte, 1, 1, f) != 1) {
        perror(path);
        exit(1);
    }
    fclose(f);
    CHECK(psc_barrier(client));
}

static void run(struct psc_client *client, uint32_t key, float *in, float *out,
                int rounds)
{
    for (int i = 0; i < rounds; i++) {
        struct psc_op *op;

        CHECK(psc_pushpull_start(client, key, in, out, NULL, &op));
        CHECK(psc_op_wait(op, PSC_WAIT_FOREVER));
        psc_op_free(op);
    }
}

int main(int argc, char **argv)
{
    size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    int rounds = argc > 2 ? atoi(argv[2]) : 0;
    const char *how = argc > 3 ? argv[3] : "view";
    uint64_t count = bytes / sizeof(float);
    struct psc_stats before = {.size = sizeof(before)};
    struct psc_stats after = {.size = sizeof(after)};
    struct psc_client *client = NULL;
    struct psc_options o;
    char why[PSC_TEXT_MAX];
    float *out = NULL;
    void *in;
    uint32_t key;

    psc_options_init(&o, sizeof(o));
    if (psc_options_env(&o, why, sizeof(why)) != 0 ||
        psc_open(&o, &client, why, sizeof(why)) != 0) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    CHECK(psc_key(client, "array", PSC_FLOAT32, 1, &count, &key));
    if (strcmp(how, "private") == 0) {
        in = malloc(bytes);
    } else {
        CHECK(psc_alloc(client, bytes, &in));
    }
    for (uint64_t i = 0; i < count; i++) {
        ((float *)in)[i] = 1;
    }
    if (strcmp(how, "array") == 0) {
        out = malloc(bytes);
    }
    run(client, key, in, out, 2); /* Memory is touched. */
    meet(client, "begin");
    CHECK(psc_get_stats(client, &before));
    run(client, key, in, out, rounds);
    CHECK(psc_get_stats(client, &after));
    meet(client, "end");
    printf("worker copied %.3f bytes for each byte, %.2f system calls a "
           "round\n",
           (double)(after.bytes_copied - before.bytes_copied) /
               ((double)bytes * rounds),
           (double)(after.sends - before.sends + after.receives -
                    before.receives) /
               rounds);
    psc_close(client);
    return 0;
}
