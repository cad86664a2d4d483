/* SPDX-License-Identifier: Apache-2.0 */
/* Turns bytes into a run of a machine: connections come and go, messages with
 * any content arrive in any order, computations end late, time passes. The
 * checks: nothing aborts, leaks or grows without bound, for any input. Messages
 * are made from the shapes of proto/shape.h, so a new message or field is
 * fuzzed from the day it exists. */
#pragma once

#include "core/base/machine.h"

/* One step of a start that gives the machine work, so that chance need not: a
 * message on this connection, which is opened before the first one; without a
 * message, a region. */
struct fuzz_line {
    uint8_t conn;
    enum ps_conn_kind kind;
    const struct ps_msg *msg;
    const void *payload;
    size_t payload_len;
};

struct fuzz_setup {
    struct ps_machine machine;
    enum ps_role role;           /* Of the machine. */
    enum ps_conn_kind accepts;   /* Kind of new connections. */
    bool tools;                  /* Some of them come by a socket for tools. */
    struct ps_pool *pools[2];    /* Must be empty at the end. */
    void (*destroy)(void *self); /* Frees the machine. */
    const struct fuzz_line *line;
    uint32_t line_count;
};

void fuzz_machine(const struct fuzz_setup *setup, const uint8_t *data,
                  size_t size);
