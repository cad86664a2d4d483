/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of hosts, and which host runs which servers and workers. */
#include "pslaunch/hosts.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------- lists */

/* Digits of a number in a range such as n[0001-1024]. */
#define DIGITS_MAX 9u

/* State of one list while it is read. */
struct reader {
    struct host_list *list;
    const char *path; /* NULL: an option. */
    uint32_t line;
    char *error;
};

static void report(const struct reader *r, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void report(const struct reader *r, const char *fmt, ...)
{
    size_t len = 0;
    va_list ap;

    if (r->path != NULL) {
        len = (size_t)snprintf(r->error, HOSTS_TEXT_MAX, "%.200s:%u: ", r->path,
                               r->line);
    }
    va_start(ap, fmt);
    vsnprintf(r->error + len, HOSTS_TEXT_MAX - len, fmt, ap);
    va_end(ap);
}

/* Parses all of `text` as a number from 1 to `most`. */
static bool parse_number(const struct reader *r, const char *text,
                         const char *what, uint32_t most, uint32_t *ret)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);

    if (!isdigit((unsigned char)text[0]) || *end != '\0' || n == 0 ||
        n > most) {
        report(r, "%s '%.60s': give a number from 1 to %u", what, text, most);
        return false;
    }
    *ret = (uint32_t)n;
    return true;
}

/* ssh would take a name with a dash in front as an option. */
static bool check_name(const struct reader *r, const char *name)
{
    size_t len = strlen(name);

    if (len == 0) {
        report(r, "a host has no name; write NAME, or NAME:NUMBER");
        return false;
    }
    if (len > HOST_NAME_MAX_LEN) {
        report(r, "the host name '%.60s...' has more than %u characters", name,
               HOST_NAME_MAX_LEN);
        return false;
    }
    for (const char *p = name; *p != '\0'; p++) {
        if (!isalnum((unsigned char)*p) && strchr("-._@:%", *p) == NULL) {
            report(r,
                   "'%.200s' is no host name because of '%c'; hosts of a list "
                   "have commas between them",
                   name, *p);
            return false;
        }
    }
    if (name[0] == '-') {
        report(r, "the host name '%.200s' must not begin with '-'", name);
        return false;
    }
    return true;
}

static bool add_host(struct reader *r, const char *name, const struct host *h)
{
    struct host_list *l = r->list;

    if (!check_name(r, name)) {
        return false;
    }
    for (uint32_t i = 0; i < l->count; i++) {
        if (strcmp(l->hosts[i].name, name) == 0) {
            report(r,
                   "host %.200s is there twice; write it once, with its "
                   "number of workers (%s)",
                   name, r->path != NULL ? "slots=N" : "NAME:N");
            return false;
        }
    }
    if (l->count == HOSTS_MAX) {
        report(r, "more than %u hosts", HOSTS_MAX);
        return false;
    }
    l->hosts = realloc(l->hosts, (l->count + 1) * sizeof(*l->hosts));
    if (l->hosts == NULL) {
        abort();
    }
    l->hosts[l->count] = *h;
    l->hosts[l->count].name = strdup(name);
    l->hosts[l->count].address = h->address != NULL ? strdup(h->address) : NULL;
    l->hosts[l->count++].line = r->line;
    return true;
}

/* Part of a range: "01-04" or "07". */
struct range {
    unsigned long first;
    unsigned long last;
    size_t width; /* Digits, with the zeros in front. */
};

/* Parses the range at *at and moves it behind it. */
static bool parse_range(const struct reader *r, const char **at,
                        const char *whole, struct range *ret)
{
    size_t digits = strspn(*at, "0123456789");
    char *end;

    ret->width = digits;
    ret->first = strtoul(*at, &end, 10);
    ret->last = ret->first;
    *at += digits;
    if (digits > 0 && digits <= DIGITS_MAX && **at == '-') {
        ++*at;
        digits = strspn(*at, "0123456789");
        ret->last = strtoul(*at, &end, 10);
        *at += digits;
    }
    if (digits == 0 || digits > DIGITS_MAX || ret->width > DIGITS_MAX ||
        ret->last < ret->first || (**at != ',' && **at != ']')) {
        report(r,
               "the brackets of '%.100s' need numbers and ranges, as in "
               "n[01-04,07]",
               whole);
        return false;
    }
    return true;
}

