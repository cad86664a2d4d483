/* SPDX-License-Identifier: Apache-2.0 */
#include "core/part/image.h"

#include "base/limits.h"
#include "base/num.h"
#include "core/part/store.h"

#include <string.h>

/* ------------------------------------------------------------------ records */

struct ps_image ps_image_of(const struct ps_part *part,
                            uint64_t lens[PS_PART_BUFFERS])
{
    static const struct ps_rec_part_image none = {0};
    struct ps_image im = {.records = &none, .lens = lens};

    memset(lens, 0, PS_PART_BUFFERS * sizeof(*lens));
    if (part == NULL) {
        return im;
    }
    im.records = &part->image;
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        lens[i] = part->buffers[i].len;
    }
    if (part->async != NULL) {
        im.clocks = part->async->clocks;
        im.clocks_count = part->async->slot_count;
    }
    return im;
}

bool ps_image_is_valid(const struct ps_image *m, uint32_t slots)
{
    const struct ps_rec_part_image *im = m->records;
    const uint64_t *lens = m->lens;

    if (m->clocks_count != 0 && m->clocks_count != slots) {
        return false;
    }
    const uint64_t size = im->count * (uint64_t)ps_dtype_size(im->dtype);
    const uint64_t state = im->count * (uint64_t)ps_dtype_state_size(im->dtype);

    if (im->version > PS_ROUND_MAX || im->step_offset > (int64_t)PS_ROUND_MAX ||
        im->step_offset < -(int64_t)im->version || size > PS_PAYLOAD_MAX ||
        (lens[PS_PART_BUFFER_VALUE] != 0 &&
         lens[PS_PART_BUFFER_VALUE] != size) ||
        (lens[PS_PART_BUFFER_ACCUMULATED] != 0
             ? lens[PS_PART_BUFFER_ACCUMULATED] != size
             : im->accumulated_rounds != 0 || im->accumulated_weight != 0) ||
        (lens[PS_PART_BUFFER_ENCODED] != 0 &&
         (im->codec == PS_CODEC_NONE || im->codec >= PS_CODEC_KINDS ||
          im->dtype != PS_DTYPE_FLOAT32 || im->count == 0 ||
          lens[PS_PART_BUFFER_ENCODED] > 4 * (uint64_t)im->count + 8))) {
        return false;
    }
    for (unsigned i = PS_PART_BUFFER_STATE_0; i < PS_PART_BUFFERS; i++) {
        if (lens[i] != 0 &&
            (lens[i] != state || !ps_dtype_is_real(im->dtype))) {
            return false;
        }
    }
    return true;
}

/* ------------------------------------------------------------------ buffers */

uint64_t ps_image_bytes(const uint64_t lens[PS_PART_BUFFERS])
{
    uint64_t total = 0;

    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        total += lens[i];
    }
    return total;
}

void ps_image_drop(struct ps_slice buffers[PS_PART_BUFFERS])
{
    for (unsigned i = 0; i < PS_PART_BUFFERS; i++) {
        ps_buf_unref(buffers[i].buf);
        buffers[i] = (struct ps_slice){0};
    }
}

unsigned ps_image_saved_count(uint8_t dtype, unsigned states)
{
    if (!ps_dtype_is_real(dtype)) {
        return 0;
    }
    return states + (ps_dtype_is_float(dtype) ? 0 : 1);
}

enum ps_part_buffer ps_image_saved_buffer(unsigned nth, unsigned states)
{
    return nth < states ? (enum ps_part_buffer)(PS_PART_BUFFER_STATE_0 + nth)
                        : PS_PART_BUFFER_MASTER;
}

/* --------------------------------------------------------------------- uses */

struct reason {
    int rc; /* 0: the use is allowed. */
    const char *text;
};

static const char lost[] =
    "the state of its optimizer, or of pushes without rounds, was on a server "
    "that is lost; start again from the last saved state";

/* By trait, in the order in which they are reasons. */
static const struct reason reasons[PS_IMAGE_USES][PS_IMAGE_TRAITS] = {
    [PS_IMAGE_MIGRATE] =
        {[PS_IMAGE_ROWS] = {PS_E_UNSUPPORTED, "rows stay with the optimizer "
                                              "state of each of them"},
         [PS_IMAGE_NO_ROUNDS] = {PS_E_UNSUPPORTED,
                                 "keys of an async or ssp job cannot be moved: "
                                 "another server could not recognise "
                                 "duplicates of pushes without rounds"}},
    /* Agents have the value alone. */
    [PS_IMAGE_RESTORE] = {[PS_IMAGE_NO_ROUNDS] = {PS_E_UNSUPPORTED, lost},
                          [PS_IMAGE_OPTIMIZER] = {PS_E_UNSUPPORTED, lost}},
    [PS_IMAGE_SAVE] =
        {[PS_IMAGE_NO_OPTIMIZER] = {PS_E_INVAL, "the job has no optimizer"},
         [PS_IMAGE_NO_REAL_VALUE] = {PS_E_NOKEY, "the key was never "
                                                 "initialised, or holds no "
                                                 "real numbers"},
         [PS_IMAGE_MERGING] = {PS_E_AGAIN, "a step is in progress: save and "
                                           "load when no worker pushes"},
         [PS_IMAGE_ACCUMULATING] = {PS_E_AGAIN,
                                    "a step of several rounds has begun: save "
                                    "and load after the last of them"}},
};

int ps_image_check_traits(uint32_t traits, enum ps_image_use use,
                          const char **ret_text)
{
    for (unsigned i = 0; i < PS_IMAGE_TRAITS; i++) {
        const struct reason *r = &reasons[use][i];

        if (r->rc != 0 && (traits & 1u << i) != 0) {
            *ret_text = r->text;
            return r->rc;
        }
    }
    return 0;
}

static uint32_t trait_if(bool has, enum ps_image_trait trait)
{
    return has ? 1u << trait : 0;
}

int ps_image_check_use(const struct ps_part *part, bool has_optimizer,
                       enum ps_image_use use, const char **ret_text)
{
    uint32_t traits = has_optimizer ? 1u << PS_IMAGE_OPTIMIZER
                                    : 1u << PS_IMAGE_NO_OPTIMIZER;

    traits |= trait_if(part == NULL || !ps_part_has_value(part) ||
                           !ps_dtype_is_real(part->image.dtype),
                       PS_IMAGE_NO_REAL_VALUE);
    if (part != NULL) {
        traits |= trait_if(ps_part_is_rows(part), PS_IMAGE_ROWS) |
                  trait_if(part->async != NULL, PS_IMAGE_NO_ROUNDS) |
                  trait_if(part->merge != NULL, PS_IMAGE_MERGING) |
                  trait_if(ps_part_accumulated(part)->buf != NULL,
                           PS_IMAGE_ACCUMULATING);
    }
    return ps_image_check_traits(traits, use, ret_text);
}
