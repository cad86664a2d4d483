/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of partitions to the backup of this server's place, and to servers that
 * partitions move to.
 *
 *     ALONE     there is no backup
 *     FILLING   the backup gets all partitions; what it has does not count yet
 *     TWO       each change is at the backup before any reply tells of it
 *
 * Every change of a partition has a number, which grows over the place. A copy
 * has a partition as it is when it is sent, under the number of its last change;
 * at most one of a partition is on its way. It is the buffers that have changed
 * since the copy that the backup has confirmed, or the gradient of the step that
 * makes the next version, which leaves when that step begins; what the backup
 * cannot use it refuses, and gets all buffers (rules O8 and O17).
 *
 * A partition of which the backup has confirmed a copy begins to defer replies
 * (rule O11), and so does one made while there is a backup. When the backup has
 * had the newest change of all of them, it counts, and the scheduler hears of it
 * (rule O12): in this order, because the scheduler may promote the backup from
 * then on.
 *
 * A server that a partition moves to is a target as the backup is, of this
 * partition alone and without steps; when that has it, the scheduler hears that it
 * has moved (rule M2).
 *
 * A copy refers to the buffers of the partition; the next step leaves a buffer
 * as it is that somebody refers to. */
#include "core/server/copy.h"

#include "base/alloc.h"
#include "base/num.h"
#include "core/part/image.h"
#include "core/server/copies.h"
#include "core/server/credit.h"
#include "core/server/inner.h"
#include "core/server/kind.h"
#include "core/server/memory.h"
#include "core/server/merge.h"
#include "core/server/move.h"
#include "core/server/peer.h"
#include "core/server/pull.h"
#include "core/server/reply.h"
#include "core/server/restore.h"

#include <string.h>

/* Copies that fill a target: bytes on their way at once, the inverse of their share
 * of the time while rounds are merged, and the longest pause. */
#define FILLING_BYTES_MAX (2ull * 1024 * 1024)
#define FILLING_SHARE     10u
#define FILLING_PAUSE_MAX PS_SECONDS(1)

/* ------------------------------------------------------------------ replies */

/* Sends the replies that have waited. */
static void send_replies(struct ps_server_step *st, struct ps_server_job *job,
                         struct ps_part *part, struct ps_bits *due,
                         struct ps_bits *due_values)
{
    for (uint32_t i = 0;
         part != NULL && due->words != NULL && i < job->slot_count; i++) {
        if (ps_bits_get(due, i)) {
            ps_server_reply_part(st, &job->slots[i], part,
                                 ps_bits_get(due_values, i),
                                 part->image.version);
        }
    }
    ps_bits_fini(due);
    ps_bits_fini(due_values);
}

static void release_replies(struct ps_server_step *st, struct ps_server_copy *c)
{
    struct ps_server_job *job = c->target->job;
    struct ps_part *part = ps_store_find(&job->store, c->key, c->index);
    struct ps_bits due = c->due;
    struct ps_bits due_values = c->due_values;
    struct ps_server_due_load *load;

    c->due = (struct ps_bits){0};
    c->due_values = (struct ps_bits){0};
    send_replies(st, job, part, &due, &due_values);
    while ((load = PS_LIST_POP(struct ps_server_due_load, node,
                               &c->due_loads)) != NULL) {
        if (part != NULL) {
            ps_server_reply_load(st, &job->slots[load->slot], part,
                                 load->request);
        }
        ps_free(load);
    }
}

/* ------------------------------------------------------------ begin and end */

/* Ends the copies to a target: this server goes on without it. */
static void target_end(struct ps_server_step *st, struct ps_server_target *t)
{
    PS_MAP_EACH(struct ps_server_copy, c, t->parts)
    {
        c->defers = false;
        release_replies(st, c);
    }
    ps_server_target_free(t);
}

static void send_moved(struct ps_server_step *st,
                       const struct ps_server_move *mv, uint64_t move, int rc,
                       const char *text)
{
    ps_server_uplink_send_msg(
        st, &(struct ps_msg){.code = PS_MSG_MOVED,
                             .moved = {.move = move,
                                       .gen = mv->job->gen,
                                       .key = mv->key,
                                       .index = mv->index,
                                       .is_filled = mv->is_reported && rc == 0,
                                       .error = rc,
                                       .text = text}});
}

