/* SPDX-License-Identifier: Apache-2.0 */
/* A YAML file as a flat list of values, each with its place. Only what a
 * configuration needs: one document of maps, lists and scalars, at most 1 MiB
 * and 16 levels. Anchors, aliases, tags and repeated keys are refused, because
 * each can turn a small file into something big or ambiguous. */
#pragma once

#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

#define PS_YAML_FILE_MAX    (1024u * 1024u)
#define PS_YAML_DEPTH_MAX   16u
#define PS_YAML_KEY_MAX     64u
/* Keys and values together; each costs some hundred bytes while it is read. */
#define PS_YAML_ENTRIES_MAX 16384u

enum ps_yaml_kind {
    PS_YAML_SCALAR,     /* key: value */
    PS_YAML_ITEM,       /* One value of a list; `index` counts from 0. */
    PS_YAML_EMPTY_LIST, /* key: [] */
    PS_YAML_EMPTY_MAP,  /* key: {} */
};

/* A map or list inside a list carries its position as a part of the path:
 * "hosts.0.name". Keys hold letters, digits, '_' and '-', so that the dots in
 * a path always separate. */
struct ps_yaml_entry {
    char *path;
    char *value; /* "" where there is none. */
    enum ps_yaml_kind kind;
    bool is_null; /* Plain null, ~ or nothing at all. */
    unsigned index;
    unsigned line; /* Of the value, from 1. */
    unsigned column;
    unsigned key_line; /* Of the last key before it. */
    unsigned key_column;
};

struct ps_yaml {
    struct ps_yaml_entry *entries; /* In the order of the file. */
    size_t count;
    size_t capacity;
};

/* Parse `len` bytes; `name` stands for the file in messages. On failure
 * (PS_E_CONFIG) one line "NAME:LINE:COLUMN: what; what to do" is added to
 * `report`, and there is nothing to free. */
PS_MUST_USE int ps_yaml_parse(const char *name, const char *text, size_t len,
                              struct ps_yaml *ret_yaml, struct ps_str *report);
/* Read a file whole. PS_E_NOENT when it does not exist; PS_E_CONFIG when it is
 * too long or others may write it; PS_E_IO. Each with a line in `report`. The
 * caller frees with ps_free(). */
PS_MUST_USE int ps_yaml_read(const char *path, char **ret_text, size_t *ret_len,
                             struct ps_str *report);
void ps_yaml_fini(struct ps_yaml *y);
