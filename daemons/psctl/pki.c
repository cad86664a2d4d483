/* SPDX-License-Identifier: Apache-2.0 */
/* `psctl pki`: makes an authority, and issues, renews and revokes certificates.
 * Works on files alone; no daemon takes part, and no daemon has the authority's
 * key. */
#include "psctl/pki.h"

#include "base/alloc.h"
#include "psctl/answer.h"

#include <inttypes.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Parses ROLE and NAME of the arguments. */
static bool parse_identity(const struct pki_store *s, char **words,
                           struct ps_identity *ret)
{
    *ret = (struct ps_identity){0};
    if (!ps_identity_read_role(words[0], &ret->role)) {
        pki_error("a role is sched, server, agent or ctl");
        return false;
    }
    if (!ps_str_is_name(words[1], PS_NAME_MAX)) {
        pki_error("a name is 1 to 64 printable ASCII characters without "
                  "spaces");
        return false;
    }
    ps_str_copy(ret->name, sizeof(ret->name), words[1]);
    ps_str_copy(ret->cluster, sizeof(ret->cluster), s->info.identity.cluster);
    return true;
}

/* Makes key and certificate, and writes them to the open folder. */
static int issue_to_folder(struct pki_store *s, const struct pki_options *o,
                           const struct ps_pki_request *q, int dir)
{
    char pem[PS_PKI_PEM_BYTES];
    struct ps_str key_text;
    struct ps_str text = PS_STR_ROOM(256);
    struct pki_grant grant = {.crl = NULL};
    EVP_PKEY *key = NULL;
    int exit_code;

    if (ps_pki_key_new(&key, &text) != 0) {
        pki_error("%s", text.data);
        return EXIT_FAILED;
    }
    exit_code = pki_store_issue(s, q, key, pki_now(), &grant);
    if (exit_code == 0) {
        const struct pki_node node = {.role = q->identity->role,
                                      .authority = grant.authority,
                                      .certificate = grant.certificate,
                                      .key = pem,
                                      .crl = grant.crl};

        ps_str_init(&key_text, pem, sizeof(pem));
        ps_pki_add_key(&key_text, key);
        exit_code = pki_node_write(o, dir, &node);
        OPENSSL_cleanse(pem, sizeof(pem));
    }
    if (exit_code == 0) {
        pki_node_print(&grant.info, pki_node_folder(o));
    }
    pki_grant_fini(&grant);
    ps_pki_key_free(key);
    return exit_code;
}

/* --------------------------------------------------------------------- verbs */

int pki_init(const struct pki_options *o, char **words)
{
    int exit_code = pki_store_create(o, pki_now());

    (void)words;
    if (exit_code == 0) {
        printf("%s: authority of cluster %s; keep ca.key secret, and a copy of "
               "the folder\n",
               o->directory, o->cluster);
    }
    return exit_code;
}

/* False, after a message, if the member has a valid certificate. */
static bool is_issuable(const struct pki_store *s, const struct pki_options *o,
                        const struct ps_identity *id)
{
    const struct pki_record *present = pki_store_find(s, id->role, id->name);

    if (o->force || present == NULL || present->revoked_at != 0 ||
        present->period.not_after <= pki_now()) {
        return true;
    }
    pki_error("%s %s has a certificate; renew makes its successor, --force "
              "another one",
              ps_role_name(id->role), id->name);
    return false;
}

static int run_issue(struct pki_store *s, const struct pki_options *o,
                     char **words)
{
    struct ps_identity id;
    int64_t now = pki_now();
    int exit_code;
    int dir;

    if (!parse_identity(s, words, &id)) {
        return EXIT_USAGE;
    }
    if (!is_issuable(s, o, &id)) {
        return EXIT_FAILED;
    }
    exit_code = pki_node_open(o, id.role, s->certificate, o->force, &dir);
    if (exit_code == 0) {
        const struct ps_pki_request q = {
            .identity = &id,
            .hosts = o->hosts,
            .host_count = o->host_count,
            .period = pki_validity(o->days, now),
        };

        exit_code = issue_to_folder(s, o, &q, dir);
        close(dir);
    }
    return exit_code;
}

/* Hosts of the options, or else those of the former certificate. */
static void choose_hosts(const struct pki_options *o,
                         const struct pki_record *r, struct pki_hosts *ret)
{
    if (o->host_count == 0) {
        pki_hosts_split(r->hosts, ret);
        return;
    }
    *ret = (struct pki_hosts){.count = o->host_count};
    memcpy(ret->list, o->hosts, sizeof(ret->list));
}

