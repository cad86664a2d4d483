/* SPDX-License-Identifier: Apache-2.0 */
/* Training scalars for operators to look at; part of psclient.h. */
#ifndef PSCLIENT_REPORT_H
#define PSCLIENT_REPORT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

struct psc_client;

/* Reports a number of the training, such as its loss, finite or not: psctl top,
 * psctl jobs and the metrics of psched show the last one of each name, over the
 * ranks that report it. Its step is the last round that this worker has begun of
 * any key.
 *
 * Never waits: the first ones leave at once, and of many the last ones together. The scheduler may
 * refuse a name then, because the ranks report others than this one; the next
 * report returns that error, once.
 *
 * A name has 1 to 63 letters, digits and any of _ . / : - (PSC_E_INVAL); a job
 * has at most 32 names (PSC_E_FULL). */
int psc_report(struct psc_client *c, const char *name, double value);

struct psc_scalar {
    const char *name;
    double value;
};
/* Reports several numbers of one step, as the program counts steps. On an error
 * none of them is reported. */
int psc_report_many(struct psc_client *c, uint64_t step,
                    const struct psc_scalar *scalars, uint32_t count);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
