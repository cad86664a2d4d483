/* SPDX-License-Identifier: Apache-2.0 */
/* Folder of an authority:
 *
 *     ca.crt   certificate of the authority
 *     ca.key   its key, 0600
 *     index    certificates that it has issued, one a line
 *     crl.pem  list of those that are revoked
 *     codes    one-time codes that have not been used (pki_serve.c)
 *
 * A run locks the folder, so that two do not lose each other's changes. The
 * index is written before a certificate is handed out: none is unknown.
 *
 * Files are written beside the former ones, and renamed when all are on disk. */
#include "psctl/pki.h"

#include "base/alloc.h"
#include "base/file_check.h"
#include "psctl/psctl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* -------------------------------------------------------------------- files */

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

/* Frees a text after overwriting it. */
static void free_secret(char *text)
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

int pki_read_file(int dir, const char *folder, const char *name,
                  char **ret_text)
{
    /* A folder may belong to another user, whose named pipe would never end. */
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    int exit_code = 0;
    struct stat st;
    char *text;
    ssize_t n;

    *ret_text = NULL;
    if (fd < 0) {
        return errno == ENOENT ? 0 : pki_system_error("read", folder, name);
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        pki_error("%s/%s is not a regular file; remove it", folder, name);
        return EXIT_FAILED;
    }
    if (st.st_size > (off_t)PKI_FILE_MAX) {
        close(fd);
        errno = EFBIG;
        return pki_system_error("read", folder, name);
    }
    text = ps_alloc((size_t)st.st_size + 1);
    n = ps_file_read(fd, text, (size_t)st.st_size);
    if (n < 0) {
        exit_code = pki_system_error("read", folder, name);
        ps_free(text);
    } else {
        text[n] = '\0';
        *ret_text = text;
    }
    close(fd);
    return exit_code;
}

/* Fails if the group or others may access the file. */
static int check_secret(int dir, const char *folder, const char *name)
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

#define INDEX_HEAD   "pskv-index 1 "
#define FIELDS       8u
#define DAYS_DEFAULT 365u

int64_t pki_now(void)
{
    return (int64_t)time(NULL);
}

struct ps_pki_period pki_validity(uint32_t days, int64_t now)
{
    return (struct ps_pki_period){
        now - PKI_CLOCK_MARGIN,
        now + PKI_DAY * (days != 0 ? days : DAYS_DEFAULT),
    };
}

/* ---------------------------------------------------------------------- lock */

static int lock_folder(int dir, const char *path)
{
    struct stat st;

    while (flock(dir, LOCK_EX) != 0) {
        if (errno != EINTR) {
            return pki_system_error("lock", path, "");
        }
    }
    if (fstat(dir, &st) != 0) {
        return pki_system_error("read", path, "");
    }
    if ((st.st_mode & 022) != 0) {
        pki_error("others may write to the authority's folder %s; chmod 700 it",
                  path);
        return EXIT_NOPERM;
    }
    return 0;
}

/* --------------------------------------------------------------------- index */

static bool parse_number(const char *text, int64_t *ret)
{
    char *end;
    long long n;

    errno = 0;
    n = strtoll(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || n < 0) {
        return false;
    }
    *ret = n;
    return true;
}

static struct pki_record *append_record(struct pki_store *s)
{
    if (s->count == s->capacity) {
        s->capacity = s->capacity == 0 ? 64 : s->capacity * 2;
        s->records = ps_realloc(s->records,
                                s->capacity * sizeof(s->records[0]));
    }
    s->records[s->count] = (struct pki_record){0};
    return &s->records[s->count++];
}

/* Parses one line, which it changes. */
static bool parse_record(struct pki_store *s, char *line)
{
    char *field[FIELDS] = {NULL};
    char *rest = line;
    struct pki_record r = {0};
    int64_t replaced;
    size_t n = 0;

    while (n < FIELDS && rest != NULL) {
        field[n++] = strsep(&rest, " ");
    }
    if (n != FIELDS || rest != NULL || s->count == PKI_RECORDS_MAX ||
        !ps_pki_read_hex(field[0], PS_PKI_SERIAL_BYTES, r.serial.bytes) ||
        !ps_identity_read_role(field[1], &r.role) ||
        !ps_str_is_name(field[2], PS_NAME_MAX) ||
        !parse_number(field[3], &r.period.not_before) ||
        !parse_number(field[4], &r.period.not_after) ||
        !parse_number(field[5], &r.revoked_at) ||
        !parse_number(field[6], &replaced) || replaced > 1) {
        return false;
    }
    ps_str_copy(r.name, sizeof(r.name), field[2]);
    r.is_replaced = replaced == 1;
    r.hosts = ps_strdup(field[7]);
    *append_record(s) = r;
    return true;
}

