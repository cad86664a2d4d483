/* SPDX-License-Identifier: Apache-2.0 */
/* One-time codes of an authority, one a line:
 *
 *     ID HASH ROLE NAME END TRIES DAYS HOSTS
 *
 * The secret is 128 random bits, so a plain hash of it gives nothing away. */
#include "crypto/enrolment.h"

#include "base/alloc.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS        8u
/* Time after its end in which a code is refused as expired, not as unknown. */
#define REMEMBER_TIME INT64_C(86400)
/* Bytes of a line without its hosts. */
#define LINE_BYTES    256u

/* False: OpenSSL cannot hash. */
static bool hash_secret(const uint8_t secret[PS_ENROLMENT_SECRET_BYTES],
                        uint8_t ret_hash[PS_ENROLMENT_HASH_BYTES])
{
    return EVP_Digest(secret, PS_ENROLMENT_SECRET_BYTES, ret_hash, NULL,
                      EVP_sha256(), NULL) == 1;
}

/* ------------------------------------------------------------------- records */

void ps_enrolment_list_fini(struct ps_enrolment_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        ps_free(list->records[i].hosts);
    }
    ps_free(list->records);
    *list = (struct ps_enrolment_list){0};
}

static void append_record(struct ps_enrolment_list *list,
                          const struct ps_enrolment_record *r)
{
    if (list->count == list->capacity) {
        list->capacity = list->capacity == 0 ? 16 : list->capacity * 2;
        list->records = ps_realloc(list->records,
                                   list->capacity * sizeof(list->records[0]));
    }
    list->records[list->count++] = *r;
}

struct ps_enrolment_record
ps_enrolment_list_remove(struct ps_enrolment_list *list,
                         struct ps_enrolment_record *record)
{
    struct ps_enrolment_record removed = *record;
    size_t at = (size_t)(record - list->records);

    memmove(record, record + 1, (list->count - at - 1) * sizeof(*record));
    list->count--;
    return removed;
}

static void delete_record(struct ps_enrolment_list *list, size_t at)
{
    struct ps_enrolment_record r = ps_enrolment_list_remove(list,
                                                            &list->records[at]);

    ps_free(r.hosts);
}

static struct ps_enrolment_record *find_record(struct ps_enrolment_list *list,
                                               uint32_t id)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->records[i].id == id) {
            return &list->records[i];
        }
    }
    return NULL;
}

int ps_enrolment_list_add(struct ps_enrolment_list *list,
                          const struct ps_enrolment_code *code,
                          const struct ps_enrolment_record *record, int64_t now)
{
    struct ps_enrolment_record r = *record;

    for (size_t i = list->count; i > 0; i--) {
        const struct ps_enrolment_record *p = &list->records[i - 1];

        if (p->id == code->id || p->ends_at <= now - REMEMBER_TIME ||
            (p->role == r.role && strcmp(p->name, r.name) == 0)) {
            delete_record(list, i - 1);
        }
    }
    if (list->count == PS_ENROLMENT_CODES_MAX) {
        return PS_E_FULL;
    }
    if (!hash_secret(code->secret, r.hash)) {
        return PS_E_IO;
    }
    r.id = code->id;
    r.tries = 0;
    r.hosts = ps_strdup(record->hosts);
    append_record(list, &r);
    return 0;
}

size_t ps_enrolment_list_drop(struct ps_enrolment_list *list, const char *name)
{
    size_t count = 0;

    for (size_t i = list->count; i > 0; i--) {
        if (strcmp(list->records[i - 1].name, name) == 0) {
            delete_record(list, i - 1);
            count++;
        }
    }
    return count;
}

enum ps_enrolment_verdict
ps_enrolment_list_try(struct ps_enrolment_list *list, uint32_t id,
                      const uint8_t secret[PS_ENROLMENT_SECRET_BYTES],
                      int64_t now, struct ps_enrolment_record **ret_record)
{
    struct ps_enrolment_record *r = find_record(list, id);
    uint8_t hash[PS_ENROLMENT_HASH_BYTES];

    if (r == NULL || !hash_secret(secret, hash)) {
        return PS_ENROLMENT_UNKNOWN;
    }
    if (CRYPTO_memcmp(hash, r->hash, sizeof(hash)) != 0) {
        if (++r->tries < PS_ENROLMENT_TRIES_MAX) {
            return PS_ENROLMENT_WRONG;
        }
        delete_record(list, (size_t)(r - list->records));
        return PS_ENROLMENT_VOID;
    }
    if (r->ends_at <= now) {
        return PS_ENROLMENT_ENDED;
    }
    *ret_record = r;
    return PS_ENROLMENT_GOOD;
}

