/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of GPUs that the agent maps, and the events that the agent asks
 * (shared.c); operations on arrays in it (shared_op.c). Locked. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "client/device/gpu.h"
#include "client/psclient.h"

struct ps_msg_l_device_info;
struct psc_op;

enum memory_answer {
    ANSWER_NONE,
    ANSWER_TAKEN,
    ANSWER_REFUSED, /* Operations copy it. */
};

struct shared_memory {
    struct shared_memory *next;
    struct gpu *gpu;
    struct ps_cu_uuid uuid;
    ps_cu_address at;
    size_t size;
    int fd; /* -1: memory of another allocator, which has the next two. */
    struct ps_cu_handle handle;
    unsigned long long id; /* The driver uses no number twice. */
    uint32_t region;
    uint32_t uses; /* Open operations. */
    enum memory_answer answer;
    int error;              /* Of a refusal. */
    char why[PSC_TEXT_MAX]; /* Of a refusal. */
};

struct shared_event {
    struct shared_event *next; /* Spare ones. */
    struct shared_event *next_of_all;
    struct gpu *gpu;
    struct ps_cu_uuid uuid;
    ps_cu_event event;
    struct ps_cu_handle handle;
    uint32_t number;
    bool is_announced; /* To the present agent. */
};

/* Loads the calls of the driver, once. Sets the detail. */
PS_MUST_USE int shared_load(struct psc_client *c, const struct gpu *g);
/* Makes memory and offers it to the agent. Sets the detail. */
PS_MUST_USE int shared_memory_new(struct psc_client *c, struct gpu *g,
                                  size_t size,
                                  struct shared_memory **ret_memory);
/* The memory that contains the array; NULL: none. */
struct shared_memory *shared_memory_find(const struct psc_client *c,
                                         const void *data, size_t bytes);
/* Frees memory that no operation uses. */
void shared_memory_free(struct psc_client *c, struct shared_memory *m);
/* The allocation of another allocator that contains the array, which is offered
 * to the agent once. NULL: it is none that the agent can have. */
struct shared_memory *shared_foreign_find(struct psc_client *c, struct gpu *g,
                                          const void *data, size_t bytes);
/* Tells the program, once, that operations copy memory of the GPU. */
void shared_explain(struct psc_client *c, const struct gpu *g, const char *why);
/* An event behind the work in a stream of the GPU. */
PS_MUST_USE int shared_event_record(struct psc_client *c, struct gpu *g,
                                    void *stream,
                                    struct shared_event **ret_event);
/* Announces it to the agent, once. */
PS_MUST_USE int shared_event_announce(struct psc_client *c,
                                      struct shared_event *e);
/* The agent has no use for its record any more. */
void shared_event_put(struct psc_client *c, struct shared_event *e);
/* The agent's answer about memory. */
void shared_accept_info(struct psc_client *c,
                        const struct ps_msg_l_device_info *m);
/* Offers all memory to a new agent. */
PS_MUST_USE int shared_announce_all(struct psc_client *c);
void shared_free_all(struct psc_client *c);

/* -------------------------------------------------------------- shared_op.c */

/* Attaches the arrays of an operation, as staged_attach(). PS_E_UNSUPPORTED, with
 * no change: one of them lies elsewhere, or the agent does not map it. */
PS_MUST_USE int shared_attach(struct psc_op *op, const struct psc_device *where,
                              const void *const *srcs, uint32_t count);
