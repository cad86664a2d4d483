/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine among peers that say anything: training processes on its
 * socket from the first hello on, a scheduler and servers. */
#include "fuzz.h"
#include "machine.h"

#include "base/pool.h"
#include "base/str.h"
#include "core/agent.h"

static void destroy(void *self)
{
    ps_agent_free(self);
}

static struct ps_pool *results_new(void *ctx)
{
    (void)ctx;
    return ps_pool_new(&(struct ps_pool_options){.budget = 8u << 20});
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ps_pool *sums = ps_pool_new(
        &(struct ps_pool_options){.budget = 8u << 20});
    struct ps_agent_options o = {.instance = 1,
                                 .seed = 1,
                                 .dial_first = PS_MILLIS(10),
                                 .dial_max = PS_SECONDS(1),
                                 .sums = sums,
                                 .results_new = results_new};
    struct fuzz_setup setup = {.role = PS_ROLE_AGENT,
                               .accepts = PS_CONN_LOCAL,
                               .pools = {sums, NULL},
                               .destroy = destroy};

    ps_str_copy(o.name, sizeof(o.name), "node");
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    ps_str_copy(o.sched, sizeof(o.sched), "psched:1");
    ps_str_copy(o.host, sizeof(o.host), "host");
    setup.machine = ps_agent_machine(ps_agent_new(&o, PS_SECONDS(1)));
    fuzz_machine(&setup, data, size);
    return 0;
}
