/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include "base/alloc.h"
#include "base/num.h"
#include "base/pool.h"
#include "base/time.h"
#include "proto/ps_fixed.h"
#include "proto/shape.h"
#include "tests/support/op_done.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CONNS_MAX    8
#define COMPUTES_MAX 4096
#define ARENA_SIZE   65536
#define SENDS_MAX    100000
/* At once; a driver does so, too. */
#define OPS_MAX      32

struct conn {
    ps_conn_id id; /* 0: free. */
    enum ps_conn_kind kind;
};

struct life {
    const struct fuzz_setup *setup;
    const uint8_t *data;
    size_t size;
    size_t at;
    ps_time now;
    struct ps_effects fx;
    struct conn conns[CONNS_MAX];
    uint64_t next_conn;
    uint64_t dials[4];
    uint32_t dial_count;
    struct ps_compute *computes[COMPUTES_MAX];
    uint32_t compute_count;
    uint64_t sends;
    uint64_t asked; /* Request number of the last key_open. */
    char *arena;    /* Of the message that is being made. */
    size_t arena_used;
};

static uint8_t next(struct life *l)
{
    return l->at < l->size ? l->data[l->at++] : 0;
}

/* ----------------------------------------------------------------- messages */

static const uint64_t numbers[] = {
    0,          1,         2,
    3,          4,         5,
    6,          7,         8,
    16,         64,        255,
    256,        1000,      4096,
    65536,      1000000,   INT32_MAX,
    UINT32_MAX, INT64_MAX, UINT64_MAX - 1,
    UINT64_MAX,
};

static const double reals[] = {0, 0.1, 1, -1, 0.9, 1e300, -1e300, 1e-300};

static const char *const words[] = {
    "",
    "default",
    "job",
    "job2",
    "node",
    "sgd",
    "learning_rate",
    "momentum",
    "wd",
    "lr",
    "w",
    "3",
    "server0:1",
    "adam",
    "clip_gradient",
    "other",
};

static uint64_t number(struct life *l)
{
    uint8_t b = next(l);

    if (b < 128) {
        return b %
               8; /* Mostly small numbers, so that messages refer to each other. */
    }
    return numbers[b % (sizeof(numbers) / sizeof(numbers[0]))];
}

static void *room(struct life *l, size_t size)
{
    void *p;

    l->arena_used = (l->arena_used + 15) & ~(size_t)15;
    if (size > ARENA_SIZE - l->arena_used) {
        return NULL;
    }
    p = l->arena + l->arena_used;
    memset(p, 0, size);
    l->arena_used += size;
    return p;
}

static void fill(struct life *l, const struct ps_shape_field *f, void *base,
                 int depth);

static void fill_list(struct life *l, const struct ps_shape_field *f,
                      void *base)
{
    size_t size = ps_shape_element_size(f);
    uint32_t count = (uint32_t)ps_min_u64(next(l) % 6, f->max);
    char *elements = room(l, count * size);

    if (elements == NULL) {
        count = 0;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (f->record == NULL) {
            ps_shape_set_u64(f->of, elements + i * size, number(l));
            continue;
        }
        for (size_t k = 0; k < f->record->field_count; k++) {
            fill(l, &f->record->fields[k], elements + i * size, 1);
        }
    }
    memcpy((char *)base + f->offset, &elements, sizeof(elements));
    memcpy((char *)base + f->offset_count, &count, sizeof(count));
}

static double real(struct life *l)
{
    uint8_t b = next(l);

    if (b > 250) {
        return b % 2 ? (double)NAN : (double)INFINITY;
    }
    return reals[b % (sizeof(reals) / sizeof(reals[0]))];
}

static void fill(struct life *l, const struct ps_shape_field *f, void *base,
                 int depth)
{
    void *at = (char *)base + f->offset;
    const char *word;
    double d;

    switch (f->type) {
    case PS_SHAPE_STR:
        word = words[next(l) % (sizeof(words) / sizeof(words[0]))];
        memcpy(at, &word, sizeof(word));
        break;
    case PS_SHAPE_F64:
        d = real(l);
        memcpy(at, &d, sizeof(d));
        break;
    case PS_SHAPE_LIST:
        if (depth == 0) {
            fill_list(l, f, base);
        }
        break;
    case PS_SHAPE_I32:
        ps_shape_set_i64(f->type, at, (int32_t)number(l) - 1);
        break;
    case PS_SHAPE_I64:
        ps_shape_set_i64(f->type, at, (int64_t)(number(l) - 1));
        break;
    case PS_SHAPE_BIN:
        break;
    case PS_SHAPE_U8:
        if (f->values != NULL) {
            ps_shape_set_u64(
                f->type, at,
                f->values->values[next(l) % f->values->value_count].value);
            break;
        }
        ps_shape_set_u64(f->type, at, number(l) & 0xff);
        break;
    case PS_SHAPE_BOOL:
        ps_shape_set_u64(f->type, at, next(l) & 1);
        break;
    case PS_SHAPE_U16:
        ps_shape_set_u64(f->type, at, number(l) & 0xffff);
        break;
    case PS_SHAPE_U32:
        ps_shape_set_u64(f->type, at, number(l) & UINT32_MAX);
        break;
    case PS_SHAPE_U64:
        ps_shape_set_u64(f->type, at, number(l));
        break;
    }
}

