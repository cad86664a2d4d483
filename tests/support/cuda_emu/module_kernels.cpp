/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of libpskv-cuda, from their source for the GPU. */
#include "kernel/cuda/kernels.cu"
