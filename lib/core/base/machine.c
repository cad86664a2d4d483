/* SPDX-License-Identifier: Apache-2.0 */
/* The effect list, and the reference-counted objects that effects own: packets
 * and computations. */
#include "core/base/machine.h"

#include "base/alloc.h"
#include "base/fnv1a.h"
#include "base/str.h"
#include "core/base/ledger.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

struct ps_packet *ps_packet_new(const struct ps_msg *msg,
                                const struct ps_slice *slices,
                                uint32_t slice_count)
{
    struct ps_packet *p = ps_alloc(sizeof(*p) +
                                   slice_count * sizeof(struct ps_slice));

    p->refs = 1;
    p->writers = 0;
    p->slice_count = slice_count;
    p->payload_len = 0;
    p->body = NULL;
    p->msg = ps_msg_dup_sized(msg, &p->msg_size);
    for (uint32_t i = 0; i < slice_count; i++) {
        p->slices[i] = slices[i];
        if (slices[i].buf != NULL) {
            ps_buf_ref(slices[i].buf);
        }
        p->payload_len += slices[i].len;
    }
    return p;
}

struct ps_packet *ps_packet_ref(struct ps_packet *p)
{
    p->refs++;
    return p;
}

void ps_packet_unref(struct ps_packet *p)
{
    if (p == NULL) {
        return;
    }
    assert(p->refs > 0);
    if (--p->refs > 0) {
        return;
    }
    for (uint32_t i = 0; i < p->slice_count; i++) {
        ps_buf_unref(p->slices[i].buf);
    }
    ps_msg_free(p->msg);
    ps_free(p->body);
    ps_free(p);
}

uint64_t ps_packet_memory(const struct ps_packet *p)
{
    uint64_t sum = ps_alloc_size(p) + ps_alloc_size(p->msg) +
                   ps_alloc_size(p->body);

    for (uint32_t i = 0; i < p->slice_count; i++) {
        const struct ps_buf *b = p->slices[i].buf;

        sum += b != NULL && b->refs == 1 ? b->size : 0;
    }
    return sum;
}

struct ps_compute *ps_compute_new(uint64_t token, uint32_t src_max,
                                  uint32_t held_max)
{
    size_t src_bytes = src_max * sizeof(void *);
    /* Each source may pin a buffer of its own, besides `held_max` others. */
    size_t held_bytes = ((size_t)src_max + held_max) * sizeof(void *);
    struct ps_compute *c = ps_alloc(sizeof(*c) + src_bytes + held_bytes +
                                    src_max);

    memset(c, 0, sizeof(*c));
    c->token = token;
    c->src = (const void **)(c + 1);
    c->pinned = (struct ps_buf **)(c->src + src_max);
    c->level = (uint8_t *)(c->pinned + src_max + held_max);
    c->job.src = c->src;
    c->job.level = c->level;
    return c;
}

void ps_compute_add_src(struct ps_compute *c, const struct ps_slice *slice,
                        uint8_t level)
{
    c->src[c->job.src_count] = ps_slice_data(slice);
    c->level[c->job.src_count] = level;
    c->job.src_count++;
    c->reads_device = c->reads_device || slice->buf->device != NULL;
    ps_compute_pin(c, slice->buf);
}

void ps_compute_add_out(struct ps_compute *c, const struct ps_slice *slice,
                        uint32_t out_max)
{
    if (c->outs == NULL) {
        c->outs = ps_calloc(out_max, sizeof(*c->outs));
    }
    c->outs[c->out_count++] = *slice;
    ps_compute_pin(c, slice->buf);
}

void ps_compute_pin(struct ps_compute *c, struct ps_buf *b)
{
    c->pinned[c->pinned_count++] = ps_buf_ref(b);
}

void ps_compute_free(struct ps_compute *c)
{
    if (c == NULL) {
        return;
    }
    for (uint32_t i = 0; i < c->pinned_count; i++) {
        ps_buf_unref(c->pinned[i]);
    }
    if (c->plan != NULL) {
        c->plan_free(c->plan);
    }
    ps_free(c->outs);
    ps_free(c);
}

void ps_effects_init(struct ps_effects *fx)
{
    memset(fx, 0, sizeof(*fx));
}

static void release_effect(struct ps_fx *f)
{
    switch (f->type) {
    case PS_FX_STORE:
        for (uint32_t i = 0; i < f->store.count; i++) {
            ps_packet_unref(f->store.rows[i].value);
        }
        ps_free(f->store.rows);
        break;
    case PS_FX_SEND:
        ps_packet_unref(f->send.packet);
        break;
    case PS_FX_COMPUTE:
        ps_compute_free(f->compute);
        break;
    case PS_FX_LOG:
        ps_free(f->log.text);
        break;
    case PS_FX_DIAL:
    case PS_FX_PROBE:
    case PS_FX_CLOSE:
    case PS_FX_OP_DONE:
    case PS_FX_OP_PROGRESS:
    case PS_FX_LOG_LEVEL:
        break;
    }
}

void ps_effects_clear(struct ps_effects *fx)
{
    for (uint32_t i = 0; i < fx->count; i++) {
        release_effect(&fx->items[i]);
    }
    fx->count = 0;
}

void ps_effects_fini(struct ps_effects *fx)
{
    ps_effects_clear(fx);
    ps_free(fx->items);
    memset(fx, 0, sizeof(*fx));
}

static struct ps_fx *append_effect(struct ps_effects *fx, enum ps_fx_type type)
{
    struct ps_fx *f;

