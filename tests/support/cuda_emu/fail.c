/* SPDX-License-Identifier: Apache-2.0 */
/* Failures by PSKV_EMU_FAIL: `kind:n` lets the n-th call of that kind fail,
 * `kind:n+` also all after it. */
#include "emu.h"

#include <stdio.h>
#include <string.h>

#define FAILURES_MAX 16u

static const char *const kinds[] = {
    "init",   "alloc", "host", "register", "import", "module",
    "launch", "p2p",   "lost", "stream",   "event",
};

struct failure {
    char kind[16];
    unsigned long at; /* Number of the call, from 1. */
    bool and_later;
    unsigned long calls;
};

static struct failure failures[FAILURES_MAX];
static unsigned failures_count;

static bool is_kind(const char *text)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(text, kinds[i]) == 0) {
            return true;
        }
    }
    return false;
}

int emu_fail_add(const char *text)
{
    if (text == NULL) {
        failures_count = 0;
        return 0;
    }
    while (*text != '\0') {
        struct failure f = {.calls = 0};
        int used = 0;

        if (sscanf(text, "%15[a-z0-9]:%lu%n", f.kind, &f.at, &used) != 2 ||
            f.at == 0 || !is_kind(f.kind) || failures_count == FAILURES_MAX) {
            return -1;
        }
        text += used;
        if (*text == '+') {
            f.and_later = true;
            text++;
        }
        if (*text != '\0' && *text++ != ',') {
            return -1;
        }
        failures[failures_count++] = f;
    }
    return 0;
}

bool emu_fails(const char *kind)
{
    bool fails = false;

    for (unsigned i = 0; i < failures_count; i++) {
        struct failure *f = &failures[i];

        if (strcmp(f->kind, kind) == 0) {
            f->calls++;
            fails = fails || f->calls == f->at ||
                    (f->and_later && f->calls > f->at);
        }
    }
    return fails;
}
