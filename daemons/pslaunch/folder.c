/* SPDX-License-Identifier: Apache-2.0 */
#include "pslaunch/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[128];

bool folder_make(void)
{
    const char *tmp = getenv("TMPDIR");

    snprintf(path, sizeof(path), "%s/pskv-XXXXXX",
             tmp != NULL && strlen(tmp) < 80 ? tmp : "/tmp");
    if (mkdtemp(path) == NULL) {
        fprintf(stderr, "pslaunch: cannot make a folder %s: %s\n", path,
                strerror(errno));
        path[0] = '\0';
        return false;
    }
    return true;
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
