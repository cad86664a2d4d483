/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of a core dump of this process. */
#pragma once

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* True if the mapping with this address is part of it. */
static inline bool is_dumped(const void *p)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    bool inside = false;
    char line[512];

    assert_non_null(f);
    while (fgets(line, sizeof(line), f) != NULL) {
        uintptr_t from;
        uintptr_t to;

        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2) {
            inside = (uintptr_t)p >= from && (uintptr_t)p < to;
        } else if (inside && strncmp(line, "VmFlags:", 8) == 0) {
            fclose(f);
            return strstr(line, " dd") == NULL;
        }
    }
    fclose(f);
    fail_msg("%p is not mapped", p);
    return true;
}