static int parse_index(struct pki_store *s, char *text)
{
    char *line = strsep(&text, "\n");
    size_t number = 1;
    int64_t crl_number;

    if (strncmp(line, INDEX_HEAD, strlen(INDEX_HEAD)) != 0 ||
        !parse_number(line + strlen(INDEX_HEAD), &crl_number)) {
        pki_error("%s/index is not an index of this version of psctl", s->path);
        return EXIT_FAILED;
    }
    s->crl_number = (uint64_t)crl_number;
    while (text != NULL && text[0] != '\0') {
        line = strsep(&text, "\n");
        number++;
        if (!parse_record(s, line)) {
            pki_error("%s/index, line %zu is damaged; restore the folder from "
                      "a backup",
                      s->path, number);
            return EXIT_FAILED;
        }
    }
    return 0;
}

static void add_record(FILE *out, const struct pki_record *r)
{
    struct ps_str s = PS_STR_ROOM(PS_PKI_SERIAL_TEXT);

    ps_pki_add_hex(&s, r->serial.bytes, PS_PKI_SERIAL_BYTES);
    fprintf(out, "%s %s %s %" PRId64 " %" PRId64 " %" PRId64 " %d %s\n", s.data,
            ps_role_name(r->role), r->name, r->period.not_before,
            r->period.not_after, r->revoked_at, r->is_replaced ? 1 : 0,
            r->hosts);
}

/* Text of the index, which the caller frees with free(). */
static char *format_index(const struct pki_store *s)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);

    if (out == NULL) {
        return NULL;
    }
    fprintf(out, INDEX_HEAD "%" PRIu64 "\n", s->crl_number);
    for (size_t i = 0; i < s->count; i++) {
        add_record(out, &s->records[i]);
    }
    return fclose(out) == 0 ? text : NULL;
}

/* ---------------------------------------------------------------- revocation */

/* PEM of a list of the revoked certificates; the caller frees it. NULL after a
 * message. */
static char *make_crl(const struct pki_store *s, int64_t now)
{
    struct ps_pki_revocation *revoked = ps_calloc(s->count + 1,
                                                  sizeof(*revoked));
    struct ps_pki_crl contents = {
        .revoked = revoked,
        .number = s->crl_number,
        .issued_at = now - PKI_CLOCK_MARGIN,
        .next_update = s->info.period.not_after,
    };
    char why[256];
    struct ps_str text;
    X509_CRL *crl = NULL;
    char *pem = NULL;

    for (size_t i = 0; i < s->count; i++) {
        const struct pki_record *r = &s->records[i];

        /* An expired certificate is refused without the list. */
        if (r->revoked_at != 0 && r->period.not_after > now - PKI_DAY) {
            revoked[contents.count++] = (struct ps_pki_revocation){
                r->serial, r->revoked_at};
        }
    }
    ps_str_init(&text, why, sizeof(why));
    if (ps_pki_crl_new(&s->authority, &contents, &crl, &text) != 0) {
        pki_error("%s", why);
    } else {
        size_t cap = PS_PKI_PEM_BYTES + 128 * contents.count;

        pem = ps_alloc(cap);
        ps_str_init(&text, pem, cap);
        ps_pki_add_crl(&text, crl);
        if (text.truncated) {
            pki_error("cannot write the list of revoked certificates as text");
            ps_free(pem);
            pem = NULL;
        }
        ps_pki_crl_free(crl);
    }
    ps_free(revoked);
    return pem;
}

int pki_store_save(struct pki_store *s, int64_t now)
{
    char *index;
    char *crl;
    int exit_code = EXIT_FAILED;

    s->crl_number++;
    crl = make_crl(s, now);
    index = format_index(s);
    if (crl != NULL && index != NULL) {
        const struct pki_file files[] = {
            {"index", index, 0600}, {"crl.pem", crl, 0644}, {NULL, NULL, 0}};

        exit_code = pki_write_files(s->dir, s->path, files, NULL);
    }
    free(index);
    ps_free(crl);
    return exit_code;
}

/* ------------------------------------------------------------------- records */