    if (fx->count == fx->capacity) {
        fx->capacity = fx->capacity == 0 ? 64 : fx->capacity * 2;
        fx->items = ps_realloc(fx->items, fx->capacity * sizeof(*fx->items));
    }
    f = &fx->items[fx->count++];
    f->type = type;
    return f;
}

void ps_effects_store(struct ps_effects *fx, uint32_t at,
                      struct ps_store_row *rows, uint32_t count)
{
    struct ps_fx *f;

    (void)append_effect(fx, PS_FX_STORE);
    f = &fx->items[at];
    memmove(f + 1, f, (fx->count - 1 - at) * sizeof(*f));
    f->type = PS_FX_STORE;
    f->store.rows = rows;
    f->store.count = count;
}

void ps_effects_send(struct ps_effects *fx, ps_conn_id conn, uint64_t seq,
                     uint64_t ack, struct ps_packet *packet)
{
    struct ps_fx *f = append_effect(fx, PS_FX_SEND);

    f->send.conn = conn;
    f->send.seq = seq;
    f->send.ack = ack;
    f->send.packet = packet;
}

void ps_effects_send_msg(struct ps_effects *fx, ps_conn_id conn,
                         const struct ps_msg *msg)
{
    ps_effects_send(fx, conn, msg->seq, msg->ack, ps_packet_new(msg, NULL, 0));
}

void ps_effects_op_done(struct ps_effects *fx, ps_conn_id conn, uint64_t op_id,
                        uint64_t version)
{
    struct ps_fx *f = append_effect(fx, PS_FX_OP_DONE);

    f->op_done.conn = conn;
    f->op_done.op_id = op_id;
    f->op_done.version = version;
}

void ps_effects_op_progress(struct ps_effects *fx, ps_conn_id conn,
                            uint64_t op_id, uint64_t bytes)
{
    struct ps_fx *f = append_effect(fx, PS_FX_OP_PROGRESS);

    f->op_progress.conn = conn;
    f->op_progress.op_id = op_id;
    f->op_progress.bytes_ready = bytes;
}

static void set_dial(struct ps_fx *f, uint64_t target, const char *address,
                     ps_time timeout)
{
    f->dial.target = target;
    f->dial.subflow_of = 0;
    f->dial.timeout = timeout;
    ps_str_copy(f->dial.address, sizeof(f->dial.address), address);
}

void ps_effects_dial(struct ps_effects *fx, uint64_t target,
                     const char *address, ps_time timeout)
{
    set_dial(append_effect(fx, PS_FX_DIAL), target, address, timeout);
}

void ps_effects_dial_subflow(struct ps_effects *fx, ps_conn_id main,
                             const char *address)
{
    struct ps_fx *f = append_effect(fx, PS_FX_DIAL);

    set_dial(f, 0, address, 0);
    f->dial.subflow_of = main;
}

void ps_effects_probe(struct ps_effects *fx, uint64_t target,
                      const char *address, ps_time timeout)
{
    set_dial(append_effect(fx, PS_FX_PROBE), target, address, timeout);
}

void ps_effects_close(struct ps_effects *fx, ps_conn_id conn)
{
    ps_effects_abort(fx, conn, 0, NULL);
}

void ps_effects_abort(struct ps_effects *fx, ps_conn_id conn, int rc,
                      const char *why)
{
    struct ps_fx *f = append_effect(fx, PS_FX_CLOSE);

    f->close.conn = conn;
    f->close.rc = rc;
    f->close.why = why;
}

void ps_effects_compute(struct ps_effects *fx, struct ps_compute *c)
{
    append_effect(fx, PS_FX_COMPUTE)->compute = c;
}

/* Hash of the user whose account counts the line; 0: none. */
static uint64_t user_hash(const struct ps_account *account)
{
    for (uint32_t i = 0; i < account->chain_count; i++) {
        const struct ps_account *a = account->chain[i];

        if (a->kind == PS_ACCOUNT_USER) {
            return ps_fnv1a_64(PS_FNV1A_64, a->name, strlen(a->name));
        }
    }
    return 0;
}

static void append_line(struct ps_effects *fx, uint64_t user,
                        enum ps_log_level level, const char *fmt, va_list ap)
{
    char text[1024];
    char line[1024];
    struct ps_str s;
    struct ps_fx *f;

    ps_str_init(&s, text, sizeof(text));
    ps_str_addv(&s, fmt, ap);
    f = append_effect(fx, PS_FX_LOG);
    f->log.level = level;
    f->log.kind = (uintptr_t)fmt ^ user;
    ps_str_init(&s, line, sizeof(line));
    ps_str_add_visible(&s, text);
    f->log.text = ps_strdup(line);
}

void ps_effects_log(struct ps_effects *fx, enum ps_log_level level,
                    const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    append_line(fx, 0, level, fmt, ap);
    va_end(ap);
}

void ps_effects_log_for(struct ps_effects *fx, struct ps_account *account,
                        enum ps_log_level level, const char *fmt, ...)
{
    va_list ap;

    ps_account_count_line(account, level);
    va_start(ap, fmt);
    append_line(fx, user_hash(account), level, fmt, ap);
    va_end(ap);
}

_Static_assert((int)PS_VERBOSITY_ERROR == (int)PS_LOG_ERROR &&
                   (int)PS_VERBOSITY_TRACE == (int)PS_LOG_TRACE,
               "levels of the log and of the protocol agree");

void ps_effects_log_level(struct ps_effects *fx,
                          const struct ps_msg_log_level *m)
{
    if (m->level <= PS_VERBOSITY_TRACE) {
        append_effect(fx, PS_FX_LOG_LEVEL)->log_level =
            (enum ps_log_level)m->level;
    }
}
