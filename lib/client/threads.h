/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the program: every public call enters a client and leaves it, and
 * some wait in it, one of them as the reader; whether the process can go on
 * without an operation that ends (rules T6 to T12 of docs/protocol.md). */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"
#include "base/list.h"
#include "base/time.h"

struct ps_msg_l_wait_query;
struct psc_client;
struct psc_op;

/* End of a wait. */
struct wait_condition {
    bool (*is_over)(void *arg);
    /* Operations that must still end at least; NULL: one. */
    uint32_t (*missing)(void *arg);
    /* The first operation that has not ended; some operation if all have. NULL:
     * the wait is for something else. */
    struct psc_op *(*first)(void *arg);
    void *arg;
};

/* A thread that waits for operations, on its stack. */
struct waiting {
    struct ps_list_node node;
    pid_t tid;
    bool is_limited; /* The wait ends at a time that the program gave. */
    const struct wait_condition *until;
};

/* Adds the client to those of this process, before it has a connection, and
 * removes it. False: no memory. Not locked. */
PS_MUST_USE bool waiting_add_client(struct psc_client *c);
void waiting_remove_client(struct psc_client *c);
/* True in a child of the process that opened the client, however it was made. */
bool client_is_forked(const struct psc_client *c);
/* Number that this process has drawn. */
uint64_t waiting_process(void);
/* Notes that this thread calls this library; once in its life. */
void waiting_note_caller(void);

/* Locks the client. PSC_E_FORKED in a forked child, where the mutex may be
 * locked for ever; PSC_E_INVAL for NULL. */
PS_MUST_USE int client_enter(struct psc_client *c);
/* The same; PSC_E_INVAL with a text, and not locked, if `argument` is NULL. */
PS_MUST_USE int client_enter_with(struct psc_client *c, const void *argument,
                                  const char *what);
/* client_error() with "PATH: WHAT", for a caller that has not locked the client. */
int client_file_error(struct psc_client *c, int rc, const char *path,
                      const char *what);
/* Calls client_reap_ops() and unlocks the client. */
void client_leave(struct psc_client *c);
/* Ends the operations of a client that has failed, and frees those on
 * deferred_free. Called before the mutex is released or a wait goes on, by a
 * caller that holds no operation without handle. Locked. */
void client_reap_ops(struct psc_client *c);

/* Between these the thread waits. `w` has all but node and tid. Locked. */
void waiting_begin(struct psc_client *c, struct waiting *w);
void waiting_end(struct waiting *w);
/* Answers the agent. Locked. */
void waiting_answer(struct psc_client *c, const struct ps_msg_l_wait_query *m);

/* ---------------------------------- the reader, and waits for it, progress.c */

/* All locked. */

/* Waits until `ready` is true. Returns 0, PS_E_TIMEOUT or the client's failure.
 * Releases the mutex while it waits. */
PS_MUST_USE int client_wait(struct psc_client *c, bool (*ready)(void *arg),
                            void *arg, ps_time deadline);
/* As client_wait(); fewer completions than are missing do not wake the
 * thread. */
PS_MUST_USE int client_wait_many(struct psc_client *c,
                                 const struct wait_condition *until,
                                 ps_time deadline);
/* Handles every message in the buffer of the socket. Reader only. */
void client_accept_messages(struct psc_client *c);
/* Reads and sends without waiting. May release the mutex. */
void client_poll(struct psc_client *c);
