/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU for a training process of the tests: copies in a stream of its own. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct device;

/* Loads the driver that PSKV_CUDA_DRIVER names. */
struct device *device_open(int ordinal);
int device_ordinal(const struct device *d);
void *device_stream(const struct device *d);
/* Memory that the library has not allocated. */
void *device_alloc(const struct device *d, size_t bytes);
void device_free(const struct device *d, void *data);
/* Starts a copy to the GPU; `from` must stay. */
void device_put(const struct device *d, void *to, const void *from,
                size_t bytes);
/* Copies to the host what the work in the stream has left. */
void device_get(const struct device *d, void *to, const void *from,
                size_t bytes);
/* Stops the stream; the emulated driver only. */
void device_hold(const struct device *d);
