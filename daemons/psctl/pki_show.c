/* SPDX-License-Identifier: Apache-2.0 */
/* `psctl pki show`: the certificates of an authority, and those that end
 * soon. */
#include "psctl/pki.h"
#include "psctl/answer.h"

#include "base/alloc.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPIRING_TIME (30 * PKI_DAY)

enum certificate_state {
    CERTIFICATE_VALID,
    CERTIFICATE_EXPIRING,
    CERTIFICATE_EXPIRED,
    CERTIFICATE_REPLACED,
    CERTIFICATE_REVOKED,
};

static const char *const state_names[] = {
    [CERTIFICATE_VALID] = "valid",     [CERTIFICATE_EXPIRING] = "EXPIRING",
    [CERTIFICATE_EXPIRED] = "EXPIRED", [CERTIFICATE_REPLACED] = "replaced",
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
    char text[PS_PKI_SERIAL_TEXT];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    ps_pki_add_hex(&s, serial->bytes, PS_PKI_SERIAL_BYTES);
    table_text(t, role);
    table_text(t, name);
    table_text(t, text);
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
    table_text(t, state_names[state]);
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
    char text[2 * PS_PKI_FINGERPRINT_BYTES + 1];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    ps_pki_add_hex(&s, bytes, count);
    json_put(o, name, json_string(text));
}

static void put_validity(json_t *o, const struct ps_pki_period *p,
                         enum certificate_state state, int64_t now)
{
    char text[16];
    size_t len = strlen(state_names[state]);

    for (size_t i = 0; i <= len; i++) {
        char c = state_names[state][i];

        text[i] = (char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    }
    json_put(o, "not_before", json_integer(p->not_before));
    json_put(o, "not_after", json_integer(p->not_after));
    json_put(o, "days_left", json_integer(days_left(p, now)));
    json_put(o, "state", json_string(text));
}

static json_t *hosts_of(const struct pki_record *r)
{
    char *text = ps_strdup(strcmp(r->hosts, "-") == 0 ? "" : r->hosts);
    char *rest = text[0] == '\0' ? NULL : text;
    json_t *list = json_array();

    while (rest != NULL) {
        json_array_append_new(list, json_string(strsep(&rest, ",")));
    }
    ps_free(text);
    return list;
}

static json_t *record_of(const struct pki_store *s, const struct pki_record *r,
                         int64_t now)
{
    struct ps_identity id = s->info.identity;
    char uri[PS_IDENTITY_URI_BYTES];
    json_t *o = json_object();
    struct ps_str text;

    id.role = r->role;
    ps_str_copy(id.name, sizeof(id.name), r->name);
    ps_str_init(&text, uri, sizeof(uri));
    ps_identity_add_uri(&text, &id);
    json_put(o, "identity", json_string(uri));
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
