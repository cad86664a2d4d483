/* SPDX-License-Identifier: Apache-2.0 */
/* Files of certificates and keys: written beside the former ones, and renamed
 * when all are on disk. */
#include "psctl/pki.h"
#include "psctl/psctl.h"

#include "base/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/crypto.h>

#define TEMP_MAX 64u

static const char *verb_name = "pki";

void pki_set_verb(const char *verb)
{
    verb_name = verb;
}

void pki_error(const char *fmt, ...)
{
    va_list ap;

    fprintf(stderr, "psctl: %s: ", verb_name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

int pki_system_error(const char *what, const char *folder, const char *name)
{
    int error = errno;

    pki_error("cannot %s %s%s%s: %s", what, folder, name[0] != '\0' ? "/" : "",
              name, strerror(error));
    return error == EACCES || error == EPERM ? EXIT_NOPERM : EXIT_FAILED;
}

void pki_free_secret(char *text)
{
    if (text != NULL) {
        OPENSSL_cleanse(text, strlen(text));
    }
    ps_free(text);
}

int pki_find_owner(const char *user, struct pki_owner *ret_owner)
{
    const struct passwd *p;

    *ret_owner = (struct pki_owner){(uid_t)-1, (gid_t)-1};
    if (user == NULL) {
        return 0;
    }
    errno = 0;
    p = getpwnam(user);
    if (p == NULL) {
        pki_error("--owner: this host has no such user");
        return EXIT_USAGE;
    }
    *ret_owner = (struct pki_owner){p->pw_uid, p->pw_gid};
    return 0;
}

int pki_open_folder(const char *path, bool create,
                    const struct pki_owner *owner, int *ret_dir)
{
    bool made = false;
    int dir;

    if (create) {
        made = mkdir(path, 0700) == 0;
        if (!made && errno != EEXIST) {
            return pki_system_error("make the folder", path, "");
        }
    }
    dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) {
        return pki_system_error("open the folder", path, "");
    }
    if (made && owner != NULL && fchown(dir, owner->uid, owner->gid) != 0) {
        int exit_code = pki_system_error("give to --owner", path, "");

        close(dir);
        return exit_code;
    }
    *ret_dir = dir;
    return 0;
}

bool pki_file_exists(int dir, const char *name)
{
    struct stat st;

    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Reads up to the end; the text is NULL if there is more than PKI_FILE_MAX. */
static char *read_all(int fd)
{
    size_t capacity = 8192;
    char *text = ps_alloc(capacity);
    size_t len = 0;

    for (;;) {
        ssize_t n = read(fd, text + len, capacity - 1 - len);

        if (n == 0) {
            text[len] = '\0';
            return text;
        }
        if (n < 0 && errno == EINTR) {
            continue;
        }
        len += n > 0 ? (size_t)n : 0;
        if (n < 0 || len > PKI_FILE_MAX) {
            errno = n < 0 ? errno : EFBIG;
            ps_free(text);
            return NULL;
        }
        if (len + 1 == capacity) {
            char *larger = ps_alloc(capacity * 2);

            memcpy(larger, text, len);
            OPENSSL_cleanse(text, len);
            ps_free(text);
            text = larger;
            capacity *= 2;
        }
    }
}

int pki_read_file(int dir, const char *folder, const char *name,
                  char **ret_text)
{
    /* A folder may belong to another user, whose named pipe would never end. */
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    struct stat st;
    char *text;

    *ret_text = NULL;
    if (fd < 0) {
        return errno == ENOENT ? 0 : pki_system_error("read", folder, name);
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        pki_error("%s/%s is not a regular file; remove it", folder, name);
        return EXIT_FAILED;
    }
    text = read_all(fd);
    if (text == NULL) {
        int exit_code = pki_system_error("read", folder, name);

        close(fd);
        return exit_code;
    }
    close(fd);
    *ret_text = text;
    return 0;
}

int pki_check_secret(int dir, const char *folder, const char *name)
{
    struct stat st;

    if (fstatat(dir, name, &st, 0) != 0) {
        return pki_system_error("read", folder, name);
    }
    if ((st.st_mode & 077) != 0) {
        pki_error("others may access %s/%s, a secret key; if none has, chmod "
                  "600 it, else make a new authority",
                  folder, name);
        return EXIT_NOPERM;
    }
    return 0;
}

static bool write_all(int fd, const char *text)
{
    size_t len = strlen(text);

    while (len > 0) {
        ssize_t n = write(fd, text, len);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return false;
        }
        text += n;
        len -= (size_t)n;
    }
    return true;
}

static void name_temp(const struct pki_file *f, char temp[TEMP_MAX])
{
    snprintf(temp, TEMP_MAX, ".%s.new", f->name);
}

/* Writes one file under its temporary name. */
static bool write_temp(int dir, const struct pki_file *f,
                       const struct pki_owner *owner)
{
    char temp[TEMP_MAX];
    bool done;
    int fd;

    name_temp(f, temp);
    (void)unlinkat(dir, temp, 0); /* Of a run that was interrupted. */
    fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        return false;
    }
    done = write_all(fd, f->text) && fchmod(fd, f->mode) == 0 &&
           (owner == NULL || owner->uid == (uid_t)-1 ||
            fchown(fd, owner->uid, owner->gid) == 0) &&
           fsync(fd) == 0;
    if (!done) {
        int error = errno;

        close(fd);
        errno = error;
        return false;
    }
    return close(fd) == 0;
}

int pki_write_files(int dir, const char *folder, const struct pki_file *files,
                    const struct pki_owner *owner)
{
    char temp[TEMP_MAX];
    int exit_code = 0;
    size_t count = 0;

    while (exit_code == 0 && files[count].name != NULL) {
        if (!write_temp(dir, &files[count], owner)) {
            exit_code = pki_system_error("write", folder, files[count].name);
        }
        count++;
    }
    for (size_t i = 0; i < count; i++) {
        name_temp(&files[i], temp);
        if (exit_code != 0) {
            (void)unlinkat(dir, temp, 0);
        } else if (renameat(dir, temp, dir, files[i].name) != 0) {
            exit_code = pki_system_error("replace", folder, files[i].name);
        }
    }
    if (exit_code == 0 && fsync(dir) != 0) {
        exit_code = pki_system_error("write", folder, "");
    }
    return exit_code;
}
