/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's state in a file: state_format.h. The file is written under
 * another name and renamed when it is complete. */
#include "client/key.h"
#include "client/op.h"
#include "client/state.h"
#include "client/state_format.h"
#include "client/threads.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file_check.h"
#include "base/num.h"

#define BUFFER_NONE UINT8_MAX

static const char damaged[] = "the file is damaged";

/* --------------------------------------------------------------- transfer */

/* A buffer of a key's state, and the memory that it goes to or comes from. */
struct transfer {
    uint8_t buffer;
    bool is_put;
    uint64_t steps;             /* Put: steps of the optimizer. */
    struct ps_shm_block *block; /* NULL: none. */
};

/* Moves a buffer of the key between the servers and the block. */
static int transfer_buffer(struct psc_client *c, const struct key *k,
                           const struct transfer *t, uint64_t *ret_version)
{
    struct ps_shm_block *block = t->block;
    struct ps_msg m = {.code = PS_MSG_L_OPTIMIZER_STATE};
    struct psc_op *op = NULL;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    m.l_optimizer_state = (struct ps_msg_l_optimizer_state){
        .key = k->number,
        .buffer_index = t->buffer,
        .is_put = t->is_put,
        .steps = t->steps,
        .region = block != NULL ? block->region : 0,
        .offset = block != NULL ? block->offset : 0};
    rc = op_start_plain(c, OP_STATE, &m, &m.l_optimizer_state.op_id, NULL, &op);
    if (rc == 0 && block != NULL) {
        op->src.block = block;
        block->uses++;
    }
    client_leave(c);
    if (rc == 0) {
        rc = psc_op_wait(op, PSC_WAIT_DEFAULT);
        if (rc == 0) {
            rc = psc_op_version(op, ret_version);
        }
        psc_op_free(op);
    }
    return rc;
}

static bool has_state(const struct key *k)
{
    return k->is_ready && !key_is_internal(k) && ps_dtype_is_real(k->dtype);
}

static size_t buffer_bytes(const struct key *k)
{
    return k->count * (k->dtype == PS_DTYPE_FLOAT64 ? 8 : 4);
}

/* Lists the keys that may have a state; the caller frees the list. */
static int list_keys(struct psc_client *c, struct key ***ret_keys,
                     uint32_t *ret_count)
{
    uint32_t count = 0;
    int rc = client_enter(c);
    struct key **keys;

    if (rc != 0) {
        return rc;
    }
    keys = calloc(c->keys.count + 1u, sizeof(struct key *));
    if (keys == NULL) {
        rc = client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    } else if (c->optimizer == NULL) {
        rc = client_error(c, PSC_E_INVAL,
                          "this worker has declared no optimizer");
    }
    for (uint32_t i = 0; rc == 0 && i < c->keys.count; i++) {
        struct key *k = c->keys.by_number[i];

        if (has_state(k) && (k->ops_open > 0 || !ps_list_empty(&k->queue))) {
            rc = client_error(c, PSC_E_AGAIN,
                              "operations on '%s' are open: wait for them "
                              "first",
                              k->name);
        } else if (has_state(k)) {
            keys[count++] = k;
        }
    }
    client_leave(c);
    if (rc != 0) {
        free(keys);
        return rc;
    }
    *ret_keys = keys;
    *ret_count = count;
    return 0;
}

/* Shared memory, reused for the buffers of all keys. */
struct transfer_memory {
    struct psc_client *c;
    void *data;
    struct ps_shm_block *block;
    size_t size;
};

static int reserve_transfer_memory(struct transfer_memory *r, size_t size)
{
    int rc;

    if (size <= r->size) {
        return 0;
    }
    (void)psc_free(r->c, r->data);
    r->data = NULL;
    r->size = 0;
    rc = psc_alloc(r->c, size, &r->data);
    if (rc == 0) {
        rc = client_enter(r->c);
    }
    if (rc != 0) {
        return rc;
    }
    r->block = ps_shm_find(&r->c->shm, r->data, size);
    r->size = size;
    client_leave(r->c);
    return 0;
}

/* ------------------------------------------------------------------- save */

