/* SPDX-License-Identifier: Apache-2.0 */
/* Residual log: residuals and moments of a job's codecs in shared memory that
 * survives the agent. Workers hold the descriptors of its segments and hand
 * them to the next agent.
 *
 * A segment is a header followed by records, one for each partition that has
 * been encoded, freed only with the job. A record has two generations of each
 * vector, and a tag, written in one store when an encoding is complete: the
 * round and the newest generation. An agent that dies during an encoding leaves
 * the generation before it. One that dies later, when servers may have counted
 * the push and the round is open, leaves both: the next agent encodes the same
 * sum from the older generation, which gives the same bytes, and keeps the
 * newer one as it is (rule V23).
 *
 * A worker can write to this memory and thereby harm its own job only:
 * everything but the vectors is read once and validated (rule V24). */
#include "core/agent/residual_log.h"

#include "base/alloc.h"
#include "base/fnv1a.h"
#include "base/name_hash.h"
#include "base/num.h"
#include "core/agent/inner.h"
#include "core/agent/session.h"
#include "proto/ps_fixed.h"

#include <string.h>

/* Residual record that an earlier agent left in a segment. */
struct ps_agent_recovered_record {
    struct ps_agent_recovered_record *hash_next; /* With the same hash. */
    struct ps_buf *segment;                      /* The job's reference. */
    uint64_t name_hash;
    uint64_t offset; /* Offset of the record in `segment`. */
    uint64_t codec_hash;
    uint64_t round_tag;
    uint32_t part_index;
    uint32_t count;
    uint32_t vector_count;
};

#define VECTOR_ALIGN           64u
#define SEGMENT_SIZE           (64u * 1024u * 1024u)
/* Segments of one job. A new one is as large as all before it together. */
#define SEGMENTS_MAX           32u
/* Bytes charged for a recovered record and its map entry. */
#define RECOVERED_RECORD_BYTES (sizeof(struct ps_agent_recovered_record) + 64u)

struct ps_agent_residual_record {
    struct ps_buf *segment;
    struct ps_fixed_residual_record *log_record; /* In the segment. */
    struct ps_buf *residual[2];                  /* NULL: no error feedback. */
    struct ps_buf *moment[2];                    /* NULL: no momentum. */
    uint64_t encoded_round; /* Round of the last encoding; 0: none. */
};

static uint64_t hash_u64(uint64_t h, uint64_t v)
{
    return ps_fnv1a_64(h, &v, sizeof(v));
}

static uint64_t double_bits(double v)
{
    uint64_t b;

    memcpy(&b, &v, sizeof(b));
    return b;
}

static uint64_t hash_codec(const struct ps_codec *p)
{
    uint64_t h = PS_FNV1A_64;

    h = hash_u64(h, p->kind);
    h = hash_u64(h, (uint64_t)p->feedback | (uint64_t)p->scaling << 1 |
                        (uint64_t)p->l2 << 2);
    h = hash_u64(h, double_bits((double)p->threshold));
    h = hash_u64(h, double_bits((double)p->momentum));
    h = hash_u64(h, double_bits(p->k));
    h = hash_u64(h, p->levels);
    return hash_u64(h, p->seed);
}

uint64_t ps_agent_residual_elements(const struct ps_agent_part *p)
{
    return p->count * (uint64_t)(p->key->compression.per_worker
                                     ? p->key->job->local_rank_count
                                     : 1);
}

static uint64_t vector_bytes(uint32_t count)
{
    return ps_round_up(count * (uint64_t)sizeof(float), VECTOR_ALIGN);
}

static uint64_t record_bytes(uint32_t count, uint32_t vectors)
{
    return PS_FIXED_RESIDUAL_RECORD_BYTES + vectors * vector_bytes(count);
}

static uint32_t record_vectors(const struct ps_codec *codec)
{
    return (codec->feedback ? 2u : 0u) + (codec->momentum > 0 ? 2u : 0u);
}

/* ----------------------------------------------------------------- segments */

static void announce_segment(struct ps_agent_step *st,
                             struct ps_agent_session *s,
                             const struct ps_agent_residual_segment *segment)
{
    if (s->hello->l_hello.holds_segments &&
        ps_map_get(s->known_segments, segment->id) == NULL) {
        ps_map_put(s->known_segments, segment->id, s);
        ps_effects_send_msg(st->fx, s->conn,
                            &(struct ps_msg){.code = PS_MSG_L_RESIDUAL_SEGMENT,
                                             .l_residual_segment = {
                                                 .segment = segment->buf->tag,
                                                 .size = segment->buf->size}});
    }
}

