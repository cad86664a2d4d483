/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of the machine, and their effects: frames, compute jobs and closes. The
 * machine is stepped from callbacks of lib/net, never inside a call to it, so
 * that effects are carried out at once. */
#include "driver/inner.h"

#include "base/alloc.h"
#include "base/fnv1a.h"
#include "base/map.h"
#include "kernel/share.h"
#include "net/arena.h"
#include "net/worker.h"

#include <assert.h>
#include <stdio.h>

struct compute_task {
    struct ps_worker_task task;
    struct ps_driver *driver;
    struct ps_compute *compute;
};

static void frame_written(void *ctx)
{
    struct ps_packet *p = ctx;

    assert(p->writers > 0);
    p->writers--;
    ps_packet_unref(p);
}

/* Messages that are this large, and numbered, are encoded once for all peers
 * that get them: the state of a job goes to all its agents in one step. */
#define SHARED_MIN 4096u

/* Queues packet `p`, whose reference it takes over; `frame` has the message,
 * descriptor and priority. */
static int write_packet(struct daemon_conn *c, struct ps_conn_frame *frame,
                        struct ps_packet *p)
{
    /* A numbered packet is charged to its link, which keeps it until it is
     * acknowledged. Any other belongs to this connection only, and without
     * payload it is not needed after encoding. */
    bool numbered = frame->msg->seq != 0;
    bool keep = numbered || p->slice_count > 0;

    if (numbered && p->slice_count == 0 && p->msg_size >= SHARED_MIN &&
        frame->pass_fd < 0) {
        frame->body = &p->body;
    }
    if (keep) {
        frame->slices = p->slices;
        frame->slice_count = p->slice_count;
        frame->done = frame_written;
        frame->ctx = p;
        frame->memory = numbered ? 0 : ps_packet_memory(p);
    }
    int rc = ps_conn_send(c->conn, frame);

    if (rc == 0 && keep) {
        p->writers++;
    } else {
        ps_packet_unref(p);
    }
    return rc;
}

void driver_mark_flush(struct daemon_conn *c)
{
    if (!ps_list_linked(&c->to_flush)) {
        ps_list_push_back(&c->driver->to_flush, &c->to_flush);
    }
    driver_output_update(c);
}

/* Sends an acknowledgement ahead of the frames that are queued. */
static void send_urgent_ack(struct daemon_conn *c, uint64_t ack)
{
    const struct ps_msg msg = {.code = PS_MSG_ACK, .ack = ack};
    const struct ps_conn_frame frame = {
        .msg = &msg, .pass_fd = -1, .is_urgent = true};

    if (ps_conn_send(c->conn, &frame) != 0) {
        return; /* The connection is closing. */
    }
}

/* Drops a message that cannot be sent now or later. On a link an empty message
 * takes its number, so that the following ones are accepted; a peer without a
 * link waits for it and is closed. */
static void drop_packet(struct daemon_conn *c, const struct ps_msg *msg, int rc)
{
    const struct ps_msg empty = {
        .code = PS_MSG_ACK, .seq = msg->seq, .ack = msg->ack};
    const struct ps_conn_frame frame = {.msg = &empty, .pass_fd = -1};

    ps_account_count_line(&c->output.account, PS_LOG_ERROR);
    ps_log_of(LOG_NOT_SENT, PS_LOG_ERROR, "message not sent code %s reason %s",
              ps_msg_name(msg->code), ps_strerror(rc));
    if (msg->seq == 0) {
        char text[PS_TEXT_MAX];

        snprintf(text, sizeof(text), "%s cannot be sent: %s",
                 ps_msg_name(msg->code),
                 rc == PS_E_FULL ? "this daemon has no descriptor left "
                                   "(LimitNOFILE)"
                                 : ps_strerror(rc));
        driver_reject(c, rc, text);
    } else if (ps_conn_send(c->conn, &frame) == 0) {
        driver_mark_flush(c);
    }
}

