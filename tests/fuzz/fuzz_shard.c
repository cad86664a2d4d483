/* SPDX-License-Identifier: Apache-2.0 */
/* The server machine among peers that say anything. */
#include "fuzz.h"
#include "machine.h"

#include "base/pool.h"
#include "base/str.h"
#include "core/shard.h"

static void destroy(void *self)
{
    ps_shard_free(self);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ps_pool *pool = ps_pool_new(
        &(struct ps_pool_options){.budget = 8u << 20});
    struct ps_shard_options o = {.instance = 1,
                                 .seed = 1,
                                 .dial_first = PS_MILLIS(10),
                                 .dial_max = PS_SECONDS(1),
                                 .link_linger = PS_MILLIS(100),
                                 .pool = pool};
    struct fuzz_setup setup = {.role = PS_ROLE_SERVER,
                               .accepts = PS_CONN_ACCEPTED,
                               .pools = {pool, NULL},
                               .destroy = destroy};

    ps_str_copy(o.name, sizeof(o.name), "node");
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    ps_str_copy(o.sched, sizeof(o.sched), "psched:1");
    ps_str_copy(o.address, sizeof(o.address), "node:1");
    setup.machine = ps_shard_machine(ps_shard_new(&o, PS_SECONDS(1)));
    fuzz_machine(&setup, data, size);
    return 0;
}
