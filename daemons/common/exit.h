/* SPDX-License-Identifier: Apache-2.0 */
/* Exit codes of the daemons, those of sysexits.h where one fits. */
#pragma once

enum ps_exit {
    PS_EXIT_OK = 0,
    PS_EXIT_FAILURE = 1,
    PS_EXIT_USAGE = 2,
    PS_EXIT_UNAVAILABLE = 69,
    PS_EXIT_CANTCREAT = 73,
    PS_EXIT_TEMPFAIL = 75,
    PS_EXIT_NOPERM = 77,
    PS_EXIT_CONFIG = 78,
};

/* Exit code for an error code. */
int ps_exit_code(int rc);

/* Logs "VERB OBJECT: error text", and returns the exit code of `rc`. */
int ps_exit_refused(const char *verb, const char *object, int rc);
