/* SPDX-License-Identifier: Apache-2.0 */
/* Recordings of what the server does for a job, which workers ask for. */
#pragma once

#include "base/time.h"
#include "proto/ps_msg.h"

#include <stdint.h>

struct ps_part;
struct ps_server_job;
struct ps_server_profile;
struct ps_server_step;

/* An event that ends now. */
struct ps_server_profile_event {
    enum ps_profile_kind kind;
    uint32_t slot;
    uint64_t round;
    ps_time begun_at;
    uint64_t bytes;
};

/* Takes in what job_state says of the recording. */
void ps_server_profile_set(struct ps_server_job *job, uint8_t mode,
                           uint32_t number);
void ps_server_profile_fini(struct ps_server_profile *p);
/* Adds an event to the server's trace, and to the recording of the job if there
 * is one. */
void ps_server_record(struct ps_server_job *job, const struct ps_part *part,
                      const struct ps_server_profile_event *e);
void ps_server_on_profile_get(struct ps_server_step *st,
                              const struct ps_msg_profile_get *m);
