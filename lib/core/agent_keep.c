/* SPDX-License-Identifier: Apache-2.0 */
/* What codes leave over, in memory that outlives this process: workers hold
 * its descriptors, and give them to the next agent.
 *
 * A piece of that memory begins with a header; records follow, one for each
 * partition that has been encoded, which are never freed before the job is
 * over. A record has every vector twice: what the last encoding has made, and
 * what was there before. A tag, written in one store when an encoding is
 * complete, says which is which, and of which round. So a process that dies in
 * the middle of an encoding leaves what was there before. One that dies later,
 * when its code may be counted and the round is not over, leaves both: the next
 * one encodes the same sum from what was there before once more, which gives
 * the same bytes, and lets the result be.
 *
 * A worker could write what it likes there. It harms its own job: everything
 * but the numbers themselves is read once, and checked. */
#include "core/agent_inner.h"

#include "base/alloc.h"
#include "base/label.h"
#include "base/num.h"

#include <assert.h>
#include <string.h>

#define MAGIC        0x70736b7665657031u
#define RECORD_MAGIC 0x70736b7672656331u
#define LINE         64u
#define PIECE_SIZE   (64u * 1024u * 1024u)
#define PIECES_MAX   32u /* Of one job. Each is as large as all before. */
/* What a record that was found costs, with its place in the map. */
#define FOUND_BYTES  (sizeof(struct ps_agent_found) + 64u)

struct header {
    uint64_t magic;
    uint64_t size;
    uint64_t used; /* Up to here there are whole records. */
    uint64_t id;   /* Workers may have it under several numbers. */
    uint64_t zero[4];
};

struct record {
    uint64_t magic;
    uint64_t label;
    uint64_t press; /* A hash of how it is encoded. */
    uint32_t index;
    uint32_t count;
    uint32_t vectors; /* 2, or 4 with both residual and momentum. */
    uint32_t zero;
    uint64_t tag; /* Its lowest bit: which is the last; above it the round. */
    uint64_t more[2];
};

struct ps_agent_kept {
    struct ps_buf *piece;
    struct record *record;
    struct ps_buf *residual[2]; /* NULL: the code leaves nothing over. */
    struct ps_buf *moment[2];   /* NULL: no momentum. */
    uint64_t round;             /* Of the last encoding; 0: none. */
};

static uint64_t mix(uint64_t h, uint64_t v)
{
    for (unsigned i = 0; i < 8; i++) {
        h = (h ^ (v >> 8 * i & 0xff)) * 0x100000001b3u;
    }
    return h;
}

static uint64_t bits_of(double v)
{
    uint64_t b;

    memcpy(&b, &v, sizeof(b));
    return b;
}

static uint64_t hash_press(const struct ps_press *p)
{
    uint64_t h = 0xcbf29ce484222325u;

    h = mix(h, p->kind);
    h = mix(h, (uint64_t)p->feedback | (uint64_t)p->scaling << 1 |
                   (uint64_t)p->l2 << 2);
    h = mix(h, bits_of((double)p->threshold));
    h = mix(h, bits_of((double)p->momentum));
    h = mix(h, bits_of(p->k));
    h = mix(h, p->levels);
    return mix(h, p->seed);
}

static uint64_t vector_bytes(uint32_t count)
{
    return ps_round_up(count * (uint64_t)sizeof(float), LINE);
}

static uint64_t record_bytes(uint32_t count, uint32_t vectors)
{
    return sizeof(struct record) + vectors * vector_bytes(count);
}

static uint32_t vectors_of(const struct ps_press *press)
{
    return (press->feedback ? 2u : 0u) + (press->momentum > 0 ? 2u : 0u);
}

/* ------------------------------------------------------------------- pieces */