struct pki_record *pki_store_find(const struct pki_store *s, enum ps_role role,
                                  const char *name)
{
    for (size_t i = s->count; i > 0; i--) {
        struct pki_record *r = &s->records[i - 1];

        if (r->role == role && strcmp(r->name, name) == 0) {
            return r;
        }
    }
    return NULL;
}

/* Adds a record; those of the same role and name are replaced by it. */
static struct pki_record *add_certificate(struct pki_store *s,
                                          const X509 *certificate,
                                          const char *const *hosts,
                                          size_t host_count)
{
    char joined[PS_PKI_HOSTS_MAX * (PS_PKI_HOST_MAX + 1) + 1];
    struct ps_pki_info info = {0};
    struct pki_record *r;
    char why[256];
    struct ps_str text;

    ps_str_init(&text, why, sizeof(why));
    if (ps_pki_describe(certificate, &info, &text) != 0 ||
        s->count == PKI_RECORDS_MAX) {
        pki_error("%s", s->count == PKI_RECORDS_MAX
                            ? "the index is full; make a new authority"
                            : why);
        return NULL;
    }
    for (size_t i = 0; i < s->count; i++) {
        r = &s->records[i];
        r->is_replaced |= r->role == info.identity.role &&
                          strcmp(r->name, info.identity.name) == 0;
    }
    ps_str_init(&text, joined, sizeof(joined));
    pki_hosts_join(&text, hosts, host_count);
    r = append_record(s);
    r->serial = info.serial;
    r->role = info.identity.role;
    ps_str_copy(r->name, sizeof(r->name), info.identity.name);
    r->period = info.period;
    r->hosts = ps_strdup(joined);
    return r;
}

int pki_store_issue(struct pki_store *s, const struct ps_pki_request *q,
                    EVP_PKEY *key, int64_t now, struct pki_grant *grant)
{
    struct ps_str text = PS_STR_ROOM(512);
    struct ps_str certificate;
    const struct pki_record *r;
    int exit_code = EXIT_FAILED;
    X509 *x = NULL;

    if (ps_pki_issue(&s->authority, q, key, &x, &text) != 0) {
        pki_error("%s", text.data);
        return EXIT_FAILED;
    }
    r = add_certificate(s, x, q->hosts, q->host_count);
    if (r != NULL && pki_store_save(s, now) == 0) {
        ps_str_init(&certificate, grant->certificate,
                    sizeof(grant->certificate));
        ps_pki_add_certificate(&certificate, x);
        grant->info = (struct ps_pki_info){
            .identity = *q->identity, .serial = r->serial, .period = r->period};
        grant->authority = ps_strdup(s->certificate);
        exit_code = pki_read_file(s->dir, s->path, "crl.pem", &grant->crl);
    }
    ps_pki_certificate_free(x);
    return exit_code == 0 && grant->crl == NULL ? EXIT_FAILED : exit_code;
}

void pki_grant_fini(struct pki_grant *g)
{
    ps_free(g->authority);
    ps_free(g->crl);
    g->authority = NULL;
    g->crl = NULL;
}

/* --------------------------------------------------------------------- hosts */

void pki_hosts_join(struct ps_str *s, const char *const *hosts, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        ps_str_addf(s, "%s%s", i > 0 ? "," : "", hosts[i]);
    }
    if (count == 0) {
        ps_str_add(s, "-");
    }
}

void pki_hosts_split(const char *joined, struct pki_hosts *ret_hosts)
{
    char *rest;

    *ret_hosts = (struct pki_hosts){0};
    if (strcmp(joined, "-") == 0) {
        return;
    }
    ret_hosts->text = ps_strdup(joined);
    rest = ret_hosts->text;
    while (rest != NULL && ret_hosts->count < PS_PKI_HOSTS_MAX) {
        ret_hosts->list[ret_hosts->count++] = strsep(&rest, ",");
    }
}

void pki_hosts_fini(struct pki_hosts *h)
{
    ps_free(h->text);
    *h = (struct pki_hosts){0};
}

/* ------------------------------------------------------------ open and close */

void pki_store_close(struct pki_store *s)
{
    ps_pki_authority_fini(&s->authority);
    for (size_t i = 0; i < s->count; i++) {
        ps_free(s->records[i].hosts);
    }
    ps_free(s->records);
    ps_free(s->certificate);
    if (s->dir >= 0) {
        close(s->dir); /* And unlocks it. */
    }
    s->dir = -1;
}

