/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_check.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES 4096

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif

/* "PATH: owner 1000, mode 0664: " */
static void add_facts(const char *path, const struct stat *st,
                      struct ps_str *report)
{
    ps_str_addf(report, "%s: owner %u, mode %04o: ", path, (unsigned)st->st_uid,
                (unsigned)st->st_mode & 07777u);
}

/* Adds who should own it. Root, who may check the files of any daemon, does not
 * know whose these are: a key that is given to root is lost to its daemon. */
static void add_owner_advice(const char *path, const struct stat *st,
                             struct ps_str *report)
{
    const unsigned self = (unsigned)geteuid();

    if (self == 0) {
        ps_str_addf(report,
                    "run this as user %u if the daemon is that user's, else "
                    "run 'chown 0 %s'",
                    (unsigned)st->st_uid, path);
    } else {
        ps_str_addf(report, "run 'chown %u %s'", self, path);
    }
}

int ps_file_check(int fd, const char *path, enum ps_file_kind kind,
                  struct ps_str *report)
{
    const unsigned self = (unsigned)geteuid();
    struct stat st;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        return 0;
    }
    if (st.st_uid != 0 && st.st_uid != self) {
        add_facts(path, &st, report);
        ps_str_addf(report, "user %u can change it; ", (unsigned)st.st_uid);
        add_owner_advice(path, &st, report);
        ps_str_add(report, "\n");
        return PS_E_CONFIG;
    }
    if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
        add_facts(path, &st, report);
        ps_str_addf(report, "other users can write it; run 'chmod go-w %s'\n",
                    path);
        return PS_E_CONFIG;
    }
    const mode_t readers = st.st_uid == 0 ? S_IROTH : S_IRGRP | S_IROTH;

    if (kind == PS_FILE_SECRET && (st.st_mode & readers) != 0) {
        add_facts(path, &st, report);
        ps_str_addf(report, "other users can read it; run 'chmod %s %s'\n",
                    st.st_uid == 0 ? "o-r" : "go-r", path);
        return PS_E_CONFIG;
    }
    return 0;
}

int ps_file_check_folder(const char *path, struct ps_str *report)
{
    const char *slash = strrchr(path, '/');
    char *folder = ps_strdup(slash == NULL ? "." : path);
    struct stat st;
    int rc = 0;

    if (slash != NULL) {
        folder[slash == path ? 1 : slash - path] = '\0';
    }
    if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode)) {
        ps_free(folder);
        return 0;
    }
    if (st.st_uid != 0 && st.st_uid != geteuid()) {
        add_facts(folder, &st, report);
        ps_str_addf(report, "user %u can replace the socket; ",
                    (unsigned)st.st_uid);
        add_owner_advice(folder, &st, report);
        ps_str_add(report, ", or choose another path\n");
        rc = PS_E_CONFIG;
    } else if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0 &&
               (st.st_mode & S_ISVTX) == 0) {
        add_facts(folder, &st, report);
        ps_str_addf(report,
                    "other users can replace the socket; run 'chmod go-w %s', "
                    "or choose another path\n",
                    folder);
        rc = PS_E_CONFIG;
    }
    ps_free(folder);
    return rc;
}

ssize_t ps_file_read(int fd, void *out, size_t cap)
{
    const bool seeks = lseek(fd, 0, SEEK_CUR) >= 0;
    size_t len = 0;

    while (len < cap) {
        ssize_t n = seeks ? pread(fd, (char *)out + len, cap - len, (off_t)len)
                          : read(fd, (char *)out + len, cap - len);

        if (n == 0) {
            break;
        }
        if (n > 0) {
            len += (size_t)n;
        } else if (errno != EINTR) {
            return -1;
        }
    }
    return (ssize_t)len;
}

int ps_file_memory(const char *name)
{
    int fd = memfd_create(name,
                          MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    /* Linux before 6.3: not executable by its mode only. */
    if (fd < 0 && errno == EINVAL) {
        fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd >= 0 && fchmod(fd, 0600) != 0) {
            int error = errno;

            close(fd);
            errno = error;
            return -1;
        }
    }
    return fd;
}

