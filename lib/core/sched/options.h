/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a scheduler, with the signatures and the storage of tokens that its
 * daemon provides. */
#pragma once

#include "base/limits.h"
#include "base/trace.h"
#include "core/base/ledger.h"
#include "core/base/peer.h"
#include "core/link/link.h"
#include "proto/ps_fixed.h"

#include <stdbool.h>
#include <stdint.h>

/* A token that was issued. */
struct ps_token_record {
    struct ps_fixed_token_claims claims;
    bool is_revoked;
};

/* Signatures and storage of tokens. */
struct ps_token_ops {
    void *arg; /* First argument of the functions. */
    /* Writes the text of a token with these claims. False: failed. */
    bool (*sign)(void *arg, const struct ps_fixed_token_claims *claims,
                 char ret_text[PS_TOKEN_TEXT_MAX + 1]);
    /* True: `text`, of any bytes, is what sign() wrote for these claims. */
    bool (*verify)(void *arg, const char *text,
                   struct ps_fixed_token_claims *ret_claims);
    /* Stores all tokens in place of those stored before. False: failed. */
    bool (*save)(void *arg, const struct ps_token_record *list, uint32_t count);
};

struct ps_sched_options {
    struct ps_facts facts;
    char name[PS_NAME_MAX + 1];
    char cluster[PS_NAME_MAX + 1];
    /* Unix socket, reported to tools that connect by TCP; "": none. */
    char control_path[PS_SOCKET_PATH_MAX + 1];
    uint32_t uid; /* User of the daemon; may change every job. */
    /* Further users who may change every job. */
    uint32_t operators[PS_OPERATORS_MAX];
    uint32_t operator_count;
    bool reading_needs_token;             /* Queries by TCP need a token. */
    const struct ps_token_ops *token_ops; /* NULL: there are no tokens. */
    /* Tokens issued by earlier schedulers; copied. */
    const struct ps_token_record *tokens;
    uint32_t token_count;
    uint64_t wall_ns;  /* Nanoseconds since 1970 at the start. */
    uint64_t instance; /* Drawn by the driver at start; never 0. */
    /* Job generations and incarnations start above this, and node numbers
     * derive from it: wall-clock nanoseconds in the daemon, 0 in simulation,
     * so that none is reused. */
    uint64_t generation_base;
    uint64_t seed;
    ps_time heartbeat;      /* Interval sent to members. */
    ps_time suspect_after;  /* Silence until SUSPECT. */
    ps_time dead_after;     /* Silence until GONE. */
    ps_time start_timeout;  /* For a job that sets none. */
    ps_time rejoin_grace;   /* A job without a live rank fails after this. */
    ps_time rejoin_timeout; /* A job with a LOST rank fails after this. */
    ps_time diverged_after; /* A job whose ranks wait for each other does. */
    /* Wait for a server whose memory outlives its process. */
    ps_time server_return;
    /* For a job that sets none; 0: chosen for each key. */
    uint32_t partition_bytes;
    /* Placement messages of a job in one step; 0: PS_PLACEMENTS_SENT_MAX. */
    uint32_t placements_sent_max;
    /* By kind of account; 0: no limit. */
    struct ps_account_limits limits[PS_ACCOUNT_KIND_COUNT];
    struct ps_trace *trace; /* Ring of what it does; not owned; NULL: none. */
    struct ps_link_options link;
    ps_time link_linger; /* Lifetime of link state without a connection. */
};