static int save_key(struct psc_client *c, struct key *k, uint64_t version,
                    struct state_stream *s, struct transfer_memory *memory)
{
    struct ps_fixed_state_file_key saved = {.kind = k->kind,
                                            .dtype = (uint8_t)k->dtype,
                                            .buffer_count = version % 8,
                                            .count = k->count,
                                            .steps = version / 8};
    int rc = reserve_transfer_memory(memory, buffer_bytes(k));

    memcpy(saved.name, k->name, strlen(k->name));
    state_put_key(s, &saved);
    for (uint8_t i = 0; rc == 0 && i < saved.buffer_count; i++) {
        const struct transfer t = {.buffer = i, .block = memory->block};

        rc = transfer_buffer(c, k, &t, &version);
        if (rc == 0) {
            state_put_buffer(s, memory->data, buffer_bytes(k));
        }
    }
    return rc;
}

/* Queries the version of each key; 0 for a key without a value. */
static int query_versions(struct psc_client *c, struct key **keys,
                          uint32_t count, uint64_t *versions,
                          uint64_t *ret_found)
{
    for (uint32_t i = 0; i < count; i++) {
        int rc = transfer_buffer(c, keys[i],
                                 &(struct transfer){.buffer = BUFFER_NONE},
                                 &versions[i]);

        if (rc == PSC_E_NOKEY) {
            keys[i] = NULL;
        } else if (rc != 0) {
            return rc;
        } else {
            ++*ret_found;
        }
    }
    return 0;
}

static int save_keys(struct psc_client *c, struct key **keys, uint32_t count,
                     struct state_stream *s)
{
    struct ps_fixed_state_file start = {0};
    struct transfer_memory memory = {.c = c};
    uint64_t *versions = calloc(count + 1u, sizeof(*versions));
    int rc;

    if (versions == NULL) {
        return PSC_E_NOMEM;
    }
    rc = query_versions(c, keys, count, versions, &start.key_count);
    memcpy(start.optimizer, c->optimizer,
           ps_min_u64(strlen(c->optimizer), sizeof(start.optimizer)));
    state_put_start(s, &start);
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        if (keys[i] != NULL) {
            rc = save_key(c, keys[i], versions[i], s, &memory);
        }
    }
    state_put_end(s);
    (void)psc_free(c, memory.data);
    free(versions);
    return rc;
}

/* Returns 0, or the errno value of a failed write: the file is on the disk, or
 * not complete. */
static int finish_file(const struct state_stream *s)
{
    int error = s->error;
    int closed;

    if (error == 0 && (fflush(s->file) != 0 || fsync(fileno(s->file)) != 0)) {
        error = errno;
    }
    closed = ps_file_close(s->file);
    return error != 0 ? error : closed;
}

int psc_state_save(struct psc_client *c, const char *path)
{
    struct state_stream s = {0};
    struct key **keys = NULL;
    uint32_t count;
    char *other = NULL;
    int error;
    int rc;

    if (path == NULL) {
        return client_enter_with(c, path, "path");
    }
    rc = list_keys(c, &keys, &count);
    if (rc != 0) {
        return rc;
    }
    other = malloc(strlen(path) + 32);
    if (other != NULL) {
        sprintf(other, "%s.%ld", path, (long)getpid());
        s.file = fopen(other, "wbe");
    }
    if (s.file == NULL) {
        rc = client_file_error(c, PSC_E_SYS, path, strerror(errno));
        goto free_keys;
    }
    rc = save_keys(c, keys, count, &s);
    error = finish_file(&s);
    if (rc == 0 && error != 0) {
        rc = client_file_error(c, PSC_E_SYS, path, strerror(error));
    }
    if (rc == 0 && rename(other, path) != 0) {
        rc = client_file_error(c, PSC_E_SYS, path, strerror(errno));
    }
    if (rc != 0) {
        remove(other);
    }

free_keys:
    free(other);
    free(keys);
    return rc;
}

/* ------------------------------------------------------------------- load */

