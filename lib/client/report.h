/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars of this worker. */
#pragma once

struct psc_client;

void report_free(struct psc_client *c);
