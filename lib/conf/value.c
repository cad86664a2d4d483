/* SPDX-License-Identifier: Apache-2.0 */
#include "conf/inner.h"

#include "base/alloc.h"
#include "base/num.h"

#include <limits.h>
#include <string.h>

#define EXPANDED_MAX 4096u
/* Decimal places; the greatest unit times 10^3 must fit into 64 bits. */
#define DECIMALS_MAX 3

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit sizes[] = {
    {"B", 1},
    {"KiB", UINT64_C(1) << 10},
    {"MiB", UINT64_C(1) << 20},
    {"GiB", UINT64_C(1) << 30},
    {"TiB", UINT64_C(1) << 40},
    {NULL, 0},
};

/* Accepted as well: psctl and other tools print them. */
static const struct unit decimal_sizes[] = {
    {"kB", 1000},       {"MB", 1000000},
    {"GB", 1000000000}, {"TB", UINT64_C(1000000000000)},
    {NULL, 0},
};

static const struct unit durations[] = {
    {"us", 1000},
    {"ms", 1000000},
    {"s", 1000000000},
    {"m", UINT64_C(60) * 1000000000},
    {"h", UINT64_C(3600) * 1000000000},
    {"d", UINT64_C(86400) * 1000000000},
    {NULL, 0},
};

static const struct unit no_units[] = {{"", 1}, {NULL, 0}};

static const struct unit *units_of(enum ps_option_type type)
{
    return type == PS_OPTION_SIZE       ? sizes
           : type == PS_OPTION_DURATION ? durations
                                        : no_units;
}

const char *ps_value_getenv(char *const *env, const char *name)
{
    size_t len = strlen(name);

    for (; env != NULL && *env != NULL; env++) {
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=') {
            const char *value = *env + len + 1;

            return value[0] == '\0' ? NULL : value;
        }
    }
    return NULL;
}

int ps_value_word(const char *words, const char *word, size_t len)
{
    int i = 0;

    for (const char *w = words;; w++, i++) {
        size_t n = strcspn(w, "|");

        if (n == len && memcmp(w, word, n) == 0) {
            return i;
        }
        w += n;
        if (*w == '\0') {
            return -1;
        }
    }
}

/* Appends a number with the largest unit of the type that represents it
 * exactly. */
static void add_number(struct ps_str *s, enum ps_option_type type, int64_t n)
{
    const struct unit *best = units_of(type);

    for (const struct unit *u = best; u->name != NULL; u++) {
        if (n != 0 && (uint64_t)n % u->factor == 0) {
            best = u;
        }
    }
    if (type == PS_OPTION_DURATION && n == 0) {
        ps_str_add(s, "0s");
        return;
    }
    ps_str_addf(s, "%lld%s", (long long)(n / (int64_t)best->factor),
                best->name);
}

static void add_range(const struct ps_option *row, struct ps_str *s)
{
    if (row->max != 0) {
        ps_str_add(s, " from ");
        add_number(s, row->type, row->min);
        ps_str_add(s, " to ");
        add_number(s, row->type, row->max);
    } else if (row->min != 0) {
        ps_str_add(s, " of at least ");
        add_number(s, row->type, row->min);
    }
}

/* Appends "a, b or c" for "a|b|c". */
static void add_enum_names(struct ps_str *s, const char *words)
{
    for (const char *w = words; *w != '\0';) {
        int n = (int)strcspn(w, "|");
        const char *next = w + n;

        if (*next == '|') {
            next++;
        }
        if (w != words) {
            ps_str_add(s, strchr(next, '|') == NULL && *next == '\0' ? " or "
                                                                     : ", ");
        }
        ps_str_addf(s, "%.*s", n, w);
        w = next;
    }
}

static void add_lengths(const struct ps_option *row, const char *what,
                        struct ps_str *s)
{
    if (row->min != 0 && row->max != 0) {
        ps_str_addf(s, " of %lld to %lld %s", (long long)row->min,
                    (long long)row->max, what);
    } else if (row->max != 0) {
        ps_str_addf(s, " of up to %lld %s", (long long)row->max, what);
    } else if (row->min != 0) {
        ps_str_addf(s, " of at least %lld %s", (long long)row->min, what);
    }
}

