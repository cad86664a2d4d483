/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/cgroup.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <mntent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PREFIX       "pskv-"

/* Tries to remove a group whose processes are dying, 10 ms apart. */
#define REMOVE_TRIES 300

static bool write_file(const char *folder, const char *name, const char *text)
{
    char path[600];
    int fd = -1;
    bool ok;

    if (snprintf(path, sizeof(path), "%s/%s", folder, name) <
        (int)sizeof(path)) {
        fd = open(path, O_WRONLY | O_CLOEXEC);
    }
    if (fd < 0) {
        return false;
    }
    ok = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return ok;
}

/* Writes where cgroup version 2 is mounted. False: nowhere. */
static bool find_mount(char *path, size_t cap)
{
    FILE *f = setmntent("/proc/self/mounts", "re");
    const struct mntent *m;
    bool found = false;

    while (f != NULL && !found && (m = getmntent(f)) != NULL) {
        found = strcmp(m->mnt_type, "cgroup2") == 0 &&
                snprintf(path, cap, "%s", m->mnt_dir) < (int)cap;
    }
    if (f != NULL) {
        (void)endmntent(f);
    }
    return found;
}

/* Writes the folder of this process's group. False: there is none. */
static bool find_own(char *path, size_t cap)
{
    char mount[128];
    FILE *f = find_mount(mount, sizeof(mount))
                  ? fopen("/proc/self/cgroup", "re")
                  : NULL;
    char line[512];
    bool found = false;

    while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        found = strncmp(line, "0::/", 4) == 0 &&
                snprintf(path, cap, "%s%s", mount, line + 3) < (int)cap;
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return found;
}

/* Kills and removes a group; false: it is still there. */
static bool try_end(const char *path)
{
    (void)write_file(path, "cgroup.kill", "1");
    return rmdir(path) == 0 || errno == ENOENT;
}

/* Removes groups whose shim was killed. Their names end with its pid. */
static void sweep(const char *parent)
{
    DIR *dir = opendir(parent);
    const struct dirent *d;

    while (dir != NULL && (d = readdir(dir)) != NULL) {
        const char *dash = strrchr(d->d_name, '-');
        char path[800];
        int pid;

        if (strncmp(d->d_name, PREFIX, strlen(PREFIX)) != 0) {
            continue;
        }
        pid = atoi(dash + 1);
        if (pid > 0 && kill(pid, 0) != 0 && errno == ESRCH) {
            if (snprintf(path, sizeof(path), "%s/%s", parent, d->d_name) <
                (int)sizeof(path)) {
                (void)try_end(path);
            }
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
}

void cgroup_make(struct cgroup *g, const char *job)
{
    char parent[400];
    char name[48];
    size_t len = 0;

    *g = (struct cgroup){.path = ""};
    if (!find_own(parent, sizeof(parent))) {
        return;
    }
    sweep(parent);
    for (; job[len] != '\0' && len + 1 < sizeof(name); len++) {
        name[len] = job[len];
        if (!isalnum((unsigned char)name[len])) {
            name[len] = '_';
        }
    }
    name[len] = '\0';
    if (snprintf(g->path, sizeof(g->path), "%s/" PREFIX "%s-%d", parent, name,
                 (int)getpid()) >= (int)sizeof(g->path) ||
        mkdir(g->path, 0755) != 0) {
        g->path[0] = '\0';
    }
}

bool cgroup_enter(const struct cgroup *g)
{
    return g->path[0] != '\0' && write_file(g->path, "cgroup.procs", "0");
}

void cgroup_end(const struct cgroup *g)
{
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};

    for (int i = 0; g->path[0] != '\0' && i < REMOVE_TRIES; i++) {
        if (try_end(g->path)) {
            return;
        }
        (void)nanosleep(&pause, NULL);
    }
}
