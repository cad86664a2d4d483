/* SPDX-License-Identifier: Apache-2.0 */
#include "base/token_text.h"

#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads from the beginning where that is possible, so that several readers of
 * one descriptor get the text. Returns the number of bytes, or -1. */
static ssize_t read_all(int fd, char *out, size_t cap)
{
    bool seeks = lseek(fd, 0, SEEK_CUR) >= 0;
    size_t len = 0;

    while (len < cap) {
        ssize_t n = seeks ? pread(fd, out + len, cap - len, (off_t)len)
                          : read(fd, out + len, cap - len);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return -1;
        }
        if (n == 0) {
            break;
        }
        len += (size_t)n;
    }
    return (ssize_t)len;
}

/* Reads a token from `fd`; `name` is for the reason. */
static int read_text(int fd, const char *name,
                     char ret_text[PS_TOKEN_TEXT_MAX + 1], struct ps_str *why)
{
    char text[PS_TOKEN_TEXT_MAX + 3];
    struct stat st;
    ssize_t n;
    size_t len;

    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink > 0 &&
        (st.st_mode & 077) != 0) {
        ps_str_addf(why, "%s: other users may read this token; chmod 600",
                    name);
        return PS_E_INVAL;
    }
    n = read_all(fd, text, sizeof(text));
    if (n < 0) {
        ps_str_addf(why, "%s: %s", name, strerror(errno));
        return PS_E_IO;
    }
    len = (size_t)n;
    while (len > 0 && (text[len - 1] == '\n' || text[len - 1] == '\r')) {
        len--;
    }
    if (len > PS_TOKEN_TEXT_MAX || len < 6 || memcmp(text, "pskv1.", 6) != 0 ||
        memchr(text, '\0', len) != NULL) {
        ps_str_addf(why, "%s: it has no token, which begins with pskv1.", name);
        return PS_E_INVAL;
    }
    memcpy(ret_text, text, len);
    ret_text[len] = '\0';
    return 0;
}

static int read_descriptor(const char *text,
                           char ret_text[PS_TOKEN_TEXT_MAX + 1],
                           struct ps_str *why)
{
    char name[64];
    struct ps_str s;
    char *end;
    long fd = strtol(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || *end != '\0' || fd > 1000000) {
        ps_str_add(why, "the descriptor of a token is a number");
        return PS_E_INVAL;
    }
    ps_str_init(&s, name, sizeof(name));
    ps_str_addf(&s, "descriptor %ld", fd);
    return read_text((int)fd, name, ret_text, why);
}

int ps_token_text_read(const char *path, const char *fd,
                       char ret_text[PS_TOKEN_TEXT_MAX + 1], struct ps_str *why)
{
    int opened;
    int rc;

    if (path == NULL || path[0] == '\0') {
        ret_text[0] = '\0';
        return fd == NULL || fd[0] == '\0' ? 0
                                           : read_descriptor(fd, ret_text, why);
    }
    opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0) {
        ps_str_addf(why, "%s: %s", path, strerror(errno));
        return PS_E_IO;
    }
    rc = read_text(opened, path, ret_text, why);
    close(opened);
    return rc;
}
