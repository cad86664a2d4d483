/* SPDX-License-Identifier: Apache-2.0 */
/* State memory of a server that outlives its process: a memfd that somebody else
 * keeps open. That is the service manager, with a store of descriptors
 * (FileDescriptorStoreMax=), or the parent process that --keep makes. Both give
 * it to the next process. */
#pragma once

#include "base/err.h"

#include <stdbool.h>

/* Name of the descriptor in the store of the service manager. */
#define PS_KEEPER_NAME "pskv-state"

/* Makes this process the keeper of a child, in which this returns false. To be
 * called while there is one thread, and nothing is open that a second child
 * could not use again. The keeper passes signals on. A child that dies by a
 * signal, and whose memory it has, is started again: after 0.1 s, and up to 5 s
 * if it dies early again and again. True: this is the keeper, its child has
 * ended, and the process ends with *ret_code. If the child died by a signal and
 * is not started again, the keeper dies by the same one. */
bool ps_keeper_fork(const char *program, int *ret_code);

/* Takes in a descriptor of this name that the service manager passes. */
void ps_keeper_inherit(int fd);

/* The descriptor that was kept for this process, which the caller owns then; -1:
 * none. */
int ps_keeper_take(void);

/* Drops what was kept for this process, here and in the store of the service
 * manager: its memory is free then. False: there was nothing. */
bool ps_keeper_drop(void);

/* Gives `fd`, which stays the caller's, to the keeper, in place of what it has.
 * PS_E_NOENT: nobody keeps it. */
PS_MUST_USE int ps_keeper_offer(int fd);

/* True: what was offered also outlives an end in good order, since the service
 * manager has it; a keeper ends with its child. */
bool ps_keeper_survives_stop(void);