static void send_packet(struct ps_driver *d, const struct ps_fx *fx)
{
    struct daemon_conn *c = ps_map_get(d->conns, fx->send.conn);
    struct ps_packet *p = fx->send.packet;
    struct ps_msg msg = *p->msg;
    int fd = -1;
    uint64_t size;

    if (c == NULL || !ps_conn_is_open(c->conn)) {
        return; /* The link sends it again on the next connection. */
    }
    msg.seq = fx->send.seq;
    msg.ack = fx->send.ack;
    if (msg.code == PS_MSG_L_ARENA) {
        int rc = ps_arenas_fd(d->opt.arenas, msg.l_arena.arena, &fd, &size);

        assert(rc == 0);
        (void)rc;
        msg.l_arena.size = size;
    }
    if (msg.code == PS_MSG_L_RESIDUAL_SEGMENT) {
        int rc = ps_arenas_segment_fd(d->opt.arenas,
                                      msg.l_residual_segment.segment, &fd);

        assert(rc == 0);
        (void)rc;
    }
    struct ps_conn_frame frame = {.msg = &msg, .pass_fd = fd};

    if (c->kind == PS_CONN_LOCAL) {
        ps_output_shorten(&c->output, &msg);
    } else {
        struct ps_path_choice choice = ps_path_choose(&c->path, &msg, p);

        if (choice.acks_ahead) {
            send_urgent_ack(c, msg.ack);
        }
        frame.is_urgent = choice.is_urgent;
        c = PS_CONTAINER(choice.path, struct daemon_conn, path);
    }
    int rc = write_packet(c, &frame, ps_packet_ref(p));

    if (rc != 0) {
        /* Else the connection is closing, with its reason. */
        if (ps_conn_is_open(c->conn)) {
            drop_packet(c, &msg, rc);
        }
        return;
    }
    if (msg.code == PS_MSG_WELCOME) {
        ps_conn_set_protocol(c->conn, msg.welcome.protocol);
    }
    driver_mark_flush(c);
}

/* Before the wait the worker is woken, if it sleeps. */
static void mark_wake(struct daemon_conn *c)
{
    if (!ps_list_linked(&c->worker.ring.wake)) {
        ps_list_push_back(&c->driver->rings.wakes, &c->worker.ring.wake);
    }
}

/* Reports the end through the ring; without a ring, or with a full one, by a
 * message. */
static void send_op_done(struct ps_driver *d, const struct ps_fx *fx)
{
    struct daemon_conn *c = ps_map_get(d->conns, fx->op_done.conn);
    struct ps_msg msg = {.code = PS_MSG_L_DONE};
    const struct ps_conn_frame frame = {.msg = &msg, .pass_fd = -1};

    if (c == NULL || !ps_conn_is_open(c->conn)) {
        return;
    }
    if (c->worker.ring.memory != NULL &&
        ps_ring_push_done(&c->worker.ring.ring, fx->op_done.op_id,
                          fx->op_done.version)) {
        mark_wake(c);
        return;
    }
    msg.l_done.op_id = fx->op_done.op_id;
    msg.l_done.version = fx->op_done.version;
    msg.l_done.text = "";
    /* On failure the connection is closing. */
    if (ps_conn_send(c->conn, &frame) == 0) {
        driver_mark_flush(c);
    }
}

/* Reports progress through the ring. Without a ring, or with a full one, the
 * worker copies the result once it is complete. */
static void send_op_progress(struct ps_driver *d, const struct ps_fx *fx)
{
    const struct ps_ring_progress piece = {
        .op_id = fx->op_progress.op_id, .bytes = fx->op_progress.bytes_ready};
    struct daemon_conn *c = ps_map_get(d->conns, fx->op_progress.conn);

    if (c != NULL && ps_conn_is_open(c->conn) &&
        c->worker.ring.memory != NULL &&
        ps_ring_push_progress(&c->worker.ring.ring, &piece)) {
        mark_wake(c);
    }
}

static void log_device_failure(struct ps_driver *d)
{
    char why[PS_SHARE_WHY_MAX];

    ps_share_failure(d->opt.share, why);
    ps_log_of(LOG_DEVICE, PS_LOG_WARNING, "a job on a GPU has failed: %s", why);
}

static void compute_done(struct ps_worker_task *task, int rc)
{
    struct compute_task *t = PS_CONTAINER(task, struct compute_task, task);
    struct ps_driver *d = t->driver;
    struct ps_compute *compute = t->compute;
    struct ps_event ev = {.type = PS_EV_COMPUTED};

    if (rc != 0 && t->task.run != NULL) {
        log_device_failure(d);
    }
    ps_free(t);
    d->computing--;
    ev.computed.token = compute->token;
    ev.computed.rc = rc;
    driver_feed(d, &ev);
    ps_compute_free(compute);
}

/* Bytes of a piece of a job that reads or writes memory of GPUs, which runs there
 * (kernel/share.h): enough for fast copies; a multiple of 16 elements. */
#define PIECE_BYTES (4u * 1024 * 1024)

static int run_on_device(struct ps_worker_task *task, uint64_t from,
                         uint64_t to)
{
    const struct compute_task *t = PS_CONTAINER(task, struct compute_task,
                                                task);
    struct ps_share *share = t->driver->opt.share;
    const struct ps_compute *c = t->compute;
    const size_t size = ps_dtype_size(c->job.dtype);

    if (c->out_count > 0) {
        return ps_share_deliver(share, c->job.src[0], from * size,
                                (to - from) * size, c->outs, c->out_count);
    }
    return ps_share_run_range(share, &c->job, c->pinned, (uint32_t)c->token,
                              from, to);
}

