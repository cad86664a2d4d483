/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include "pslaunch/command.h"
#include "pslaunch/hosts.h"

/* The user's ssh: PSKV_SSH, or "ssh". */
const char *ssh_program(void);
/* Adds the words that reach a host by ssh; what runs there follows them. */
void ssh_add_host(struct command *c, const struct host *h);