/* Fails if the folder has a certificate of another identity under the role's
 * name. */
static int check_former(const struct pki_options *o, int dir,
                        const struct ps_identity *id)
{
    char name[32];
    struct ps_pki_info info;
    struct ps_str text = PS_STR_ROOM(256);
    char *pem;
    X509 *x = NULL;
    int exit_code;

    snprintf(name, sizeof(name), "%s.crt", ps_role_name(id->role));
    exit_code = pki_read_file(dir, pki_node_folder(o), name, &pem);
    if (exit_code != 0 || pem == NULL) {
        return exit_code;
    }
    if (ps_pki_read_certificate(pem, &x, &text) != 0 ||
        ps_pki_describe(x, &info, &text) != 0 ||
        strcmp(info.identity.cluster, id->cluster) != 0 ||
        strcmp(info.identity.name, id->name) != 0) {
        pki_error("%s/%s is not the certificate of %s %s; --force replaces it",
                  pki_node_folder(o), name, ps_role_name(id->role), id->name);
        exit_code = EXIT_FAILED;
    }
    ps_pki_certificate_free(x);
    ps_free(pem);
    return exit_code;
}

static int run_renew(struct pki_store *s, const struct pki_options *o,
                     char **words)
{
    const struct pki_record *former;
    struct ps_identity id;
    struct pki_hosts hosts;
    int64_t now = pki_now();
    int exit_code;
    int dir;

    if (!parse_identity(s, words, &id)) {
        return EXIT_USAGE;
    }
    former = pki_store_find(s, id.role, id.name);
    if (former == NULL || former->revoked_at != 0) {
        pki_error("%s %s has no certificate%s; issue makes one",
                  ps_role_name(id.role), id.name,
                  former == NULL ? "" : " that is not revoked");
        return EXIT_FAILED;
    }
    exit_code = pki_node_open(o, id.role, s->certificate, true, &dir);
    if (exit_code != 0) {
        return exit_code;
    }
    exit_code = o->force ? 0 : check_former(o, dir, &id);
    if (exit_code == 0) {
        struct ps_pki_request q = {
            .identity = &id,
            .period = pki_validity(o->days, now),
        };

        choose_hosts(o, former, &hosts);
        q.hosts = hosts.list;
        q.host_count = hosts.count;
        exit_code = issue_to_folder(s, o, &q, dir);
        pki_hosts_fini(&hosts);
    }
    close(dir);
    return exit_code;
}

static int run_code(struct pki_store *s, const struct pki_options *o,
                    char **words)
{
    struct ps_identity id;

    if (!parse_identity(s, words, &id)) {
        return EXIT_USAGE;
    }
    return is_issuable(s, o, &id) ? pki_code_issue(s, o, &id) : EXIT_FAILED;
}

/* Writes the list of revoked certificates to a node's folder. */
static int copy_crl(const struct pki_store *s, const struct pki_options *o)
{
    struct pki_owner owner;
    char *crl = NULL;
    int dir;
    int exit_code = pki_find_owner(o->owner, &owner);

    if (exit_code == 0) {
        exit_code = pki_read_file(s->dir, s->path, "crl.pem", &crl);
    }
    if (exit_code == 0) {
        exit_code = pki_open_folder(o->output, false, NULL, &dir);
    }
    if (exit_code == 0) {
        const struct pki_file files[] = {
            {"crl.pem", crl != NULL ? crl : "", 0644}, {NULL, NULL, 0}};

        exit_code = pki_write_files(dir, o->output, files, &owner);
        close(dir);
    }
    ps_free(crl);
    return exit_code;
}

static int run_revoke(struct pki_store *s, const struct pki_options *o,
                      char **words)
{
    const char *word = words[0];
    uint8_t serial[PS_PKI_SERIAL_BYTES];
    bool by_serial = ps_pki_read_hex(word, sizeof(serial), serial);
    int64_t now = pki_now();
    size_t codes = 0;
    size_t count = 0;
    size_t known;
    int exit_code = by_serial ? 0 : pki_code_drop(s, word, &codes);

    if (exit_code != 0) {
        return exit_code;
    }
    known = codes;
    for (size_t i = 0; i < s->count; i++) {
        struct pki_record *r = &s->records[i];

        if (by_serial ? memcmp(r->serial.bytes, serial, sizeof(serial)) != 0
                      : strcmp(r->name, word) != 0) {
            continue;
        }
        known++;
        if (r->revoked_at == 0) {
            r->revoked_at = now;
            count++;
        }
    }
    if (known == 0) {
        pki_error("no certificate has that %s; psctl pki show lists them",
                  by_serial ? "serial" : "name");
        return EXIT_FAILED;
    }
    exit_code = pki_store_save(s, now);
    if (exit_code == 0 && o->output != NULL) {
        exit_code = copy_crl(s, o);
    }
    if (exit_code == 0) {
        if (codes > 0) {
            printf("%zu code%s void\n", codes, plural(codes));
        }
        printf("%zu certificate%s revoked; copy %s/crl.pem to the folders of "
               "all nodes\n",
               count, plural(count), s->path);
    }
    return exit_code;
}

