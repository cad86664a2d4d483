/* SPDX-License-Identifier: Apache-2.0 */
/* A control group for the processes of one job, below that of this process. It
 * needs cgroup version 2 and a group that was delegated to this user
 * (Delegate=yes of systemd); without, there is none, and processes are found as
 * descendants. */
#pragma once

#include <stdbool.h>

struct cgroup {
    char path[512]; /* Folder; "": there is none. */
};

/* Makes a group named after the job and this process, and removes those of
 * processes like this one that were killed. */
void cgroup_make(struct cgroup *g, const char *job);
/* Moves this process into the group. False: it cannot. */
bool cgroup_enter(const struct cgroup *g);
/* Kills all processes of the group, and removes it. */
void cgroup_end(const struct cgroup *g);
