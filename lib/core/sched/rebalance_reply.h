/* SPDX-License-Identifier: Apache-2.0 */
/* Reply to a rebalance query: the rows of a plan, sent as the output of the
 * connection drains, and the end, which may wait for the migrations. */
#pragma once

#include "core/sched/job.h"

struct ps_sched_conn;
struct ps_sched_step;

/* Migrations of a key from one server to another. */
struct ps_sched_rebalance_row {
    uint32_t key;
    uint32_t source; /* Node number. */
    uint32_t target;
    uint32_t part_count;
    uint64_t bytes;
};

struct ps_sched_rebalance_reply {
    uint64_t gen;
    uint32_t next_row; /* Rows before it have been sent. */
    uint32_t row_count;
    struct ps_sched_rebalance_row *rows;
    bool awaits_end; /* query_end waits for the end of the migrations. */
    bool has_ended;  /* The migrations are over. */
    int rc;          /* Result of the migrations. */
    char text[PS_TEXT_MAX + 1];
};

/* Adds the migration of a partition to the row of its key and servers. The
 * array has room, and keys come in order. */
void ps_sched_rebalance_reply_add(struct ps_sched_rebalance_reply *r,
                                  const struct ps_sched_rebalance_row *part);
/* Reports to connection `ctl` that the migrations of the job are over. */
void ps_sched_rebalance_ended(struct ps_sched_step *st, ps_conn_id ctl,
                              uint64_t gen, int rc, const char *text);
/* Sends up to PS_SCHED_ROWS_PER_SEND rows of the plan, and query_end after the
 * last. */
void ps_sched_rebalance_send_rows(struct ps_sched_step *st,
                                  struct ps_sched_conn *c);
void ps_sched_rebalance_drop_reply(struct ps_sched_conn *c);
