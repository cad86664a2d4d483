/* SPDX-License-Identifier: Apache-2.0 */
#include "client/device/driver.h"
#include "client/psclient.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct symbol {
    const char *name;
    size_t offset; /* Of the member that points to the function. */
} symbols[] = {
#define SYMBOL(member, name, arguments)                                        \
    {name, offsetof(struct gpu_driver, member)},
    GPU_CALLS(SYMBOL)
#undef SYMBOL
};

int gpu_driver_load(struct gpu_driver *d, char *why, size_t why_cap)
{
    const char *given = getenv("PSKV_CUDA_DRIVER");
    const char *path = given != NULL ? given : "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const char *name = "?";
    gpu_result r;

    if (library == NULL) {
        snprintf(why, why_cap, "%s", dlerror());
        return PSC_E_UNSUPPORTED;
    }
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *found = dlsym(library, symbols[i].name);

        if (found == NULL) {
            snprintf(why, why_cap, "%s has no %s", path, symbols[i].name);
            dlclose(library);
            return PSC_E_UNSUPPORTED;
        }
        memcpy((char *)d + symbols[i].offset, &found, sizeof(found));
    }
    d->library = library;
    r = d->init(0);
    if (r != 0) {
        if (d->error_name(r, &name) != 0) {
            name = "?";
        }
        snprintf(why, why_cap, "cuInit: %s (%d)", name, r);
        return PSC_E_UNSUPPORTED;
    }
    return 0;
}
