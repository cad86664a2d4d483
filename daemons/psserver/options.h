/* SPDX-License-Identifier: Apache-2.0 */
/* Options of psserver. */
#pragma once

#include "common/options.h"

enum psserver_keep { PSSERVER_KEEP_AUTO, PSSERVER_KEEP_OFF };

struct psserver_options {
    struct ps_common_options common;
    struct ps_listen_options listen;
    struct ps_scheduler_options scheduler;
    struct ps_transport_options transport;
    const char *advertise; /* "auto": chosen from the addresses. */
    const char *interface; /* "": none. */
    ps_time link_linger;
    struct ps_compute_options compute;
    uint64_t memory;
    int keep; /* enum psserver_keep */
    uint64_t window;
};

extern const struct ps_option_set psserver_set;
