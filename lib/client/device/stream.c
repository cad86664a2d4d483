/* SPDX-License-Identifier: Apache-2.0 */
/* Public call about streams of a GPU. */
#include "client/device/gpu.h"
#include "client/psclient_stream.h"
#include "client/state.h"
#include "client/threads.h"

int psc_device_stream(struct psc_client *c, int32_t ordinal, void **ret_stream)
{
    const struct psc_device where = {.size = sizeof(where), .ordinal = ordinal};
    struct gpu *g = NULL;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    rc = gpu_find(c, &where, NULL, &g);
    if (rc == 0) {
        rc = gpu_entrance(g, ret_stream);
    }
    if (rc != 0) {
        client_error(c, rc, "no stream of the GPU: %s", gpu_why(c));
    }
    client_leave(c);
    return rc;
}
