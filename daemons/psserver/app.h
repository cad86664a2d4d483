/* SPDX-License-Identifier: Apache-2.0 */
/* Description of the daemon psserver. */
#pragma once

#include "common/daemon.h"

extern const struct ps_daemon_spec psserver_spec;
