/* SPDX-License-Identifier: Apache-2.0 */
/* Options of psched. */
#pragma once

#include "common/options.h"

struct psched_options {
    struct ps_common_options common;
    struct ps_listen_options listen;
    ps_time heartbeat;     /* 0: chosen by psched_heartbeat(). */
    ps_time suspect_after; /* 0: chosen by psched_suspect_after(). */
    ps_time dead_after;    /* 0: chosen by psched_dead_after(). */
    ps_time link_linger;
    ps_time start_timeout;
    ps_time rejoin_grace;
    ps_time rejoin_timeout;
    ps_time diverged_after; /* 0: never. */
    ps_time server_return;
    uint64_t partition_bytes;
    struct ps_key_limits key_limits;
    uint64_t table_memory;
    const char *socket; /* "": none. */
    unsigned mode;
    const char *group; /* "": that of the process. */
    struct ps_option_list operators;
    int read;               /* 0: all, 1: token. */
    const char *token_key;  /* "": a key of the process. */
    const char *state_file; /* "": none; "auto": in the state directory. */
};

extern const struct ps_option_set psched_set;

ps_time psched_heartbeat(const struct psched_options *o);
ps_time psched_suspect_after(const struct psched_options *o);
ps_time psched_dead_after(const struct psched_options *o);
