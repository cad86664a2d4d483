/* SPDX-License-Identifier: Apache-2.0 */
/* Injected failures of libuv and of the system: the n-th call of a function
 * that lib/net and lib/driver use fails with an error that it can have. The
 * linker puts these functions before the real ones (uv_fault_args of
 * tests/support/meson.build), so the code under test is the shipped one.
 *
 * A scenario is a function that does something that can fail, and cleans up
 * after itself. uv_fault_run() runs it once without a failure, then once for
 * each function, error and call, and requires of each run that it ends in time,
 * that a failure has a reason, and that neither memory nor descriptors leak. */
#pragma once

#include <stdbool.h>

/* Outcome of a scenario. */
struct uv_fault_outcome {
    bool is_done;  /* The scenario succeeded. */
    int rc;        /* Its error; 0: none. */
    char why[200]; /* Text of the error. */
};

void uv_fault_failed(struct uv_fault_outcome *o, int rc, const char *why);

/* Between hold and release, calls of this thread are those of the test itself:
 * they are not counted and do not fail. */
void uv_fault_hold(void);
void uv_fault_release(void);

/* Fails the test: the scenario makes no progress. */
void uv_fault_hangs(void);

typedef void (*uv_fault_scenario)(struct uv_fault_outcome *ret_outcome);

/* A violation fails the test, with `name` in the message. */
void uv_fault_run(const char *name, uv_fault_scenario scenario);
