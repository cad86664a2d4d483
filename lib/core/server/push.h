/* SPDX-License-Identifier: Apache-2.0 */
/* Dense contributions. */
#pragma once

#include "core/server/job.h"
#include "core/server/kind.h"

extern const struct ps_server_contribution_kind ps_server_dense_kind;

/* Sums the payload bytes of all parts. False if a part has an unknown element
 * type, or encoded bytes that do not fit its elements. */
bool ps_server_parts_bytes(const struct ps_rec_part *part, uint32_t count,
                           uint64_t *ret_bytes);
/* Keeps the bytes of one part of the payload. Refers to the frame, or copies if
 * the elements are not aligned or are a small share of the frame's memory. The
 * caller gets a reference. PS_E_NOMEM. */
int ps_server_parts_retain(struct ps_server_job *job,
                           const struct ps_slice *payload, uint64_t offset,
                           const struct ps_rec_part *part,
                           struct ps_slice *ret_slice);

/* Operations of dense parts that async pushes share. */
bool ps_server_dense_read(struct ps_server_push *push);
void ps_server_dense_read_part(const struct ps_server_push *push, uint32_t i,
                               struct ps_server_contribution *ret);
int ps_server_dense_retain(struct ps_server_step *st,
                           const struct ps_server_contribution *in,
                           const struct ps_part *part,
                           struct ps_slice *ret_bytes);