/* Tells the scheduler how far a move is: for a code, why it cannot begin. */
static void report_move(struct ps_server_step *st,
                        const struct ps_server_move *mv, int rc,
                        const char *text)
{
    send_moved(st, mv, mv->id, rc, text);
}

void ps_server_copies_refuse_move(struct ps_server_step *st,
                                  const struct ps_server_move *mv,
                                  uint64_t move)
{
    send_moved(st, mv, move, PS_E_AGAIN,
               "it has come back after a loss, and not all agents have said "
               "what they know of it; try again");
}

/* The move of the one partition that the target gets. */
static struct ps_server_move *move_of(const struct ps_server_target *t)
{
    struct ps_server_move *mv = NULL;

    PS_MAP_EACH(const struct ps_server_copy, c, t->parts)
    {
        mv = ps_server_move_find(t->job, c->key, c->index);
    }
    assert(mv != NULL && mv->id == t->move && mv->role == MOVE_OUT);
    return mv;
}

static void report_target(struct ps_server_step *st,
                          const struct ps_server_target *t)
{
    if (t->move != 0) {
        report_move(st, move_of(t), 0, "");
    } else {
        ps_server_uplink_send_msg(
            st, &(struct ps_msg){
                    .code = PS_MSG_FILLED,
                    .filled = {.gen = t->job->gen,
                               .epoch = t->job->copies.epoch,
                               .percent = t->is_filled ? 100 : t->percent,
                               .is_unreachable = t->is_unreachable}});
    }
}

void ps_server_copies_report_unreachable(struct ps_server_step *st)
{
    PS_MAP_EACH(const struct ps_server_job, job, st->s->jobs.by_gen)
    {
        PS_LIST_EACH_OF(struct ps_server_target, t, node, &job->copies.targets)
        {
            if (t->is_unreachable ||
                !ps_server_peer_is_away(t->peer, st->now)) {
                continue;
            }
            if (t->move == 0 && t->is_filled) {
                t->is_unreachable = true;
                report_target(st, t);
            } else if (t->move != 0 && !t->is_filled) {
                t->is_unreachable = true;
                report_move(st, move_of(t), PS_E_UNREACH,
                            "its new server could not be reached for 5 s");
            }
        }
    }
}

/* Reports each step of PS_FILLED_STEP percent of a backup. */
static void report_progress(struct ps_server_step *st,
                            struct ps_server_target *t)
{
    const size_t all = ps_map_count(t->parts);
    const uint32_t percent = (uint32_t)(100 * (all - t->unfilled) / all);

    if (t->move == 0 && percent >= t->percent + PS_FILLED_STEP) {
        t->percent = (uint8_t)percent;
        report_target(st, t);
    }
}

/* False: a step with norms is under way, whose reports count for the owner. The
 * next one waits for the end of the move. */
static bool may_move(const struct ps_server_target *t)
{
    struct ps_server_job *job = t->job;
    const struct ps_server_move *mv = move_of(t);
    const struct ps_part *part = ps_store_find(&job->store, mv->key, mv->index);

    return part == NULL || part->merge == NULL || !job->has_optimizer ||
           !ps_server_norm_is_needed(job, part);
}

/* The target has all its partitions, and replies wait for it: it counts. */
static void check_filled(struct ps_server_step *st, struct ps_server_target *t)
{
    if (t->unfilled > 0) {
        report_progress(st, t);
    }
    if (t->unfilled > 0 || t->is_filled || (t->move != 0 && !may_move(t)) ||
        (t->move == 0 && ps_server_job_takes_over(t->job))) {
        return;
    }
    t->is_filled = true;
    if (t->move != 0) {
        move_of(t)->is_reported = true;
    } else {
        ps_effects_log_for(st->fx, &t->job->account, PS_LOG_INFO,
                           "job %s: backup server %s has all partitions",
                           t->job->name, t->peer->name);
    }
    report_target(st, t);
}

