/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of OpenSSL that are the same in every run of a target: keys,
 * signatures and certificates are, too. */
#pragma once

/* Begins them again. The first call puts them in the place of OpenSSL's. */
void fuzz_random_restart(void);
