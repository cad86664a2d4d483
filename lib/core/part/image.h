/* SPDX-License-Identifier: Apache-2.0 */
/* Image of a partition: what a server keeps of it between two rounds. The
 * records part_image and part_clock and the enum part_buffer of messages.toml
 * describe it, and a partition consists of them (core/part/store.h). Copies,
 * restore, save and load use the functions below and name no buffer
 * themselves. */
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

/* Statements of a message or a record about an image; borrowed. */
struct ps_image {
    const struct ps_rec_part_image *records;
    const uint64_t *lens; /* Bytes of each buffer. */
    const struct ps_rec_part_clock *clocks;
    uint32_t clocks_count; /* 0: a partition with rounds. */
};

/* The image of a partition; `part` NULL: an empty one. `lens` gets the bytes of
 * each buffer. */
struct ps_image ps_image_of(const struct ps_part *part,
                            uint64_t lens[PS_PART_BUFFERS]);
/* True if a job of `slots` slots can have the image. */
bool ps_image_is_valid(const struct ps_image *m, uint32_t slots);

/* Bytes of all buffers. */
uint64_t ps_image_bytes(const uint64_t lens[PS_PART_BUFFERS]);
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