void ps_server_copies_report(struct ps_server_step *st,
                             const struct ps_server_job *job)
{
    PS_LIST_EACH_OF(const struct ps_server_target, t, node,
                    &job->copies.targets)
    {
        if (t->move != 0 || t->is_filled) {
            report_target(st, t);
        }
    }
    PS_LIST_EACH_OF(const struct ps_server_move, mv, node,
                    &job->copies.incoming)
    {
        report_move(st, mv, 0, "");
    }
}

/* Begins the copies of a partition that the target does not have. */
static void add_unfilled(struct ps_server_target *t, uint32_t key,
                         uint32_t index)
{
    struct ps_server_copy *c = ps_server_copies_add(t, key, index, false);

    c->changed = ++t->job->copies.last_number;
    t->unfilled++;
    ps_server_copies_enqueue(c);
}

void ps_server_copies_begin(struct ps_server_step *st,
                            struct ps_server_job *job, uint32_t epoch,
                            uint32_t node, uint64_t instance)
{
    struct ps_server_target *t = ps_server_target_find(job, 0);

    if (t != NULL) {
        target_end(st, t);
    }
    job->copies.epoch = epoch;
    if (node == 0) {
        return;
    }
    t = ps_server_target_add(job, ps_server_peer_obtain(st, node, instance), 0);
    PS_MAP_EACH(const struct ps_part, part, job->store.parts)
    {
        if (part->image.version > 0 || ps_part_has_value(part)) {
            add_unfilled(t, part->key, part->index);
        }
    }
    check_filled(st, t);
}

void ps_server_copies_on_takeover(struct ps_server_job *job,
                                  struct ps_part *part)
{
    struct ps_server_target *t = ps_server_target_find(job, 0);

    if (t != NULL && ps_server_copies_find(t, part->key, part->index) == NULL) {
        add_unfilled(t, part->key, part->index);
    } else {
        ps_server_copies_on_change(job, part);
    }
}

void ps_server_copies_check(struct ps_server_step *st,
                            struct ps_server_job *job)
{
    struct ps_server_target *t = ps_server_target_find(job, 0);

    if (t != NULL) {
        check_filled(st, t);
    }
}

void ps_server_copies_begin_move(struct ps_server_step *st,
                                 struct ps_server_move *mv, uint32_t node,
                                 uint64_t instance)
{
    mv->role = MOVE_OUT;
    mv->target = node;
    add_unfilled(ps_server_target_add(mv->job,
                                      ps_server_peer_obtain(st, node, instance),
                                      mv->id),
                 mv->key, mv->index);
}

void ps_server_copies_end_move(struct ps_server_step *st,
                               struct ps_server_move *mv)
{
    struct ps_server_job *job = mv->job;
    struct ps_server_target *t = ps_server_target_find(job, mv->id);
    struct ps_part *part = ps_store_find(&job->store, mv->key, mv->index);

    if (t != NULL) {
        target_end(st, t);
    }
    ps_server_move_end(mv);
    /* See may_move(). */
    if (part != NULL && part->open_round != NULL && part->merge == NULL &&
        ps_server_round_is_complete(part->open_round)) {
        ps_server_credit_mark_job(job);
        ps_server_merge_start(st, job, part);
    }
}

void ps_server_copies_drop_unused_peers(struct ps_server_step *st,
                                        bool keeps_connected)
{
    PS_MAP_EACH(struct ps_server_peer, p, st->s->peers.by_number)
    {
        p->is_used = false;
    }
    PS_MAP_EACH(const struct ps_server_job, job, st->s->jobs.by_gen)
    {
        PS_LIST_EACH_OF(const struct ps_server_target, t, node,
                        &job->copies.targets)
        {
            t->peer->is_used = true;
        }
    }
    ps_server_peer_drop_unused(st, keeps_connected);
}

/* ----------------------------------------------------------------- the copies */

/* Buffers of the partition that the copy has, by bit. */
static uint8_t unsent_of(const struct ps_server_copy *c,
                         const struct ps_part *part)
{
    uint8_t unsent = 0;

    for (unsigned i = 0; part != NULL && i < PS_PART_BUFFERS; i++) {
        if (part->buffers[i].len > 0 && (c->unsent & 1u << i) != 0) {
            unsent |= (uint8_t)(1u << i);
        }
    }
    return unsent;
}