void ps_agent_residual_announce(struct ps_agent_step *st,
                                struct ps_agent_session *s)
{
    for (uint32_t i = 0; i < s->job->residual_log.segment_count; i++) {
        announce_segment(st, s, &s->job->residual_log.segments[i]);
    }
}

static void add_segment(struct ps_agent_job *j, uint64_t id, struct ps_buf *buf)
{
    j->residual_log.segments = ps_realloc(
        j->residual_log.segments, (j->residual_log.segment_count + 1) *
                                      sizeof(*j->residual_log.segments));
    j->residual_log.segments[j->residual_log.segment_count++] =
        (struct ps_agent_residual_segment){.id = id, .buf = buf};
}

/* Appends a segment with at least `bytes` for records and announces it to the
 * sessions of the job. */
static int new_segment(struct ps_agent_step *st, struct ps_agent_job *j,
                       uint64_t bytes)
{
    const struct ps_agent_options *o = &st->a->opt;
    uint64_t size = 0;
    struct ps_buf *buf;
    int rc;

    for (uint32_t i = 0; i < j->residual_log.segment_count; i++) {
        size += j->residual_log.segments[i].buf->size;
    }
    size = ps_max_u64(size, o->residual_segment_size != 0
                                ? o->residual_segment_size
                                : SEGMENT_SIZE);
    size = ps_round_up(
        ps_max_u64(size, bytes + PS_FIXED_RESIDUAL_SEGMENT_BYTES), 4096);
    rc = j->residual_log.segment_count < SEGMENTS_MAX
             ? o->residual_segment_new(o->alloc_ctx, size, &buf)
             : PS_E_FULL;
    if (rc != 0) {
        return rc;
    }
    const struct ps_fixed_residual_segment h = {
        .size = size,
        .used = PS_FIXED_RESIDUAL_SEGMENT_BYTES,
        .id = ps_rng_next(&st->a->rng) ^ o->instance};

    ps_fixed_put_residual_segment(buf->data, &h);
    j->residual_log.tail_used = PS_FIXED_RESIDUAL_SEGMENT_BYTES;
    add_segment(j, h.id, buf);
    j->residual_log.tail_segment = j->residual_log.segment_count;
    for (uint32_t i = 0; i < j->local_rank_count; i++) {
        struct ps_agent_session *s = j->local_ranks[i].session;

        if (s != NULL && !s->is_closing &&
            s->state == PS_AGENT_SESSION_ACTIVE) {
            announce_segment(
                st, s,
                &j->residual_log.segments[j->residual_log.segment_count - 1]);
        }
    }
    return 0;
}

static void unref_segment(void *segment)
{
    ps_buf_unref(segment);
}

/* Buffer of one vector of the segment; holds a reference to the segment. */
static struct ps_buf *wrap_vector(struct ps_buf *segment, uint8_t *at,
                                  uint32_t count)
{
    return ps_buf_wrap(at, count * sizeof(float), unref_segment,
                       ps_buf_ref(segment));
}

/* Record at offset `at`. `count` is a validated copy, because a worker may
 * overwrite the field. */
static struct ps_agent_residual_record *record_new(struct ps_buf *segment,
                                                   uint64_t at, uint32_t count,
                                                   const struct ps_codec *codec)
{
    struct ps_agent_residual_record *q = ps_calloc(1, sizeof(*q));
    uint8_t *data = segment->data + at + PS_FIXED_RESIDUAL_RECORD_BYTES;

    q->segment = ps_buf_ref(segment);
    q->log_record = (void *)(segment->data + at);
    for (unsigned i = 0; i < 2 && codec->feedback; i++) {
        q->residual[i] = wrap_vector(segment, data, count);
        data += vector_bytes(count);
    }
    for (unsigned i = 0; i < 2 && codec->momentum > 0; i++) {
        q->moment[i] = wrap_vector(segment, data, count);
        data += vector_bytes(count);
    }
    return q;
}

/* ----------------------------------------------------------------- records */

static struct ps_agent_recovered_record *
find_recovered(const struct ps_agent_job *j, uint64_t name_hash, uint32_t index)
{
    const uint64_t h = ps_name_hash_slot(j->name_hash_seed, name_hash, index);

    for (struct ps_agent_recovered_record *f =
             ps_map_get(j->residual_log.recovered, h);
         f != NULL; f = f->hash_next) {
        if (f->name_hash == name_hash && f->part_index == index) {
            return f;
        }
    }
    return NULL;
}

