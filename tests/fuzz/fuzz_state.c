/* SPDX-License-Identifier: Apache-2.0 */
/* A file of an optimizer's state, of any bytes: it is refused, or what was read
 * from it writes the same file. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "client/state_format.h"
#include "fuzz.h"

#define KEYS_MAX   16u
#define BUFFER_MAX 4096u

struct copy {
    struct state_stream in;
    struct state_stream out;
};

/* False: the file ends here, or has more than this target reads. */
static bool copy_key(struct copy *c)
{
    struct ps_fixed_state_file_key key;
    uint8_t data[BUFFER_MAX];

    if (!state_get_key(&c->in, &key)) {
        return false;
    }
    assert(memchr(key.name, '\0', sizeof(key.name)) != NULL);
    assert(key.buffer_count <= PS_FIXED_STATE_FILE_KEY_BUFFER_COUNT_MAX);
    if (key.count > BUFFER_MAX / 8) {
        return false;
    }
    state_put_key(&c->out, &key);
    for (unsigned i = 0; i < key.buffer_count; i++) {
        state_get_buffer(&c->in, data, key.count * 4);
        if (c->in.has_failed) {
            return false;
        }
        state_put_buffer(&c->out, data, key.count * 4);
    }
    return true;
}

/* True: the whole file was read. */
static bool copy_file(struct copy *c)
{
    struct ps_fixed_state_file start;

    if (!state_get_start(&c->in, &start) || start.key_count > KEYS_MAX) {
        return false;
    }
    state_put_start(&c->out, &start);
    for (uint64_t i = 0; i < start.key_count; i++) {
        if (!copy_key(c)) {
            return false;
        }
    }
    if (!state_get_end(&c->in)) {
        return false;
    }
    state_put_end(&c->out);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct copy c = {0};
    char *again = NULL;
    size_t len = 0;
    bool whole;
    long end;

    if (size == 0) {
        return 0;
    }
    c.in.file = fmemopen((void *)(uintptr_t)data, size, "rb");
    c.out.file = open_memstream(&again, &len);
    assert(c.in.file != NULL && c.out.file != NULL);
    whole = copy_file(&c);
    end = ftell(c.in.file);
    fclose(c.in.file);
    assert(fclose(c.out.file) == 0 && !c.out.has_failed);
    if (whole) {
        assert(end >= 0 && (size_t)end == len && len <= size);
    }
    free(again);
    return 0;
}
