/* SPDX-License-Identifier: Apache-2.0 */
/* Frames with one partition or many small ones. */
#pragma once

struct ps_agent_batch;
struct ps_agent_batch_head;
struct ps_agent_batch_item;
struct ps_agent_job;
struct ps_agent_server;
struct ps_agent_step;

/* Sends a partition in a frame of its own. */
void ps_agent_batch_send_alone(struct ps_agent_step *st,
                               struct ps_agent_server *s,
                               const struct ps_agent_batch_head *h,
                               struct ps_agent_batch_item *item);
/* Adds a partition of at most PS_BATCH_PART_MAX bytes to the server's batch. */
void ps_agent_batch_add(struct ps_agent_step *st, struct ps_agent_server *s,
                        const struct ps_agent_batch_head *h,
                        const struct ps_agent_batch_item *item);
void ps_agent_batch_flush(struct ps_agent_step *st, struct ps_agent_server *s);
/* Discards what the batch has of a job that is being freed. */
void ps_agent_batch_drop(struct ps_agent_batch *g,
                         const struct ps_agent_job *j);
