/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/folder.h"

#include "base/str.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static char path[4096 + 16];
/* Name of the job's psched for psctl, a symbolic link; "": none. */
static char published[4096];

static bool make_below(const char *parent)
{
    snprintf(path, sizeof(path), "%s/pskv-XXXXXX", parent);
    if (mkdtemp(path) == NULL) {
        fprintf(stderr, "pslaunch: cannot make a folder %s: %s\n", path,
                strerror(errno));
        path[0] = '\0';
        return false;
    }
    return true;
}

bool folder_make(void)
{
    const char *tmp = getenv("TMPDIR");

    return make_below(tmp != NULL && strlen(tmp) < 80 ? tmp : "/tmp");
}

bool folder_make_here(void)
{
    char here[4096];

    if (getcwd(here, sizeof(here)) == NULL) {
        perror("pslaunch: the present folder");
        return false;
    }
    return make_below(here);
}

/* True if the link leads to a psched that listens; false for a job that was
 * killed. */
static bool is_in_use(const char *link)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    bool listens;
    int fd;

    if (!ps_str_copy(sa.sun_path, sizeof(sa.sun_path), link)) {
        return access(link, F_OK) == 0;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    listens = fd >= 0 &&
              connect(fd, (const struct sockaddr *)&sa, sizeof(sa)) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return listens;
}

/* Writes the path of the link, whose folders are there then; `suffix`: of its
 * name. False: it cannot be made. */
static bool name_link(const char *job, const char *suffix)
{
    const char *run = getenv("XDG_RUNTIME_DIR");
    char name[128];
    size_t len = 0;

    if (run == NULL || run[0] != '/') {
        return false;
    }
    for (; job[len] != '\0' && len + 1 < sizeof(name); len++) {
        const bool is_plain = isalnum((unsigned char)job[len]) ||
                              strchr("-_.", job[len]) != NULL;

        name[len] = is_plain && (len > 0 || job[len] != '.') ? job[len] : '_';
    }
    name[len] = '\0';
    if (snprintf(published, sizeof(published), "%s/pskv", run) >=
            (int)sizeof(published) ||
        (mkdir(published, 0700) != 0 && errno != EEXIST) ||
        snprintf(published, sizeof(published), "%s/pskv/jobs", run) >=
            (int)sizeof(published) ||
        (mkdir(published, 0700) != 0 && errno != EEXIST)) {
        return false;
    }
    return snprintf(published, sizeof(published), "%s/pskv/jobs/%s%s", run,
                    name, suffix) < (int)sizeof(published);
}

void folder_publish(const char *job)
{
    char target[sizeof(path) + 16];
    char suffix[24];
    bool ok = name_link(job, "");

    snprintf(suffix, sizeof(suffix), ".%d", (int)getpid());
    ok = ok && (!is_in_use(published) || name_link(job, suffix));
    if (ok) {
        (void)unlink(published); /* Of a job that was killed. */
        ok = snprintf(target, sizeof(target), "%s/psched.sock", path) <
                 (int)sizeof(target) &&
             symlink(target, published) == 0;
    }
    if (!ok) {
        published[0] = '\0';
    }
}

/* Another job may have taken the name meanwhile. */
static void unpublish(void)
{
    char target[sizeof(path) + 16];
    ssize_t n = published[0] != '\0'
                    ? readlink(published, target, sizeof(target) - 1)
                    : -1;

    if (n > 0 && strncmp(target, path, strlen(path)) == 0) {
        (void)unlink(published);
    }
}

const char *folder_path(void)
{
    return path;
}

void folder_remove(void)
{
    DIR *dir = path[0] != '\0' ? opendir(path) : NULL;
    struct dirent *d;

    unpublish();
    if (dir == NULL) {
        return;
    }
    while ((d = readdir(dir)) != NULL) {
        unlinkat(dirfd(dir), d->d_name, 0);
    }
    closedir(dir);
    rmdir(path);
}
