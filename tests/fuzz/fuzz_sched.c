/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler machine with peers that send arbitrary messages. */
#include "fuzz.h"
#include "machine.h"

#include "base/str.h"
#include "core/sched/sched.h"

static void destroy(void *self)
{
    ps_sched_free(self);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ps_sched_options o = {.instance = 1,
                                 .seed = 1,
                                 .heartbeat = PS_MILLIS(100),
                                 .suspect_after = PS_MILLIS(500),
                                 .dead_after = PS_SECONDS(2),
                                 .start_timeout = PS_SECONDS(10),
                                 .rejoin_grace = PS_SECONDS(5),
                                 .partition_bytes = 65536,
                                 .link_linger = PS_MILLIS(100)};
    struct fuzz_setup setup = {.role = PS_ROLE_SCHED,
                               .accepts = PS_CONN_ACCEPTED,
                               .tools = true,
                               .destroy = destroy};

    ps_str_copy(o.name, sizeof(o.name), "psched");
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    setup.machine = ps_sched_machine(ps_sched_new(&o, PS_SECONDS(1)));
    fuzz_machine(&setup, data, size);
    return 0;
}