int ps_file_close(FILE *f)
{
    const bool has_failed = ferror(f) != 0;
    int error = 0;

    /* The errno of an earlier write is lost; that of a full disk comes again. */
    errno = 0;
    if (fflush(f) != 0 || has_failed) {
        error = errno != 0 ? errno : EIO;
    }
    if (fclose(f) != 0 && error == 0) {
        error = errno;
    }
    return error;
}

/* Makes a file, in place of one that an interrupted run left; a durable one is
 * new. */
static int write_file(const char *path, const char *bytes, size_t len,
                      mode_t mode, bool is_durable)
{
    const int flags = is_durable ? O_EXCL | O_NOFOLLOW : O_TRUNC;
    int error;
    int fd;

    if (is_durable) {
        (void)unlink(path);
    }
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0600);
    if (fd < 0) {
        return errno;
    }
    error = fchmod(fd, mode) != 0 ? errno : 0;
    while (error == 0 && len > 0) {
        ssize_t n = write(fd, bytes, len);

        if (n >= 0) {
            bytes += n;
            len -= (size_t)n;
        } else if (errno != EINTR) {
            error = errno;
        }
    }
    if (error == 0 && is_durable && fsync(fd) != 0) {
        error = errno;
    }
    if (close(fd) != 0 && error == 0) {
        error = errno;
    }
    return error;
}

/* Brings the names of the folder's files to disk. */
static int sync_folder_of(const char *path)
{
    char copy[PATH_BYTES];
    int error;
    int fd;

    ps_str_copy(copy, sizeof(copy), path);
    fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    error = fsync(fd) != 0 ? errno : 0;
    close(fd);
    return error;
}

int ps_file_replace(const char *path, const void *bytes, size_t len,
                    mode_t mode, enum ps_file_life life)
{
    const bool is_durable = life == PS_FILE_DURABLE;
    char temp[PATH_BYTES];
    int error;

    if (snprintf(temp, sizeof(temp), "%s.new", path) >= (int)sizeof(temp)) {
        return ENAMETOOLONG;
    }
    error = write_file(temp, bytes, len, mode, is_durable);
    if (error == 0 && rename(temp, path) != 0) {
        error = errno;
    }
    if (error != 0) {
        (void)unlink(temp);
        return error;
    }
    return is_durable ? sync_folder_of(path) : 0;
}

void ps_file_add_group(const char *path, struct ps_str *out)
{
    char folder[PS_SOCKET_PATH_MAX + 1];
    char buffer[1024];
    struct group group;
    struct group *found = NULL;
    struct stat st;
    char *slash;

    if (!ps_str_copy(folder, sizeof(folder), path)) {
        return;
    }
    slash = strrchr(folder, '/');
    if (slash != NULL) {
        slash[slash == folder ? 1 : 0] = '\0';
    }
    if (stat(path, &st) != 0 && stat(folder, &st) != 0) {
        return;
    }
    if ((st.st_mode & (S_IWGRP | S_IXGRP)) == 0) {
        ps_str_addf(out, "; it is for user %u alone", (unsigned)st.st_uid);
    } else if (getgrgid_r(st.st_gid, &group, buffer, sizeof(buffer), &found) ==
                   0 &&
               found != NULL) {
        ps_str_addf(out,
                    "; it is for members of group %s: an administrator adds "
                    "a user by 'usermod -aG %s USER', for the next login",
                    group.gr_name, group.gr_name);
    } else {
        ps_str_addf(out, "; it is for members of group %u",
                    (unsigned)st.st_gid);
    }
}

/* ------------------------------------------------------------------ tokens */

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
    n = ps_file_read(fd, text, sizeof(text));
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
    struct ps_str name = PS_STR_ROOM(64);
    char *end;
    long fd = strtol(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || *end != '\0' || fd > 1000000) {
        ps_str_add(why, "the descriptor of a token is a number");
        return PS_E_INVAL;
    }
    ps_str_addf(&name, "descriptor %ld", fd);
    return read_text((int)fd, name.data, ret_text, why);
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