/* Charges memory that stays with the job until the job is freed. */
static int charge_job_memory(struct ps_agent_job *j, uint64_t bytes,
                             struct ps_refusal *ret_refusal)
{
    int rc = ps_account_charge(&j->account, PS_COST_MEMORY, bytes, ret_refusal);

    j->residual_log.charged_bytes += rc == 0 ? bytes : 0;
    return rc;
}

/* Validates the record at *at, indexes it and moves *at behind it. Of several
 * records of one partition the one encoded last is kept: an agent appends
 * another if its codec parameters do not match those of the agent before it.
 * PS_E_INVAL: not a valid record; PS_E_FULL: a memory limit. */
static int accept_record(struct ps_agent_job *j, struct ps_buf *segment,
                         uint64_t used, uint64_t *at,
                         struct ps_refusal *ret_refusal)
{
    struct ps_agent_recovered_record *f;
    struct ps_fixed_residual_record r;

    if (used - *at < PS_FIXED_RESIDUAL_RECORD_BYTES ||
        !ps_fixed_get_residual_record(segment->data + *at, &r) ||
        r.vector_count == 3 ||
        record_bytes(r.count, r.vector_count) > used - *at) {
        return PS_E_INVAL;
    }
    f = find_recovered(j, r.name_hash, r.index);
    if (f == NULL) {
        const uint64_t h = ps_name_hash_slot(j->name_hash_seed, r.name_hash,
                                             r.index);
        int rc = charge_job_memory(j, RECOVERED_RECORD_BYTES, ret_refusal);

        if (rc != 0) {
            return rc;
        }
        f = ps_calloc(1, sizeof(*f));
        f->hash_next = ps_map_remove(j->residual_log.recovered, h);
        f->name_hash = r.name_hash;
        f->part_index = r.index;
        ps_map_put(j->residual_log.recovered, h, f);
    }
    if (f->segment == NULL || r.round_tag >> 1 > f->round_tag >> 1) {
        f->segment = segment;
        f->offset = *at;
        f->count = r.count;
        f->vector_count = r.vector_count;
        f->codec_hash = r.codec_hash;
        f->round_tag = r.round_tag;
    }
    *at += record_bytes(r.count, r.vector_count);
    return 0;
}

/* Largest number of records read from recovered segments: two for each
 * partition, because a changed codec adds a record. */
static uint64_t recovered_records_max(const struct ps_agent *a)
{
    const uint64_t parts =
        a->opt.limits[PS_ACCOUNT_JOB].limit[PS_COST_PARTITIONS].max;

    return 2 * (parts != 0 ? parts : PS_STORE_PARTS_MAX);
}

void ps_agent_residual_on_segment(struct ps_agent_step *st,
                                  struct ps_agent_session *s,
                                  struct ps_buf *buf)
{
    struct ps_agent_job *j = s->job;
    uint64_t at = PS_FIXED_RESIDUAL_SEGMENT_BYTES;
    struct ps_buf *mapping = NULL;
    struct ps_refusal why;
    struct ps_fixed_residual_segment h;

    if (s->is_closing) {
        return;
    }
    if (s->state != PS_AGENT_SESSION_ACTIVE || s->hello->l_hello.gen == 0) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "memory of an agent is returned by a process that "
                             "has lost its agent");
        return;
    }
    if (buf->size < PS_FIXED_RESIDUAL_SEGMENT_BYTES ||
        !ps_fixed_get_residual_segment(buf->data, &h) || h.size != buf->size ||
        h.used > h.size) {
        ps_agent_session_end(st, s, PS_E_INVAL,
                             "memory that no agent has created");
        return;
    }
    if (ps_map_get(s->known_segments, h.id) == NULL) {
        ps_map_put(s->known_segments, h.id, s);
    }
    for (uint32_t i = 0; i < j->residual_log.segment_count; i++) {
        if (j->residual_log.segments[i].id == h.id) {
            return; /* Another worker has handed it over. */
        }
    }
    if (j->residual_log.segment_count == SEGMENTS_MAX) {
        ps_agent_session_end(st, s, PS_E_FULL,
                             "more memory of agents than one agent creates");
        return;
    }
    if (ps_agent_budget_charge_mapping(s, buf, &mapping, &why) != 0 ||
        charge_job_memory(j, h.used, &why) != 0) {
        ps_buf_unref(mapping);
        ps_agent_session_end_quota(st, s, &why);
        return;
    }
    add_segment(j, h.id, mapping);
    j->residual_log.bytes += h.used;
    st->a->residual_bytes += h.used;
    while (at < h.used) {
        int rc;

        if (j->residual_log.record_count >= recovered_records_max(st->a)) {
            ps_agent_session_end(st, s, PS_E_FULL,
                                 "more residuals than a job has partitions "
                                 "(limits.job.partitions)");
            return;
        }
        j->residual_log.record_count++;
        rc = accept_record(j, mapping, h.used, &at, &why);
        if (rc == PS_E_FULL) {
            ps_agent_session_end_quota(st, s, &why);
            return;
        }
        if (rc != 0) {
            ps_agent_session_end(st, s, PS_E_INVAL,
                                 "memory that no agent has created");
            return;
        }
    }
    ps_effects_log_for(st->fx, &j->account, PS_LOG_INFO,
                       "job %s: %llu bytes of residuals are restored", j->name,
                       (unsigned long long)h.used);
}

