/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank asks for, in words: their hash is compared in MEET, and where
 * ranks differ, everybody learns everybody's. */
#include "client/coll_inner.h"

#include <string.h>

#include "base/dtype.h"
#include "base/str.h"
#include "kernel/kernel.h"

/* Sums of so many bits over all ranks stay within 64. */
#define HASH_BITS 48u

static uint64_t fnv(uint64_t h, const void *data, size_t size)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < size; i++) {
        h = (h ^ p[i]) * 1099511628211ull;
    }
    return h;
}

static void add_shape(struct ps_str *s, const struct coll_asked *a)
{
    const struct psc_shape *shape = a->shape;
    bool first_free = a->kind == ALLGATHER || a->kind == ALLTOALL;

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

/* The keys that a join passes for, declared in any order. */
static uint64_t add_keys(struct ps_str *s, const struct coll *k)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < k->pass_count; i++) {
        const char *name = k->passes[i]->key->full;

        sum += fnv(14695981039346656037ull, name, strlen(name));
    }
    if (k->pass_count > 0) {
        ps_str_addf(s, " with %u keys declared", k->pass_count);
    }
    return sum;
}

/* What this rank asks for, in words: they are compared, and told. */
void coll_say(struct psc_client *c, struct coll *k, const struct coll_asked *a)
{
    bool sums = a->kind == ALLREDUCE || a->kind == REDUCESCATTER;
    uint64_t more = c->members;
    struct ps_str s;

    ps_str_init(&s, k->say, sizeof(k->say));
    ps_str_addf(&s, "%s", coll_kind_name(a->kind));
    if (a->name[0] != '\0') {
        ps_str_addf(&s, " '%.80s'", a->name);
    }
    if (a->kind == JOIN) {
        more += add_keys(&s, k);
    } else {
        add_shape(&s, a);
    }
    if (sums) {
        ps_str_addf(&s, " %s", ps_reduce_name((uint8_t)a->o.reduce));
    }
    if (a->kind == BCAST) {
        ps_str_addf(&s, " from rank %u", a->o.root);
    }
    if (a->o.prescale != 1) {
        ps_str_addf(&s, " times %g before", a->o.prescale);
    }
    if (a->o.postscale != 1) {
        ps_str_addf(&s, " times %g after", a->o.postscale);
    }
    for (uint32_t i = 0; i < a->piece_count; i++) {
        more = fnv(more, &a->pieces[i].count, sizeof(a->pieces[i].count));
    }
    if (a->piece_count > 0) {
        ps_str_addf(&s, " in %u arrays", a->piece_count);
    }
    if (more != 0) {
        ps_str_addf(&s, " (%08x)", (unsigned)(more ^ more >> 32));
    }
    k->hash = fnv(14695981039346656037ull, k->say, sizeof(k->say));
    k->hash = fnv(k->hash, a->name, strlen(a->name));
    k->hash &= ((uint64_t)1 << HASH_BITS) - 1;
}

/* ------------------------------------------------------------------- DIFFER */

void coll_start_differ(struct coll *k)
{
    struct psc_client *c = k->op->client;
    struct psc_op *part;
    int64_t *words;
    int rc = coll_small_round(k, "c:differ", (uint64_t)c->size * SAY_WORDS,
                              &words, &part);

    k->stage = DIFFER;
    if (rc != 0) {
        coll_fail(k, PSC_E_MISMATCH, "the ranks ask for different things");
        return;
    }
    memcpy(words + (size_t)c->rank * SAY_WORDS, k->say, SAY_BYTES);
    coll_part_start(part);
}

static void add_ranks(struct ps_str *s, const char *says, uint32_t from,
                      uint32_t size)
{
    const char *mine = says + (size_t)from * SAY_BYTES;
    uint32_t others = 0;

    ps_str_addf(s, "rank %u", from);
    for (uint32_t r = from + 1; r < size; r++) {
        if (memcmp(mine, says + (size_t)r * SAY_BYTES, SAY_BYTES) != 0) {
            continue;
        }
        if (++others <= 6) {
            ps_str_addf(s, ", %u", r);
        }
    }
    if (others > 6) {
        ps_str_addf(s, " and %u more", others - 6);
    }
    ps_str_addf(s, ": %.*s", (int)SAY_BYTES - 1, mine);
}

void coll_end_differ(struct coll *k)
{
    struct psc_client *c = k->op->client;
    const struct psc_op *part = k->parts[k->part_count - 1];
    const char *says = (const char *)coll_part_words(part);
    char text[PSC_TEXT_MAX];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    ps_str_add(&s, "the ranks ask for different things: ");
    for (uint32_t r = 0; r < c->size; r++) {
        const char *mine = says + (size_t)r * SAY_BYTES;
        bool said = false;

        for (uint32_t i = 0; i < r && !said; i++) {
            said = memcmp(mine, says + (size_t)i * SAY_BYTES, SAY_BYTES) == 0;
        }
        if (!said) {
            ps_str_add(&s, r > 0 ? "; " : "");
            add_ranks(&s, says, r, c->size);
        }
    }
    coll_fail(k, PSC_E_MISMATCH, text);
}
