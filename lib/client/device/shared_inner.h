/* SPDX-License-Identifier: Apache-2.0 */
/* Internals of shared*.c: memory of GPUs that the agent maps, and events that it
 * asks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/device/gpu.h"
#include "client/device/shared.h"
#include "client/psclient.h"

#define SHARED_UUID_BYTES   16u
#define SHARED_HANDLE_BYTES 64u

typedef unsigned long long gpu_memory;

struct gpu_location {
    int type;
    int id;
};

struct gpu_properties {
    int type;
    int handle_types;
    struct gpu_location location;
    void *metadata;
    unsigned char flags[8];
};

struct gpu_access {
    struct gpu_location location;
    int flags;
};

struct gpu_uuid {
    uint8_t bytes[SHARED_UUID_BYTES];
};

struct gpu_handle {
    uint8_t bytes[SHARED_HANDLE_BYTES];
};

/* X(member, name, arguments) */
#define SHARED_CALLS(X)                                                        \
    X(granularity, "cuMemGetAllocationGranularity",                            \
      (size_t * ret, const struct gpu_properties *p, int option))              \
    X(create, "cuMemCreate",                                                   \
      (gpu_memory * ret, size_t bytes, const struct gpu_properties *p,         \
       unsigned long long flags))                                              \
    X(release, "cuMemRelease", (gpu_memory m))                                 \
    X(export_memory, "cuMemExportToShareableHandle",                           \
      (void *ret, gpu_memory m, int type, unsigned long long flags))           \
    X(reserve, "cuMemAddressReserve",                                          \
      (gpu_address * ret, size_t bytes, size_t alignment, gpu_address near,    \
       unsigned long long flags))                                              \
    X(unreserve, "cuMemAddressFree", (gpu_address at, size_t bytes))           \
    X(map, "cuMemMap",                                                         \
      (gpu_address at, size_t bytes, size_t offset, gpu_memory m,              \
       unsigned long long flags))                                              \
    X(unmap, "cuMemUnmap", (gpu_address at, size_t bytes))                     \
    X(set_access, "cuMemSetAccess",                                            \
      (gpu_address at, size_t bytes, const struct gpu_access *access,          \
       size_t count))                                                          \
    X(uuid, "cuDeviceGetUuid_v2", (struct gpu_uuid * ret, gpu_number d))       \
    X(export_event, "cuIpcGetEventHandle",                                     \
      (struct gpu_handle * ret, gpu_event e))                                  \
    X(export_allocation, "cuIpcGetMemHandle",                                  \
      (struct gpu_handle * ret, gpu_address at))                               \
    X(attributes, "cuPointerGetAttributes",                                    \
      (unsigned count, const int *attributes, void **values, gpu_address at))

struct shared_calls {
#define MEMBER(member, name, arguments) gpu_result(*member) arguments;
    SHARED_CALLS(MEMBER)
#undef MEMBER
};

enum memory_answer {
    ANSWER_NONE,
    ANSWER_TAKEN,
    ANSWER_REFUSED, /* Operations copy it. */
};

struct shared_memory {
    struct shared_memory *next;
    struct gpu *gpu;
    struct gpu_uuid uuid;
    gpu_address at;
    size_t size;
    int fd; /* -1: memory of another allocator, which has the next two. */
    struct gpu_handle handle;
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
    struct gpu_uuid uuid;
    gpu_event event;
    struct gpu_handle handle;
    uint32_t number;
    bool is_announced; /* To the present agent. */
};

struct shared_table {
    struct shared_calls calls;
    bool is_loaded;
    struct shared_memory *memory;
    struct shared_memory *foreign; /* The last one used is the first. */
    uint32_t foreign_count;
    bool
        is_explained; /* The program has got the reason why arrays are copied. */
    struct shared_event *events;
    struct shared_event *spare_events;
    uint32_t last_event;
};

/* shared_memory.c */

/* Loads the calls of the driver, once. Sets the detail. */
PS_MUST_USE int shared_load(struct psc_client *c, const struct gpu *g);
/* Identity of the GPU, which is current. */
PS_MUST_USE int shared_find_uuid(const struct shared_calls *calls,
                                 const struct gpu *g,
                                 struct gpu_uuid *ret_uuid);
/* Makes memory and offers it to the agent. Sets the detail. */
PS_MUST_USE int shared_memory_new(struct psc_client *c, struct gpu *g,
                                  size_t size,
                                  struct shared_memory **ret_memory);
/* The memory that contains the array; NULL: none. */
struct shared_memory *shared_memory_find(const struct psc_client *c,
                                         const void *data, size_t bytes);
/* Frees memory that no operation uses. */
void shared_memory_free(struct psc_client *c, struct shared_memory *m);
/* Offers memory to the agent; the answer comes later. */
PS_MUST_USE int shared_memory_announce(struct psc_client *c,
                                       struct shared_memory *m);
/* The agent unmaps memory that it has. */
void shared_memory_withdraw(struct psc_client *c,
                            const struct shared_memory *m);

/* shared_foreign.c */

/* The allocation of another allocator that contains the array, which is offered
 * to the agent once. NULL: it is none that the agent can have. */
struct shared_memory *shared_foreign_find(struct psc_client *c, struct gpu *g,
                                          const void *data, size_t bytes);
/* A new agent knows none; those that are freed are forgotten. */
void shared_foreign_reset(struct psc_client *c);
void shared_foreign_free(struct shared_table *t);
/* Tells the program, once, that operations copy memory of the GPU. */
void shared_explain(struct psc_client *c, const struct gpu *g, const char *why);

/* shared_event.c */

/* An event behind the work in a stream of the GPU. */
PS_MUST_USE int shared_event_record(struct psc_client *c, struct gpu *g,
                                    void *stream,
                                    struct shared_event **ret_event);
/* Announces it to the agent, once. */
PS_MUST_USE int shared_event_announce(struct psc_client *c,
                                      struct shared_event *e);
/* The agent has no use for its record any more. */
void shared_event_put(struct psc_client *c, struct shared_event *e);
/* A new agent knows none. */
void shared_events_forget(struct psc_client *c);
void shared_events_free(struct psc_client *c);
