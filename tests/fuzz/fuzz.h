/* SPDX-License-Identifier: Apache-2.0 */
/* What a fuzz target is: one function that libFuzzer or replay.c calls. A
 * target aborts (assert) when what it tests breaks its promise. */
#pragma once

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