static void tell(struct ps_agent_step *st, struct ps_agent_session *s,
                 const struct ps_agent_piece *piece)
{
    if (s->hello->l_hello.keeps && ps_map_get(s->pieces, piece->id) == NULL) {
        ps_map_put(s->pieces, piece->id, s);
        ps_effects_tell(st->fx, s->conn,
                        &(struct ps_msg){.code = PS_MSG_L_KEEP,
                                         .l_keep = {.keep = piece->buf->tag,
                                                    .size = piece->buf->size}});
    }
}

void ps_agent_keep_tell(struct ps_agent_step *st, struct ps_agent_session *s)
{
    for (uint32_t i = 0; i < s->job->piece_count; i++) {
        tell(st, s, &s->job->pieces[i]);
    }
}

static void add_piece(struct ps_agent_job *j, uint64_t id, struct ps_buf *buf)
{
    j->pieces = ps_realloc(j->pieces,
                           (j->piece_count + 1) * sizeof(*j->pieces));
    j->pieces[j->piece_count++] = (struct ps_agent_piece){.id = id, .buf = buf};
}

/* One more, with room for `bytes`. */
static int new_piece(struct ps_agent_step *st, struct ps_agent_job *j,
                     uint64_t bytes)
{
    const struct ps_agent_options *o = &st->a->opt;
    uint64_t size = 0;
    struct ps_buf *buf;
    int rc;

    for (uint32_t i = 0; i < j->piece_count; i++) {
        size += j->pieces[i].buf->size;
    }
    size = ps_max_u64(size, o->keep_size != 0 ? o->keep_size : PIECE_SIZE);
    size = ps_round_up(ps_max_u64(size, bytes + sizeof(struct header)), 4096);
    rc = j->piece_count < PIECES_MAX ? o->keep_new(o->results_ctx, size, &buf)
                                     : PS_E_FULL;
    if (rc != 0) {
        return rc;
    }
    struct header *h = (struct header *)(void *)buf->data;

    *h = (struct header){.magic = MAGIC,
                         .size = size,
                         .used = sizeof(struct header),
                         .id = ps_rng_next(&st->a->rng) ^ o->instance};
    j->keep_used = sizeof(struct header);
    add_piece(j, h->id, buf);
    j->keeping = j->piece_count;
    for (uint32_t i = 0; i < j->local_count; i++) {
        struct ps_agent_session *s = j->local[i].session;

        if (s != NULL && !s->ended && s->state == PS_AGENT_SESSION_ACTIVE) {
            tell(st, s, &j->pieces[j->piece_count - 1]);
        }
    }
    return 0;
}

static void release(void *piece)
{
    ps_buf_unref(piece);
}

/* A vector in the piece. */
static struct ps_buf *vector(struct ps_buf *piece, uint8_t *at, uint32_t count)
{
    return ps_buf_wrap(at, count * sizeof(float), release, ps_buf_ref(piece));
}

/* `count` is what the record was found to have: it may say something else by
 * now. */
static struct ps_agent_kept *kept_new(struct ps_buf *piece, uint64_t at,
                                      uint32_t count,
                                      const struct ps_press *press)
{
    struct ps_agent_kept *q = ps_calloc(1, sizeof(*q));
    uint8_t *data = piece->data + at + sizeof(struct record);

    q->piece = ps_buf_ref(piece);
    q->record = (struct record *)(void *)(piece->data + at);
    for (unsigned i = 0; i < 2 && press->feedback; i++) {
        q->residual[i] = vector(piece, data, count);
        data += vector_bytes(count);
    }
    for (unsigned i = 0; i < 2 && press->momentum > 0; i++) {
        q->moment[i] = vector(piece, data, count);
        data += vector_bytes(count);
    }
    return q;
}

/* ----------------------------------------------------------------- records */

static struct ps_agent_found *find(const struct ps_agent_job *j, uint64_t label,
                                   uint32_t index)
{
    const uint64_t h = ps_label_place(j->label_seed, label, index);

    for (struct ps_agent_found *f = ps_map_get(j->found, h); f != NULL;
         f = f->next) {
        if (f->label == label && f->index == index) {
            return f;
        }
    }
    return NULL;
}