static uint64_t copy_bytes(const struct ps_server_copy *c,
                           const struct ps_part *part)
{
    const uint8_t unsent = unsent_of(c, part);
    uint64_t bytes = 0;

    if (c->step.gradient.buf != NULL) {
        return c->step.gradient.len;
    }
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        bytes += (unsent & 1u << i) != 0 ? part->buffers[i].len : 0;
    }
    return bytes;
}

/* The copy with this number is on its way. */
static void note_sent(struct ps_server_copy *c, uint64_t number, uint64_t bytes)
{
    const struct ps_server *s = c->target->job->server;
    struct ps_server_peer *p = c->target->peer;

    c->sent = number;
    c->sent_bytes = bytes + 1; /* Never 0. */
    p->copying_bytes += c->sent_bytes;
    if (c->defers) {
        return;
    }
    if (p->filling_bytes == 0) {
        p->filling_since = s->now;
        p->filling_rounds = s->rounds;
    }
    c->filling_bytes = c->sent_bytes;
    p->filling_bytes += c->filling_bytes;
}

static struct ps_msg copy_msg(const struct ps_server_copy *c, uint64_t number,
                              const struct ps_rec_part_image *image)
{
    return (struct ps_msg){
        .code = PS_MSG_COPY,
        .copy = {.gen = c->target->job->gen,
                 .epoch = c->target->job->copies.epoch,
                 .move = c->target->move,
                 .key = c->key,
                 .index = c->index,
                 .number = number,
                 .image = image,
                 .image_count = 1,
                 .newest_version = c->target->job->newest_version}};
}

static void send_step(struct ps_server_step *st, struct ps_server_copy *c)
{
    const struct ps_optim_step_params *at = &c->step.params;
    const struct ps_rec_copy_step step = {
        .job_version = c->target->job->version,
        .number = at->step_number,
        .lr_mult = at->lr_mult,
        .wd_mult = at->wd_mult,
        .norm_exempt = at->norm_exempt,
        .is_mean = at->is_mean,
        .trust_ratio = at->trust_ratio,
        .grad_scale = at->grad_scale};
    struct ps_msg msg = copy_msg(c, c->step.number, &c->step.image);

    msg.copy.base = c->confirmed;
    msg.copy.step = &step;
    msg.copy.step_count = 1;
    ps_server_peer_send(st, c->target->peer,
                        ps_packet_new(&msg, &c->step.gradient, 1));
    note_sent(c, c->step.number, c->step.gradient.len);
    c->sent_whole = false;
    ps_buf_unref(c->step.gradient.buf);
    c->step.gradient = (struct ps_slice){0};
}

/* The bytes of a buffer, for the caller to release. A buffer of which a device has
 * a copy is written in place by the next step, and is copied here. 0, or an error
 * with its text. */
static int hold_buffer(struct ps_server_job *job, const struct ps_slice *from,
                       struct ps_slice *ret, const char **ret_text)
{
    if (from->buf == NULL || from->buf->copy == NULL) {
        *ret = *from;
        if (from->buf != NULL) {
            ps_buf_ref(from->buf);
        }
        return 0;
    }
    if (ps_buf_fetch(from->buf) != 0) {
        *ret_text = "its states were on a device that has failed";
        return PS_E_IO;
    }
    if (ps_server_memory_alloc(job, from->len, ret) != 0) {
        *ret = (struct ps_slice){.buf = ps_buf_try_new(from->len),
                                 .len = from->len};
        if (ret->buf == NULL) {
            *ret_text = "its server has no memory for a copy of its states";
            return PS_E_NOMEM;
        }
    }
    memcpy(ps_slice_data(ret), ps_slice_data(from), from->len);
    return 0;
}

/* Sends the buffers, and drops their references. */
static void send_buffers(struct ps_server_step *st, struct ps_server_copy *c,
                         const struct ps_image *im,
                         struct ps_slice buffers[PS_PART_BUFFERS])
{
    struct ps_msg msg = copy_msg(c, c->changed, im->records);
    struct ps_server_peer *peer = c->target->peer;
    uint64_t bytes = 0;
    uint32_t sent = 0;

