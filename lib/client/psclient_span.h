/* SPDX-License-Identifier: Apache-2.0 */
/* Spans of a program in the timeline of psctl trace; part of psclient.h. */
#ifndef PSCLIENT_SPAN_H
#define PSCLIENT_SPAN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

struct psc_client;

/* A part of the program that has begun, such as the forward pass of a step. In
 * memory of the program; only these calls use what is in it. */
struct psc_span {
    uint64_t begun_ns;
    uint32_t name;
    uint32_t reserved;
};

/* Begins a span. psctl trace shows those of the last rounds beside the
 * operations of this worker's rank. Spans may be nested, overlap, and be of
 * several threads.
 *
 * A name has 1 to 63 letters, digits and any of _ . / : - (PSC_E_INVAL); a
 * worker has at most 64 names (PSC_E_FULL). After an error, the span is one
 * that has not begun. */
int psc_span_begin(struct psc_client *c, const char *name,
                   struct psc_span *ret_span);
/* Ends a span that has begun (else PSC_E_INVAL). Never waits: spans go to the
 * agent some tens of times a second, and if it takes none, the last 256 are
 * kept. */
int psc_span_end(struct psc_client *c, struct psc_span *span);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