/* Memory that the job keeps until it is over. */
static int charge(struct ps_agent_job *j, uint64_t bytes,
                  struct ps_refusal *ret_refusal)
{
    int rc = ps_account_charge(&j->account, PS_COST_MEMORY, bytes, ret_refusal);

    j->keep_charged += rc == 0 ? bytes : 0;
    return rc;
}

/* PS_E_INVAL: the piece is not what an agent has made; PS_E_FULL. */
static int take_record(struct ps_agent_job *j, struct ps_buf *piece,
                       uint64_t used, uint64_t *at,
                       struct ps_refusal *ret_refusal)
{
    struct record r;

    if (used - *at < sizeof(r)) {
        return PS_E_INVAL;
    }
    memcpy(&r, piece->data + *at, sizeof(r));
    if (r.magic != RECORD_MAGIC || r.count == 0 ||
        (r.vectors != 2 && r.vectors != 4) ||
        record_bytes(r.count, r.vectors) > used - *at) {
        return PS_E_INVAL;
    }
    if (find(j, r.label, r.index) == NULL) {
        const uint64_t h = ps_label_place(j->label_seed, r.label, r.index);
        struct ps_agent_found *f;
        int rc = charge(j, FOUND_BYTES, ret_refusal);

        if (rc != 0) {
            return rc;
        }
        f = ps_calloc(1, sizeof(*f));
        f->next = ps_map_take(j->found, h);
        f->label = r.label;
        f->piece = piece;
        f->at = *at;
        f->index = r.index;
        f->count = r.count;
        f->vectors = r.vectors;
        f->press = r.press;
        f->tag = r.tag;
        ps_map_put(j->found, h, f);
    }
    *at += record_bytes(r.count, r.vectors);
    return 0;
}

/* Each takes a look. A partition has one more where the code has changed. */
static uint64_t records_max(const struct ps_agent *a)
{
    const uint64_t parts =
        a->opt.limits[PS_ACCOUNT_JOB].of[PS_COST_PARTITIONS].max;

    return 2 * (parts != 0 ? parts : PS_STORE_PARTS_MAX);
}

void ps_agent_keep_take(struct ps_agent_step *st, struct ps_agent_session *s,
                        struct ps_buf *buf)
{
    struct ps_agent_job *j = s->job;
    uint64_t at = sizeof(struct header);
    struct ps_buf *held = NULL;
    struct ps_refusal why;
    struct header h;

    if (s->ended) {
        return;
    }
    if (s->state != PS_AGENT_SESSION_ACTIVE || s->hello->l_hello.gen == 0) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "memory of an agent comes from a process that has "
                             "lost one");
        return;
    }
    memcpy(&h, buf->data, buf->size < sizeof(h) ? 0 : sizeof(h));
    if (buf->size < sizeof(h) || h.magic != MAGIC || h.size != buf->size ||
        h.used > h.size || h.used < sizeof(h)) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "memory that no agent has made");
        return;
    }
    if (ps_map_get(s->pieces, h.id) == NULL) {
        ps_map_put(s->pieces, h.id, s);
    }
    for (uint32_t i = 0; i < j->piece_count; i++) {
        if (j->pieces[i].id == h.id) {
            return; /* Another process has brought it. */
        }
    }
    if (j->piece_count == PIECES_MAX) {
        ps_agent_session_end(st, s, PS_E_FULL,
                             "more memory of agents than one has made");
        return;
    }
    if (ps_agent_budget_hold(s, buf, &held, &why) != 0 ||
        charge(j, h.used, &why) != 0) {
        ps_buf_unref(held);
        ps_agent_session_refuse(st, s, &why);
        return;
    }
    add_piece(j, h.id, held);
    j->keep_bytes += h.used;
    st->a->keep_bytes += h.used;
    while (at < h.used) {
        int rc;

        if (j->record_count >= records_max(st->a)) {
            ps_agent_session_end(st, s, PS_E_FULL,
                                 "more records of what codes have left over "
                                 "than a job has of its partitions "
                                 "(limits.job.partitions)");
            return;
        }
        j->record_count++;
        rc = take_record(j, held, h.used, &at, &why);
        if (rc == PS_E_FULL) {
            ps_agent_session_refuse(st, s, &why);
            return;
        }
        if (rc != 0) {
            ps_agent_session_end(st, s, PS_E_INVAL,
                                 "memory that no agent has made");
            return;
        }
    }
    ps_effects_note(st->fx, PS_LOG_INFO,
                    "job %s: %llu bytes of what codes have left over are back",
                    j->name, (unsigned long long)h.used);
}

