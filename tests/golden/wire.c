/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of every message and fixed record, and those of a whole file of an
 * optimizer's state, are what they were before: compares the frame of each
 * typical sample with a file of hex digits.
 *
 *     golden_wire DIRECTORY [--update]
 *
 * A difference means that daemons of different builds no longer understand
 * each other. Only a new field of a new protocol version may cause one,
 * or a fixed record with a new constant. */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/state_format.h"
#include "proto/msg_codec.h"
#include "proto/ps_samples.h"

#define TEXT_MAX 8192u

/* Bytes as text: rows of 16, so that a difference is readable. */
static void make_text(const uint8_t *bytes, size_t len, char *out)
{
    size_t used = 0;

    for (size_t i = 0; i < len; i++) {
        used += (size_t)snprintf(out + used, TEXT_MAX - used, "%02x%c",
                                 bytes[i],
                                 i % 16 == 15 || i + 1 == len ? '\n' : ' ');
    }
}

static void read_text(const char *path, char *out)
{
    FILE *f = fopen(path, "r");
    size_t len = 0;

    if (f != NULL) {
        len = fread(out, 1, TEXT_MAX - 1, f);
        fclose(f);
    }
    out[len] = '\0';
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(2);
    }
}

/* Files whose name ends in .hex; a message that went away leaves one over. */
static size_t count_files(const char *directory)
{
    DIR *d = opendir(directory);
    struct dirent *entry;
    size_t count = 0;

    if (d == NULL) {
        fprintf(stderr, "%s: %s\n", directory, strerror(errno));
        exit(2);
    }
    while ((entry = readdir(d)) != NULL) {
        const char *dot = strrchr(entry->d_name, '.');

        count += dot != NULL && strcmp(dot, ".hex") == 0 ? 1 : 0;
    }
    closedir(d);
    return count;
}

/* Compares the bytes with the file of that name; true if they are the same. */
static bool compare(const char *directory, bool update, const char *name,
                    const uint8_t *bytes, size_t len)
{
    static unsigned count;
    char made[TEXT_MAX];
    char kept[TEXT_MAX];
    char path[4096];
    bool same;

    snprintf(path, sizeof(path), "%s/%s.hex", directory, name);
    make_text(bytes, len, made);
    if (update) {
        write_text(path, made);
    }
    read_text(path, kept);
    same = strcmp(made, kept) == 0;
    printf("%s %u - %s\n", same ? "ok" : "not ok", ++count, name);
    if (!same) {
        fprintf(stderr, "%s\nkept:\n%smade:\n%s", path, kept, made);
    }
    return same;
}

static bool compare_msg(const char *directory, bool update,
                        const struct ps_msg *msg)
{
    uint8_t bytes[2048];
    size_t len = 0;

    if (ps_msg_encode(msg, PS_PROTOCOL, 0, bytes, sizeof(bytes), &len) != 0) {
        fprintf(stderr, "%s: cannot be encoded\n", ps_msg_name(msg->code));
        exit(2);
    }
    return compare(directory, update, ps_msg_name(msg->code), bytes, len);
}

static bool compare_fixed(const char *directory, bool update,
                          const struct ps_fixed_sample *sample)
{
    uint8_t bytes[2048];
    char name[64];

    if (sample->size > sizeof(bytes)) {
        fprintf(stderr, "%s: is too long\n", sample->name);
        exit(2);
    }
    sample->put(bytes, sample->value);
    snprintf(name, sizeof(name), "fixed_%s", sample->name);
    return compare(directory, update, name, bytes, sample->size);
}

/* A string key with one buffer, and an integer key with three elements of which
 * the buffer ends within 8 bytes. */
static bool compare_state_file(const char *directory, bool update)
{
    const double steps[] = {0.5, -2};
    const float means[] = {1, 2, 3};
    char *bytes = NULL;
    size_t len = 0;
    struct state_stream s = {.file = open_memstream(&bytes, &len)};
    bool same;

    if (s.file == NULL) {
        exit(2);
    }
    state_put_start(
        &s, &(struct ps_fixed_state_file){.optimizer = "adam", .key_count = 2});
    state_put_key(&s,
                  &(struct ps_fixed_state_file_key){.kind = PS_KEY_KIND_STRING,
                                                    .dtype = PS_DTYPE_FLOAT64,
                                                    .buffer_count = 1,
                                                    .count = 2,
                                                    .steps = 7,
                                                    .name = "fc1.weight"});
    state_put_buffer(&s, steps, sizeof(steps));
    state_put_key(&s,
                  &(struct ps_fixed_state_file_key){.kind = PS_KEY_KIND_INTEGER,
                                                    .dtype = PS_DTYPE_FLOAT16,
                                                    .buffer_count = 1,
                                                    .count = 3,
                                                    .steps = 6,
                                                    .name = "4711"});
    state_put_buffer(&s, means, sizeof(means));
    state_put_end(&s);
    fclose(s.file);
    same = compare(directory, update, "state_file", (const uint8_t *)bytes,
                   len);
    free(bytes);
    return same && !s.has_failed;
}

int main(int argc, char **argv)
{
    bool update = argc == 3 && strcmp(argv[2], "--update") == 0;
    size_t messages = ps_samples_count() / 3;
    size_t fixed = ps_fixed_samples_count() / 3;
    size_t files = messages + fixed + 1;
    size_t bad = 0;

    if (argc < 2 || (argc > 2 && !update)) {
        fprintf(stderr, "usage: golden_wire DIRECTORY [--update]\n");
        return 2;
    }
    printf("1..%zu\n", files + 1);
    for (size_t i = 0; i < messages; i++) {
        bad += !compare_msg(argv[1], update,
                            ps_sample(3 * i + PS_SAMPLE_TYPICAL));
    }
    for (size_t i = 0; i < fixed; i++) {
        bad += !compare_fixed(argv[1], update,
                              ps_fixed_sample(3 * i + PS_SAMPLE_TYPICAL));
    }
    bad += !compare_state_file(argv[1], update);
    if (count_files(argv[1]) != files) {
        printf("not ok %zu - a file for each, and no more\n", files + 1);
        bad++;
    } else {
        printf("ok %zu - a file for each, and no more\n", files + 1);
    }
    return bad > 0 ? 1 : 0;
}
