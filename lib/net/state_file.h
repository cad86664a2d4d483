/* SPDX-License-Identifier: Apache-2.0 */
/* A memfd for state that outlives the process: one mapping of fixed size, sealed
 * in it, whose pages exist where something was written. The descriptor is that
 * of a keeper, too, which gives it to the next process. */
#pragma once

#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

struct ps_state_file;

/* A new one of `size` bytes. PS_E_NOMEM. */
PS_MUST_USE int ps_state_file_new(uint64_t size, struct ps_state_file **ret);
/* Maps one of an earlier process; takes over the descriptor, closed on error.
 * PS_E_INVAL: it is no memfd sealed in size, and *ret_why has the reason. */
PS_MUST_USE int ps_state_file_open(int fd, struct ps_state_file **ret,
                                   const char **ret_why);
/* Ends the mapping; the bytes stay as long as somebody has the descriptor.
 * NULL: no effect. */
void ps_state_file_close(struct ps_state_file *f);
/* The descriptor, borrowed. */
int ps_state_file_fd(const struct ps_state_file *f);
/* A new descriptor for readers, which cannot write; -1: there is none. */
int ps_state_file_open_reader(const struct ps_state_file *f);
void *ps_state_file_data(const struct ps_state_file *f);
uint64_t ps_state_file_size(const struct ps_state_file *f);
/* Gives back the pages of a range, which reads as zeros then. `ctx` is the
 * file. */
void ps_state_file_release(void *ctx, uint64_t offset, uint64_t bytes);