/* What another agent has left of the partition. */
static struct ps_agent_kept *adopt(struct ps_agent_part *p)
{
    const struct ps_press *press = &p->key->compress.press;
    const struct ps_agent_found *f = find(p->key->job, p->key->label, p->index);
    struct ps_agent_kept *q;
    unsigned last;

    if (f == NULL || f->count != p->count || f->vectors != vectors_of(press) ||
        f->press != hash_press(press)) {
        return NULL;
    }
    q = kept_new(f->piece, f->at, f->count, press);
    last = f->tag & 1;
    q->round = f->tag >> 1;
    if (q->round > 0 && press->feedback) {
        p->residual[0] = ps_buf_ref(q->residual[last]);
    }
    if (q->round > 0 && press->momentum > 0) {
        p->moment[0] = ps_buf_ref(q->moment[last]);
    }
    return q;
}

/* NULL: there is no more memory that outlives us. */
static struct ps_agent_kept *make(struct ps_agent_step *st,
                                  const struct ps_agent_part *p)
{
    struct ps_agent_job *j = p->key->job;
    const struct ps_press *press = &p->key->compress.press;
    const uint64_t bytes = record_bytes(p->count, vectors_of(press));
    struct ps_agent_piece *piece;
    struct header *h;
    struct record *r;

    if (st->a->opt.keep_max != 0 &&
        bytes > st->a->opt.keep_max -
                    ps_min_u64(st->a->opt.keep_max, st->a->keep_bytes)) {
        return NULL;
    }
    if (j->keeping == 0 ||
        bytes > j->pieces[j->keeping - 1].buf->size - j->keep_used) {
        int rc = new_piece(st, j, bytes);

        if (rc != 0) {
            return NULL;
        }
    }
    if (charge(j, bytes, NULL) != 0) {
        return NULL;
    }
    piece = &j->pieces[j->keeping - 1];
    h = (struct header *)(void *)piece->buf->data;
    r = (struct record *)(void *)(piece->buf->data + j->keep_used);
    *r = (struct record){.magic = RECORD_MAGIC,
                         .label = p->key->label,
                         .press = hash_press(press),
                         .index = p->index,
                         .count = p->count,
                         .vectors = vectors_of(press)};

    struct ps_agent_kept *q = kept_new(piece->buf, j->keep_used, p->count,
                                       press);

    j->keep_used += bytes;
    j->keep_bytes += bytes;
    st->a->keep_bytes += bytes;
    __atomic_store_n(&h->used, j->keep_used, __ATOMIC_RELEASE);
    return q;
}

bool ps_agent_keep_obtain(struct ps_agent_step *st, struct ps_agent_part *p)
{
    if (p->kept == NULL && st->a->opt.keep_new != NULL &&
        vectors_of(&p->key->compress.press) > 0 && p->residual[0] == NULL &&
        p->moment[0] == NULL) {
        p->kept = adopt(p);
        if (p->kept == NULL && p->key->past != NULL && p->key->past->most > 0 &&
            !p->key->bereft) {
            p->key->bereft = true;
            ps_effects_note(st->fx, PS_LOG_WARNING,
                            "what codes of key '%s' had left over is lost with "
                            "the agent before this one",
                            p->key->name);
        }
        if (p->kept == NULL) {
            p->kept = make(st, p);
        }
    }
    return p->kept != NULL;
}

