/* SPDX-License-Identifier: Apache-2.0 */
#include "common/private_memory.h"

#include <sys/prctl.h>
#include <sys/resource.h>

bool ps_private_memory(void)
{
    const struct rlimit none = {0, 0};

    return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 &&
           setrlimit(RLIMIT_CORE, &none) == 0;
}
