/* SPDX-License-Identifier: Apache-2.0 */
/* Certificate of a daemon: read from files or an inherited descriptor before the
 * start, and from files again on SIGHUP. A reload that fails changes nothing.
 * The certificate names the daemon; options that name another one are errors. */
#include "common/daemon_inner.h"

#include "base/alloc.h"
#include "base/file_check.h"
#include "base/log.h"
#include "base/str.h"
#include "crypto/tls.h"
#include "driver/driver.h"
#include "net/tls.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 4200
#define REPORT_MAX 8192
#define DATE_BYTES 32

/* Files of a certificate, and the option that names them. */
struct files {
    char ca[PATH_BYTES];
    char cert[PATH_BYTES];
    char key[PATH_BYTES];
    char crl[PATH_BYTES]; /* "": none. */
    const char *option;
};

static const struct ps_tls_options *tls_options(const struct daemon *d,
                                                const void *values)
{
    const struct ps_common_options *c = (const void *)((const char *)values +
                                                       d->spec->common);

    return &c->tls;
}

static bool names_files(const struct ps_tls_options *t)
{
    return t->directory[0] != '\0' || t->ca[0] != '\0' || t->cert[0] != '\0' ||
           t->key[0] != '\0' || t->crl[0] != '\0';
}

/* Begins a line of the report. */
static void report_where(const struct ps_options *o, const char *option,
                         struct ps_str *report)
{
    ps_options_where(o, option, report);
    ps_str_addf(report, ": %s: ", option);
}

/* ------------------------------------------------------------------ sources */

/* Path of one file, by its option or in the folder. */
static void find_file(const char *option, const char *folder, const char *name,
                      char out[PATH_BYTES])
{
    if (option[0] != '\0' || folder[0] == '\0') {
        ps_str_copy(out, PATH_BYTES, option);
    } else {
        snprintf(out, PATH_BYTES, "%.4000s/%s", folder, name);
    }
}

static bool is_missing(const char *path)
{
    return access(path, F_OK) != 0 && errno == ENOENT;
}

/* False with a line in the report: an option is missing, or the folder has not
 * the files of this daemon. */
static bool find_files(const struct daemon *d, const struct ps_options *o,
                       const struct ps_tls_options *t, struct files *f,
                       struct ps_str *report)
{
    const char *role = ps_role_name(d->spec->self);
    char name[32];

    f->option = t->directory[0] != '\0' ? "security.tls.directory"
                : t->cert[0] != '\0'    ? "security.tls.cert"
                : t->ca[0] != '\0'      ? "security.tls.ca"
                : t->key[0] != '\0'     ? "security.tls.key"
                                        : "security.tls.crl";
    find_file(t->ca, t->directory, "ca.crt", f->ca);
    snprintf(name, sizeof(name), "%s.crt", role);
    find_file(t->cert, t->directory, name, f->cert);
    snprintf(name, sizeof(name), "%s.key", role);
    find_file(t->key, t->directory, name, f->key);
    find_file(t->crl, t->directory, "crl.pem", f->crl);
    if (t->crl[0] == '\0' && f->crl[0] != '\0' && is_missing(f->crl)) {
        f->crl[0] = '\0';
    }
    if (f->ca[0] == '\0' || f->cert[0] == '\0' || f->key[0] == '\0') {
        report_where(o, f->option, report);
        ps_str_add(report, "security.tls.ca, security.tls.cert and "
                           "security.tls.key are needed together; set them, "
                           "or security.tls.directory\n");
        return false;
    }
    if (t->directory[0] != '\0' && t->cert[0] == '\0' && is_missing(f->cert)) {
        report_where(o, f->option, report);
        ps_str_addf(report,
                    "%s: there is no such file; 'psctl pki issue %s NAME "
                    "--out FOLDER' makes it and what belongs to it\n",
                    f->cert, role);
        return false;
    }
    return true;
}

static int load_files(const struct daemon *d, const struct ps_options *o,
                      const struct ps_tls_options *t,
                      struct daemon_credentials *ret, struct ps_str *report)
{
    struct files *f = ps_calloc(1, sizeof(*f));
    struct ps_str why = PS_STR_ROOM(1024);
    int rc = PS_E_CONFIG;

