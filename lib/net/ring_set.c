/* SPDX-License-Identifier: Apache-2.0 */
#include "net/ring_set.h"

#include "base/buf.h"
#include "net/conn.h"
#include "net/local.h"

#include <unistd.h>

void ps_ring_set_init(struct ps_ring_set *s)
{
    ps_list_init(&s->conns);
    ps_list_init(&s->wakes);
    s->are_asleep = false;
}

int ps_ring_set_accept(struct ps_ring_set *s, struct ps_ring_conn *r,
                       struct ps_conn *conn, uint64_t size,
                       const char **ret_why)
{
    int fd = ps_conn_pop_fd(conn);

    if (fd < 0) {
        *ret_why = "l_ring without a descriptor";
        return PS_E_PROTO;
    }
    if (r->memory != NULL || size != ps_ring_bytes()) {
        close(fd);
        *ret_why = r->memory != NULL ? "a second l_ring"
                                     : "l_ring of another size";
        return PS_E_PROTO;
    }
    int rc = ps_local_map_shared(fd, size, &r->memory, ret_why);

    if (rc == 0) {
        r->conn = conn;
        ps_ring_agent_init(&r->ring, r->memory->data);
        ps_list_push_back(&s->conns, &r->node);
    }
    return rc;
}

void ps_ring_conn_drop(struct ps_ring_conn *r)
{
    if (ps_list_linked(&r->wake)) {
        ps_list_remove(&r->wake);
    }
    if (ps_list_linked(&r->node)) {
        ps_list_remove(&r->node);
    }
    ps_buf_unref(r->memory);
    r->memory = NULL;
}

int ps_ring_conn_take(struct ps_ring_conn *r, uint64_t frames,
                      struct ps_msg_l_op *ret_ops, uint32_t max)
{
    int rc = ps_ring_pop_ops(&r->ring, frames, ret_ops, max);

    if (rc < 0) {
        ps_conn_close(r->conn, rc, "an operation in the ring is malformed");
        ps_ring_conn_drop(r);
    }
    return rc;
}

static void mark_wake(struct ps_ring_set *s, struct ps_ring_conn *r)
{
    if (!ps_list_linked(&r->wake)) {
        ps_list_push_back(&s->wakes, &r->wake);
    }
}

bool ps_ring_set_push_done(struct ps_ring_set *s, struct ps_ring_conn *r,
                           uint64_t op_id, uint64_t version)
{
    if (r->memory == NULL || !ps_ring_push_done(&r->ring, op_id, version)) {
        return false;
    }
    mark_wake(s, r);
    return true;
}

void ps_ring_set_push_progress(struct ps_ring_set *s, struct ps_ring_conn *r,
                               const struct ps_ring_progress *piece)
{
    if (r->memory != NULL && ps_ring_push_progress(&r->ring, piece)) {
        mark_wake(s, r);
    }
}

struct ps_ring_conn *ps_ring_set_wake_next(struct ps_ring_set *s)
{
    static const struct ps_msg wake = {.code = PS_MSG_L_WAKE};
    const struct ps_conn_frame frame = {.msg = &wake, .pass_fd = -1};
    struct ps_list_node *n;

    while ((n = ps_list_pop(&s->wakes)) != NULL) {
        struct ps_ring_conn *r = PS_CONTAINER(n, struct ps_ring_conn, wake);

        /* On failure the connection is closing, which wakes the worker too. */
        if (ps_ring_wake_worker(&r->ring) &&
            ps_conn_send(r->conn, &frame) == 0) {
            return r;
        }
    }
    return NULL;
}

bool ps_ring_set_sleep(struct ps_ring_set *s)
{
    s->are_asleep = true;
    PS_LIST_EACH(n, &s->conns)
    {
        struct ps_ring_conn *r = PS_CONTAINER(n, struct ps_ring_conn, node);

        if (ps_conn_is_open(r->conn) &&
            !ps_ring_agent_sleep(&r->ring, ps_conn_frames(r->conn))) {
            ps_ring_set_awake(s);
            return false;
        }
    }
    return true;
}

void ps_ring_set_awake(struct ps_ring_set *s)
{
    if (!s->are_asleep) {
        return;
    }
    s->are_asleep = false;
    PS_LIST_EACH(n, &s->conns)
    {
        ps_ring_agent_awake(&PS_CONTAINER(n, struct ps_ring_conn, node)->ring);
    }
}
