/* SPDX-License-Identifier: Apache-2.0 */
/* What a server answers. A large value goes at once, in a frame of its own, so
 * that it is received where it stays; small ones and commits are collected for
 * each slot and go together at the next tick, which is due at once: after all
 * that has already arrived. Values are never copied: a frame refers to the
 * stored bytes. */
#include "core/shard_inner.h"

#include "base/alloc.h"
#include "base/str.h"

#include <string.h>

static struct ps_rec_part record(const struct ps_part *part, uint64_t version)
{
    return (struct ps_rec_part){
        .key = part->key,
        .index = part->index,
        .round = version,
        .dtype = part->dtype,
        .count = part->count,
        .salt = part->passed && version == part->version ? PS_PART_PASSED : 0,
        .clock = part->clock,
    };
}

static void send_values(struct ps_shard_step *st, struct ps_shard_slot *slot,
                        const struct ps_shard_gather *g)
{
    struct ps_shard_peer *p = ps_shard_job_peer(slot);
    uint64_t gen = slot->job->gen;

    if (p == NULL) {
        return; /* It will ask again when it comes. */
    }
    struct ps_msg m = {
        .code = PS_MSG_VALUE,
        .value = {.gen = gen,
                  .epoch = st->s->epoch,
                  .credit = ps_shard_credit_now(st->s, p, gen, slot),
                  .parts = g->parts,
                  .parts_count = g->count},
    };

    ps_shard_peer_send(st, p, ps_parcel_new(&m, g->slices, g->slice_count));
}

static void send_commits(struct ps_shard_step *st, struct ps_shard_slot *slot,
                         const struct ps_rec_part *parts, uint32_t count)
{
    struct ps_shard_peer *p = ps_shard_job_peer(slot);
    uint64_t gen = slot->job->gen;

    if (p == NULL) {
        return;
    }
    struct ps_msg m = {
        .code = PS_MSG_COMMIT,
        .commit = {.gen = gen,
                   .epoch = st->s->epoch,
                   .credit = ps_shard_credit_now(st->s, p, gen, slot),
                   .parts = parts,
                   .parts_count = count},
    };

    ps_shard_peer_send(st, p, ps_parcel_new(&m, NULL, 0));
}

/* -------------------------------------------------------------- gathering */

static void empty(struct ps_shard_gather *g)
{
    for (uint32_t i = 0; i < g->slice_count; i++) {
        ps_buf_unref(g->slices[i].buf);
    }
    ps_free(g->parts);
    ps_free(g->slices);
    memset(g, 0, sizeof(*g));
}

static void flush_values(struct ps_shard_step *st, struct ps_shard_slot *slot)
{
    struct ps_shard_gather *g = &slot->values;

    if (g->count > 0) {
        send_values(st, slot, g);
        empty(g);
    }
}

static void flush_commits(struct ps_shard_step *st, struct ps_shard_slot *slot)
{
    struct ps_shard_gather *g = &slot->commits;

    if (g->count > 0) {
        send_commits(st, slot, g->parts, g->count);
        empty(g);
    }
}

static void gather(struct ps_shard_step *st, struct ps_shard_slot *slot,
                   struct ps_shard_gather *g, const struct ps_rec_part *rec,
                   const struct ps_slice *slice)
{
    if (g->parts == NULL) {
        g->parts = ps_calloc(PS_PARTS_MAX, sizeof(*g->parts));
    }
    if (slice != NULL) {
        if (g->slices == NULL) {
            g->slices = ps_calloc(PS_PARTS_MAX, sizeof(*g->slices));
        }
        if (g->slice_count > 0 &&
            ps_slice_follows(&g->slices[g->slice_count - 1], slice)) {
            g->slices[g->slice_count - 1].len += slice->len;
        } else {
            g->slices[g->slice_count++] = *slice;
            ps_buf_ref(slice->buf);
        }
        g->bytes += slice->len;
    }
    g->parts[g->count++] = *rec;
    if (!ps_list_linked(&slot->node)) {
        ps_list_push_back(&st->s->gathering, &slot->node);
        st->s->gathered_at = ps_time_min(st->s->gathered_at, st->now);
    }
}

void ps_shard_answer(struct ps_shard_step *st, struct ps_shard_slot *slot,
                     const struct ps_part *part, bool want, uint64_t version)
{
    if (ps_shard_job_peer(slot) == NULL) {
        return;
    }
    if (!want || !ps_part_has_value(part)) {
        struct ps_rec_part rec = record(part, version);

        if (st->s->opt.alone) {
            send_commits(st, slot, &rec, 1);
            return;
        }
        if (slot->commits.count == PS_PARTS_MAX) {
            flush_commits(st, slot);
        }
        gather(st, slot, &slot->commits, &rec, NULL);
        return;
    }
    struct ps_rec_part rec = record(part, part->version);
    const struct ps_slice *what = &part->value;

    if (part->code.buf != NULL) {
        what = &part->code;
        rec.codec = part->codec;
        rec.bytes = (uint32_t)what->len;
    }
    if (what->len > PS_FUSE_PART_MAX || st->s->opt.alone) {
        struct ps_shard_gather one = {.parts = &rec,
                                      .slices = (struct ps_slice *)what,
                                      .count = 1,
                                      .slice_count = 1};

        send_values(st, slot, &one);
        return;
    }
    if (slot->values.count == PS_PARTS_MAX ||
        slot->values.bytes + what->len > PS_FUSE_FRAME_MAX) {
        flush_values(st, slot);
    }
    gather(st, slot, &slot->values, &rec, what);
}

