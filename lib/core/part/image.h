/* SPDX-License-Identifier: Apache-2.0 */
/* Image of a partition: what a server keeps of it between two rounds. The
 * records part_image and part_clock and the enum part_buffer of messages.toml
 * describe it, and a partition consists of them (core/part/store.h). Migration,
 * restore, save and load use the functions below and name no buffer
 * themselves.
 *
 * On its way an image is its records and a sequence of bytes: those of all
 * buffers, one behind the other. */
#pragma once

#include "base/buf.h"
#include "kernel/kernel.h"
#include "proto/ps_msg.h"

#include <stdbool.h>
#include <stdint.h>

#define PS_PART_BUFFERS (PS_PART_BUFFER_MASTER + 1u)

_Static_assert(PS_PART_BUFFER_MASTER - PS_PART_BUFFER_STATE_0 == PS_STATES_MAX,
               "messages.toml has a buffer for each state of an optimizer");

struct ps_part;

/* Sets what the message states of the image, which borrows it; `part` NULL: an
 * empty one. `lens` gets the bytes of each buffer. */
void ps_image_write(const struct ps_part *part, uint64_t lens[PS_PART_BUFFERS],
                    struct ps_msg_part_chunk *m);
/* True if a job of `slots` slots can have the image that the message states. */
bool ps_image_is_valid(const struct ps_msg_part_chunk *m, uint32_t slots);

/* Bytes of all buffers. */
uint64_t ps_image_bytes(const uint64_t lens[PS_PART_BUFFERS]);
/* Makes the memory of all buffers current, where a device has a newer copy. 0
 * or the error of the device. */
int ps_image_fetch(const struct ps_slice buffers[PS_PART_BUFFERS]);
/* Fills `to` with bytes of the sequence from `at` on. */
void ps_image_read_bytes(const struct ps_slice buffers[PS_PART_BUFFERS],
                         uint64_t at, struct ps_buf *to);
/* Writes bytes of the sequence from `at` on, as many as there is room for. */
void ps_image_write_bytes(struct ps_slice buffers[PS_PART_BUFFERS], uint64_t at,
                          const uint8_t *from, size_t len);
/* Drops the references on all buffers. */
void ps_image_drop(struct ps_slice buffers[PS_PART_BUFFERS]);

/* The buffers that are saved and loaded: the states of an optimizer that has
 * `states` of them, then the master weights of a value of a 16-bit type. */
unsigned ps_image_saved_count(uint8_t dtype, unsigned states);
enum ps_part_buffer ps_image_saved_buffer(unsigned nth, unsigned states);

/* Uses of an image that not every partition allows. */
enum ps_image_use {
    PS_IMAGE_MIGRATE,
    PS_IMAGE_RESTORE, /* From the values that agents have. */
    PS_IMAGE_SAVE,    /* Or load: the optimizer's states. */
    PS_IMAGE_USES,
};

/* Traits of a partition or its job that exclude a use. */
enum ps_image_trait {
    PS_IMAGE_ROWS,
    PS_IMAGE_NO_ROUNDS,
    PS_IMAGE_OPTIMIZER,
    PS_IMAGE_NO_OPTIMIZER,
    PS_IMAGE_NO_REAL_VALUE,
    PS_IMAGE_MERGING,
    PS_IMAGE_ACCUMULATING,
    PS_IMAGE_TRAITS,
};

/* 0, or the first reason in the table of image.c why a partition with these
 * traits, bits 1 << trait, does not allow the use; *ret_text then has its
 * text. */
int ps_image_check_traits(uint32_t traits, enum ps_image_use use,
                          const char **ret_text);
/* The same for a partition, which may be NULL. */
int ps_image_check_use(const struct ps_part *part, bool has_optimizer,
                       enum ps_image_use use, const char **ret_text);