/* Adds all hosts of a name whose first brackets have ranges. */
static bool add_names(struct reader *r, const char *name, const struct host *h)
{
    const char *open = strchr(name, '[');
    const char *at = open != NULL ? open + 1 : NULL;
    const char *close = open != NULL ? strchr(open, ']') : NULL;

    if (open == NULL) {
        return add_host(r, name, h);
    }
    if (close == NULL) {
        report(r, "'%.100s' has no ']'", name);
        return false;
    }
    do {
        struct range range;

        if (!parse_range(r, &at, name, &range)) {
            return false;
        }
        for (unsigned long n = range.first; n <= range.last; n++) {
            char one[2 * HOST_NAME_MAX_LEN];

            snprintf(one, sizeof(one), "%.*s%0*lu%s", (int)(open - name), name,
                     (int)range.width, n, close + 1);
            if (!add_names(r, one, h)) {
                return false;
            }
        }
    } while (*at++ == ',');
    return true;
}

/* Cuts "NAME:NUMBER" at the colon; returns the number, or NULL. The brackets of
 * an IPv6 address are cut away; without brackets its colons belong to it. */
static char *cut_number(char **name)
{
    char *first = strchr(*name, ':');
    char *close = strchr(*name, ']');

    if ((*name)[0] == '[' && close != NULL && first != NULL && first < close) {
        ++*name;
        *close = '\0';
        return close[1] == ':' ? close + 2 : NULL;
    }
    if (first == NULL || strchr(first + 1, ':') != NULL) {
        return NULL;
    }
    *first = '\0';
    return first + 1;
}

static bool add_item(struct reader *r, char *item)
{
    struct host h = {0};
    char *slots = cut_number(&item);

    if (slots != NULL &&
        !parse_number(r, slots, "slots", HOST_SLOTS_MAX, &h.slots)) {
        return false;
    }
    return add_names(r, item, &h);
}

int hosts_parse(const char *text, struct host_list *ret_list, char *error)
{
    struct reader r = {.list = ret_list, .error = error};
    char *copy = strdup(text);
    char *item = copy;
    uint32_t depth = 0;
    bool ok = true;

    *ret_list = (struct host_list){0};
    if (copy == NULL) {
        abort();
    }
    for (char *p = copy; ok; p++) {
        if (*p == '\0' || (*p == ',' && depth == 0)) {
            bool is_last = *p == '\0';

            *p = '\0';
            ok = add_item(&r, item);
            item = p + 1;
            if (is_last) {
                break;
            }
        }
        depth += *p == '[';
        depth -= *p == ']' && depth > 0;
    }
    free(copy);
    return ok ? 0 : -1;
}

/* ---------------------------------------------------------------- host file */

static bool parse_attribute(const struct reader *r, char *word, struct host *h)
{
    char *value = strchr(word, '=');
    uint32_t port = h->port;
    bool ok = true;

    if (value != NULL) {
        *value++ = '\0';
    }
    if (value != NULL && strcmp(word, "slots") == 0) {
        ok = parse_number(r, value, "slots", HOST_SLOTS_MAX, &h->slots);
    } else if (value != NULL && strcmp(word, "port") == 0) {
        ok = parse_number(r, value, "port", UINT16_MAX, &port);
    } else if (value != NULL && strcmp(word, "address") == 0) {
        h->address = value;
        ok = check_name(r, value);
    } else {
        report(r,
               "'%.60s' is not understood; behind the host's name come "
               "slots=N, port=N and address=A",
               word);
        ok = false;
    }
    h->port = (uint16_t)port;
    return ok;
}

static bool add_line(struct reader *r, char *line)
{
    static const char blank[] = " \t\r\n";
    struct host h = {0};
    uint32_t port = 0;
    char *save;
    char *name;
    char *number;
    char *word;

    line[strcspn(line, "#")] = '\0';
    name = strtok_r(line, blank, &save);
    if (name == NULL) {
        return true;
    }
    number = cut_number(&name);
    if (number != NULL && !parse_number(r, number, "port", UINT16_MAX, &port)) {
        return false;
    }
    h.port = (uint16_t)port;
    while ((word = strtok_r(NULL, blank, &save)) != NULL) {
        if (!parse_attribute(r, word, &h)) {
            return false;
        }
    }
    return add_names(r, name, &h);
}