/* ---------------------------------------------------------------- encodings */

static unsigned other(struct ps_buf *const pair[2], const struct ps_buf *one)
{
    return pair[0] == one ? 1 : 0;
}

bool ps_agent_keep_again(const struct ps_agent_part *p)
{
    return p->kept != NULL && p->kept->round != 0 &&
           p->kept->round == p->key->round;
}

void ps_agent_keep_before(struct ps_agent_part *p)
{
    struct ps_agent_kept *q = p->kept;

    /* What the last encoding has made stays. */
    p->residual[1] = p->residual[0];
    p->moment[1] = p->moment[0];
    if (p->residual[0] != NULL) {
        p->residual[0] = ps_buf_ref(
            q->residual[other(q->residual, p->residual[1])]);
    }
    if (p->moment[0] != NULL) {
        p->moment[0] = ps_buf_ref(q->moment[other(q->moment, p->moment[1])]);
    }
}

void ps_agent_keep_after(struct ps_agent_part *p)
{
    struct ps_buf *t = p->residual[0];

    p->residual[0] = p->residual[1];
    p->residual[1] = t;
    t = p->moment[0];
    p->moment[0] = p->moment[1];
    p->moment[1] = t;
}

struct ps_buf *ps_agent_keep_residual(const struct ps_agent_part *p)
{
    struct ps_buf *const *pair = p->kept->residual;

    return pair[0] == NULL ? NULL
                           : ps_buf_ref(pair[other(pair, p->residual[0])]);
}

struct ps_buf *ps_agent_keep_moment(const struct ps_agent_part *p)
{
    struct ps_buf *const *pair = p->kept->moment;

    return pair[0] == NULL ? NULL : ps_buf_ref(pair[other(pair, p->moment[0])]);
}

void ps_agent_keep_mark(struct ps_agent_part *p, uint64_t round)
{
    struct ps_agent_kept *q = p->kept;
    unsigned last = 0;

    if (q == NULL) {
        return;
    }
    if (p->residual[0] != NULL && q->residual[0] != NULL) {
        last = p->residual[0] == q->residual[1];
    } else if (p->moment[0] != NULL) {
        last = p->moment[0] == q->moment[1];
    } else {
        round = 0; /* There was nothing before. */
    }
    q->round = round;
    __atomic_store_n(&q->record->tag, round << 1 | last, __ATOMIC_RELEASE);
}

/* ---------------------------------------------------------------------- end */

void ps_agent_keep_free(struct ps_agent_part *p)
{
    struct ps_agent_kept *q = p->kept;

    if (q == NULL) {
        return;
    }
    for (unsigned i = 0; i < 2; i++) {
        ps_buf_unref(q->residual[i]);
        ps_buf_unref(q->moment[i]);
    }
    ps_buf_unref(q->piece);
    ps_free(q);
    p->kept = NULL;
}

void ps_agent_keep_job_free(struct ps_agent *a, struct ps_agent_job *j)
{
    struct ps_map_cursor c = {0};
    struct ps_agent_found *f;

    a->keep_bytes -= j->keep_bytes;
    if (j->user != NULL) {
        ps_account_refund(&j->account, PS_COST_MEMORY, j->keep_charged);
    }
    while ((f = ps_map_next(j->found, &c)) != NULL) {
        while (f != NULL) {
            struct ps_agent_found *next = f->next;

            ps_free(f);
            f = next;
        }
    }
    ps_map_free(j->found);
    for (uint32_t i = 0; i < j->piece_count; i++) {
        ps_buf_unref(j->pieces[i].buf);
    }
    ps_free(j->pieces);
}