void ps_shard_answer_flush(struct ps_shard_step *st)
{
    struct ps_list_node *n;

    while ((n = ps_list_pop(&st->s->gathering)) != NULL) {
        struct ps_shard_slot *slot = PS_CONTAINER(n, struct ps_shard_slot,
                                                  node);

        flush_values(st, slot);
        flush_commits(st, slot);
    }
    st->s->gathered_at = PS_TIME_NEVER;
}

void ps_shard_answer_drop(struct ps_shard_slot *slot)
{
    empty(&slot->values);
    empty(&slot->commits);
    if (ps_list_linked(&slot->node)) {
        ps_list_remove(&slot->node);
    }
}

/* --------------------------------------------------------------- refusing */

static const char *text_of(int rc)
{
    switch (rc) {
    case PS_E_NOKEY:
        return "the key was never initialised: an optimizer, and a push that "
               "is applied when it arrives, need a value to begin with";
    case PS_E_MISMATCH:
        return "element type, length, reduction or assignment differ from "
               "what others gave for this round";
    case PS_E_FULL:
        return "more was sent than the credit allows";
    case PS_E_UNSUPPORTED:
        return "an optimizer needs elements that are real numbers and sums or "
               "means of them, keeps its state on one server, and accumulates "
               "gradients and looks at norms of whole arrays alone; "
               "groupadagrad is for keys of rows";
    case PS_E_INVAL:
        return "the message says what no agent says, or holds a broken code";
    case PS_E_PERM:
        return "the slot belongs to another agent";
    default:
        return "";
    }
}

void ps_shard_refusal_init(struct ps_shard_refusal *r)
{
    r->count = 0;
    r->side.count = 0;
    r->side.reduce = PS_REDUCE_SUM;
    r->side.assign = false;
    r->short_rc = 0;
}

void ps_shard_refusal_short(struct ps_shard_step *st,
                            struct ps_shard_refusal *r,
                            const struct ps_shard_slot *slot, uint64_t len)
{
    struct ps_str why;

    ps_str_init(&why, r->text, sizeof(r->text));
    r->short_rc = ps_shard_room_refuses(st, slot, len, &why);
}

void ps_shard_refusal_add(struct ps_shard_refusal *r,
                          const struct ps_rec_part *part, int rc,
                          uint32_t attempt)
{
    r->parts[r->count] = *part;
    r->rc[r->count] = rc == PS_E_FUTURE && r->short_rc != 0 ? r->short_rc : rc;
    r->attempt[r->count] = attempt;
    r->count++;
}

/* Why, and in other words than the usual ones where there are some. */
struct reason {
    int rc;
    const char *text;
};

static void send_refusal(struct ps_shard_step *st, struct ps_shard_peer *p,
                         uint64_t gen, const struct ps_shard_slot *slot,
                         const struct ps_shard_parts *parts,
                         const struct reason *why)
{
    struct ps_msg m = {
        .code = PS_MSG_REFUSE,
        .refuse = {.gen = gen,
                   .epoch = st->s->epoch,
                   .credit = ps_shard_credit_now(st->s, p, gen, slot),
                   .error = why->rc,
                   .text = why->text != NULL ? why->text : text_of(why->rc),
                   .parts = parts->part,
                   .parts_count = parts->count},
    };

    st->s->refused += parts->count;
    ps_shard_peer_send(st, p, ps_parcel_new(&m, NULL, 0));
}

/* Of an attempt that is over. */
static void send_over(struct ps_shard_step *st, struct ps_shard_peer *p,
                      uint64_t gen, const struct ps_shard_slot *slot,
                      const struct ps_rec_part *parts, uint32_t count,
                      uint32_t attempt, const struct ps_shard_side *side)
{
    struct ps_msg m = {
        .code = PS_MSG_REFUSE,
        .refuse = {.gen = gen,
                   .epoch = st->s->epoch,
                   .credit = ps_shard_credit_now(st->s, p, gen, slot),
                   .error = PS_E_MISMATCH,
                   .text = text_of(PS_E_MISMATCH),
                   .parts = parts,
                   .parts_count = count,
                   .slots = side->slot,
                   .slots_count = side->count,
                   .reduce = side->reduce,
                   .assign = side->assign,
                   .attempt = attempt},
    };

    st->s->refused += count;
    ps_shard_peer_send(st, p, ps_parcel_new(&m, NULL, 0));
}

/* One message for each stretch of the same error: mostly one. */
void ps_shard_refusal_send(struct ps_shard_step *st, struct ps_shard_peer *p,
                           uint64_t gen, const struct ps_shard_slot *slot,
                           const struct ps_shard_refusal *r)
{
    for (uint32_t from = 0, to; from < r->count; from = to) {
        to = from + 1;
        while (to < r->count && r->rc[to] == r->rc[from] &&
               r->attempt[to] == r->attempt[from]) {
            to++;
        }
        if (r->attempt[from] != 0) {
            send_over(st, p, gen, slot, &r->parts[from], to - from,
                      r->attempt[from], &r->side);
        } else {
            const struct ps_shard_parts some = {&r->parts[from], to - from,
                                                NULL};
            const struct reason why = {
                r->rc[from], r->rc[from] == r->short_rc ? r->text : NULL};

            send_refusal(st, p, gen, slot, &some, &why);
        }
    }
}

void ps_shard_refuse(struct ps_shard_step *st, struct ps_shard_peer *p,
                     uint64_t gen, const struct ps_shard_slot *slot,
                     const struct ps_shard_parts *parts, int rc)
{
    send_refusal(st, p, gen, slot, parts, &(struct reason){.rc = rc});
}
