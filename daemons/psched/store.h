/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler's file (state.file): rows of core/sched/store.h in SQLite. One
 * process has it open; others may copy it meanwhile. */
#pragma once

#include "base/err.h"
#include "base/str.h"
#include "base/time.h"

#include <stdbool.h>
#include <stdint.h>

struct ps_sched;
struct ps_store_row;
struct psched_store;

/* Opens the file, or makes it, with room for changes on a full disk. PS_E_AGAIN with
 * the reason: another psched has it; PS_E_CONFIG: it cannot be opened. */
PS_MUST_USE int psched_store_open(const char *path,
                                  struct psched_store **ret_store,
                                  struct ps_str *why);
void psched_store_close(struct psched_store *t);
/* Feeds all rows to the scheduler. A negative result has its reason in `why`. */
PS_MUST_USE int psched_store_load(struct psched_store *t, struct ps_sched *s,
                                  ps_time now, struct ps_str *why);
/* Changes rows in a transaction, which commit() ends. A failure counts at
 * commit(). */
void psched_store_change(struct psched_store *t,
                         const struct ps_store_row *rows, uint32_t count);
/* False: the changes are lost; the log has the reason. */
bool psched_store_commit(struct psched_store *t);
/* False with the reason: the disk has no room for another job or key. */
bool psched_store_has_room(void *arg, struct ps_str *why);

/* main() of "--check-state FILE" and "--copy-state FROM TO"; returns the exit
 * code. */
int psched_store_main(int argc, char **argv);
