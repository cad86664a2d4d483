/* SPDX-License-Identifier: Apache-2.0 */
#define VARIANT const struct ps_checksum_variant ps_checksum_avx2
#include "net/checksum_variant.inc"
