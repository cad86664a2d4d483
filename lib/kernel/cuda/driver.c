/* SPDX-License-Identifier: Apache-2.0 */
#include "kernel/cuda/driver.h"

#include "base/err.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct ps_cu_symbol driver_symbols[] = {
#define SYMBOL(member, name, arguments) {name, offsetof(struct ps_cu, member)},
    PS_CU_CALLS(SYMBOL)
#undef SYMBOL
};

static const struct ps_cu_symbol blas_symbols[] = {
#define SYMBOL(member, name, arguments)                                        \
    {name, offsetof(struct ps_cublas, member)},
    PS_CUBLAS_CALLS(SYMBOL)
#undef SYMBOL
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

int ps_cu_load(struct ps_cu *cu, char *why, uint64_t why_cap)
{
    const char *given = getenv("PSKV_CUDA_DRIVER");
    const char *path = given != NULL ? given : "libcuda.so.1";
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        (void)snprintf(why, why_cap, "no CUDA driver: %s", dlerror());
        return PS_E_NOENT;
    }
    const char *missing = ps_cu_find_symbols(library, cu, driver_symbols,
                                             COUNT(driver_symbols));

    if (missing != NULL) {
        (void)snprintf(why, why_cap, "the CUDA driver %s has no %s", path,
                       missing);
        dlclose(library);
        return PS_E_UNSUPPORTED;
    }
    cu->library = library;
    return 0;
}

static void *open_blas(void)
{
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12",
                                        "libcublas.so"};
    const char *given = getenv("PSKV_CUBLAS");
    void *library = NULL;

    if (given != NULL) {
        return dlopen(given, RTLD_NOW | RTLD_LOCAL);
    }
    for (size_t i = 0; i < COUNT(names) && library == NULL; i++) {
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

void ps_cublas_load(struct ps_cublas *blas)
{
    void *library = open_blas();

    if (library == NULL) {
        return;
    }
    if (ps_cu_find_symbols(library, blas, blas_symbols, COUNT(blas_symbols)) !=
        NULL) {
        dlclose(library);
        return;
    }
    blas->library = library;
}
