/* SPDX-License-Identifier: Apache-2.0 */
/* Links to servers, and the queues of partitions that go there. */
#pragma once

#include "core/agent/keys.h"
#include "core/base/peer.h"
#include "core/link/dialer.h"
#include "core/round/batch.h"
#include "core/round/fair.h"

/* Wait before a request refused for a transient reason is sent again. */
#define RESEND_WAIT        PS_MILLIS(50)
/* Longest wait for a server without memory; the wait doubles each time. */
#define FULL_BACKOFF_MAX   PS_SECONDS(1)
/* Wait before a sum is retried for which the scratch pool had no memory. */
#define SCRATCH_RETRY_WAIT PS_MILLIS(5)
/* Most partitions being summed for one server at a time, so that an urgent
 * partition does not wait behind many that are summed already. */
#define COMPUTING_MAX      1024u
/* Default of ps_agent_options.unsent_max, in bytes. */
#define UNSENT_DEFAULT     (2u * 1024u * 1024u)

/* Bytes for one server at which no further partition is started. */
struct ps_agent_queue_limits {
    uint64_t computing; /* Being summed or encoded. */
    uint64_t unsent;    /* With the driver; beside ps_agent_options. */
};

/* Fields of a message that its partitions share. */
struct ps_agent_batch_head {
    enum ps_msg_code msg_code; /* PUSH, INIT or PUSH_ROWS. */
    struct ps_agent_job *job;
    uint8_t reduce;
    uint8_t rule;
    bool assign;
    bool needs_value;
    bool has_name_hashes; /* name_hashes and first_elems are sent too. */
    uint32_t retry;
    uint64_t weight;
};

/* A partition to be sent. */
struct ps_agent_batch_item {
    struct ps_rec_part part;
    struct ps_rec_rows rows; /* PUSH_ROWS: used instead of `part`. */
    uint64_t name_hash;
    uint64_t first_elem;
    const struct ps_slice *slice; /* NULL: an empty part. */
};

/* Small partitions of one job that travel in one frame to one server. */
struct ps_agent_batch {
    struct ps_agent_batch_head head; /* Fields of all parts. */
    struct ps_batch parts;
    uint64_t *name_hashes; /* Name hashes of the parts; NULL: none yet. */
    uint64_t *first_elems; /* Their first elements; NULL: none yet. */
    struct ps_rec_rows *row_parts; /* PUSH_ROWS: used instead of `parts`. */
};

struct ps_agent_server {
    struct ps_dialer dialer;
    ps_time next_ping_at;  /* Applies while operations wait. */
    ps_time ping_interval; /* Doubles with each ping. */
    uint32_t node;
    uint64_t incarnation;
    char name[PS_NAME_MAX + 1];
    char peer[16];      /* Name of the link's account: "node 5". */
    uint32_t map_epoch; /* Newest map that lists the server. */
    bool was_in_map;    /* Some map has listed it. */
    bool removed;       /* The newest map does not list it. */
    uint64_t unsent;    /* Bytes with the driver, not yet with the kernel. */
    uint32_t computing; /* Partitions being summed or encoded for it. */
    uint64_t computing_bytes;
    /* In agent->servers.with_work: its queues may have something to send. */
    struct ps_list_node work_node;
    struct ps_list send_queues;
    struct ps_misuse misuse;
    /* Limits while several jobs use it; NULL: no link yet. */
    const struct ps_agent_queue_limits *shared_limits;
    /* Turns of the jobs, over `send_queues`; empty while there is only one. */
    struct ps_fair fair;
    struct ps_agent_batch batch;
};

/* Partitions of one job that wait to be sent to one server. */
struct ps_agent_send_queue {
    struct ps_list_node node; /* In server->send_queues. */
    /* In server->fair while other jobs use the server: active while the queue
     * has partitions, unless credit is used up. */
    struct ps_fair_flow flow;
    struct ps_agent_server *server;
    struct ps_agent_job *job;
    struct ps_heap heap;
    uint64_t bytes_sent;      /* Push bytes since the link's session began. */
    uint64_t computing_bytes; /* Bytes being summed, to be sent next. */
    uint64_t credit;
    /* The server has no memory: refused partitions wait until then. */
    ps_time backoff_until;
    ps_time backoff; /* Last wait; 0: the server accepted something since. */
};

/* Returns true while several jobs use the server. */
static inline bool ps_agent_server_is_shared(const struct ps_agent_server *s)
{
    return ps_list_first(&s->send_queues) != ps_list_last(&s->send_queues);
}
