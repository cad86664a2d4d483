/* SPDX-License-Identifier: Apache-2.0 */
/* Failures of libuv and of the system, on purpose: the n-th call of a function
 * that lib/net and lib/driver use fails with an error that it can have. The
 * linker puts these functions before the real ones (uv_fault_args of
 * tests/support/meson.build), so the code under test is as it is shipped.
 *
 * A scenario is a function that does something that can fail, and cleans up
 * after itself. uv_fault_run() runs it once without a failure, then once for
 * each function, error and call, and requires of each run that it ends in time,
 * that a failure has a reason, and that neither memory nor descriptors leak. */
#pragma once

#include <stdbool.h>

/* Outcome of a scenario. */
struct uv_fault_outcome {
    bool is_done;  /* Did all that it does without a failure. */
    int rc;        /* Else the error, */
    char why[200]; /* and its reason in words. */
};

void uv_fault_failed(struct uv_fault_outcome *o, int rc, const char *why);

/* Between hold and release, calls of this thread are those of the test itself:
 * they are not counted and do not fail. */
void uv_fault_hold(void);
void uv_fault_release(void);

/* Fails the test: the scenario makes no progress. */
void uv_fault_hangs(void);

typedef void (*uv_fault_scenario)(struct uv_fault_outcome *ret_outcome);

/* `name` stands in the message about a violation, which fails the test. */
void uv_fault_run(const char *name, uv_fault_scenario scenario);