/* ---------------------------------------------------------------------- text */

/* Reads decimal digits in their one form. */
static bool read_number(const char *text, int64_t max, int64_t *ret)
{
    char *end;
    long long n;

    if (text[0] < '0' || text[0] > '9' || (text[0] == '0' && text[1] != '\0')) {
        return false;
    }
    errno = 0;
    n = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || n > max) {
        return false;
    }
    *ret = n;
    return true;
}

/* Reads one line, which it changes. */
static bool read_record(struct ps_enrolment_list *list, char *line)
{
    struct ps_enrolment_record r = {0};
    uint8_t id[sizeof(r.id)];
    char *field[FIELDS] = {NULL};
    char *rest = line;
    int64_t tries;
    int64_t days;
    size_t n = 0;

    while (n < FIELDS && rest != NULL) {
        field[n++] = strsep(&rest, " ");
    }
    if (n != FIELDS || rest != NULL || list->count == PS_ENROLMENT_CODES_MAX ||
        !ps_pki_read_hex(field[0], sizeof(id), id) ||
        !ps_pki_read_hex(field[1], sizeof(r.hash), r.hash) ||
        !ps_identity_read_role(field[2], &r.role) ||
        !ps_str_is_name(field[3], PS_NAME_MAX) ||
        !read_number(field[4], INT64_MAX, &r.ends_at) ||
        !read_number(field[5], PS_ENROLMENT_TRIES_MAX - 1, &tries) ||
        !read_number(field[6], UINT32_MAX, &days) || field[7][0] == '\0' ||
        strlen(field[7]) >= PS_ENROLMENT_HOSTS_TEXT) {
        return false;
    }
    for (size_t i = 0; i < sizeof(id); i++) {
        r.id = r.id << 8 | id[i];
    }
    if (find_record(list, r.id) != NULL) {
        return false;
    }
    ps_str_copy(r.name, sizeof(r.name), field[3]);
    r.tries = (uint32_t)tries;
    r.days = (uint32_t)days;
    r.hosts = ps_strdup(field[7]);
    append_record(list, &r);
    return true;
}

int ps_enrolment_list_read(const char *text, struct ps_enrolment_list *ret_list,
                           size_t *ret_line)
{
    struct ps_enrolment_list list = {0};
    char *copy = ps_strdup(text);
    char *rest = copy;
    size_t number = 0;

    while (rest[0] != '\0') {
        char *line = strsep(&rest, "\n");

        number++;
        /* The last line ends, too; else a part of the file is lost. */
        if (rest == NULL || !read_record(&list, line)) {
            ps_enrolment_list_fini(&list);
            ps_free(copy);
            *ret_line = number;
            return PS_E_PROTO;
        }
    }
    ps_free(copy);
    *ret_list = list;
    return 0;
}

char *ps_enrolment_list_format(const struct ps_enrolment_list *list)
{
    size_t cap = 1;
    char *text;
    struct ps_str s;

    for (size_t i = 0; i < list->count; i++) {
        cap += LINE_BYTES + strlen(list->records[i].hosts);
    }
    text = ps_alloc(cap);
    ps_str_init(&s, text, cap);
    for (size_t i = 0; i < list->count; i++) {
        const struct ps_enrolment_record *r = &list->records[i];

        ps_str_addf(&s, "%08x ", (unsigned)r->id);
        ps_pki_add_hex(&s, r->hash, sizeof(r->hash));
        ps_str_addf(&s, " %s %s %" PRId64 " %u %u ", ps_role_name(r->role),
                    r->name, r->ends_at, (unsigned)r->tries, (unsigned)r->days);
        ps_str_add(&s, r->hosts);
        ps_str_add(&s, "\n");
    }
    return text;
}