/* The job's key of that name. On failure sets the detail. */
static int match_key(struct psc_client *c, const char *path,
                     const struct ps_fixed_state_file_key *saved,
                     const struct key **ret_key)
{
    const char *name = (const char *)saved->name;
    char why[PS_KEY_NAME_MAX + 200];
    const struct key *k;
    int rc = client_enter(c);

    if (rc != 0) {
        return rc;
    }
    k = key_by_name(c, saved->kind, name);
    client_leave(c);
    if (k == NULL || !has_state(k)) {
        snprintf(why, sizeof(why),
                 "it has a state of the key '%s', which this worker has not "
                 "initialised",
                 name);
        return client_file_error(c, PSC_E_NOKEY, path, why);
    }
    if (k->dtype != saved->dtype || k->count != saved->count) {
        snprintf(why, sizeof(why),
                 "its state of '%s' is for %" PRIu64
                 " elements, or of another type; the key has %" PRIu64,
                 name, saved->count, k->count);
        return client_file_error(c, PSC_E_MISMATCH, path, why);
    }
    *ret_key = k;
    return 0;
}

static int load_key(struct psc_client *c, const char *path,
                    struct state_stream *s, struct transfer_memory *memory,
                    bool put)
{
    struct ps_fixed_state_file_key saved;
    const struct key *k = NULL;
    uint64_t version;
    int rc;

    if (!state_get_key(s, &saved)) {
        return client_file_error(c, PSC_E_INVAL, path, damaged);
    }
    rc = match_key(c, path, &saved, &k);
    if (rc == 0) {
        rc = reserve_transfer_memory(memory, buffer_bytes(k));
    }
    if (rc == 0 && put) {
        const struct transfer t = {
            .buffer = BUFFER_NONE, .is_put = true, .steps = saved.steps};

        rc = transfer_buffer(c, k, &t, &version);
        if (rc == 0 && version % 8 != saved.buffer_count) {
            rc = client_file_error(
                c, PSC_E_MISMATCH, path,
                "the optimizer keeps another number of states");
        }
    }
    for (uint8_t i = 0; rc == 0 && i < saved.buffer_count; i++) {
        state_get_buffer(s, memory->data, buffer_bytes(k));
        if (put && !s->has_failed) {
            const struct transfer t = {.buffer = i,
                                       .is_put = true,
                                       .steps = saved.steps,
                                       .block = memory->block};

            rc = transfer_buffer(c, k, &t, &version);
        }
    }
    return rc;
}

/* Reads the file; `put` false checks it without restoring anything. */
static int load_pass(struct psc_client *c, const char *path, FILE *file,
                     bool put)
{
    struct transfer_memory memory = {.c = c};
    struct state_stream s = {.file = file};
    struct ps_fixed_state_file start;
    char why[200];
    int rc = 0;

    rewind(file);
    if (!state_get_start(&s, &start)) {
        return client_file_error(c, PSC_E_INVAL, path,
                                 "this is no file of an optimizer's state");
    }
    if (strncmp((const char *)start.optimizer, c->optimizer,
                sizeof(start.optimizer)) != 0) {
        snprintf(why, sizeof(why),
                 "it is of %.*s, and the job's optimizer is %s",
                 (int)sizeof(start.optimizer), (const char *)start.optimizer,
                 c->optimizer);
        return client_file_error(c, PSC_E_MISMATCH, path, why);
    }
    for (uint64_t i = 0; rc == 0 && !s.has_failed && i < start.key_count; i++) {
        rc = load_key(c, path, &s, &memory, put);
    }
    if (rc == 0 && !state_get_end(&s)) {
        rc = client_file_error(c, PSC_E_INVAL, path, damaged);
    }
    (void)psc_free(c, memory.data);
    return rc;
}

int psc_state_load(struct psc_client *c, const char *path)
{
    FILE *file;
    struct key **keys = NULL;
    uint32_t count;
    int rc;

    if (path == NULL) {
        return client_enter_with(c, path, "path");
    }
    rc = list_keys(c, &keys, &count);
    if (rc != 0) {
        return rc;
    }
    free(keys);
    file = fopen(path, "rbe");
    if (file == NULL) {
        return client_file_error(c, PSC_E_SYS, path, strerror(errno));
    }
    rc = load_pass(c, path, file, false);
    if (rc == 0) {
        rc = load_pass(c, path, file, true);
    }
    fclose(file);
    return rc;
}
