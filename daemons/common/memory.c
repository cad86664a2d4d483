/* SPDX-License-Identifier: Apache-2.0 */
/* The limit: reads the group of the process from /proc/self/cgroup, and the mount point of
 * its hierarchy from /proc/self/mountinfo. A limit holds for all groups below
 * it, so every folder from the group's up to the mount point is read, and the
 * least limit counts. Missing or malformed files are skipped; the host's memory
 * remains. */
#include "common/memory.h"

#include "base/num.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

/* -------------------------------------------------------------------- limit */

#define PATH_CAP 1024

/* One cgroup hierarchy. */
struct hierarchy {
    const char *root; /* See ps_memory_limit(). */
    /* Names of files with limits; NULL ends the list. */
    const char *const *files;
    char group[PATH_CAP];      /* Group of the process. */
    char mount_root[PATH_CAP]; /* Group visible at the mount point. */
    char mount_point[PATH_CAP];
    bool has_group;
    bool mounted;
};

/* Beyond memory.high the kernel stalls a process that cannot free memory, which
 * is as bad as its end. */
static const char *const files_v2[] = {"memory.max", "memory.high", NULL};
static const char *const files_v1[] = {"memory.limit_in_bytes", NULL};

static FILE *open_below(const char *root, const char *path)
{
    struct ps_str s = PS_STR_ROOM(2 * PATH_CAP);

    ps_str_addf(&s, "%s%s", root, path);
    return s.truncated ? NULL : fopen(s.data, "re");
}

/* Number in a file; UINT64_MAX: none, so no limit. */
static uint64_t read_number(const char *root, const char *path)
{
    FILE *f = open_below(root, path);
    uint64_t n = UINT64_MAX;
    char line[64];

    if (f == NULL) {
        return n;
    }
    if (fgets(line, sizeof(line), f) != NULL && line[0] >= '0' &&
        line[0] <= '9') {
        n = strtoull(line, NULL, 10);
    }
    fclose(f);
    return n;
}

/* Memory of this host by the system call, which rounds down to pages. */
static uint64_t system_memory(void)
{
    struct sysinfo info;
    uint64_t n;

    return sysinfo(&info) == 0 && info.totalram != 0 &&
                   ps_mul_u64(info.totalram, info.mem_unit, &n)
               ? n
               : UINT64_MAX;
}

static uint64_t host_memory(const char *root)
{
    FILE *f = open_below(root, "/proc/meminfo");
    uint64_t n = UINT64_MAX;
    char line[128];

    if (f == NULL) {
        /* ProcSubset=pid of the units hides it. */
        return *root == '\0' ? system_memory() : n;
    }
    while (n == UINT64_MAX && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, "MemTotal:", 9) == 0 &&
            !ps_mul_u64(strtoull(line + 9, NULL, 10), 1024, &n)) {
            n = UINT64_MAX;
        }
    }
    fclose(f);
    return n;
}

/* Parses "4:memory:/group", or "0::/group" of version 2. */
static void read_groups(const char *root, struct hierarchy *v1,
                        struct hierarchy *v2)
{
    FILE *f = open_below(root, "/proc/self/cgroup");
    char line[2 * PATH_CAP];

    if (f == NULL) {
        return;
    }
    while (fgets(line, sizeof(line), f) != NULL) {
        char *names = strchr(line, ':');
        char *group = names != NULL ? strchr(names + 1, ':') : NULL;
        struct hierarchy *h = NULL;

        line[strcspn(line, "\n")] = '\0';
        if (group == NULL) {
            continue;
        }
        *group++ = '\0';
        names++;
        if (names[0] == '\0') {
            h = v2;
        } else if (ps_str_has_word(names, ',', "memory")) {
            h = v1;
        }
        if (h != NULL) {
            h->has_group = ps_str_copy(h->group, sizeof(h->group), group);
        }
    }
    fclose(f);
}

/* Parses "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw": the fourth
 * field is the visible group, the fifth the mount point; after the dash come
 * type, source and, in version 1, the controllers. */
