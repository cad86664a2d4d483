/* SPDX-License-Identifier: Apache-2.0 */
/* Contributions that are encoded: rec.codec is not NONE. */
#pragma once

#include "core/server/job.h"
#include "core/server/kind.h"

/* Checks the encoding against the codec of the job. 0 or a PS_E_*. */
int ps_server_encoded_check(const struct ps_server_job *job,
                            const struct ps_server_push *m,
                            const struct ps_rec_part *rec);
/* Checks that the bytes are complete codes of the job's codec. 0, or
 * PS_E_INVAL, which is logged. */
int ps_server_encoded_verify(struct ps_server_step *st,
                             const struct ps_server_contribution *in,
                             const struct ps_slice *bytes);
