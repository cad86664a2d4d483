/* SPDX-License-Identifier: Apache-2.0 */
#include "common/options.h"

#include "psched/options.h"
#include "psserver/options.h"
#include "psworker-agent/options.h"

const struct ps_option_set *const ps_daemon_sets[] = {
    &psched_set,
    &psserver_set,
    &psagent_set,
    NULL,
};
