/* SPDX-License-Identifier: Apache-2.0 */
/* Supervisors that connect to pslaunch: those of agents, and tasks of an array
 * job. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct listener;
struct plan;
struct ps_str;

/* Connects the supervisor that this process or its child will be, by the key of
 * its host (PS_LAUNCH_SECRET_BYTES). False after the reason is appended to
 * `why`. */
bool join_pslaunch(const char *address, uint16_t port, uint32_t place,
                   const uint8_t *secret, struct ps_str *why);

/* Writes the file, of the user alone, that tells the tasks of an array job where
 * pslaunch listens: a line "ADDRESS PORT", then a line with the key of each
 * task. False with errno. */
bool join_write_order(const char *path, const char *address,
                      const struct listener *l, uint32_t count);
/* `pslaunch --join ORDER`: connects, and runs the supervisor of the task that
 * SGE_TASK_ID names. Returns the exit code. */
int join_main(const char *path, int (*run)(const struct plan *none));
