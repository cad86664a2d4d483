/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz target is one function that libFuzzer or replay.c calls. It aborts
 * (assert) if the code under test breaks a promise. */
#pragma once

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