void ps_value_describe(const struct ps_option *row, struct ps_str *s)
{
    switch (row->type) {
    case PS_OPTION_BOOL:
        ps_str_add(s, "true or false");
        break;
    case PS_OPTION_INT:
    case PS_OPTION_U64:
        ps_str_add(s, "a whole number");
        add_range(row, s);
        break;
    case PS_OPTION_SIZE:
        ps_str_add(s, "a size");
        add_range(row, s);
        ps_str_add(s, row->form == PS_OPTION_PERCENT
                          ? " with its unit (B, KiB, MiB, GiB, TiB or %)"
                          : " with its unit (B, KiB, MiB, GiB or TiB)");
        break;
    case PS_OPTION_DURATION:
        ps_str_add(s, "a duration");
        add_range(row, s);
        ps_str_add(s, " with its unit (us, ms, s, m, h or d)");
        break;
    case PS_OPTION_MODE:
        ps_str_add(s, "permission bits in octal, as in \"0660\"");
        break;
    case PS_OPTION_STRING:
        ps_str_add(s, "a text");
        add_lengths(row, "bytes", s);
        break;
    case PS_OPTION_ENUM:
        add_enum_names(s, row->enum_names);
        break;
    case PS_OPTION_LIST:
        ps_str_add(s, row->form == PS_OPTION_PAIRS ? "a map" : "a list");
        add_lengths(row, row->form == PS_OPTION_PAIRS ? "entries" : "items", s);
        break;
    }
    if (row->special != NULL) {
        ps_str_addf(s, ", or %s", row->special);
    }
}

static bool add_wrong_value(const struct ps_option *row, const char *text,
                            const char *what, struct ps_str *why)
{
    ps_str_add(why, "'");
    ps_str_add_escaped(why, text, strlen(text), 64);
    ps_str_addf(why, "' %s; write ", what);
    ps_value_describe(row, why);
    return false;
}

/* Reads digits, a point and up to three digits; *ret_thousandths is the
 * fraction in 1/1000. */
static bool read_decimal(const char **at, uint64_t *ret_whole,
                         uint64_t *ret_thousandths)
{
    const char *p = *at;
    uint64_t whole = 0;
    uint64_t part = 0;
    int digits = 0;

    if (*p < '0' || *p > '9') {
        return false;
    }
    for (; *p >= '0' && *p <= '9'; p++) {
        if (!ps_mul_u64(whole, 10, &whole) ||
            !ps_add_u64(whole, (uint64_t)(*p - '0'), &whole)) {
            return false;
        }
    }
    if (*p == '.') {
        for (p++; *p >= '0' && *p <= '9'; p++, digits++) {
            part = part * 10 + (uint64_t)(*p - '0');
            if (digits == DECIMALS_MAX) {
                return false;
            }
        }
        if (digits == 0) {
            return false;
        }
    }
    for (; digits < DECIMALS_MAX; digits++) {
        part *= 10;
    }
    *ret_whole = whole;
    *ret_thousandths = part;
    *at = p;
    return true;
}

static bool scale_decimal(uint64_t whole, uint64_t thousandths, uint64_t factor,
                          uint64_t *ret)
{
    uint64_t n;

    return ps_mul_u64(whole, factor, &n) &&
           ps_add_u64(n, thousandths * factor / 1000, ret) && *ret <= INT64_MAX;
}

static bool is_in_row_range(const struct ps_option *row, int64_t n)
{
    return n >= row->min && (row->max == 0 || n <= row->max);
}

/* `share`: of the memory, in 1/100,000; UINT64_MAX: too large for that. */
static bool parse_percent(const struct ps_option *row, const char *text,
                          uint64_t share, uint64_t memory, int64_t *ret,
                          struct ps_str *why)
{
    if (row->form != PS_OPTION_PERCENT) {
        return add_wrong_value(row, text, "cannot be a share", why);
    }
    if (memory == 0) {
        return add_wrong_value(row, text,
                               "is a share of memory of unknown size", why);
    }
    if (share > 100000) {
        return add_wrong_value(row, text, "is more than all memory", why);
    }
    *ret = (int64_t)(memory / 100000 * share +
                     memory % 100000 * share / 100000);
    if (!is_in_row_range(row, *ret)) {
        return add_wrong_value(row, text, "is out of range on this machine",
                               why);
    }
    return true;
}

