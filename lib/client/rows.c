/* SPDX-License-Identifier: Apache-2.0 */
#include "client/rows.h"

#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"

/* A row as the caller names it, and where he does. */
struct named {
    uint32_t row;
    uint32_t at;
};

static int by_row(const void *a, const void *b)
{
    const struct named *x = a;
    const struct named *y = b;

    if (x->row != y->row) {
        return x->row < y->row ? -1 : 1;
    }
    return x->at < y->at ? -1 : 1;
}

/* Sorts unless they are sorted, which they mostly are. */
static int read_rows(struct psc_op *op, const int64_t *rows, size_t count,
                     struct named *named)
{
    const struct key *k = op->key;
    uint64_t all = k->count / k->width;
    bool sorted = true;

    for (size_t i = 0; i < count; i++) {
        if (rows[i] < 0 || (uint64_t)rows[i] >= all) {
            client_complain(op->client, PSC_E_INVAL,
                            "'%s' has the rows 0 to %llu, and not %lld",
                            k->name, (unsigned long long)all - 1,
                            (long long)rows[i]);
            return PSC_E_INVAL;
        }
        named[i] = (struct named){.row = (uint32_t)rows[i], .at = (uint32_t)i};
        sorted = sorted && (i == 0 || rows[i] >= rows[i - 1]);
    }
    if (!sorted) {
        qsort(named, count, sizeof(*named), by_row);
    }
    return 0;
}

/* The rows of a push, those that are given twice added. */
static int fill(const struct psc_op *op, const struct named *named,
                size_t count, const void *data, uint8_t *out)
{
    size_t bytes = rows_bytes(op->key);
    uint8_t *at = out;

    for (size_t i = 0; i < count; i++) {
        const uint8_t *from = (const uint8_t *)data + named[i].at * bytes;

        if (i > 0 && named[i].row == named[i - 1].row) {
            const void *two[] = {at, from};
            int rc = ps_kernel_run(
                &(struct ps_job){.op = PS_JOB_SUM,
                                 .dtype = (enum ps_dtype)op->key->dtype,
                                 .count = op->key->width,
                                 .src_count = 2,
                                 .src = two,
                                 .dst = at});

            if (rc != 0) {
                return rc;
            }
            continue;
        }
        at = i == 0 ? out : at + bytes;
        memcpy(at, from, bytes);
    }
    return 0;
}

int rows_block(struct psc_op *op, const int64_t *rows, size_t count,
               const void *data)
{
    struct psc_client *c = op->client;
    struct named *named;
    uint32_t *number;
    uint32_t last = 0;
    int rc;

    if (count == 0) {
        return 0;
    }
    if (count > UINT32_MAX / 2 || rows == NULL) {
        return client_complain(c, PSC_E_INVAL, "'%s': %zu rows in one call",
                               op->key->name, count);
    }
    named = malloc(count * sizeof(*named));
    if (named == NULL) {
        return client_complain(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    rc = read_rows(op, rows, count, named);
    if (rc != 0) {
        goto leave;
    }
    for (size_t i = 0; i < count; i++) {
        op->rows += i == 0 || named[i].row != named[i - 1].row;
    }
    if (data == NULL) {
        op->place = malloc(count * sizeof(*op->place));
        op->place_count = count;
        if (op->place == NULL) {
            rc = client_complain(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
            goto leave;
        }
    }
    rc = ps_shm_get(&c->shm,
                    rows_numbers_bytes(op->rows) +
                        ps_round_up(op->rows * rows_bytes(op->key), 8),
                    &op->block);
    if (rc != 0) {
        client_complain(c, rc, "'%s': no memory for %u rows", op->key->name,
                        op->rows);
        goto leave;
    }
    op->block->uses++;
    op->block_offset = 0;
    op->staged = true;
    number = ps_shm_data(op->block);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || named[i].row != number[last - 1]) {
            number[last++] = named[i].row;
        }
        if (op->place != NULL) {
            op->place[named[i].at] = last - 1;
        }
    }
    if (data != NULL) {
        rc = fill(op, named, count, data,
                  (uint8_t *)ps_shm_data(op->block) +
                      rows_numbers_bytes(op->rows));
        c->bytes_copied += count * rows_bytes(op->key);
    }

leave:
    free(named);
    return rc;
}
