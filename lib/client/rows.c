/* SPDX-License-Identifier: Apache-2.0 */
#include "client/rows.h"
#include "client/error.h"

#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"

/* A row number of the caller and its index in the caller's array. */
struct row_ref {
    uint32_t row;
    uint32_t index;
};

static int compare_rows(const void *a, const void *b)
{
    const struct row_ref *x = a;
    const struct row_ref *y = b;

    if (x->row != y->row) {
        return x->row < y->row ? -1 : 1;
    }
    return x->index < y->index ? -1 : 1;
}

/* Checks the numbers and sorts them; mostly they are sorted already. */
static int check_row_numbers(struct psc_op *op, const int64_t *rows,
                             size_t count, struct row_ref *named)
{
    const struct key *k = op->key;
    uint64_t all = k->count / k->row_width;
    bool sorted = true;

    for (size_t i = 0; i < count; i++) {
        if (rows[i] < 0 || (uint64_t)rows[i] >= all) {
            client_error(op->client, PSC_E_INVAL,
                         "'%s' has the rows 0 to %llu, and not %lld", k->name,
                         (unsigned long long)all - 1, (long long)rows[i]);
            return PSC_E_INVAL;
        }
        named[i] = (struct row_ref){.row = (uint32_t)rows[i],
                                    .index = (uint32_t)i};
        sorted = sorted && (i == 0 || rows[i] >= rows[i - 1]);
    }
    if (!sorted) {
        qsort(named, count, sizeof(*named), compare_rows);
    }
    return 0;
}

/* Writes the rows of a push, duplicates added. */
static int fill_sorted_rows(const struct psc_op *op,
                            const struct row_ref *named, size_t count,
                            const void *data, uint8_t *out)
{
    size_t bytes = rows_bytes(op->key);
    uint8_t *at = out;

    for (size_t i = 0; i < count; i++) {
        const uint8_t *from = (const uint8_t *)data + named[i].index * bytes;

        if (i > 0 && named[i].row == named[i - 1].row) {
            const void *two[] = {at, from};
            int rc = ps_kernel_run(
                &(struct ps_job){.op = PS_JOB_SUM,
                                 .dtype = (enum ps_dtype)op->key->dtype,
                                 .count = op->key->row_width,
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
    struct row_ref *named;
    uint32_t *number;
    uint32_t last = 0;
    int rc;

    if (count == 0) {
        return 0;
    }
    if (count > UINT32_MAX / 2 || rows == NULL) {
        return client_error(c, PSC_E_INVAL, "'%s': %zu rows in one call",
                            op->key->name, count);
    }
    named = malloc(count * sizeof(*named));
    if (named == NULL) {
        return client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
    }
    rc = check_row_numbers(op, rows, count, named);
    if (rc != 0) {
        goto leave;
    }
    for (size_t i = 0; i < count; i++) {
        op->src.row_count += i == 0 || named[i].row != named[i - 1].row;
    }
    if (data == NULL) {
        op->result.row_index = malloc(count * sizeof(*op->result.row_index));
        op->result.row_index_count = count;
        if (op->result.row_index == NULL) {
            rc = client_error(c, PSC_E_NOMEM, "%s", ps_strerror(PS_E_NOMEM));
            goto leave;
        }
    }
    rc = ps_shm_get(&c->shm,
                    rows_numbers_bytes(op->src.row_count) +
                        ps_round_up(op->src.row_count * rows_bytes(op->key), 8),
                    &op->src.block);
    if (rc != 0) {
        client_error(c, rc, "'%s': no memory for %u rows", op->key->name,
                     op->src.row_count);
        goto leave;
    }
    op->src.block->uses++;
    op->src.offset = 0;
    op->src.staged = true;
    number = ps_shm_data(op->src.block);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || named[i].row != number[last - 1]) {
            number[last++] = named[i].row;
        }
        if (op->result.row_index != NULL) {
            op->result.row_index[named[i].index] = last - 1;
        }
    }
    if (data != NULL) {
        rc = fill_sorted_rows(op, named, count, data,
                              (uint8_t *)ps_shm_data(op->src.block) +
                                  rows_numbers_bytes(op->src.row_count));
        c->stats.bytes_copied += count * rows_bytes(op->key);
    }

leave:
    free(named);
    return rc;
}