    msg.copy.buffer_bytes = im->lens;
    msg.copy.buffer_bytes_count = PS_PART_BUFFERS;
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        if (im->lens[i] > 0 && buffers[i].buf == NULL) {
            msg.copy.shared |= (uint8_t)(1u << i);
        }
    }
    msg.copy.base = msg.copy.shared != 0 ? c->confirmed : 0;
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        if (buffers[i].buf != NULL) {
            msg.copy.buffer = (uint8_t)i;
            ps_server_peer_send(st, peer, ps_packet_new(&msg, &buffers[i], 1));
            bytes += buffers[i].len;
            sent++;
        }
    }
    if (sent == 0) {
        ps_server_peer_send(st, peer, ps_packet_new(&msg, NULL, 0));
    }
    ps_image_drop(buffers);
    note_sent(c, c->changed, bytes);
    c->sent_whole = msg.copy.base == 0;
    c->unsent = 0;
}

/* The partition cannot move; it stays as it is until the scheduler has said
 * so. */
static void fail_move(struct ps_server_step *st, struct ps_server_target *t,
                      int rc, const char *text)
{
    report_move(st, move_of(t), rc, text);
    target_end(st, t);
}

/* Sends the partition as it is; `part` NULL: it is gone, or was never made. */
static void send_part(struct ps_server_step *st, struct ps_server_copy *c,
                      const struct ps_part *part)
{
    struct ps_server_target *t = c->target;
    struct ps_slice buffers[PS_PART_BUFFERS] = {{0}};
    const uint8_t unsent = unsent_of(c, part);
    uint64_t lens[PS_PART_BUFFERS];
    const struct ps_image im = ps_image_of(part, lens);
    const char *text;
    int rc = t->move == 0 ? 0
                          : ps_image_check_use(part, t->job->has_optimizer,
                                               PS_IMAGE_MIGRATE, &text);

    for (unsigned i = 0; i < PS_PART_BUFFERS && rc == 0; i++) {
        if ((unsent & 1u << i) != 0) {
            rc = hold_buffer(t->job, &part->buffers[i], &buffers[i], &text);
        }
    }
    if (rc == 0) {
        send_buffers(st, c, &im, buffers);
        return;
    }
    ps_image_drop(buffers);
    if (t->move != 0 && !t->is_filled) {
        fail_move(st, t, rc, text);
    } /* Else the scheduler ends it soon, and nobody sees this version. */
}

/* True if the copy can be sent, as far as its partition is concerned. A version
 * is not copied while the next one is made, because the computation may write
 * its buffers in place; the step that makes the next one is. */
static bool is_ready(const struct ps_server_copy *c, const struct ps_part *part)
{
    return part == NULL || c->step.gradient.buf != NULL || part->merge == NULL;
}

static void send_copy(struct ps_server_step *st, struct ps_server_copy *c,
                      const struct ps_part *part)
{
    ps_list_remove(&c->node);
    if (c->step.gradient.buf != NULL) {
        send_step(st, c);
    } else {
        send_part(st, c, part);
    }
}

/* Rule O14: while rounds are merged, copies that fill a target have a tenth of the
 * time, because nobody waits for them. */
static void pace_filling(struct ps_server_step *st, struct ps_server_peer *p)
{
    const ps_time took = st->now - p->filling_since;

    if (p->filling_bytes == 0 && st->s->rounds != p->filling_rounds) {
        p->fill_at = ps_time_add(
            st->now, ps_min_u64((FILLING_SHARE - 1) * took, FILLING_PAUSE_MAX));
    }
}

static void pump_filling(struct ps_server_step *st, struct ps_server_peer *p)
{
    PS_LIST_EACH_SAFE(struct ps_server_copy, c, node, &p->filling)
    {
        const struct ps_part *part = ps_store_find(&c->target->job->store,
                                                   c->key, c->index);

        if (st->now < p->fill_at ||
            (p->filling_bytes > 0 &&
             p->filling_bytes + copy_bytes(c, part) > FILLING_BYTES_MAX)) {
            break;
        }
        if (is_ready(c, part)) {
            send_copy(st, c, part);
        }
    }
}

