/* SPDX-License-Identifier: Apache-2.0 */
/* Training processes: hello, memory, errors. */
#pragma once

#include <stdint.h>

struct ps_agent;
struct ps_agent_session;
struct ps_agent_step;
struct ps_buf;
struct ps_event;
struct ps_msg;
struct ps_refusal;

void ps_agent_session_on_open(struct ps_agent_step *st,
                              const struct ps_event *ev);
void ps_agent_session_on_hello(struct ps_agent_step *st,
                               struct ps_agent_session *s,
                               const struct ps_msg *m);
void ps_agent_session_on_region(struct ps_agent_step *st,
                                struct ps_agent_session *s, uint32_t region,
                                struct ps_buf *buf);
/* A region could not be mapped. PS_E_NOMEM: operations that name it are refused
 * with the text `why`. Other errors, and region 0, end the session. */
void ps_agent_session_on_unmapped(struct ps_agent_step *st,
                                  struct ps_agent_session *s, uint32_t region,
                                  int rc, const char *why);
/* Returns the error for an operation that names a missing region, and its text
 * in *ret_why. */
int ps_agent_session_on_missing_region(const struct ps_agent_session *s,
                                       uint32_t region, const char **ret_why);
void ps_agent_session_end(struct ps_agent_step *st, struct ps_agent_session *s,
                          int error, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Ends the session with the text of the limit that it exceeded. */
void ps_agent_session_end_quota(struct ps_agent_step *st,
                                struct ps_agent_session *s,
                                const struct ps_refusal *why);
void ps_agent_session_send_open(struct ps_agent_step *st,
                                struct ps_agent_session *s);
/* Sends the deferred job_opens once the scheduler has acknowledged everything
 * before. A worker that replaces a dead one must not be announced before that
 * death, and links keep no order. */
void ps_agent_session_send_deferred(struct ps_agent_step *st);
void ps_agent_session_send_welcome(struct ps_agent_step *st,
                                   struct ps_agent_session *s);
void ps_agent_session_on_region_gone(struct ps_agent_session *s,
                                     uint32_t region);
/* Gives up the regions of a session that ends; its operations have ended. */
void ps_agent_session_free_memory(struct ps_agent *a,
                                  struct ps_agent_session *s);
/* Unmaps some regions of sessions that have ended. */
void ps_agent_unmap_regions(struct ps_agent *a);