/* Runs a verb that needs the authority's folder and key. */
static int run_with_store(const struct pki_options *o, char **words,
                          int (*run)(struct pki_store *s,
                                     const struct pki_options *o, char **words))
{
    struct pki_store s;
    int exit_code = pki_store_open(o->directory, true, &s);

    if (exit_code == 0) {
        exit_code = run(&s, o, words);
        pki_store_close(&s);
    }
    return exit_code;
}

int pki_issue(const struct pki_options *o, char **words)
{
    return run_with_store(o, words, run_issue);
}

int pki_renew(const struct pki_options *o, char **words)
{
    return run_with_store(o, words, run_renew);
}

int pki_revoke(const struct pki_options *o, char **words)
{
    return run_with_store(o, words, run_revoke);
}

int pki_code(const struct pki_options *o, char **words)
{
    return run_with_store(o, words, run_code);
}

/* --------------------------------------------------------------------- show */

#define EXPIRING_TIME (30 * PKI_DAY)

enum certificate_state {
    CERTIFICATE_VALID,
    CERTIFICATE_EXPIRING,
    CERTIFICATE_EXPIRED,
    CERTIFICATE_REPLACED,
    CERTIFICATE_REVOKED,
};

static const char *const state_names[] = {
    [CERTIFICATE_VALID] = "valid",     [CERTIFICATE_EXPIRING] = "expiring",
    [CERTIFICATE_EXPIRED] = "expired", [CERTIFICATE_REPLACED] = "replaced",
    [CERTIFICATE_REVOKED] = "revoked",
};

/* A certificate ends soon if 30 days are left, or a third of its validity if
 * that is shorter. */
static enum certificate_state state_of(const struct ps_pki_period *p,
                                       int64_t now)
{
    int64_t third = (p->not_after - p->not_before) / 3;

    if (p->not_after <= now) {
        return CERTIFICATE_EXPIRED;
    }
    return p->not_after - now < (third < EXPIRING_TIME ? third : EXPIRING_TIME)
               ? CERTIFICATE_EXPIRING
               : CERTIFICATE_VALID;
}

static enum certificate_state state_of_record(const struct pki_record *r,
                                              int64_t now)
{
    if (r->revoked_at != 0) {
        return CERTIFICATE_REVOKED;
    }
    return r->is_replaced ? CERTIFICATE_REPLACED : state_of(&r->period, now);
}

/* True if an operator has to renew it. */
static bool is_problem(enum certificate_state state)
{
    return state == CERTIFICATE_EXPIRING || state == CERTIFICATE_EXPIRED;
}

/* Days, of which the last one may have begun. */
static int64_t days_left(const struct ps_pki_period *p, int64_t now)
{
    return p->not_after > now ? (p->not_after - now + PKI_DAY - 1) / PKI_DAY
                              : 0;
}

static void add_row(struct table *t, const char *role, const char *name,
                    const struct ps_pki_serial *serial)
{
    struct ps_str s = PS_STR_ROOM(PS_PKI_SERIAL_TEXT);

    ps_pki_add_hex(&s, serial->bytes, PS_PKI_SERIAL_BYTES);
    table_text(t, role);
    table_text(t, name);
    table_text(t, s.data);
}

static void add_end(struct table *t, const struct ps_pki_period *p,
                    enum certificate_state state, int64_t now)
{
    time_t end = (time_t)p->not_after;
    char date[32];
    struct tm tm;

    strftime(date, sizeof(date), "%Y-%m-%d", gmtime_r(&end, &tm));
    table_text(t, date);
    table_cell(t, "%" PRId64, days_left(p, now));
    if (is_problem(state)) {
        cell_upper(t, state_names[state]);
    } else {
        table_text(t, state_names[state]);
    }
}