/* Sends the copies that wait for this peer. */
static void pump_peer(struct ps_server_step *st, struct ps_server_peer *p)
{
    PS_LIST_EACH_SAFE(struct ps_server_copy, c, node, &p->waiting)
    {
        const struct ps_part *part = ps_store_find(&c->target->job->store,
                                                   c->key, c->index);

        if (!is_ready(c, part)) {
            continue;
        }
        if (p->copying_bytes > 0 &&
            p->copying_bytes + copy_bytes(c, part) > PS_COPYING_BYTES_MAX) {
            return; /* Rule O14. */
        }
        send_copy(st, c, part);
    }
    pump_filling(st, p);
}

void ps_server_copy_pump(struct ps_server_step *st)
{
    PS_MAP_EACH(struct ps_server_peer, p, st->s->peers.by_number)
    {
        if (!ps_list_empty(&p->waiting) || !ps_list_empty(&p->filling)) {
            pump_peer(st, p);
        }
    }
}

static void confirm(struct ps_server_step *st, struct ps_server_copy *c,
                    uint64_t number)
{
    struct ps_server_target *t = c->target;
    const bool fills = c->filling_bytes > 0;

    c->confirmed = number;
    ps_server_copies_forget_sent(c);
    if (fills) {
        pace_filling(st, t->peer);
    }
    c->defers = true;
    if (c->changed > number) {
        ps_server_copies_enqueue(c);
        return;
    }
    if (!c->is_filled) {
        c->is_filled = true;
        t->unfilled--;
    }
    release_replies(st, c);
    if (t->move == 0 &&
        ps_store_find(&t->job->store, c->key, c->index) == NULL) {
        ps_server_copies_remove(c); /* It is gone there, too. */
    }
    if (!ps_list_empty(&t->job->copies.incoming)) {
        /* A partition that moves here may wait for this. */
        st->s->backup_flush_at = ps_time_min(st->s->backup_flush_at, st->now);
    }
}

/* The target cannot make what was sent of what it has. */
static void refuse(struct ps_server_copy *c)
{
    if (!c->sent_whole) {
        ps_server_copies_forget_sent(c);
        ps_server_copies_begin_anew(c);
    }
}

/* Sends again what the target has not confirmed. */
static void resend_target(struct ps_server_target *t)
{
    PS_MAP_EACH(struct ps_server_copy, c, t->parts)
    {
        if (c->sent != 0) {
            ps_server_copies_forget_sent(c);
            ps_server_copies_begin_anew(c);
        }
    }
}

/* The copy on its way that the target names; NULL: it is another one. */
static struct ps_server_copy *find_sent(const struct ps_server_target *t,
                                        const struct ps_rec_part_copy *r)
{
    struct ps_server_copy *c = ps_server_copies_find(t, r->key, r->index);

    return c != NULL && c->sent != 0 && c->sent == r->number ? c : NULL;
}

void ps_server_copy_on_copied(struct ps_server_step *st,
                              struct ps_server_peer *p,
                              const struct ps_msg_copied *m)
{
    struct ps_server_job *job = ps_map_get(st->s->jobs.by_gen, m->gen);
    struct ps_server_target *t = job != NULL
                                     ? ps_server_target_find(job, m->move)
                                     : NULL;

    if (t == NULL || t->peer != p ||
        (m->move == 0 && job->copies.epoch != m->epoch)) {
        return; /* Rule O10: of an earlier epoch. */
    }
    if (m->copies_count == 0 && m->refused_count == 0) {
        resend_target(t); /* It has just learned of its role. */
    }
    for (uint32_t i = 0; i < m->copies_count; i++) {
        struct ps_server_copy *c = find_sent(t, &m->copies[i]);

        if (c != NULL) {
            confirm(st, c, c->sent);
        }
    }
    for (uint32_t i = 0; i < m->refused_count; i++) {
        struct ps_server_copy *c = find_sent(t, &m->refused[i]);

        if (c != NULL) {
            refuse(c);
        }
    }
    check_filled(st, t);
}

void ps_server_copy_resend(struct ps_server_step *st, struct ps_server_peer *p)
{
    PS_MAP_EACH(struct ps_server_job, job, st->s->jobs.by_gen)
    {
        PS_LIST_EACH_OF(struct ps_server_target, t, node, &job->copies.targets)
        {
            if (t->peer == p) {
                resend_target(t);
            }
        }
    }
}
