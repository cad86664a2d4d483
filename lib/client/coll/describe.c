/* SPDX-License-Identifier: Apache-2.0 */
/* Description of a rank's request as text. Its hash is compared in AGREE; where
 * requests differ, every rank gets all descriptions. */
#include "client/coll/coll.h"
#include "client/key.h"
#include "client/state.h"

#include <stdio.h>
#include <string.h>

#include "base/dtype.h"
#include "base/fnv1a.h"
#include "base/name_hash.h"
#include "base/str.h"
#include "kernel/kernel.h"

/* Sums of numbers of this many bits over all ranks fit in 64 bits. */
#define HASH_BITS 48u
/* Bytes of the caller's words for its array that are shown. */
#define WORDS_MAX 64u

static const char *const kind_names[] = {
    [COLL_ALLREDUCE] = "allreduce", [COLL_BCAST] = "broadcast",
    [COLL_ALLGATHER] = "allgather", [COLL_REDUCESCATTER] = "reduce-scatter",
    [COLL_ALLTOALL] = "alltoall",   [COLL_JOIN] = "join",
};

const char *coll_kind_name(enum coll_kind kind)
{
    return kind_names[kind];
}

void coll_name(const struct coll *k, char *text, size_t size)
{
    if (k->is_join) {
        snprintf(text, size, "join");
    } else if (*k->name == '\0') {
        snprintf(text, size, "%s", coll_kind_name(k->kind));
    } else {
        snprintf(text, size, "%s of '%s'", coll_kind_name(k->kind), k->name);
    }
}

void coll_fail_client(struct coll *k, int rc)
{
    client_fail(k->op->client, rc, "%s cannot go on: %s",
                coll_kind_name(k->is_join ? COLL_JOIN : k->kind),
                ps_strerror(rc));
    coll_fail(k, rc, NULL);
}

static void append_shape(struct ps_str *s, const struct coll_request *a)
{
    const struct psc_array *shape = a->array;
    bool first_free = a->kind == COLL_ALLGATHER || a->kind == COLL_ALLTOALL;

    ps_str_addf(s, " %s [", ps_dtype_name(shape->dtype));
    for (uint32_t i = 0; i < shape->ndim; i++) {
        ps_str_add(s, i > 0 ? ", " : "");
        if (i == 0 && first_free) {
            ps_str_add(s, "*");
        } else {
            ps_str_addf(s, "%llu", (unsigned long long)shape->dims[i]);
        }
    }
    ps_str_add(s, "]");
}

/* Appends the keys whose rounds a join skips; the order of declaration does not
 * matter. */
static uint64_t append_keys(struct ps_str *s, const struct coll *k)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < k->join.skip_count; i++) {
        const struct key *key = k->join.skips[i]->key;

        sum += ps_name_hash(key->kind, key->name);
    }
    if (k->join.skip_count > 0) {
        ps_str_addf(s, " with %u keys declared", k->join.skip_count);
    }
    return sum;
}

/* Appends the caller's words for its array, up to a line feed. Words of which
 * the description shows a part count by their hash. */
static uint64_t append_words(struct ps_str *s, const char *words, uint64_t h)
{
    size_t len = strcspn(words, "\n");

    ps_str_addf(s, " %.*s", (int)(len < WORDS_MAX ? len : WORDS_MAX), words);
    return len > WORDS_MAX ? ps_fnv1a_64(h, words, len) : h;
}