/* NULL: no such unit. */
static const struct unit *find_unit(enum ps_option_type type, const char *name)
{
    const struct unit *u = units_of(type);

    while (u->name != NULL && strcmp(name, u->name) != 0) {
        u++;
    }
    if (u->name == NULL && type == PS_OPTION_SIZE) {
        u = decimal_sizes;
        while (u->name != NULL && strcmp(name, u->name) != 0) {
            u++;
        }
    }
    return u->name != NULL ? u : NULL;
}

static bool parse_number(const struct ps_option *row, const char *text,
                         const struct ps_value_context *ctx, int64_t *ret,
                         struct ps_str *why)
{
    bool negative = row->type == PS_OPTION_INT && text[0] == '-';
    bool plain = units_of(row->type) == no_units;
    const char *p = negative ? text + 1 : text;
    uint64_t whole;
    uint64_t thousandths;
    uint64_t n;

    if (row->special != NULL && strcmp(text, row->special) == 0) {
        *ret = row->special_value;
        return true;
    }
    if (!read_decimal(&p, &whole, &thousandths) ||
        (plain && memchr(text, '.', (size_t)(p - text)) != NULL)) {
        return add_wrong_value(row, text, "is not a number that fits here",
                               why);
    }
    if (row->type == PS_OPTION_SIZE && strcmp(p, "%") == 0) {
        return parse_percent(
            row, text, whole > 100 ? UINT64_MAX : whole * 1000 + thousandths,
            ctx->memory, ret, why);
    }
    const struct unit *unit = find_unit(row->type, p);

    if (unit != NULL) {
        if (!scale_decimal(whole, thousandths, unit->factor, &n)) {
            return add_wrong_value(row, text, "is too large", why);
        }
        *ret = negative ? -(int64_t)n : (int64_t)n;
        if (!is_in_row_range(row, *ret)) {
            return add_wrong_value(row, text, "is out of range", why);
        }
        return true;
    }
    return add_wrong_value(row, text,
                           plain        ? "is not a whole number"
                           : *p == '\0' ? "has no unit"
                                        : "has a unit that does not exist",
                           why);
}

static bool parse_bool(const struct ps_option *row, const char *text, bool *ret,
                       struct ps_str *why)
{
    /* Even indexes mean false. */
    int i = ps_value_word("false|true|no|yes|off|on|0|1", text, strlen(text));

    if (i < 0) {
        return add_wrong_value(row, text, "is neither true nor false", why);
    }
    *ret = i % 2 == 1;
    return true;
}

static bool parse_mode(const struct ps_option *row, const char *text,
                       unsigned *ret, struct ps_str *why)
{
    unsigned mode = 0;
    size_t len = strlen(text);

    /* At least three digits, since a mode is octal. */
    if (len < 3 || len > 5 || strspn(text, "01234567") != len) {
        return add_wrong_value(row, text, "is not a mode", why);
    }
    for (const char *p = text; *p != '\0'; p++) {
        mode = mode * 8 + (unsigned)(*p - '0');
    }
    if (mode > 07777) {
        return add_wrong_value(row, text, "is not a mode", why);
    }
    *ret = mode;
    return true;
}

bool ps_value_parse(const struct ps_option *row, const char *text,
                    const struct ps_value_context *ctx, void *member,
                    struct ps_str *why)
{
    int64_t n;
    int word;

    switch (row->type) {
    case PS_OPTION_BOOL:
        return parse_bool(row, text, member, why);
    case PS_OPTION_INT:
        if (!parse_number(row, text, ctx, &n, why)) {
            return false;
        }
        if (n < INT_MIN || n > INT_MAX) {
            return add_wrong_value(row, text, "is too large", why);
        }
        *(int *)member = (int)n;
        return true;
    case PS_OPTION_U64:
    case PS_OPTION_SIZE:
    case PS_OPTION_DURATION:
        if (!parse_number(row, text, ctx, &n, why)) {
            return false;
        }
        *(uint64_t *)member = (uint64_t)n;
        return true;
    case PS_OPTION_MODE:
        return parse_mode(row, text, member, why);
    case PS_OPTION_ENUM:
        word = ps_value_word(row->enum_names, text, strlen(text));
        if (word < 0) {
            return add_wrong_value(row, text, "is not a known word", why);
        }
        *(int *)member = word;
        return true;
    case PS_OPTION_STRING:
    case PS_OPTION_LIST:
        break;
    }
    return add_wrong_value(row, text, "is of no known type", why);
}

