/* SPDX-License-Identifier: Apache-2.0 */
/* Public calls for memory of GPUs. */
#include "client/device/shared_inner.h"
#include "client/progress.h"
#include "client/psclient_device.h"
#include "client/state.h"
#include "client/threads.h"

/* Time for the agent to answer for memory. */
#define ANSWER_MS 30000

static bool is_answered(void *arg)
{
    return ((const struct shared_memory *)arg)->answer != ANSWER_NONE;
}

int psc_alloc_device(struct psc_client *c, int32_t ordinal, size_t size,
                     void **ret_data)
{
    const struct psc_device where = {.size = sizeof(where), .ordinal = ordinal};
    struct shared_memory *m = NULL;
    struct gpu *g = NULL;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    if (c->rc != 0) {
        rc = client_error(c, c->rc, "%s", c->text);
    } else if (size == 0 || size > (size_t)1 << 46 || ordinal < 0) {
        rc = client_error(c, PSC_E_INVAL,
                          "%zu bytes of GPU %d cannot be allocated", size,
                          ordinal);
    } else {
        rc = gpu_find(c, &where, NULL, &g);
        rc = rc != 0 ? client_error(c, rc, "no memory of GPU %d: %s", ordinal,
                                    gpu_why(c))
                     : shared_load(c, g);
    }
    if (rc == 0) {
        rc = shared_memory_new(c, g, size, &m);
    }
    if (rc == 0) {
        /* Without an answer, operations copy it. */
        int waited = client_wait(c, is_answered, m, client_deadline(ANSWER_MS));

        (void)waited;
        *ret_data = (void *)(uintptr_t)m->at;
        if (m->answer != ANSWER_TAKEN) {
            (void)client_error(
                c, 0, "operations copy memory of GPU %d: %s", ordinal,
                m->why[0] != '\0' ? m->why : "the agent does not answer");
        }
    }
    client_leave(c);
    return rc;
}

int psc_free_device(struct psc_client *c, void *data)
{
    struct shared_memory *m;
    int rc;

    if (data == NULL) {
        return 0;
    }
    rc = client_enter(c);
    if (rc != 0) {
        return rc;
    }
    m = shared_memory_find(c, data, 0);
    if (m == NULL || m->at != (uintptr_t)data) {
        rc = client_error(c, PSC_E_INVAL, "not from psc_alloc_device");
    } else if (m->uses > 0) {
        rc = client_error(c, PSC_E_AGAIN, "%u open operations use this memory",
                          m->uses);
    } else {
        shared_memory_free(c, m);
    }
    client_leave(c);
    return rc;
}