/* Reads the certificate, and the key if the run signs. */
static int read_authority(struct pki_store *s, bool signs)
{
    char *key = NULL;
    struct ps_str text = PS_STR_ROOM(512);
    int exit_code = pki_read_file(s->dir, s->path, "ca.crt", &s->certificate);
    int rc = 0;

    if (exit_code == 0 && s->certificate == NULL) {
        pki_error("%s has no authority (ca.crt); psctl pki init makes one",
                  s->path);
        exit_code = EXIT_FAILED;
    }
    if (exit_code == 0 && signs) {
        exit_code = check_secret(s->dir, s->path, "ca.key");
        if (exit_code == 0) {
            exit_code = pki_read_file(s->dir, s->path, "ca.key", &key);
        }
    }
    if (exit_code != 0) {
        return exit_code;
    }
    rc = signs
             ? ps_pki_authority_read(s->certificate, key, &s->authority, &text)
             : ps_pki_read_certificate(s->certificate,
                                       &s->authority.certificate, &text);
    free_secret(key);
    if (rc == 0) {
        rc = ps_pki_describe(s->authority.certificate, &s->info, &text);
    }
    if (rc == 0 && signs && s->info.period.not_after <= pki_now()) {
        ps_str_add(&text, "the authority has expired; make a new one");
        rc = PS_E_PERM;
    }
    if (rc != 0) {
        pki_error("%s: %s", s->path, text.data);
        return EXIT_FAILED;
    }
    return 0;
}

int pki_store_open(const char *path, bool signs, struct pki_store *ret_store)
{
    struct pki_store s = {.path = path, .dir = -1};
    char *index = NULL;
    int exit_code = pki_open_folder(path, false, NULL, &s.dir);

    if (exit_code == 0) {
        exit_code = lock_folder(s.dir, path);
    }
    if (exit_code == 0) {
        exit_code = read_authority(&s, signs);
    }
    if (exit_code == 0) {
        exit_code = pki_read_file(s.dir, path, "index", &index);
    }
    if (exit_code == 0 && index == NULL) {
        pki_error("%s has no index; restore the folder from a backup", path);
        exit_code = EXIT_FAILED;
    }
    if (exit_code == 0) {
        exit_code = parse_index(&s, index);
    }
    ps_free(index);
    if (exit_code != 0) {
        pki_store_close(&s);
        return exit_code;
    }
    *ret_store = s;
    return 0;
}

/* Writes certificate and key of a new authority, then an empty index. */
static int write_authority(struct pki_store *s, int64_t now)
{
    char certificate[PS_PKI_PEM_BYTES];
    char key[PS_PKI_PEM_BYTES];
    struct ps_str text;
    int exit_code;

    ps_str_init(&text, certificate, sizeof(certificate));
    ps_pki_add_certificate(&text, s->authority.certificate);
    ps_str_init(&text, key, sizeof(key));
    ps_pki_add_key(&text, s->authority.key);
    {
        const struct pki_file files[] = {{"ca.key", key, 0600},
                                         {"codes", "", 0600},
                                         {"ca.crt", certificate, 0644},
                                         {NULL, NULL, 0}};

        exit_code = pki_store_save(s, now);
        if (exit_code == 0) {
            exit_code = pki_write_files(s->dir, s->path, files, NULL);
        }
    }
    OPENSSL_cleanse(key, sizeof(key));
    return exit_code;
}

int pki_store_create(const struct pki_options *o, int64_t now)
{
    const struct ps_pki_period period = {
        now - PKI_CLOCK_MARGIN,
        now + PKI_DAY * (o->days != 0 ? o->days : 3650),
    };
    struct pki_store s = {.path = o->directory, .dir = -1};
    struct ps_str text = PS_STR_ROOM(256);
    int exit_code;

    if (ps_pki_authority_new(o->cluster, &period, &s.authority, &text) != 0 ||
        ps_pki_describe(s.authority.certificate, &s.info, &text) != 0) {
        pki_error("%s", text.data);
        return EXIT_USAGE;
    }
    exit_code = pki_open_folder(o->directory, true, NULL, &s.dir);
    if (exit_code == 0) {
        exit_code = lock_folder(s.dir, o->directory);
    }
    if (exit_code == 0 && !o->force &&
        (pki_file_exists(s.dir, "ca.crt") ||
         pki_file_exists(s.dir, "ca.key"))) {
        pki_error("%s has an authority already; --force replaces it, after "
                  "which no certificate of the cluster is valid",
                  o->directory);
        exit_code = EXIT_FAILED;
    }
    if (exit_code == 0) {
        exit_code = write_authority(&s, now);
    }
    pki_store_close(&s);
    return exit_code;
}
