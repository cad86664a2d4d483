/* SPDX-License-Identifier: Apache-2.0 */
/* Parser for configuration files: a YAML file as a flat list of values with
 * their positions. One document of maps, lists and scalars, at most 1 MiB and
 * 16 levels. Anchors, aliases, tags and repeated keys are refused, because they
 * can make a small file large or ambiguous. */
#pragma once

#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

#define PS_YAML_FILE_MAX    (1024u * 1024u)
#define PS_YAML_DEPTH_MAX   16u
#define PS_YAML_KEY_MAX     64u
/* Keys and values together; each takes some hundred bytes while the file is
 * read. */
#define PS_YAML_ENTRIES_MAX 16384u

enum ps_yaml_kind {
    PS_YAML_SCALAR,     /* key: value */
    PS_YAML_ITEM,       /* One item of a list. */
    PS_YAML_EMPTY_LIST, /* key: [] */
    PS_YAML_EMPTY_MAP,  /* key: {} */
};

/* One value. The path of a map or list inside a list contains its index:
 * "hosts.0.name". Keys have letters, digits, '_' and '-', so a dot is always a
 * separator. */
struct ps_yaml_entry {
    char *path;
    char *value; /* "" if there is none. */
    enum ps_yaml_kind kind;
    bool is_null; /* Plain null, ~ or no text. */
    unsigned index;
    unsigned line; /* Line of the value; the first line is 1. */
    unsigned column;
    unsigned key_line; /* Line of the last key before the value. */
    unsigned key_column;
};

struct ps_yaml {
    struct ps_yaml_entry *entries; /* In order of the file. */
    size_t count;
    size_t capacity;
};

/* Parses `len` bytes; `name` is the file's name in messages. On failure
 * (PS_E_CONFIG) one line "NAME:LINE:COLUMN: problem; correction" is added to
 * `report`, and nothing needs to be freed. */
PS_MUST_USE int ps_yaml_parse(const char *name, const char *text, size_t len,
                              struct ps_yaml *ret_yaml, struct ps_str *report);
/* Reads a whole file. PS_E_NOENT: it does not exist; PS_E_CONFIG: it is too
 * long, or other users can write it; PS_E_IO. Each adds a line to `report`. The caller
 * frees the text with ps_free(). */
PS_MUST_USE int ps_yaml_read(const char *path, char **ret_text, size_t *ret_len,
                             struct ps_str *report);
void ps_yaml_fini(struct ps_yaml *y);
