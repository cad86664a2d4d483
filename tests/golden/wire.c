/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of every message are what they were before: compares the frame of
 * each typical sample with a file of hex digits.
 *
 *     golden_wire DIRECTORY [--update]
 *
 * A difference means that daemons of different builds no longer understand
 * each other. Only a new field of a new protocol version may cause one. */
#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/msg_codec.h"
#include "proto/ps_samples.h"

#define TEXT_MAX 8192u

/* The frame as text: rows of 16 bytes, so that a difference is readable. */
static void make_text(const struct ps_msg *msg, char *out)
{
    uint8_t bytes[2048];
    size_t len = 0;
    size_t used = 0;

    if (ps_msg_encode(msg, PS_PROTOCOL, 0, bytes, sizeof(bytes), &len) != 0) {
        fprintf(stderr, "%s: cannot be encoded\n", ps_msg_name(msg->code));
        exit(2);
    }
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

int main(int argc, char **argv)
{
    bool update = argc == 3 && strcmp(argv[2], "--update") == 0;
    size_t messages = ps_samples_count() / 3;
    size_t bad = 0;

    if (argc < 2 || (argc > 2 && !update)) {
        fprintf(stderr, "usage: golden_wire DIRECTORY [--update]\n");
        return 2;
    }
    printf("1..%zu\n", messages + 1);
    for (size_t i = 0; i < messages; i++) {
        const struct ps_msg *msg = ps_sample(3 * i + PS_SAMPLE_TYPICAL);
        char made[TEXT_MAX];
        char kept[TEXT_MAX];
        char path[4096];
        bool same;

        snprintf(path, sizeof(path), "%s/%s.hex", argv[1],
                 ps_msg_name(msg->code));
        make_text(msg, made);
        if (update) {
            write_text(path, made);
        }
        read_text(path, kept);
        same = strcmp(made, kept) == 0;
        printf("%s %zu - %s\n", same ? "ok" : "not ok", i + 1,
               ps_msg_name(msg->code));
        if (!same) {
            fprintf(stderr, "%s\nkept:\n%smade:\n%s", path, kept, made);
            bad++;
        }
    }
    if (count_files(argv[1]) != messages) {
        printf("not ok %zu - a file for each message, and no more\n",
               messages + 1);
        bad++;
    } else {
        printf("ok %zu - a file for each message, and no more\n", messages + 1);
    }
    return bad > 0 ? 1 : 0;
}
