/* SPDX-License-Identifier: Apache-2.0 */
/* `pslaunch --shim`: the process through which an agent starts a supervisor. */
#pragma once

struct plan;

/* Runs the supervisor in a child process. */
typedef int (*shim_run_cb)(const struct plan *none);

/* Starts the supervisor of the launch_begin on standard input, for workers that
 * use the agent at `socket`, and reports "ok" or a reason on standard output.
 * Lives until the supervisor or standard input has ended, and then kills all
 * processes of the job. Returns the exit code. */
int shim_main(const char *socket, shim_run_cb run);