    if (find_files(d, o, t, f, report)) {
        rc = ps_tls_context_new(
            &(struct ps_tls_source){.ca = f->ca,
                                    .certificate = f->cert,
                                    .key = f->key,
                                    .crl = f->crl[0] != '\0' ? f->crl : NULL,
                                    .by_kernel = t->ktls != PS_KTLS_OFF},
            &ret->context, &why);
        ret->has_crl = f->crl[0] != '\0';
        if (rc != 0) {
            report_where(o, f->option, report);
            ps_str_addf(report, "%s\n", why.data);
        }
    }
    ps_free(f);
    return rc;
}

/* Reads the descriptor to its end, and closes it. NULL: errno. A memfd is read
 * from its beginning, which an earlier child of a keeper has read, too. */
static char *read_descriptor(int fd)
{
    char *text = ps_alloc(PS_TLS_PEM_MAX + 1);

    (void)lseek(fd, 0, SEEK_SET); /* A pipe has no beginning. */
    const ssize_t len = ps_file_read(fd, text, PS_TLS_PEM_MAX);
    const int error = len < 0 ? errno : EMSGSIZE;

    close(fd);
    if (len < 0 || len == (ssize_t)PS_TLS_PEM_MAX) {
        explicit_bzero(text, PS_TLS_PEM_MAX);
        ps_free(text);
        errno = error;
        return NULL;
    }
    text[len] = '\0';
    return text;
}

static int load_descriptor(const struct ps_options *o,
                           const struct ps_tls_options *t,
                           struct daemon_credentials *ret,
                           struct ps_str *report)
{
    char text[1024];
    struct ps_str why;
    char *pem = read_descriptor(t->fd);

    if (pem == NULL) {
        report_where(o, "security.tls.fd", report);
        ps_str_addf(report,
                    "descriptor %d cannot be read: %s; the process that "
                    "starts this one has to pass a descriptor with the PEM "
                    "text of key, certificate and authority\n",
                    t->fd, strerror(errno));
        return PS_E_CONFIG;
    }
    ps_str_init(&why, text, sizeof(text));
    int rc = ps_tls_context_new(
        &(struct ps_tls_source){.pem = pem,
                                .by_kernel = t->ktls != PS_KTLS_OFF},
        &ret->context, &why);

    explicit_bzero(pem, strlen(pem));
    ps_free(pem);
    if (rc != 0) {
        ps_options_where(o, "security.tls.fd", report);
        ps_str_addf(report, ": %s\n", text);
    }
    return rc;
}

/* ----------------------------------------------------------------- identity */

/* True if role, cluster and name of the certificate are those of the options,
 * where these state them. */
static bool check_identity(const struct daemon *d, const struct ps_options *o,
                           const struct ps_common_options *c,
                           const struct ps_identity *id, struct ps_str *report)
{
    if (id->role != d->spec->self) {
        report_where(o, "security.tls.enabled", report);
        ps_str_addf(report,
                    "the certificate is of role %s, and %s needs one of role "
                    "%s; 'psctl pki issue %s NAME' makes it\n",
                    ps_role_name(id->role), d->spec->options->program,
                    ps_role_name(d->spec->self), ps_role_name(d->spec->self));
        return false;
    }
    if (ps_options_origin(o, "cluster.name") != PS_OPTION_FROM_DEFAULT &&
        strcmp(c->cluster, id->cluster) != 0) {
        report_where(o, "cluster.name", report);
        ps_str_addf(report,
                    "%s, and the certificate is of cluster '%s'; leave "
                    "cluster.name out, or use another certificate\n",
                    c->cluster, id->cluster);
        return false;
    }
    if (c->node[0] != '\0' && strcmp(c->node, id->name) != 0) {
        report_where(o, "node.name", report);
        ps_str_addf(report,
                    "%s, and the certificate is of '%s'; leave node.name "
                    "out, or use another certificate\n",
                    c->node, id->name);
        return false;
    }
    return true;
}

static int load_credentials(const struct daemon *d, const void *values,
                            const struct ps_options *o,
                            struct daemon_credentials *ret,
                            struct ps_str *report)
{
    const struct ps_common_options *c = (const void *)((const char *)values +
                                                       d->spec->common);
    const struct ps_tls_options *t = &c->tls;
    int rc;

