/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "common/options.h"

struct psched_options {
    struct ps_common_options common;
    struct ps_listen_options listen;
    ps_time heartbeat;
    ps_time suspect_after;
    ps_time dead_after;
    ps_time link_linger;
    ps_time start_timeout;
    ps_time rejoin_grace;
    uint64_t partition_bytes;
};

extern const struct ps_option_set psched_set;