int hosts_read(const char *path, struct host_list *ret_list, char *error)
{
    struct reader r = {.list = ret_list, .path = path, .error = error};
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t cap = 0;
    bool ok = true;

    *ret_list = (struct host_list){0};
    if (f == NULL) {
        snprintf(error, HOSTS_TEXT_MAX,
                 "%.200s: %s; a list such as h1:4,h2:4 goes with --hosts", path,
                 strerror(errno));
        return -1;
    }
    while (ok && getline(&line, &cap, f) >= 0) {
        r.line++;
        ok = add_line(&r, line);
    }
    if (ok && ferror(f) != 0) {
        snprintf(error, HOSTS_TEXT_MAX, "%.200s: %s", path, strerror(errno));
        ok = false;
    }
    free(line);
    fclose(f);
    if (ok && ret_list->count == 0) {
        snprintf(error, HOSTS_TEXT_MAX,
                 "%.200s: it names no host; write one a line", path);
        ok = false;
    }
    return ok ? 0 : -1;
}

void hosts_make(struct host_list *ret_list, const char *prefix, uint32_t first,
                uint32_t count)
{
    ret_list->hosts = calloc(count, sizeof(*ret_list->hosts));
    ret_list->count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (ret_list->hosts == NULL ||
            asprintf(&ret_list->hosts[i].name, "%s%u", prefix, first + i) < 0) {
            abort();
        }
    }
}

void hosts_free(struct host_list *l)
{
    for (uint32_t i = 0; i < l->count; i++) {
        free(l->hosts[i].name);
        free(l->hosts[i].address);
    }
    free(l->hosts);
    *l = (struct host_list){0};
}

/* ------------------------------------------------------------------- layout */

static void *allocate(size_t count, size_t size)
{
    void *p = calloc(count + 1, size); /* Never a size of 0. */

    if (p == NULL) {
        abort();
    }
    return p;
}

static struct layout layout_new(const struct layout_counts *n, uint32_t nodes)
{
    return (struct layout){
        .ranks = allocate(n->workers, sizeof(struct rank_place)),
        .nodes = allocate(nodes, sizeof(struct node_place)),
        .server_hosts = allocate(n->servers, sizeof(uint32_t)),
        .node_count = nodes,
    };
}

static void put_rank(struct layout *l, uint32_t rank, uint32_t node)
{
    l->ranks[rank] = (struct rank_place){
        .node = node, .local_rank = l->nodes[node].local_size++};
}

void layout_local(const struct layout_counts *n, struct layout *ret_layout)
{
    struct layout l = layout_new(n, n->nodes);

    for (uint32_t r = 0; r < n->workers; r++) {
        put_rank(&l, r, (uint32_t)((uint64_t)r * n->nodes / n->workers));
    }
    *ret_layout = l;
}

/* Leaves only hosts with workers as nodes, in the order of the list. Until
 * then, each host is a node. */
static void drop_empty_nodes(struct layout *l, uint32_t workers)
{
    uint32_t *number = allocate(l->node_count, sizeof(*number));
    uint32_t kept = 0;

    for (uint32_t i = 0; i < l->node_count; i++) {
        if (l->nodes[i].local_size > 0) {
            number[i] = kept;
            l->nodes[kept++] = (struct node_place){
                .host = i, .local_size = l->nodes[i].local_size};
        }
    }
    for (uint32_t r = 0; r < workers; r++) {
        l->ranks[r].node = number[l->ranks[r].node];
    }
    l->node_count = kept;
    free(number);
}

int layout_hosts(const struct layout_counts *n, const struct host_list *hosts,
                 struct layout *ret_layout, char *error)
{
    struct layout l;
    uint64_t slots = 0;
    uint32_t next = n->servers % hosts->count;

    for (uint32_t i = 0; i < hosts->count; i++) {
        slots += hosts->hosts[i].slots == 0 ? n->workers
                                            : hosts->hosts[i].slots;
    }
    if (slots < n->workers) {
        snprintf(error, HOSTS_TEXT_MAX,
                 "the hosts have slots for %llu workers, and -n is %u; name "
                 "more hosts or slots, or fewer workers",
                 (unsigned long long)slots, n->workers);
        return -1;
    }
    l = layout_new(n, hosts->count);
    for (uint32_t s = 0; s < n->servers; s++) {
        l.server_hosts[s] = s % hosts->count;
    }
    for (uint32_t r = 0; r < n->workers; r++) {
        while (hosts->hosts[next].slots > 0 &&
               l.nodes[next].local_size == hosts->hosts[next].slots) {
            next = (next + 1) % hosts->count;
        }
        put_rank(&l, r, next);
        next = (next + 1) % hosts->count;
    }
    drop_empty_nodes(&l, n->workers);
    *ret_layout = l;
    return 0;
}

void layout_free(struct layout *l)
{
    free(l->ranks);
    free(l->nodes);
    free(l->server_hosts);
    *l = (struct layout){0};
}