static void start_compute(struct ps_driver *d, struct ps_compute *c)
{
    struct compute_task *t = ps_calloc(1, sizeof(*t));

    assert(d->opt.worker != NULL);
    t->driver = d;
    t->compute = c;
    t->task.job = &c->job;
    t->task.done = compute_done;
    if (c->reads_device || c->out_count > 0) {
        t->task.run = run_on_device;
        t->task.run_step = ps_kernel_is_divisible(&c->job)
                               ? PIECE_BYTES / ps_dtype_size(c->job.dtype)
                               : c->job.count;
    }
    d->computing++;
    ps_worker_submit(d->opt.worker, &t->task);
}

static void close_conn(struct ps_driver *d, const struct ps_fx *fx)
{
    struct daemon_conn *c = ps_map_get(d->conns, fx->close.conn);

    if (c == NULL) {
        return;
    }
    if (fx->close.rc != 0) {
        ps_conn_close(c->conn, fx->close.rc, fx->close.why);
        return;
    }
    ps_conn_finish(c->conn);
    ps_output_finish(&c->output);
    if (c->kind != PS_CONN_LOCAL) {
        ps_path_finish(&c->path, &d->fx);
    }
}

/* The line that says so is written if either level has it. */
static void change_log_level(enum ps_log_level to)
{
    const enum ps_log_level from = ps_log_level_get();

    ps_log_level_set(to > from ? to : from);
    ps_log(PS_LOG_NOTICE, "log level is %s, was %s", ps_log_level_name(to),
           ps_log_level_name(from));
    ps_log_level_set(to);
}

uint64_t driver_log_kind(uint64_t kind, uint64_t source)
{
    return source == 0 ? kind : kind ^ ps_fnv1a_64_add(PS_FNV1A_64, source);
}

/* Host or user whose event is handled; 0: none. */
static uint64_t source_of_cause(const struct ps_driver *d)
{
    const struct daemon_conn *c = ps_map_get(d->conns, d->fx.cause);

    return c != NULL ? c->log_source : d->fx.closed_source;
}

static void carry_out_effects(struct ps_driver *d)
{
    for (uint32_t i = 0; i < d->fx.count; i++) {
        struct ps_fx *fx = &d->fx.items[i];

        switch (fx->type) {
        case PS_FX_STORE:
            break; /* See driver_commit(). */
        case PS_FX_SEND:
            send_packet(d, fx);
            break;
        case PS_FX_DIAL:
            driver_dial(d, fx);
            break;
        case PS_FX_PROBE:
            driver_probe(d, fx);
            break;
        case PS_FX_CLOSE:
            close_conn(d, fx);
            break;
        case PS_FX_COMPUTE:
            start_compute(d, fx->compute);
            fx->compute = NULL; /* Ownership has moved to the worker. */
            break;
        case PS_FX_OP_DONE:
            send_op_done(d, fx);
            break;
        case PS_FX_OP_PROGRESS:
            send_op_progress(d, fx);
            break;
        case PS_FX_LOG:
            ps_log_of(driver_log_kind(fx->log.kind, source_of_cause(d)),
                      fx->log.level, "%s", fx->log.text);
            break;
        case PS_FX_LOG_LEVEL:
            change_log_level(fx->log_level);
            break;
        }
    }
    ps_effects_clear(&d->fx);
}

void driver_apply_effects(struct ps_driver *d)
{
    for (uint32_t i = 0;
         d->opt.store.change != NULL && i < d->fx.count && !d->awaits_commit;
         i++) {
        d->awaits_commit = d->fx.items[i].type == PS_FX_STORE;
    }
    if (!d->awaits_commit) {
        carry_out_effects(d);
    }
}

void driver_commit(struct ps_driver *d)
{
    if (!d->awaits_commit) {
        return;
    }
    d->awaits_commit = false;
    for (uint32_t i = 0; i < d->fx.count; i++) {
        const struct ps_fx *fx = &d->fx.items[i];

        if (fx->type == PS_FX_STORE) {
            d->opt.store.change(d->opt.ctx, fx->store.rows, fx->store.count);
        }
    }
    if (d->opt.store.commit(d->opt.ctx)) {
        carry_out_effects(d);
    } else {
        ps_effects_clear(&d->fx); /* Nobody hears of it. */
        d->failure = PS_E_IO;
    }
}

void driver_feed(struct ps_driver *d, struct ps_event *ev)
{
    int rc;

    if (d->is_closing || d->failure != 0) {
        return;
    }
    assert(!d->is_stepping);
    d->is_stepping = true;
    if (ev->now == 0) {
        ev->now = ps_loop_now(d->opt.loop);
    }
    d->fx.cause = ev->conn;
    rc = d->opt.machine.ops->step(d->opt.machine.self, ev, &d->fx);
    if (d->fx.count > 0) {
        driver_apply_effects(d);
    }
    d->fx.cause = 0;
    d->fx.closed_source = 0;
    d->is_stepping = false;
    d->paused.has_stepped = true;
    d->polling.was_fed = true;
    if (rc < 0) {
        d->failure = rc;
    }
}