/* Makes a message that some peer may send to this machine. */
static bool make(struct life *l, bool local, struct ps_msg *ret_msg)
{
    uint8_t pick = next(l);
    uint32_t to = 1u << l->setup->role;
    unsigned found = 0;
    unsigned codes[64];

    for (unsigned code = 1; code < 256 && found < 64; code++) {
        const struct ps_shape_msg *s = ps_shape_of(code);

        if (s != NULL && (s->to & to) != 0 &&
            ((s->from & 1u << PS_ROLE_WORKER) != 0) == local) {
            codes[found++] = code;
        }
    }
    if (found == 0) {
        return false;
    }
    l->arena_used = 0;
    memset(ret_msg, 0, sizeof(*ret_msg));
    ret_msg->code = (enum ps_msg_code)codes[pick % found];
    for (size_t i = 0; i < ps_shape_of(ret_msg->code)->field_count; i++) {
        fill(l, &ps_shape_of(ret_msg->code)->fields[i], ret_msg, 0);
    }
    return true;
}

/* The list that describes the payload; NULL: there is none. */
static const struct ps_shape_field *payload_list(const struct ps_msg *m)
{
    const struct ps_shape_msg *s = ps_shape_of(m->code);

    for (size_t i = 0; i < s->field_count; i++) {
        const struct ps_shape_field *f = &s->fields[i];

        if (s->payload == PS_PAYLOAD_TENSOR && strcmp(f->name, "parts") == 0) {
            return f;
        }
    }
    return NULL;
}

static bool lists_rows(const struct ps_shape_field *list)
{
    return list != NULL && strcmp(list->record->name, "rows") == 0;
}

static uint64_t part_len(const struct ps_rec_part *part)
{
    return part->count * (uint64_t)ps_dtype_size(part->dtype);
}

/* Numbers of rows, which ROWS leaves out, and data, which PULL_ROWS does. */
static uint64_t rows_len(const struct ps_rec_rows *rows, enum ps_msg_code code)
{
    uint64_t len = 0;

    if (code != PS_MSG_ROWS) {
        len += ps_round_up(rows->count * UINT64_C(4), 8);
    }
    if (code != PS_MSG_PULL_ROWS) {
        len += ps_round_up((uint64_t)rows->count * rows->row_width *
                               ps_dtype_size(rows->dtype),
                           8);
    }
    return len;
}

/* Payload as long as the records state, mostly. The sums may wrap, as those of
 * a hostile peer. */
static uint64_t payload_len(struct life *l, const struct ps_msg *m)
{
    const struct ps_shape_field *list = payload_list(m);
    const bool rows = lists_rows(list);
    uint64_t total = 0;

    if (m->code == PS_MSG_KEY_OPENED) {
        return ps_min_u64(m->key_opened.parts, 64) *
               PS_FIXED_PLACEMENT_PART_BYTES;
    }
    if (list == NULL) {
        return 0;
    }
    for (uint32_t i = 0; i < ps_shape_count(list, m); i++) {
        const void *record = ps_shape_element(list, m, i);

        total += rows ? rows_len(record, m->code) : part_len(record);
    }
    return next(l) % 16 == 0 ? total + (rows ? 8 : 4) : total;
}

/* ------------------------------------------------------------------- driving */

static void carry_out(struct life *l)
{
    op_done_as_msg(&l->fx);
    for (uint32_t i = 0; i < l->fx.count; i++) {
        struct ps_fx *f = &l->fx.items[i];

        if (f->type == PS_FX_DIAL && l->dial_count < 4) {
            l->dials[l->dial_count++] = f->dial.target;
        } else if (f->type == PS_FX_SEND) {
            l->sends++;
            if (f->send.packet->msg->code == PS_MSG_KEY_OPEN) {
                l->asked = f->send.packet->msg->key_open.request;
            }
        } else if (f->type == PS_FX_COMPUTE) {
            assert(l->compute_count < COMPUTES_MAX); /* They are bounded. */
            l->computes[l->compute_count++] = f->compute;
            f->compute = NULL;
        }
    }
    ps_effects_clear(&l->fx);
    assert(l->sends < SENDS_MAX);
}

