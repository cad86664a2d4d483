/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizers that a job may declare: names, hyper-parameters and the ranges
 * these may lie in. The scheduler asks before it tells the servers, so that a
 * declaration that makes no sense fails for its caller alone. */
#pragma once

#include "base/err.h"
#include "kernel/kernel.h"
#include "proto/ps_msg.h"

#include <stddef.h>

/* "sgd" with learning_rate (or lr; default 0.01), momentum, wd, rescale_grad
 * (default 1) and clip_gradient (0 or less: off).
 *
 * 0, PS_E_UNSUPPORTED for an optimizer that does not exist, PS_E_INVAL for a
 * hyper-parameter that does not, stands there twice, or holds a value that
 * makes no sense; then `why` says in words what is wrong. */
PS_MUST_USE int ps_optim_check(const char *name,
                               const struct ps_rec_param *params,
                               uint32_t count, char *why, size_t why_cap);

/* The same checks; *ret is written only on success. */
PS_MUST_USE int ps_optim_parse(const char *name,
                               const struct ps_rec_param *params,
                               uint32_t count, struct ps_sgd *ret);
