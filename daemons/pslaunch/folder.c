/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[4096 + 16];

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

const char *folder_path(void)
{
    return path;
}

void folder_remove(void)
{
    DIR *dir = path[0] != '\0' ? opendir(path) : NULL;
    struct dirent *d;

    if (dir == NULL) {
        return;
    }
    while ((d = readdir(dir)) != NULL) {
        unlinkat(dirfd(dir), d->d_name, 0);
    }
    closedir(dir);
    rmdir(path);
}