static void step_machine(struct life *l, struct ps_event *ev)
{
    struct ps_machine *m = (struct ps_machine *)&l->setup->machine;

    ev->now = l->now;
    assert(m->ops->step(m->self, ev, &l->fx) >= 0);
    carry_out(l);
}

static struct conn *any_conn(struct life *l)
{
    struct conn *c = &l->conns[next(l) % CONNS_MAX];

    return c->id == 0 ? NULL : c;
}

static void open_conn(struct life *l)
{
    struct conn *c = &l->conns[next(l) % CONNS_MAX];
    struct ps_event ev = {.type = PS_EV_OPEN};
    uint8_t who;

    if (c->id != 0) {
        return;
    }
    if (l->dial_count > 0 && next(l) % 4 != 0) {
        ev.open.target = l->dials[--l->dial_count];
        if (next(l) % 8 == 0) {
            ev.type = PS_EV_DIAL_FAILED;
            ev.dial_failed.target = l->dials[l->dial_count];
            ev.dial_failed.rc = PS_E_UNREACH;
            step_machine(l, &ev);
            return;
        }
        c->kind = PS_CONN_DIALLED;
    } else {
        c->kind = l->setup->accepts;
    }
    c->id = ++l->next_conn;
    ev.conn = c->id;
    ev.open.kind = c->kind;
    who = next(l);
    ev.open.uid = who % 2;
    if (l->setup->tools && who >= 160) {
        ev.open.kind = PS_CONN_LOCAL;
    }
    ev.open.peer = "fuzz";
    step_machine(l, &ev);
}

static void close_conn(struct life *l, struct conn *c)
{
    struct ps_event ev = {.type = PS_EV_CLOSED};

    ev.conn = c->id;
    ev.closed.rc = PS_E_CLOSED;
    c->id = 0;
    step_machine(l, &ev);
}

/* 0, 1, 2, ...: numbers of rows that ascend. */
static void put_numbers(uint8_t *at, size_t len)
{
    for (uint32_t i = 0; i < len / sizeof(i); i++) {
        memcpy(at + i * sizeof(i), &i, sizeof(i));
    }
}

static void message(struct life *l)
{
    struct conn *c = any_conn(l);
    struct ps_event ev = {.type = PS_EV_MSG};
    struct ps_slice payload = {0};
    struct ps_msg m;
    uint64_t len;

    if (c == NULL || !make(l, c->kind == PS_CONN_LOCAL, &m)) {
        return;
    }
    ev.conn = c->id;
    ev.msg.msg = &m;
    len = payload_len(l, &m);
    if (len > PS_PAYLOAD_MAX) {
        return; /* ps_frame_check would have ended it. */
    }
    if (len > 0) {
        const struct ps_machine *k = &l->setup->machine;
        int rc = k->ops->payload(k->self, c->id, &m, len, &payload);

        if (rc == PS_E_AGAIN) {
            return;
        }
        if (rc == 0) {
            assert(payload.buf != NULL && payload.len == len);
            assert(payload.offset + len <= payload.buf->size);
            memset(ps_slice_data(&payload), next(l), len);
            if (lists_rows(payload_list(&m))) {
                put_numbers(ps_slice_data(&payload), payload.len);
            }
        } else {
            payload = (struct ps_slice){0};
        }
        ev.msg.payload = &payload;
        ev.msg.discard_reason = rc;
    }
    step_machine(l, &ev);
    ps_buf_unref(payload.buf);
}

static void give_region(struct life *l, const struct conn *c, uint32_t number)
{
    struct ps_event ev = {.type = PS_EV_REGION, .conn = c->id};
    struct ps_buf *b = ps_buf_new(4096);

    put_numbers(b->data, 4096);
    ev.region.region = number;
    ev.region.buf = b;
    step_machine(l, &ev);
    ps_buf_unref(b);
}

/* Delivered as from a ring. Each but the first differs from the one before it
 * in its number and in one field, so that their kind stays for a while. */