static void describe(const struct psc_client *c, struct coll *k,
                     const struct coll_request *a, const char *words)
{
    bool sums = a->kind == COLL_ALLREDUCE || a->kind == COLL_REDUCESCATTER;
    uint64_t more = c->id.group_hash;
    struct ps_str s;

    ps_str_init(&s, k->description, sizeof(k->description));
    ps_str_addf(&s, "%s", coll_kind_name(a->kind));
    if (*a->name != '\0') {
        ps_str_addf(&s, " '%.80s'", a->name);
    }
    if (a->kind == COLL_JOIN) {
        more += append_keys(&s, k);
    } else if (words != NULL) {
        more = append_words(&s, words, more);
    } else {
        append_shape(&s, a);
    }
    if (sums) {
        ps_str_addf(&s, " %s", ps_reduce_name((uint8_t)a->o.reduce));
    }
    if (a->kind == COLL_BCAST) {
        ps_str_addf(&s, " from rank %u", a->o.root);
    }
    if (a->o.prescale != 1) {
        ps_str_addf(&s, " times %g before", a->o.prescale);
    }
    if (a->o.postscale != 1) {
        ps_str_addf(&s, " times %g after", a->o.postscale);
    }
    for (uint32_t i = 0; i < a->piece_count; i++) {
        more = ps_fnv1a_64(more, &a->pieces[i].count,
                           sizeof(a->pieces[i].count));
    }
    if (a->piece_count > 0) {
        ps_str_addf(&s, " in %u arrays", a->piece_count);
    }
    if (more != 0) {
        ps_str_addf(&s, " (%08x)", (unsigned)(more ^ more >> 32));
    }
}

/* Describes this rank's request and hashes it. */
void coll_describe(struct psc_client *c, struct coll *k,
                   const struct coll_request *a)
{
    const char *words = a->o.array_words;
    const char *shown = words != NULL ? strchr(words, '\n') : NULL;

    describe(c, k, a, words);
    k->hash = ps_fnv1a_64(PS_FNV1A_64, k->description, sizeof(k->description));
    k->hash = ps_fnv1a_64(k->hash, a->name, strlen(a->name));
    k->hash = ps_fnv1a_64_add(k->hash, a->o.joined);
    k->hash &= ((uint64_t)1 << HASH_BITS) - 1;
    if (shown != NULL) {
        describe(c, k, a, shown + 1);
    }
}

/* ----------------------------------------------------------------- MISMATCH */

void coll_start_mismatch(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct psc_op *part;
    struct ps_fixed_coll_description own;
    uint8_t *words;
    int rc = coll_small_round(
        k, "differ", (uint64_t)c->id.size * DESCRIPTION_BYTES, &words, &part);

    if (rc != 0) {
        coll_fail(k, PSC_E_MISMATCH, "the requests of the ranks differ");
        return;
    }
    memcpy(own.text, k->description, sizeof(own.text));
    ps_fixed_put_coll_description(
        words + (size_t)c->id.rank * DESCRIPTION_BYTES, &own);
    coll_subop_start(part);
}

static void append_ranks(struct ps_str *s, const char *descriptions,
                         uint32_t from, uint32_t size)
{
    const char *own = descriptions + (size_t)from * DESCRIPTION_BYTES;
    uint32_t others = 0;

    ps_str_addf(s, "rank %u", from);
    for (uint32_t r = from + 1; r < size; r++) {
        if (memcmp(own, descriptions + (size_t)r * DESCRIPTION_BYTES,
                   DESCRIPTION_BYTES) != 0) {
            continue;
        }
        if (++others <= 6) {
            ps_str_addf(s, ", %u", r);
        }
    }
    if (others > 6) {
        ps_str_addf(s, " and %u more", others - 6);
    }
    ps_str_addf(s, ": %.*s", (int)DESCRIPTION_BYTES - 1, own);
}

void coll_end_mismatch(struct coll *k)
{
    struct psc_client *c = k->op->client;
    const struct psc_op *part = k->subops.list[k->subops.count - 1];
    const char *descriptions = (const char *)coll_subop_result(part);
    struct ps_str s = PS_STR_ROOM(PSC_TEXT_MAX);

    ps_str_add(&s, "the requests of the ranks differ: ");
    for (uint32_t r = 0; r < c->id.size; r++) {
        const char *own = descriptions + (size_t)r * DESCRIPTION_BYTES;
        bool is_listed = false;

        for (uint32_t i = 0; i < r && !is_listed; i++) {
            is_listed = memcmp(own,
                               descriptions + (size_t)i * DESCRIPTION_BYTES,
                               DESCRIPTION_BYTES) == 0;
        }
        if (!is_listed) {
            ps_str_add(&s, r > 0 ? "; " : "");
            append_ranks(&s, descriptions, r, c->id.size);
        }
    }
    coll_fail(k, PSC_E_MISMATCH, s.data);
}
