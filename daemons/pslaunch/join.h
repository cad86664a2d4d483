/* SPDX-License-Identifier: Apache-2.0 */
/* Supervisors that connect to pslaunch: tasks of an array job. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct listener;
struct plan;

/* Writes the file, of the user alone, that tells the tasks of an array job where
 * pslaunch listens: a line "ADDRESS PORT", then a line with the key of each
 * task. False with errno. */
bool join_write_order(const char *path, const char *address,
                      const struct listener *l, uint32_t count);
/* `pslaunch --join ORDER`: connects, and runs the supervisor of the task that
 * SGE_TASK_ID names. Returns the exit code. */
int join_main(const char *path, int (*run)(const struct plan *none));
