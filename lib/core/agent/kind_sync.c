/* SPDX-License-Identifier: Apache-2.0 */
/* Dense keys with rounds: both kinds of them, of sync jobs and of collectives.
 * Values lie in the key's results, one buffer for even versions and one for odd
 * ones, where all workers of the node read them (rule R13). */
#include "base/alloc.h"
#include "core/agent/conflict.h"
#include "core/agent/inner.h"
#include "core/agent/op.h"
#include "core/agent/part.h"
#include "core/agent/pull.h"
#include "core/agent/round.h"
#include "core/agent/send.h"
#include "core/agent/server.h"

#include <string.h>

/* --------------------------------------------------------------- operations */

static void accept_sync_op(struct ps_agent_step *st, struct ps_agent_op *op)
{
    if (op->kind == PS_OP_PULL) {
        ps_agent_pull_accept_op(st, op);
    } else {
        ps_agent_round_accept_op(st, op);
    }
}

static bool validate_collective_op(struct ps_agent_step *st,
                                   struct ps_agent_session *s,
                                   const struct ps_agent_key *k,
                                   const struct ps_msg_l_op *m,
                                   const struct ps_slice *array)
{
    (void)array;
    if (m->op == PS_OP_SKIP) {
        return ps_agent_op_reject(
            st, s, m, PS_E_UNSUPPORTED,
            "'%s' is a collective's key: a collective knows "
            "by itself who has joined",
            k->name);
    }
    return true;
}

/* ------------------------------------------------------------------- values */

struct pull_batch {
    struct ps_agent_server *server;
    struct ps_rec_part parts[PS_PARTS_MAX];
    uint32_t count;
};

static void send_pull_batch(struct ps_agent_step *st,
                            const struct ps_agent_job *j, struct pull_batch *q)
{
    if (q->count == 0) {
        return;
    }
    ps_agent_server_send_msg(
        st, q->server,
        &(struct ps_msg){.code = PS_MSG_PULL,
                         .pull = {.gen = j->gen,
                                  .epoch = st->a->servers.map_epoch,
                                  .slot = j->slot,
                                  .parts = q->parts,
                                  .parts_count = q->count}});
    q->count = 0;
}

/* Requests version `least` of the partitions that lack it and do not expect it:
 * one message per server, partitions in order of their index. */
static void request_version(struct ps_agent_step *st, struct ps_agent_key *k,
                            int64_t least)
{
    struct pull_batch *q = NULL;

    for (uint32_t i = 0; i < k->part_count && q == NULL; i++) {
        if (k->parts[i].owner_node != 0 && k->parts[i].local_version < least &&
            !ps_agent_pull_is_expected(&k->parts[i], least)) {
            q = ps_calloc(1, sizeof(*q));
        }
    }
    if (q == NULL) {
        return;
    }
    PS_MAP_EACH(struct ps_agent_send_queue, f, k->job->send_queues)
    {
        q->server = f->server;
        for (uint32_t i = 0; i < k->part_count; i++) {
            struct ps_agent_part *p = &k->parts[i];

            if (p->owner_node != f->server->node || p->local_version >= least ||
                ps_agent_pull_is_expected(p, least)) {
                continue;
            }
            p->requested_version = least;
            q->parts[q->count++] = (struct ps_rec_part){
                .key = k->number,
                .index = p->index,
                .round = (uint64_t)least,
                .dtype = k->dtype,
                .count = p->count};
            if (q->count == PS_PARTS_MAX) {
                send_pull_batch(st, k->job, q);
            }
        }
        send_pull_batch(st, k->job, q);
    }
    ps_free(q);
}

/* Rule R14: returns true if version `v` of the partition may be written into
 * the results now. */
static bool may_write_version(const struct ps_agent_part *p, int64_t v)
{
    const struct ps_agent_key *k = p->key;

    if (v <= p->local_version) {
        return false;
    }
    if (k->round.state == PS_AGENT_ROUND_COMPLETE &&
        (uint64_t)v == k->round.number) {
        return true;
    }
    /* A pull: the buffer of this parity holds v - 2 at best. It may be
     * overwritten when no rank still reads it: all ranks here have pushed v, or
     * no version was ever published here. */
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {
        if (k->round.pushed_round[i] < (uint64_t)v &&
            p->local_version != NO_VERSION && v > 1 &&
            v - p->local_version > 1) {
            return false;
        }
    }
    return true;
}

