/* SPDX-License-Identifier: Apache-2.0 */
/* Supervisors of pslaunch that the agent has started. */
#pragma once

#include "base/limits.h"

#include <stdint.h>

/* Table of transitions: supervisor.c. */
enum ps_agent_supervisor_state {
    PS_AGENT_SUPERVISOR_STARTING,
    PS_AGENT_SUPERVISOR_RUNNING,
    PS_AGENT_SUPERVISOR_FAILED,
    PS_AGENT_SUPERVISOR_ENDED,
};

struct ps_agent_supervisor {
    uint64_t id;      /* For the driver. */
    uint64_t request; /* The scheduler's number of the order. */
    uint32_t uid;
    uint8_t state; /* enum ps_agent_supervisor_state */
    char job[PS_NAME_MAX + 1];
};
