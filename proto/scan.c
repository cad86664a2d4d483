/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/scan.h"

#include <assert.h>
#include <stdbool.h>

struct cursor {
    const uint8_t *at;
    const uint8_t *end;
};

/* Result of a value's leading bytes. */
struct value_head {
    uint64_t body;     /* Bytes of a scalar that follow. */
    uint64_t children; /* Values of a container that follow. */
};

static bool read_be(struct cursor *c, unsigned size, uint64_t *ret)
{
    uint64_t v = 0;

    if ((size_t)(c->end - c->at) < size) {
        return false;
    }
    for (unsigned i = 0; i < size; i++) {
        v = v << 8 | *c->at++;
    }
    *ret = v;
    return true;
}

/* Reads what follows a leading byte from 0xc0 to 0xdf: the size of the value is
 * in its type or in the next bytes. */
static bool read_sized_head(struct cursor *c, uint8_t b, struct value_head *ret)
{
    switch (b) {
    case 0xc0: /* nil */
    case 0xc2: /* false */
    case 0xc3: /* true */
        return true;
    case 0xc4: /* bin */
    case 0xc5:
    case 0xc6:
        return read_be(c, 1u << (b - 0xc4), &ret->body);
    case 0xca: /* float */
    case 0xcb:
        ret->body = 4u << (b - 0xca);
        return true;
    case 0xcc: /* uint */
    case 0xcd:
    case 0xce:
    case 0xcf:
        ret->body = 1u << (b - 0xcc);
        return true;
    case 0xd0: /* int */
    case 0xd1:
    case 0xd2:
    case 0xd3:
        ret->body = 1u << (b - 0xd0);
        return true;
    case 0xd9: /* str */
    case 0xda:
    case 0xdb:
        return read_be(c, 1u << (b - 0xd9), &ret->body);
    case 0xdc: /* array */
    case 0xdd:
        return read_be(c, 2u << (b - 0xdc), &ret->children);
    case 0xde: /* map */
    case 0xdf:
        if (!read_be(c, 2u << (b - 0xde), &ret->children)) {
            return false;
        }
        ret->children *= 2; /* At most 2^33. */
        return true;
    default: /* 0xc1 is not assigned; the others are extensions. */
        return false;
    }
}

static bool read_value_head(struct cursor *c, struct value_head *ret)
{
    uint8_t b = *c->at++;

    *ret = (struct value_head){0};
    if (b <= 0x7f || b >= 0xe0) { /* fixint */
        return true;
    }
    if (b <= 0x8f) { /* fixmap */
        ret->children = 2 * (uint64_t)(b & 0x0f);
        return true;
    }
    if (b <= 0x9f) { /* fixarray */
        ret->children = b & 0x0f;
        return true;
    }
    if (b <= 0xbf) { /* fixstr */
        ret->body = b & 0x1f;
        return true;
    }
    return read_sized_head(c, b, ret);
}

int ps_scan(const uint8_t *data, size_t len,
            const struct ps_scan_limits *limits)
{
    struct cursor c = {data, data + len};
    uint64_t left[PS_SCAN_DEPTH_MAX]; /* Values still expected at each depth. */
    /* Values still expected in all; each has at least one byte. */
    uint64_t owed = 1;
    uint64_t nodes = 0;
    uint32_t depth = 0;

    assert(limits->depth_max > 0 && limits->depth_max <= PS_SCAN_DEPTH_MAX);
    left[0] = 1;
    for (;;) {
        struct value_head lead;

        while (left[depth] == 0) {
            if (depth == 0) {
                return c.at == c.end ? 0 : PS_E_PROTO;
            }
            depth--;
        }
        if (c.at == c.end) {
            return PS_E_PROTO;
        }
        if (++nodes > limits->nodes_max) {
            return PS_E_TOOBIG;
        }
        left[depth]--;
        owed--;
        if (!read_value_head(&c, &lead) ||
            lead.body > (uint64_t)(c.end - c.at)) {
            return PS_E_PROTO;
        }
        c.at += lead.body;
        owed += lead.children;
        if (owed > (uint64_t)(c.end - c.at)) {
            return PS_E_PROTO;
        }
        if (lead.children > 0) {
            if (depth + 1 == limits->depth_max) {
                return PS_E_TOOBIG;
            }
            left[++depth] = lead.children;
        }
    }
}