    if (t->fd >= 0 && names_files(t)) {
        report_where(o, "security.tls.fd", report);
        ps_str_add(report, "it takes the place of security.tls.directory, ca, "
                           "cert, key and crl; set one or the others\n");
        return PS_E_CONFIG;
    }
    if (t->fd < 0 && !names_files(t)) {
        if (t->enabled != PS_TLS_ON) {
            return 0;
        }
        report_where(o, "security.tls.enabled", report);
        ps_str_add(report, "there is no certificate; set "
                           "security.tls.directory to the folder that 'psctl "
                           "pki issue' has written\n");
        return PS_E_CONFIG;
    }
    rc = t->fd >= 0 ? load_descriptor(o, t, ret, report)
                    : load_files(d, o, t, ret, report);
    if (rc == 0 &&
        !check_identity(d, o, c, ps_tls_context_identity(ret->context),
                        report)) {
        ps_tls_context_unref(ret->context);
        ret->context = NULL;
        rc = PS_E_CONFIG;
    }
    return rc;
}

int daemon_tls_load(struct daemon *d, struct ps_str *report)
{
    if (tls_options(d, d->config.values)->enabled == PS_TLS_OFF) {
        return 0;
    }
    return load_credentials(d, d->config.values, d->config.options,
                            &d->tls.credentials, report);
}

const struct ps_identity *daemon_tls_identity(const struct daemon *d)
{
    return d->tls.credentials.context != NULL
               ? ps_tls_context_identity(d->tls.credentials.context)
               : NULL;
}

/* ------------------------------------------------------------------- expiry */

static void print_date(int64_t at, char out[DATE_BYTES])
{
    const time_t t = (time_t)at;
    struct tm tm;

    if (gmtime_r(&t, &tm) == NULL ||
        strftime(out, DATE_BYTES, "%Y-%m-%dT%H:%M:%SZ", &tm) == 0) {
        out[0] = '\0';
    }
}

static void warn_of_end(const struct daemon *d, int64_t left)
{
    const struct ps_identity *id = daemon_tls_identity(d);
    char date[DATE_BYTES];

    print_date(d->tls.expiry.ends_at, date);
    if (left <= 0) {
        ps_log(PS_LOG_ERROR,
               "certificate has ended at %s: peers refuse new connections; "
               "'psctl pki renew %s %s' makes its successor",
               date, ps_role_name(id->role), id->name);
    } else {
        ps_log(PS_LOG_WARNING,
               "certificate ends in %lld %s, at %s; 'psctl pki renew %s %s' "
               "makes its successor, SIGHUP reads it",
               (long long)(left >= 86400 ? left / 86400 : left / 3600),
               left >= 86400 ? "days" : "hours", date, ps_role_name(id->role),
               id->name);
    }
}

void daemon_tls_report(const struct daemon *d)
{
    if (d->driver != NULL && d->tls.credentials.context != NULL) {
        ps_driver_report_certificate(
            d->driver, &(struct ps_certificate_end){
                           .at = (uint64_t)d->tls.expiry.ends_at,
                           .is_expiring = d->tls.expiry.stage > 0});
    }
}

static void check_expiry(struct ps_loop_timer *timer)
{
    struct daemon *d = PS_CONTAINER(timer, struct daemon, tls.expiry_timer);
    const int64_t now = (int64_t)time(NULL);
    int64_t wait;

    if (ps_expiry_check(&d->tls.expiry, now, &wait)) {
        warn_of_end(d, d->tls.expiry.ends_at - now);
    }
    daemon_tls_report(d);
    ps_loop_timer_set(
        d->loop, timer,
        ps_time_add(ps_loop_now(d->loop), PS_SECONDS((ps_time)wait + 1)));
}

/* Logs the certificate in use, and watches its end. */
static void use_certificate(struct daemon *d, const char *verb)
{
    const struct daemon_credentials *c = &d->tls.credentials;
    char date[DATE_BYTES];
    struct ps_str s = PS_STR_ROOM(PS_IDENTITY_URI_BYTES);

    d->tls.expiry = (struct ps_expiry){
        .begins_at = ps_tls_context_begins_at(c->context),
        .ends_at = ps_tls_context_expires_at(c->context)};
    ps_identity_add_uri(&s, ps_tls_context_identity(c->context));
    print_date(d->tls.expiry.ends_at, date);
    ps_log(PS_LOG_NOTICE, "certificate %s %s ends %s%s", verb, s.data, date,
           c->has_crl ? "" : ", no list of revoked certificates");
    check_expiry(&d->tls.expiry_timer);
}

/* --------------------------------------------------------------------- life */

