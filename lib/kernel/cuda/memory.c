/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the device that stays between jobs, and counters of all memory and
 * copies. */
#include "kernel/cuda/module.h"

#include "base/err.h"

void ps_cuda_count_copies(struct ps_cuda *c, uint64_t up, uint64_t down)
{
    atomic_fetch_add(&c->bytes_up, up);
    atomic_fetch_add(&c->bytes_down, down);
}

ps_cu_result ps_cuda_alloc(struct ps_cuda *c, uint64_t bytes,
                           ps_cu_address *ret_address)
{
    ps_cu_result rc = c->cu.alloc(ret_address, bytes);

    if (rc == 0) {
        atomic_fetch_add(&c->memory_held, bytes);
    }
    return rc;
}

void ps_cuda_free(struct ps_cuda *c, ps_cu_address address, uint64_t bytes)
{
    (void)c->cu.free(address);
    atomic_fetch_sub(&c->memory_held, bytes);
}

int32_t ps_cuda_code(ps_cu_result error)
{
    return error == 0 ? 0 : error == PS_CU_OUT_OF_MEMORY ? PS_E_NOMEM : PS_E_IO;
}

int32_t ps_cuda_device_alloc(struct ps_cuda *c, uint64_t bytes,
                             uint64_t *ret_address)
{
    ps_cu_address address = 0;
    ps_cu_result error = ps_cuda_alloc(c, bytes, &address);

    if (error == 0) {
        *ret_address = address;
    }
    return ps_cuda_code(error);
}