/* Takes over the partition's recovered record and its newest vectors. NULL:
 * none, or one of another size or codec. */
static struct ps_agent_residual_record *adopt_recovered(struct ps_agent_part *p)
{
    const struct ps_codec *codec = &p->key->compression.codec;
    const struct ps_agent_recovered_record *f = find_recovered(
        p->key->job, p->key->name_hash, p->index);
    struct ps_agent_residual_record *q;
    unsigned last;

    if (f == NULL || f->count != ps_agent_residual_elements(p) ||
        f->vector_count != record_vectors(codec) ||
        f->codec_hash != hash_codec(codec)) {
        return NULL;
    }
    q = record_new(f->segment, f->offset, f->count, codec);
    last = f->round_tag & 1;
    q->encoded_round = f->round_tag >> 1;
    if (q->encoded_round > 0 && codec->feedback) {
        p->encoding.residual[0] = ps_buf_ref(q->residual[last]);
    }
    if (q->encoded_round > 0 && codec->momentum > 0) {
        p->encoding.moment[0] = ps_buf_ref(q->moment[last]);
    }
    return q;
}

/* New record at the tail of the log; NULL: a limit forbids it. */
static struct ps_agent_residual_record *
append_record(struct ps_agent_step *st, const struct ps_agent_part *p)
{
    struct ps_agent_job *j = p->key->job;
    const struct ps_codec *codec = &p->key->compression.codec;
    const uint32_t count = (uint32_t)ps_agent_residual_elements(p);
    const uint64_t bytes = record_bytes(count, record_vectors(codec));
    struct ps_agent_residual_segment *segment;
    struct ps_fixed_residual_segment *h;

    if (st->a->opt.residual_log_max != 0 &&
        bytes > st->a->opt.residual_log_max -
                    ps_min_u64(st->a->opt.residual_log_max,
                               st->a->residual_bytes)) {
        return NULL;
    }
    if (j->residual_log.tail_segment == 0 ||
        bytes > j->residual_log.segments[j->residual_log.tail_segment - 1]
                        .buf->size -
                    j->residual_log.tail_used) {
        int rc = new_segment(st, j, bytes);

        if (rc != 0) {
            return NULL;
        }
    }
    if (charge_job_memory(j, bytes, NULL) != 0) {
        return NULL;
    }
    segment = &j->residual_log.segments[j->residual_log.tail_segment - 1];
    h = (void *)segment->buf->data;
    ps_fixed_put_residual_record(segment->buf->data + j->residual_log.tail_used,
                                 &(struct ps_fixed_residual_record){
                                     .name_hash = p->key->name_hash,
                                     .codec_hash = hash_codec(codec),
                                     .index = p->index,
                                     .count = count,
                                     .vector_count = record_vectors(codec)});

    struct ps_agent_residual_record *q = record_new(
        segment->buf, j->residual_log.tail_used, count, codec);

    j->residual_log.tail_used += bytes;
    j->residual_log.bytes += bytes;
    st->a->residual_bytes += bytes;
    __atomic_store_n(&h->used, j->residual_log.tail_used, __ATOMIC_RELEASE);
    return q;
}

bool ps_agent_residual_attach(struct ps_agent_step *st, struct ps_agent_part *p)
{
    if (p->encoding.record == NULL && st->a->opt.residual_segment_new != NULL &&
        record_vectors(&p->key->compression.codec) > 0 &&
        ps_agent_residual_elements(p) <= UINT32_MAX &&
        p->encoding.residual[0] == NULL && p->encoding.moment[0] == NULL) {
        p->encoding.record = adopt_recovered(p);
        if (p->encoding.record == NULL && p->key->prior_state != NULL &&
            p->key->prior_state->max_completed > 0 &&
            !p->key->residual_loss_noted) {
            p->key->residual_loss_noted = true;
            ps_effects_log_for(
                st->fx, &p->key->job->account, PS_LOG_WARNING,
                "the residuals of key '%s' are lost with the agent before "
                "this one",
                p->key->name);
        }
        if (p->encoding.record == NULL) {
            p->encoding.record = append_record(st, p);
        }
    }
    return p->encoding.record != NULL;
}