/* Reports whether the kernel or OpenSSL protects the records. */
static void report_protection(struct daemon *d)
{
    const int mode = daemon_common_options(d)->tls.ktls;

    d->facts.process.ktls = mode != PS_KTLS_OFF &&
                            ps_transport_kernel_has_tls();
    if (mode == PS_KTLS_ON && !d->facts.process.ktls) {
        ps_log(PS_LOG_WARNING, "security.tls.ktls is on, and the kernel has no "
                               "TLS (modprobe tls); OpenSSL does its work");
    }
    ps_log(PS_LOG_INFO, "records of TLS are protected by %s",
           d->facts.process.ktls ? "the kernel" : ps_tls_library());
}

int daemon_tls_start(struct daemon *d)
{
    const struct ps_common_options *c = daemon_common_options(d);

    if (d->tls.credentials.context == NULL) {
        return 0;
    }
    d->tls.expiry_timer.due = check_expiry;
    use_certificate(d, "loaded");
    report_protection(d);
    return ps_tls_gate_new(
        &(struct ps_tls_gate_options){
            .loop = d->loop,
            .timeout = c->handshake,
            .accepted_max = (uint32_t)c->pre_handshake},
        &d->tls.gate);
}

struct ps_driver_tls daemon_tls_of_driver(const struct daemon *d)
{
    return (struct ps_driver_tls){.gate = d->tls.gate,
                                  .context = d->tls.credentials.context};
}

void daemon_tls_stop(struct daemon *d)
{
    if (d->loop != NULL) {
        ps_loop_timer_set(d->loop, &d->tls.expiry_timer, PS_TIME_NEVER);
    }
    ps_tls_gate_free(d->tls.gate);
    d->tls.gate = NULL;
}

void daemon_tls_fini(struct daemon *d)
{
    ps_tls_context_unref(d->tls.credentials.context);
}

/* ------------------------------------------------------------------- reload */

/* True if the credentials can replace those in use; else the report has the
 * reason. */
static bool may_replace(const struct daemon *d,
                        const struct daemon_credentials *next,
                        struct ps_str *report)
{
    const struct ps_identity *old = daemon_tls_identity(d);
    const struct ps_identity *id;

    if (next->context == NULL) {
        ps_str_add(report, "security.tls: there is no certificate any more; "
                           "restart the daemon to do without");
        return false;
    }
    id = ps_tls_context_identity(next->context);
    if (strcmp(old->cluster, id->cluster) != 0 ||
        strcmp(old->name, id->name) != 0) {
        ps_str_add(report, "the certificate is of another node; restart the "
                           "daemon to give it another name");
        return false;
    }
    if (d->tls.credentials.has_crl && !next->has_crl) {
        ps_str_add(report, "there is no list of revoked certificates any more; "
                           "without it they would be accepted again");
        return false;
    }
    if (ps_tls_context_check_lists(d->tls.credentials.context, next->context,
                                   report) != 0) {
        ps_str_add(report, "; copy the authority's crl.pem again");
        return false;
    }
    return true;
}

static void log_not_reloaded(char *lines)
{
    for (char *line; (line = strsep(&lines, "\n")) != NULL;) {
        if (line[0] != '\0') {
            ps_log(PS_LOG_ERROR, "%s", line);
        }
    }
    ps_log(PS_LOG_ERROR, "certificates not reloaded, the old ones stay");
}

bool daemon_tls_reload(struct daemon *d, const void *values,
                       const struct ps_options *o)
{
    const struct ps_tls_options *t = tls_options(d, values);
    struct daemon_credentials next = {0};
    struct ps_str report = PS_STR_ROOM(REPORT_MAX);

    if (d->tls.credentials.context == NULL) {
        if (t->enabled != PS_TLS_OFF && names_files(t)) {
            ps_log(PS_LOG_WARNING,
                   "security.tls: takes effect when the daemon is restarted");
        }
        return true;
    }
    if (t->fd >= 0) {
        return true; /* Read once. */
    }
    if (load_credentials(d, values, o, &next, &report) != 0) {
        log_not_reloaded(report.data);
        return false;
    }
    if (!may_replace(d, &next, &report)) {
        log_not_reloaded(report.data);
        ps_tls_context_unref(next.context);
        return false;
    }
    ps_driver_set_tls(d->driver, next.context);
    ps_tls_context_unref(d->tls.credentials.context);
    d->tls.credentials = next;
    use_certificate(d, "reloaded");
    return true;
}