static void operations(struct life *l, const struct conn *c, uint32_t count)
{
    const struct ps_shape_msg *shape = ps_shape_of(PS_MSG_L_OP);
    struct ps_msg_l_op ops[OPS_MAX];
    struct ps_event ev = {.type = PS_EV_OPS, .conn = c->id};
    struct ps_msg m = {.code = PS_MSG_L_OP};

    assert(shape->field_count > 0);
    for (size_t i = 0; i < shape->field_count; i++) {
        fill(l, &shape->fields[i], &m, 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        ops[i] = m.l_op;
        m.l_op.op_id++;
        fill(l, &shape->fields[next(l) % shape->field_count], &m, 0);
    }
    ev.ops.op = ops;
    ev.ops.count = count;
    step_machine(l, &ev);
}

/* Events of memory that a worker shares. */
static void shared(struct life *l)
{
    struct conn *c = any_conn(l);

    if (c == NULL || c->kind != PS_CONN_LOCAL) {
        return;
    }
    uint8_t what = next(l);

    if (what >= 128) {
        operations(l, c, what % OPS_MAX + 1);
        return;
    }
    give_region(l, c, what % 4);
}

static void open_line(struct life *l, struct conn *c, enum ps_conn_kind kind)
{
    struct ps_event ev = {.type = PS_EV_OPEN};

    if (kind == PS_CONN_DIALLED) {
        step_machine(l, &(struct ps_event){.type = PS_EV_TICK});
        assert(l->dial_count > 0);
        ev.open.target = l->dials[--l->dial_count];
    }
    c->kind = kind;
    c->id = ++l->next_conn;
    ev.conn = c->id;
    ev.open.kind = kind;
    ev.open.peer = "fuzz";
    step_machine(l, &ev);
}

static void play(struct life *l)
{
    for (uint32_t i = 0; i < l->setup->line_count; i++) {
        const struct fuzz_line *line = &l->setup->line[i];
        struct conn *c = &l->conns[line->conn];
        struct ps_event ev = {.type = PS_EV_MSG};
        struct ps_slice payload = {.len = line->payload_len};

        if (c->id == 0) {
            open_line(l, c, line->kind);
        }
        if (line->msg == NULL) {
            give_region(l, c, 1);
            continue;
        }
        struct ps_msg m = *line->msg;

        if (m.code == PS_MSG_KEY_OPENED) {
            m.key_opened.request = l->asked;
        }
        ev.conn = c->id;
        ev.msg.msg = &m;
        if (payload.len > 0) {
            payload.buf = ps_buf_new(payload.len);
            memcpy(payload.buf->data, line->payload, payload.len);
            ev.msg.payload = &payload;
        }
        step_machine(l, &ev);
        ps_buf_unref(payload.buf);
    }
}

static void computed(struct life *l)
{
    struct ps_event ev = {.type = PS_EV_COMPUTED};
    struct ps_compute *c;
    uint32_t i;

    if (l->compute_count == 0) {
        return;
    }
    i = next(l) % l->compute_count;
    c = l->computes[i];
    l->computes[i] = l->computes[--l->compute_count];
    ev.computed.token = c->token;
    ev.computed.rc = ps_kernel_run(&c->job);
    ps_compute_free(c);
    step_machine(l, &ev);
}

static void pass_time(struct life *l)
{
    static const ps_time leaps[] = {
        0, 1000, PS_MILLIS(1), PS_MILLIS(100), PS_SECONDS(1), PS_SECONDS(10)};
    const struct ps_machine *m = &l->setup->machine;
    ps_time at = m->ops->deadline(m->self);
    struct ps_event ev = {.type = PS_EV_TICK};
    uint8_t b = next(l);

    if (b < 128 && at != PS_TIME_NEVER) {
        l->now = ps_max_u64(l->now, at);
    } else {
        l->now += leaps[b % 6];
    }
    step_machine(l, &ev);
}

static void sent(struct life *l)
{
    struct conn *c = any_conn(l);
    struct ps_event ev = {.type = PS_EV_SENT};

    if (c != NULL) {
        ev.conn = c->id;
        step_machine(l, &ev);
    }
}

void fuzz_machine(const struct fuzz_setup *setup, const uint8_t *data,
                  size_t size)
{
    struct life l = {.setup = setup, .data = data, .size = size};

    l.now = PS_SECONDS(1);
    l.arena = malloc(ARENA_SIZE);
    assert(l.arena != NULL);
    ps_effects_init(&l.fx);
    play(&l);
    while (l.at < l.size) {
        switch (next(&l) % 16) {
        case 0:
            open_conn(&l);
            break;
        case 1: {
            struct conn *c = any_conn(&l);

            if (c != NULL && next(&l) % 4 == 0) {
                close_conn(&l, c);
            }
            break;
        }
        case 2:
        case 3:
            pass_time(&l);
            break;
        case 4:
        case 5:
            computed(&l);
            break;
        case 6:
            sent(&l);
            break;
        case 7:
            shared(&l);
            break;
        default:
            message(&l);
            break;
        }
    }
    for (uint32_t i = 0; i < l.compute_count; i++) {
        ps_compute_free(l.computes[i]);
    }
    setup->destroy(setup->machine.self);
    ps_effects_fini(&l.fx);
    for (int i = 0; i < 2; i++) {
        if (setup->pools[i] != NULL) {
            assert(ps_pool_used(setup->pools[i]) == 0);
            ps_pool_free(setup->pools[i]);
        }
    }
    free(l.arena);
}
