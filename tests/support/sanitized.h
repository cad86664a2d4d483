/* SPDX-License-Identifier: Apache-2.0 */
/* Differences of builds with sanitizers that tests take into account. */
#ifndef PS_TEST_SANITIZED_H
#define PS_TEST_SANITIZED_H

/* 1 under the address or thread sanitizer. They replace malloc(), need most of
 * the address space, and make loops of allocations about ten times longer. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PS_TEST_SANITIZED 1
#else
#define PS_TEST_SANITIZED 0
#endif

#endif