/* ---------------------------------------------------------------- encodings */

static unsigned other_buffer(struct ps_buf *const pair[2],
                             const struct ps_buf *one)
{
    return pair[0] == one ? 1 : 0;
}

/* Reference of the one of a pair that is not current; NULL: there is none. */
static struct ps_buf *target_of(struct ps_buf *const pair[2],
                                const struct ps_buf *current)
{
    return pair[0] == NULL ? NULL
                           : ps_buf_ref(pair[other_buffer(pair, current)]);
}

bool ps_agent_residual_is_encoded(const struct ps_agent_part *p)
{
    return p->encoding.record != NULL &&
           p->encoding.record->encoded_round != 0 &&
           p->encoding.record->encoded_round == p->key->round.number;
}

void ps_agent_residual_rewind(struct ps_agent_part *p)
{
    struct ps_agent_residual_record *q = p->encoding.record;

    /* [1] gets the newest generation, [0] the one before it. */
    p->encoding.residual[1] = p->encoding.residual[0];
    p->encoding.moment[1] = p->encoding.moment[0];
    if (p->encoding.residual[0] != NULL) {
        p->encoding.residual[0] = target_of(q->residual,
                                            p->encoding.residual[1]);
    }
    if (p->encoding.moment[0] != NULL) {
        p->encoding.moment[0] = target_of(q->moment, p->encoding.moment[1]);
    }
}

void ps_agent_residual_forward(struct ps_agent_part *p)
{
    struct ps_buf *t = p->encoding.residual[0];

    p->encoding.residual[0] = p->encoding.residual[1];
    p->encoding.residual[1] = t;
    t = p->encoding.moment[0];
    p->encoding.moment[0] = p->encoding.moment[1];
    p->encoding.moment[1] = t;
}

void ps_agent_residual_targets(const struct ps_agent_part *p,
                               struct ps_buf **ret_residual,
                               struct ps_buf **ret_moment)
{
    const struct ps_agent_residual_record *q = p->encoding.record;

    *ret_residual = target_of(q->residual, p->encoding.residual[0]);
    *ret_moment = target_of(q->moment, p->encoding.moment[0]);
}

void ps_agent_residual_commit(struct ps_agent_part *p, uint64_t round)
{
    struct ps_agent_residual_record *q = p->encoding.record;
    unsigned last = 0;

    if (q == NULL) {
        return;
    }
    if (p->encoding.residual[0] != NULL && q->residual[0] != NULL) {
        last = p->encoding.residual[0] == q->residual[1];
    } else if (p->encoding.moment[0] != NULL) {
        last = p->encoding.moment[0] == q->moment[1];
    } else {
        round = 0; /* No encoding precedes. */
    }
    q->encoded_round = round;
    __atomic_store_n(&q->log_record->round_tag, round << 1 | last,
                     __ATOMIC_RELEASE);
}

/* ---------------------------------------------------------------------- end */

void ps_agent_residual_detach(struct ps_agent_part *p)
{
    struct ps_agent_residual_record *q = p->encoding.record;

    if (q == NULL) {
        return;
    }
    for (unsigned i = 0; i < 2; i++) {
        ps_buf_unref(q->residual[i]);
        ps_buf_unref(q->moment[i]);
    }
    ps_buf_unref(q->segment);
    ps_free(q);
    p->encoding.record = NULL;
}

void ps_agent_residual_job_free(struct ps_agent *a, struct ps_agent_job *j)
{
    a->residual_bytes -= j->residual_log.bytes;
    if (j->user != NULL) {
        ps_account_refund(&j->account, PS_COST_MEMORY,
                          j->residual_log.charged_bytes);
    }
    PS_MAP_EACH(struct ps_agent_recovered_record, f, j->residual_log.recovered)
    {
        while (f != NULL) {
            struct ps_agent_recovered_record *next = f->hash_next;

            ps_free(f);
            f = next;
        }
    }
    ps_map_free(j->residual_log.recovered);
    for (uint32_t i = 0; i < j->residual_log.segment_count; i++) {
        ps_buf_unref(j->residual_log.segments[i].buf);
    }
    ps_free(j->residual_log.segments);
}
