/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target once on each file named, and on each file in the folders
 * named; so corpora serve as tests wherever there is no libFuzzer. Prints TAP,
 * one line a file or folder. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

static void give_up(const char *path)
{
    fprintf(stderr, "%s: %s\n", path, strerror(errno));
    exit(2);
}

static void run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    uint8_t *data;
    size_t size;

    if (f == NULL || fstat(fileno(f), &st) != 0) {
        give_up(path);
    }
    size = (size_t)st.st_size;
    /* Of exactly this size, so that sanitizers see a read behind it. */
    data = malloc(size > 0 ? size : 1);
    if (data == NULL || fread(data, 1, size, f) != size) {
        give_up(path);
    }
    fclose(f);
    if (LLVMFuzzerTestOneInput(data, size) != 0) {
        fprintf(stderr, "%s: the target wants no such input\n", path);
        exit(1);
    }
    free(data);
}

static size_t run_folder(const char *path)
{
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    size_t files = 0;

    if (count < 0) {
        give_up(path);
    }
    for (int i = 0; i < count; i++) {
        char file[4096];

        if (*entries[i]->d_name != '.') {
            snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name);
            run_file(file);
            files++;
        }
        free(entries[i]);
    }
    free(entries);
    return files;
}

int main(int argc, char **argv)
{
    size_t bad = 0;

    printf("1..%d\n", argc - 1);
    for (int i = 1; i < argc; i++) {
        struct stat st;
        size_t files = 1;

        if (stat(argv[i], &st) != 0) {
            give_up(argv[i]);
        }
        if (S_ISDIR(st.st_mode)) {
            files = run_folder(argv[i]);
        } else {
            run_file(argv[i]);
        }
        /* An empty corpus tests nothing. */
        printf("%s %d - %zu inputs\n", files > 0 ? "ok" : "not ok", i, files);
        bad += files == 0 ? 1 : 0;
    }
    return bad > 0 ? 1 : 0;
}