static int place_sync_value(struct ps_agent *a, const struct ps_agent_part *p,
                            const struct ps_rec_part *rec, uint64_t len,
                            struct ps_slice *ret_slice)
{
    (void)a;
    if (rec->round > INT64_MAX || !may_write_version(p, (int64_t)rec->round)) {
        return PS_E_STALE;
    }
    *ret_slice = ps_agent_part_result(p, rec->round);
    ret_slice->len = len;
    ps_buf_ref(ret_slice->buf);
    return 0;
}

/* Decodes an encoded value of a partition into `at`. Returns false if it is
 * malformed or does not match the key's compression. */
static bool decode_value(const struct ps_agent_part *p,
                         const struct ps_rec_part *rec, const uint8_t *from,
                         uint8_t *at)
{
    const struct ps_codec *codec = &p->key->compression.codec;
    char why[200];

    if (rec->codec != codec->kind || !p->key->compression.bidirectional ||
        rec->dtype != p->key->dtype ||
        ps_codec_check(codec, from, rec->encoded_bytes, rec->count, why,
                       sizeof(why)) != 0) {
        return false;
    }
    const struct ps_codec_position position = {
        .key = ps_compression_rng_key(p->key->name_hash),
        .index = rec->index,
        .round = rec->round};

    ps_codec_decode(
        codec,
        &(struct ps_codec_data){.stream = ps_codec_rng_stream(codec, &position),
                                .code = from,
                                .count = rec->count},
        0, rec->count, (float *)(void *)at);
    return true;
}

static int accept_sync_value(struct ps_agent_step *st, struct ps_agent_part *p,
                             const struct ps_rec_part *rec,
                             const struct ps_slice *value)
{
    if (rec->round > INT64_MAX) {
        return 0;
    }
    if ((int64_t)rec->round > p->local_version) {
        const struct ps_slice to = ps_agent_part_result(p, rec->round);
        const uint8_t *from = ps_slice_data(value);
        uint8_t *at = ps_slice_data(&to);

        /* A value in its place was checked before that was lent. */
        if (from != at && !may_write_version(p, (int64_t)rec->round)) {
            return 0;
        }
        if (rec->codec != PS_CODEC_NONE) {
            if (!decode_value(p, rec, from, at)) {
                return PS_E_PROTO;
            }
        } else if (from != at) {
            memcpy(at, from, value->len);
        }
        p->local_version = (int64_t)rec->round;
        st->a->stats.bytes_in += value->len;
    }
    if (p->requested_version != NO_VERSION &&
        p->local_version >= p->requested_version) {
        p->requested_version = NO_VERSION;
    }
    ps_agent_round_on_commit(st, p, rec->round, rec->all_skipped);
    return 0;
}

/* ----------------------------------------------------------------- takeover */

/* Rule V3: makes the partition uncommitted if its round must be pushed again.
 * The lost owner had merged the round, but the value did not arrive here; the
 * workers' arrays still hold the contributions. With a codec the round cannot
 * be repeated, because the residual has advanced. */
static bool reopen_round(struct ps_agent_part *p)
{
    struct ps_agent_key *k = p->key;

    if (k->round.state != PS_AGENT_ROUND_COMPLETE || p->is_init ||
        p->committed_version < (int64_t)k->round.number ||
        p->local_version >= (int64_t)k->round.number ||
        k->compression.codec.kind != PS_CODEC_NONE) {
        return false;
    }
    p->committed_version = k->round.number > 1 ? (int64_t)k->round.number - 1
                                               : p->local_version;
    if (p->completed_round == k->round.number) {
        p->completed_round--;
        k->round.pending_parts++;
    }
    return true;
}

static bool reopen_sync_part(struct ps_agent_part *p)
{
    return reopen_round(p) || ps_agent_init_reopen_part(p);
}

/* -------------------------------------------------------------------- kinds */

#define SYNC_OPERATIONS                                                        \
    .push_code = PS_MSG_PUSH, .has_rounds = true, .has_results = true,         \
    .part_fits_frame = ps_agent_part_fits_frame,                               \
    .measure_array = ps_agent_op_measure_dense, .accept_op = accept_sync_op,   \
    .start_part = ps_agent_send_dense, .end_round = ps_agent_round_end,        \
    .fail_ops = ps_agent_fail_key, .advance = ps_agent_pull_advance,           \
    .request_version = request_version, .place_value = place_sync_value,       \
    .accept_value = accept_sync_value, .reopen_part = reopen_sync_part

const struct ps_agent_key_kind ps_agent_key_sync = {SYNC_OPERATIONS};

const struct ps_agent_key_kind ps_agent_key_collective = {
    SYNC_OPERATIONS,
    .is_collective = true,
    .validate_op = validate_collective_op,
};