/* Returns the reason why a text is refused; NULL: it is UTF-8 without control
 * characters. */
static const char *find_fault(const char *text)
{
    size_t n;

    for (size_t left = strlen(text); left > 0; left -= n, text += n) {
        uint32_t c;

        n = ps_str_decode(text, left, &c);
        if (n == 0) {
            return "is not UTF-8";
        }
        if (c < 0x20 || (c >= 0x7f && c < 0xa0)) {
            return "has control characters";
        }
    }
    return NULL;
}

bool ps_value_check_text(const struct ps_option *row, const char *text,
                         struct ps_str *why)
{
    const char *fault = find_fault(text);

    if (fault != NULL) {
        return add_wrong_value(row, text, fault, why);
    }
    return row->check == NULL || row->check(text, why);
}

bool ps_value_check_length(const struct ps_option *row, size_t length,
                           struct ps_str *why)
{
    if (is_in_row_range(row, (int64_t)length)) {
        return true;
    }
    ps_str_addf(why, "%zu %s; write ", length,
                row->type == PS_OPTION_LIST ? "items" : "bytes");
    ps_value_describe(row, why);
    return false;
}

bool ps_option_read(const struct ps_option *row, const char *text, void *member,
                    struct ps_str *why)
{
    const struct ps_value_context none = {.env = NULL};

    if (row->type != PS_OPTION_STRING) {
        return ps_value_parse(row, text, &none, member, why);
    }
    /* Names of files may have any bytes. */
    if (!ps_value_check_length(row, strlen(text), why) ||
        (row->check != NULL && !row->check(text, why))) {
        return false;
    }
    memcpy(member, &text, sizeof(text));
    return true;
}

struct reference {
    const char *name;
    size_t name_len;
    const char *default_value; /* NULL: none. */
    size_t default_value_len;
};

static bool is_name_char(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c >= '0' && c <= '9') || c == '_';
}

/* Reads the reference after a '$'. */
static bool read_reference(const char **at, struct reference *ret)
{
    const char *p = *at;
    bool braces = *p == '{';

    *ret = (struct reference){.name = p + braces};
    for (p += braces; is_name_char(*p); p++) {
        ret->name_len++;
    }
    if (braces && p[0] == ':' && p[1] == '-') {
        ret->default_value = p + 2;
        ret->default_value_len = strcspn(p + 2, "}");
        p += 2 + ret->default_value_len;
    }
    if (ret->name_len == 0 || ret->name_len > 64 || (braces && *p != '}')) {
        return false;
    }
    *at = p + braces;
    return true;
}

char *ps_value_expand(const char *text, const struct ps_value_context *ctx,
                      struct ps_str *why)
{
    char *data = ps_alloc(EXPANDED_MAX);
    struct ps_str s;

    ps_str_init(&s, data, EXPANDED_MAX);
    for (const char *p = text; *p != '\0';) {
        struct reference ref;
        char name[65];

        if (p[0] != '$' || p[1] == '$') {
            ps_str_addf(&s, "%c", *p);
            p += p[0] == '$' ? 2 : 1;
            continue;
        }
        p++;
        if (!read_reference(&p, &ref)) {
            ps_str_add(why, "'$' is not followed by a name; write $NAME, "
                            "${NAME}, ${NAME:-otherwise}, or $$ for the sign");
            goto free_data;
        }
        memcpy(name, ref.name, ref.name_len);
        name[ref.name_len] = '\0';
        const char *value = ps_value_getenv(ctx->env, name);

        if (value != NULL && find_fault(value) != NULL) {
            ps_str_addf(why, "the variable %s %s; correct it", name,
                        find_fault(value));
            goto free_data;
        }
        if (value != NULL) {
            ps_str_add(&s, value);
        } else if (ref.default_value != NULL) {
            ps_str_addf(&s, "%.*s", (int)ref.default_value_len,
                        ref.default_value);
        } else {
            ps_str_addf(why,
                        "the variable %s is not set; set it or write the "
                        "value here",
                        name);
            goto free_data;
        }
    }
    if (s.truncated) {
        ps_str_addf(why, "longer than %u bytes with its variables; shorten it",
                    EXPANDED_MAX - 1);
        goto free_data;
    }
    return data;

free_data:
    ps_free(data);
    return NULL;
}
