/* SPDX-License-Identifier: Apache-2.0 */
/* Exit codes of the programs, those of sysexits.h where one fits. */
#pragma once

#include <stdbool.h>

enum ps_exit {
    PS_EXIT_OK = 0,
    PS_EXIT_FAILURE = 1,
    PS_EXIT_USAGE = 2,
    PS_EXIT_UNAVAILABLE = 69,
    PS_EXIT_CANTCREAT = 73,
    PS_EXIT_IOERR = 74,
    PS_EXIT_TEMPFAIL = 75,
    PS_EXIT_NOPERM = 77,
    PS_EXIT_CONFIG = 78,
};

/* Writes and closes standard output at the end of a program: only then a full
 * disk shows. After a failure, prints "PROGRAM: standard output: reason" and
 * returns PS_EXIT_IOERR for a `code` of success; else returns `code`. */
int ps_exit_with_output(const char *program, int code);

/* Writes what standard output has so far, for a program that goes on. False: a
 * write has failed, and ps_exit_with_output() will say why. */
bool ps_exit_flush(void);

/* Exit code for an error code. */
int ps_exit_code(int rc);

/* Logs "VERB OBJECT: error text", and returns the exit code of `rc`. */
int ps_exit_refused(const char *verb, const char *object, int rc);
