/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/launcher.h"

#include <stdio.h>
#include <string.h>

static const struct launcher *const launchers[] = {
    &launcher_local,   &launcher_ssh, &launcher_mpi,  &launcher_slurm,
    &launcher_systemd, &launcher_k8s, &launcher_yarn, &launcher_sge,
};

#define LAUNCHER_COUNT (sizeof(launchers) / sizeof(launchers[0]))

const struct launcher *launcher_find(const char *name)
{
    for (size_t i = 0; i < LAUNCHER_COUNT; i++) {
        if (strcmp(launchers[i]->name, name) == 0) {
            return launchers[i];
        }
    }
    return NULL;
}

const char *launcher_names(void)
{
    static char text[128];
    size_t len = 0;

    for (size_t i = 0; i < LAUNCHER_COUNT && len < sizeof(text); i++) {
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%s",
                                i > 0 ? ", " : "", launchers[i]->name);
    }
    return text;
}