static void show_rows(const struct pki_store *s, int64_t now, bool headings)
{
    static const char *const columns[] = {"ROLE",  "NAME",       "SERIAL",
                                          "UNTIL", ">DAYS LEFT", "STATE"};
    struct table t;

    table_init(&t, columns, 6);
    add_row(&t, "authority", s->info.identity.cluster, &s->info.serial);
    add_end(&t, &s->info.period, state_of(&s->info.period, now), now);
    for (size_t i = 0; i < s->count; i++) {
        const struct pki_record *r = &s->records[i];

        add_row(&t, ps_role_name(r->role), r->name, &r->serial);
        add_end(&t, &r->period, state_of_record(r, now), now);
    }
    table_print(&t, headings);
    table_fini(&t);
}

/* ---------------------------------------------------------------------- JSON */

static void put_hex(json_t *o, const char *name, const uint8_t *bytes,
                    size_t count)
{
    struct ps_str s = PS_STR_ROOM(2 * PS_PKI_FINGERPRINT_BYTES + 1);

    ps_pki_add_hex(&s, bytes, count);
    json_put(o, name, json_string(s.data));
}

static void put_validity(json_t *o, const struct ps_pki_period *p,
                         enum certificate_state state, int64_t now)
{
    json_put(o, "not_before", json_integer(p->not_before));
    json_put(o, "not_after", json_integer(p->not_after));
    json_put(o, "days_left", json_integer(days_left(p, now)));
    json_put(o, "state", json_string(state_names[state]));
}

static json_t *hosts_of(const struct pki_record *r)
{
    struct pki_hosts hosts;
    json_t *list = json_array();

    pki_hosts_split(r->hosts, &hosts);
    for (size_t i = 0; i < hosts.count; i++) {
        json_append(list, json_string(hosts.list[i]));
    }
    pki_hosts_fini(&hosts);
    return list;
}

static json_t *record_of(const struct pki_store *s, const struct pki_record *r,
                         int64_t now)
{
    struct ps_identity id = s->info.identity;
    json_t *o = json_object();
    struct ps_str text = PS_STR_ROOM(PS_IDENTITY_URI_BYTES);

    id.role = r->role;
    ps_str_copy(id.name, sizeof(id.name), r->name);
    ps_identity_add_uri(&text, &id);
    json_put(o, "identity", json_string(text.data));
    json_put(o, "role", json_string(ps_role_name(r->role)));
    json_put(o, "name", json_string(r->name));
    put_hex(o, "serial", r->serial.bytes, PS_PKI_SERIAL_BYTES);
    put_validity(o, &r->period, state_of_record(r, now), now);
    if (r->revoked_at != 0) {
        json_put(o, "revoked_at", json_integer(r->revoked_at));
    }
    json_put(o, "hosts", hosts_of(r));
    return o;
}

static void show_objects(const struct pki_store *s, int64_t now)
{
    uint8_t fingerprint[PS_PKI_FINGERPRINT_BYTES];
    json_t *o = json_object();
    json_t *authority = json_object();
    json_t *list = json_array();

    json_put(o, "schema", json_integer(1));
    json_put(o, "cluster", json_string(s->info.identity.cluster));
    put_hex(authority, "serial", s->info.serial.bytes, PS_PKI_SERIAL_BYTES);
    ps_pki_fingerprint(s->authority.certificate, fingerprint);
    put_hex(authority, "fingerprint", fingerprint, sizeof(fingerprint));
    put_validity(authority, &s->info.period, state_of(&s->info.period, now),
                 now);
    json_put(o, "authority", authority);
    for (size_t i = 0; i < s->count; i++) {
        json_array_append_new(list, record_of(s, &s->records[i], now));
    }
    json_put(o, "certificates", list);
    json_print(o);
}

int pki_show(const struct pki_options *o, char **words)
{
    const int64_t now = pki_now();
    struct pki_store s;
    int exit_code = pki_store_open(o->directory, false, &s);
    bool problem;

    (void)words;
    if (exit_code != 0) {
        return exit_code;
    }
    if (o->json) {
        show_objects(&s, now);
    } else {
        show_rows(&s, now, o->headings);
    }
    problem = is_problem(state_of(&s.info.period, now));
    for (size_t i = 0; i < s.count; i++) {
        problem |= is_problem(state_of_record(&s.records[i], now));
    }
    pki_store_close(&s);
    return problem ? EXIT_DEGRADED : EXIT_HEALTHY;
}