static void read_mount(char *line, struct hierarchy *v1, struct hierarchy *v2)
{
    char *rest = strstr(line, " - ");
    char *save = NULL;
    char *field[5];
    char type[32];
    char options[256] = "";
    struct hierarchy *h = NULL;

    if (rest == NULL || sscanf(rest, " - %31s %*s %255s", type, options) < 1) {
        return;
    }
    *rest = '\0';
    for (int i = 0; i < 5; i++) {
        field[i] = strtok_r(i == 0 ? line : NULL, " ", &save);
        if (field[i] == NULL) {
            return;
        }
    }
    if (strcmp(type, "cgroup2") == 0) {
        h = v2;
    } else if (strcmp(type, "cgroup") == 0 &&
               ps_str_has_word(options, ',', "memory")) {
        h = v1;
    }
    if (h != NULL && !h->mounted) {
        h->mounted =
            ps_str_copy(h->mount_root, sizeof(h->mount_root), field[3]) &&
            ps_str_copy(h->mount_point, sizeof(h->mount_point), field[4]);
    }
}

static void read_mounts(const char *root, struct hierarchy *v1,
                        struct hierarchy *v2)
{
    FILE *f = open_below(root, "/proc/self/mountinfo");
    char *line = NULL;
    size_t cap = 0;

    if (f == NULL) {
        return;
    }
    while (getline(&line, &cap, f) > 0) {
        line[strcspn(line, "\n")] = '\0';
        read_mount(line, v1, v2);
    }
    free(line);
    fclose(f);
}

/* Group relative to the mount point; "" if it lies elsewhere, as the parent of
 * a namespace does: only the mounted part of the tree is visible then. */
static const char *group_below(const struct hierarchy *h)
{
    size_t len = strlen(h->mount_root);
    const char *group = h->group;

    if (strcmp(h->mount_root, "/") != 0) {
        if (strncmp(group, h->mount_root, len) != 0 ||
            (group[len] != '\0' && group[len] != '/')) {
            return "";
        }
        group += len;
    }
    return strncmp(group, "/..", 3) == 0 ? "" : group;
}

static uint64_t folder_limit(const struct hierarchy *h, const char *folder)
{
    uint64_t least = UINT64_MAX;

    for (const char *const *name = h->files; *name != NULL; name++) {
        struct ps_str s = PS_STR_ROOM(2 * PATH_CAP);

        ps_str_addf(&s, "%s/%s", folder, *name);
        least = ps_min_u64(least, read_number(h->root, s.data));
    }
    return least;
}

static uint64_t hierarchy_limit(const struct hierarchy *h)
{
    uint64_t least = UINT64_MAX;
    size_t mount_len = strlen(h->mount_point);
    struct ps_str s = PS_STR_ROOM(2 * PATH_CAP);

    if (!h->has_group || !h->mounted) {
        return least;
    }
    ps_str_addf(&s, "%s%s", h->mount_point, group_below(h));
    for (;;) {
        char *slash = strrchr(s.data, '/');

        least = ps_min_u64(least, folder_limit(h, s.data));
        if (slash == NULL || slash < s.data + mount_len) {
            return least;
        }
        *slash = '\0';
    }
}

uint64_t ps_memory_limit(const char *root)
{
    struct hierarchy v1 = {.root = root, .files = files_v1};
    struct hierarchy v2 = {.root = root, .files = files_v2};
    uint64_t least = host_memory(root);

    read_groups(root, &v1, &v2);
    read_mounts(root, &v1, &v2);
    least = ps_min_u64(least, hierarchy_limit(&v1));
    least = ps_min_u64(least, hierarchy_limit(&v2));
    return least == UINT64_MAX ? 0 : least;
}

/* ------------------------------------------------------------------- bursts */

#define TRIM_DELAY PS_SECONDS(3)

static bool is_far_below(uint64_t bytes, uint64_t high)
{
    return bytes + PS_TRIM_LEAST <= high;
}

bool ps_trim_check(struct ps_trim *t, uint64_t peak, uint64_t bytes,
                   ps_time now)
{
    if (!t->is_pending) {
        t->high_water = ps_max_u64(t->high_water, peak);
        if (is_far_below(bytes, t->high_water)) {
            t->is_pending = true;
            t->recent_peak = bytes;
            t->due_at = now + TRIM_DELAY;
        }
        return false;
    }
    t->recent_peak = ps_max_u64(t->recent_peak, peak);
    if (now < t->due_at) {
        return false;
    }
    bool over = is_far_below(t->recent_peak, t->high_water);

    t->is_pending = false;
    t->high_water = t->recent_peak;
    return over;
}

ps_time ps_trim_deadline(const struct ps_trim *t)
{
    return t->is_pending ? t->due_at : PS_TIME_NEVER;
}
