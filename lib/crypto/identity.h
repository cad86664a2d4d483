/* SPDX-License-Identifier: Apache-2.0 */
/* Identity of a daemon or tool in its certificate: a URI among the subject's
 * alternative names, ps://CLUSTER/ROLE/NAME. Bytes of cluster and name other
 * than letters, digits, '.', '_', '~' and '-' are written %XX, with capital
 * digits, so that an identity has exactly one URI. */
#pragma once

#include <stdbool.h>

#include "base/limits.h"
#include "base/str.h"
#include "proto/ps_msg.h"

/* Bytes of a URI with its terminator, when every byte is encoded. */
#define PS_IDENTITY_URI_BYTES 512u

struct ps_identity {
    enum ps_role role; /* Scheduler, server, agent or ctl. */
    char cluster[PS_NAME_MAX + 1];
    char name[PS_NAME_MAX + 1]; /* Of the node; of ctl, of the operator. */
};

/* Reads the name of a role that certificates name: sched, server, agent, ctl. */
bool ps_identity_read_role(const char *text, enum ps_role *ret_role);
/* True if `identity` has a role that certificates name, and valid names. */
bool ps_identity_is_valid(const struct ps_identity *identity);
/* Appends the URI of a valid identity. */
void ps_identity_add_uri(struct ps_str *s, const struct ps_identity *identity);
/* Reads a URI of any bytes up to the NUL. False, and no change, if it is not
 * the URI that ps_identity_add_uri() writes for a valid identity. */
bool ps_identity_from_uri(const char *uri, struct ps_identity *ret_identity);
