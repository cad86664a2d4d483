/* SPDX-License-Identifier: Apache-2.0 */
/* Reader of job files. */
#pragma once

#include <stdbool.h>

#include "pslaunch/plan.h"

/* True for the name of a job file. */
bool job_file_is_name(const char *word);
/* Sets what the file states; options of the command line replace it later.
 * Returns 0, or an exit code after messages. */
int job_file_read(const char *path, struct plan *p);
/* Takes from the file read before what the command line has not replaced.
 * Returns 0, or an exit code after a message. */
int job_file_complete(struct plan *p);
/* Prints a sample file, with all options as they are by default, or a JSON
 * schema. False after a message. */
bool job_file_print(const char *form);
