/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters: contexts, which are clusters with a name, and the choice of that of a
 * command. The file of contexts is checked and read as a whole, changed in
 * memory, written beside the former one and renamed; a lock on its folder keeps
 * changes apart that happen at the same time. */
#include "psctl/verbs.h"

#include "base/alloc.h"
#include "base/file_check.h"
#include "base/str.h"
#include "net/addr.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCHEMA         1
#define FILE_NAME      "contexts.json"
#define FILE_BYTES_MAX (1 << 20)

static const char *const part_names[] = {"endpoint", "tls", "token"};

#define PART_COUNT (sizeof(part_names) / sizeof(part_names[0]))

struct contexts {
    char path[PATH_MAX];
    json_t *root; /* Owned; it has "contexts". */
    json_t *list; /* Member of `root`. */
};

static char *part_of(struct context *c, size_t i)
{
    char *const parts[] = {c->endpoint, c->tls, c->token};

    return parts[i];
}

static int report_system_error(const char *what, const char *path)
{
    const int error = errno;

    fprintf(stderr, "psctl: cannot %s %s: %s\n", what, path, strerror(error));
    return error == EACCES || error == EPERM ? EXIT_NOPERM : EXIT_FAILED;
}

/* ---------------------------------------------------------------------- file */

/* Path of the file. False: the environment names no home. */
static bool find_path(char *out, size_t cap)
{
    const char *config = getenv("XDG_CONFIG_HOME");
    const char *home = getenv("HOME");
    struct ps_str s;

    ps_str_init(&s, out, cap);
    /* A relative path is to be ignored, as the specification of XDG says. */
    if (config != NULL && config[0] == '/') {
        ps_str_addf(&s, "%s/pskv/" FILE_NAME, config);
    } else if (home != NULL && home[0] == '/') {
        ps_str_addf(&s, "%s/.config/pskv/" FILE_NAME, home);
    } else {
        return false;
    }
    return !s.truncated;
}

static int report_content(const struct contexts *c, const char *name,
                          const char *problem)
{
    fprintf(stderr, "psctl: %s: context '%s' %s\n", c->path, name, problem);
    return EXIT_CONFIG;
}

static bool is_name(const char *name)
{
    const size_t len = strlen(name);

    return len >= 1 && len <= CONTEXT_NAME_MAX && name[0] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                        "0123456789._-") == len;
}

static bool is_endpoint(const char *text)
{
    struct ps_addr addr;

    if (strncmp(text, "unix:", 5) == 0) {
        return text[5] == '/' && strlen(text) <= CONTEXT_TEXT_MAX;
    }
    return ps_addr_parse(text, &addr) == 0 && addr.port != 0;
}

static bool is_part_name(const char *name)
{
    for (size_t i = 0; i < PART_COUNT; i++) {
        if (strcmp(part_names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

static int check_context(const struct contexts *c, const char *name,
                         json_t *one)
{
    const char *endpoint = json_string_value(json_object_get(one, "endpoint"));
    const char *part;
    json_t *value;

    if (!is_name(name)) {
        return report_content(c, "...",
                              "has an invalid name: it needs 1 to 64 letters, "
                              "digits, '.', '_' and '-'");
    }
    json_object_foreach(one, part, value)
    {
        if (!is_part_name(part) || !json_is_string(value) ||
            json_string_length(value) > CONTEXT_TEXT_MAX) {
            return report_content(c, name,
                                  "may have texts 'endpoint', 'tls' "
                                  "and 'token' only");
        }
    }
    if (endpoint == NULL || !is_endpoint(endpoint)) {
        return report_content(c, name,
                              "has no 'endpoint' HOST:PORT or "
                              "unix:PATH");
    }
    return 0;
}

static int check_content(struct contexts *c)
{
    const json_t *current = json_object_get(c->root, "current");
    const char *in_use = json_string_value(current);
    const char *name;
    json_t *one;

    c->list = json_object_get(c->root, "contexts");
    if (json_integer_value(json_object_get(c->root, "schema")) != SCHEMA ||
        !json_is_object(c->list)) {
        fprintf(stderr,
                "psctl: %s: it has no \"schema\": %d and \"contexts\"\n",
                c->path, SCHEMA);
        return EXIT_CONFIG;
    }
    json_object_foreach(c->list, name, one)
    {
        const int rc = check_context(c, name, one);

        if (rc != 0) {
            return rc;
        }
    }
    if (current != NULL &&
        (in_use == NULL || json_object_get(c->list, in_use) == NULL)) {
        return report_content(c, in_use != NULL ? in_use : "...",
                              "is in use, but is not in the file");
    }
    return 0;
}

/* Reads the open file. */
static int parse_file(struct contexts *c, int fd)
{
    struct ps_str s = PS_STR_ROOM(PS_TEXT_MAX);
    json_error_t error;
    struct stat st;

    if (ps_file_check(fd, c->path, PS_FILE_TRUSTED, &s) != 0) {
        fprintf(stderr, "psctl: %s", s.data);
        return EXIT_CONFIG;
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) ||
        st.st_size > FILE_BYTES_MAX) {
        fprintf(stderr, "psctl: %s: it is no file, or has more than %d bytes\n",
                c->path, FILE_BYTES_MAX);
        return EXIT_CONFIG;
    }
    c->root = json_loadfd(fd, JSON_REJECT_DUPLICATES, &error);
    if (c->root == NULL) {
        fprintf(stderr, "psctl: %s:%d:%d: %s\n", c->path, error.line,
                error.column, error.text);
        return EXIT_CONFIG;
    }
    return check_content(c);
}

static void contexts_fini(struct contexts *c)
{
    json_decref(c->root);
}

/* Reads the file; a missing one has no contexts. Returns an exit code, after a
 * message. */
static int contexts_load(struct contexts *c)
{
    int rc = 0;
    int fd;

    *c = (struct contexts){.root = NULL};
    fd = find_path(c->path, sizeof(c->path))
             ? open(c->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
             : -1;
    if (fd >= 0) {
        rc = parse_file(c, fd);
        close(fd);
        if (rc != 0) {
            contexts_fini(c);
        }
        return rc;
    }
    if (c->path[0] != '\0' && errno != ENOENT && errno != ENOTDIR) {
        return report_system_error("read", c->path);
    }
    c->list = json_object();
    c->root = json_pack("{s:i, s:o}", "schema", SCHEMA, "contexts", c->list);
    if (c->root == NULL) {
        abort(); /* Out of memory. */
    }
    return 0;
}

/* Makes the folder of the file and its parents, and locks it. Returns its
 * descriptor; -1 after a message, with the exit code. */
static int lock_folder(const struct contexts *c, int *ret_exit)
{
    char folder[PATH_MAX];
    char *end;
    int fd;

    ps_str_copy(folder, sizeof(folder), c->path);
    *strrchr(folder, '/') = '\0';
    for (end = strchr(folder + 1, '/'); end != NULL;
         end = strchr(end + 1, '/')) {
        *end = '\0';
        (void)mkdir(folder, 0700);
        *end = '/';
    }
    (void)mkdir(folder, 0700);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX) != 0) {
        *ret_exit = report_system_error("open the folder", folder);
        if (fd >= 0) {
            close(fd);
        }
        return -1;
    }
    return fd;
}

static int contexts_save(const struct contexts *c)
{
    char *json = json_dumps(c->root, JSON_INDENT(2));
    char *text = NULL;
    int error;

    if (json == NULL || asprintf(&text, "%s\n", json) < 0) {
        abort(); /* Out of memory. */
    }
    error = ps_file_replace(c->path, text, strlen(text), 0600, PS_FILE_DURABLE);
    free(text);
    free(json);
    errno = error;
    return error != 0 ? report_system_error("write", c->path) : 0;
}

/* -------------------------------------------------------------------- lookup */

static int report_unknown(const struct contexts *c, const char *name)
{
    const char **names = ps_calloc(json_object_size(c->list) + 1,
                                   sizeof(*names));
    struct ps_str s = PS_STR_ROOM(256);
    const char *near;
    const char *other;
    json_t *one;
    size_t count = 0;

    json_object_foreach(c->list, other, one)
    {
        names[count++] = other;
    }
    near = ps_nearest(names, name);
    ps_str_add_escaped(&s, name, strlen(name), CONTEXT_NAME_MAX);
    fprintf(stderr, "psctl: no context '%s'%s%s%s\n", s.data,
            near != NULL ? "; did you mean " : "; see psctl context list",
            near != NULL ? near : "", near != NULL ? "?" : "");
    ps_free(names);
    return EXIT_USAGE;
}

/* Name of the context in use; NULL: none. */
static const char *name_in_use(const struct contexts *c)
{
    const char *named = getenv("PSKV_CONTEXT");

    return named != NULL && named[0] != '\0'
               ? named
               : json_string_value(json_object_get(c->root, "current"));
}

static void read_parts(const json_t *one, struct context *ret)
{
    for (size_t i = 0; i < PART_COUNT; i++) {
        const char *text = json_string_value(
            json_object_get(one, part_names[i]));

        ps_str_copy(part_of(ret, i), CONTEXT_TEXT_MAX + 1,
                    text != NULL ? text : "");
    }
}

/* Reads the context `name`, or the one in use if it is NULL. All texts are empty
 * if none is in use. Returns an exit code, after a message. */
static int context_get(const char *name, struct context *ret)
{
    struct contexts c;
    const json_t *one = NULL;
    int rc = contexts_load(&c);

    *ret = (struct context){.endpoint = ""};
    if (rc != 0) {
        return rc;
    }
    name = name != NULL ? name : name_in_use(&c);
    if (name != NULL) {
        one = json_object_get(c.list, name);
        rc = one == NULL ? report_unknown(&c, name) : 0;
    }
    if (one != NULL) {
        read_parts(one, ret);
    }
    contexts_fini(&c);
    return rc;
}

void context_each(void (*each)(void *arg, const char *name,
                               const char *endpoint),
                  void *arg)
{
    struct contexts c;
    const char *name;
    json_t *one;

    if (contexts_load(&c) != 0) {
        return;
    }
    json_object_foreach(c.list, name, one)
    {
        each(arg, name, json_string_value(json_object_get(one, "endpoint")));
    }
    contexts_fini(&c);
}

/* --------------------------------------------------------------------- verbs */

static void show_table_of(const struct contexts *c, bool headings)
{
    static const char *const columns[] = {"CONTEXT", "IN USE", "ENDPOINT",
                                          "TLS", "TOKEN"};
    const char *in_use = name_in_use(c);
    const char *name;
    json_t *one;
    struct table t;

    table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
    json_object_foreach(c->list, name, one)
    {
        table_text(&t, name);
        table_cell(&t, "%s",
                   in_use != NULL && strcmp(in_use, name) == 0 ? "yes" : "-");
        for (size_t i = 0; i < PART_COUNT; i++) {
            const char *text = json_string_value(
                json_object_get(one, part_names[i]));

            table_text(&t, text != NULL ? text : "-");
        }
    }
    table_print(&t, headings);
    table_fini(&t);
}

static void show_objects(const struct contexts *c)
{
    const char *in_use = name_in_use(c);
    json_t *list = json_array();
    json_t *o = json_pack("{s:i, s:o}", "schema", 1, "contexts", list);
    const char *name;
    json_t *one;

    json_object_foreach(c->list, name, one)
    {
        struct context parts;

        read_parts(one, &parts);
        json_array_append_new(
            list,
            json_pack("{s:s, s:b, s:s, s:s, s:s}", "name", name, "in_use",
                      in_use != NULL && strcmp(in_use, name) == 0, "endpoint",
                      parts.endpoint, "tls", parts.tls, "token", parts.token));
    }
    json_print(o);
}

int context_list(struct request *q, int count, char **values)
{
    struct contexts c;
    int rc = contexts_load(&c);

    (void)count;
    (void)values;
    if (rc != 0) {
        return rc;
    }
    if (q->print.json) {
        show_objects(&c);
    } else {
        show_table_of(&c, !q->print.no_headings);
    }
    contexts_fini(&c);
    return EXIT_HEALTHY;
}

/* Stores the absolute form of a path that exists, so that the context holds in
 * every folder. */
static int set_path(json_t *one, const char *part, const char *path)
{
    char *whole = realpath(path, NULL);
    int rc = 0;

    if (whole == NULL) {
        return report_system_error("find", path);
    }
    if (strlen(whole) > CONTEXT_TEXT_MAX ||
        json_object_set_new(one, part, json_string(whole)) != 0) {
        fprintf(stderr, "psctl: --%s: a path of UTF-8, of at most %u bytes\n",
                part, CONTEXT_TEXT_MAX);
        rc = EXIT_USAGE;
    }
    free(whole);
    return rc;
}

static int set_part(json_t *one, const char *part, const char *text)
{
    if (text == NULL) {
        return 0;
    }
    if (text[0] == '\0') {
        (void)json_object_del(one, part);
        return 0;
    }
    return set_path(one, part, text);
}

static int set_context(const struct contexts *c, const char *name,
                       const struct cluster *o)
{
    json_t *one = json_object_get(c->list, name);
    int rc;

    if (!is_name(name)) {
        fprintf(stderr,
                "psctl: context set: a name has 1 to %u letters, "
                "digits, '.', '_' and '-'\n",
                CONTEXT_NAME_MAX);
        return EXIT_USAGE;
    }
    if (o->endpoint == NULL && one == NULL) {
        fputs("psctl: context set: give -e, the scheduler of the new "
              "context\n",
              stderr);
        return EXIT_USAGE;
    }
    if (o->endpoint != NULL && !is_endpoint(o->endpoint)) {
        fputs("psctl: context set: -e is HOST:PORT or unix:PATH, of a path "
              "that begins with '/'\n",
              stderr);
        return EXIT_USAGE;
    }
    if (one == NULL) {
        one = json_object();
        json_object_set_new(c->list, name, one);
    }
    if (o->endpoint != NULL &&
        json_object_set_new(one, "endpoint", json_string(o->endpoint)) != 0) {
        fputs("psctl: context set: -e is not UTF-8\n", stderr);
        return EXIT_USAGE;
    }
    rc = set_part(one, "tls", o->tls);
    return rc != 0 ? rc : set_part(one, "token", o->token_file);
}

static int use_context(const struct contexts *c, const char *name,
                       const struct cluster *o)
{
    (void)o;
    if (strcmp(name, "-") == 0) {
        (void)json_object_del(c->root, "current");
        return 0;
    }
    if (json_object_get(c->list, name) == NULL) {
        return report_unknown(c, name);
    }
    return json_object_set_new(c->root, "current", json_string(name)) == 0
               ? 0
               : EXIT_FAILED;
}

static int remove_context(const struct contexts *c, const char *name,
                          const struct cluster *o)
{
    const char *current = json_string_value(
        json_object_get(c->root, "current"));

    (void)o;
    if (json_object_get(c->list, name) == NULL) {
        return report_unknown(c, name);
    }
    if (current != NULL && strcmp(current, name) == 0) {
        (void)json_object_del(c->root, "current");
    }
    (void)json_object_del(c->list, name);
    return 0;
}

/* Changes the file of contexts, which is locked meanwhile. */
static int change_contexts(int (*change)(const struct contexts *c,
                                         const char *name,
                                         const struct cluster *o),
                           const char *name, const struct cluster *o)
{
    struct contexts c = {.root = NULL};
    int rc = 0;
    int dir;

    if (!find_path(c.path, sizeof(c.path))) {
        fputs("psctl: context: set XDG_CONFIG_HOME or HOME, where the file "
              "belongs\n",
              stderr);
        return EXIT_FAILED;
    }
    dir = lock_folder(&c, &rc);
    if (dir < 0) {
        return rc;
    }
    rc = contexts_load(&c);
    if (rc == 0) {
        rc = change(&c, name, o);
        rc = rc != 0 ? rc : contexts_save(&c);
        contexts_fini(&c);
    }
    close(dir);
    return rc;
}

int context_use(struct request *q, int count, char **values)
{
    (void)count;
    return change_contexts(use_context, values[0], &q->cluster);
}

int context_set(struct request *q, int count, char **values)
{
    (void)count;
    return change_contexts(set_context, values[0], &q->cluster);
}

int context_remove(struct request *q, int count, char **values)
{
    (void)count;
    return change_contexts(remove_context, values[0], &q->cluster);
}

/* ------------------------------------------------------------------- choice */

/* Address by variables; NULL: they have none. */
static const char *endpoint_of_variables(struct cluster *c)
{
    const char *own = getenv("PSKV_SCHED");
    const char *host = getenv("DMLC_PS_ROOT_URI");
    const char *port = getenv("DMLC_PS_ROOT_PORT");

    if (own != NULL && own[0] != '\0') {
        return own;
    }
    if (host != NULL && host[0] != '\0') {
        bool v6 = strchr(host, ':') != NULL && host[0] != '[';

        snprintf(c->endpoint_buffer, sizeof(c->endpoint_buffer),
                 v6 ? "[%s]:%s" : "%s:%s", host,
                 port != NULL && port[0] != '\0' ? port : "9091");
        return c->endpoint_buffer;
    }
    return NULL;
}

/* Reads the token that the option, a variable or the context names; `by_name`:
 * the user names the context, and variables do not count. */
static bool read_token(struct cluster *c, bool by_name)
{
    const char *file = c->token_file;
    const char *fd = NULL;
    struct ps_str why = PS_STR_ROOM(PS_TEXT_MAX + 1);

    if (file == NULL && !by_name) {
        file = getenv("PSKV_TOKEN_FILE");
        fd = getenv("PSKV_TOKEN_FD");
    }
    if ((file == NULL || file[0] == '\0') && (fd == NULL || fd[0] == '\0') &&
        c->token_file == NULL) {
        file = c->context.token;
    }
    if (ps_token_text_read(file, fd, c->token, &why) != 0) {
        fprintf(stderr, "psctl: %s\n", why.data);
        return false;
    }
    return true;
}

int cluster_choose(struct cluster *c)
{
    const bool by_name = c->context_name != NULL;
    int rc = 0;

    if (c->endpoint == NULL && !by_name) {
        c->endpoint = endpoint_of_variables(c);
    }
    if (c->endpoint == NULL || by_name) {
        rc = context_get(c->context_name, &c->context);
    }
    if (rc != 0) {
        return rc;
    }
    if (c->endpoint == NULL && c->context.endpoint[0] != '\0') {
        c->endpoint = c->context.endpoint;
    }
    if (c->endpoint == NULL) {
        c->endpoint = wire_default_endpoint();
    }
    if (c->tls == NULL && !by_name) {
        c->tls = getenv("PSKV_TLS");
    }
    if (c->tls == NULL && c->context.tls[0] != '\0') {
        c->tls = c->context.tls;
    }
    return read_token(c, by_name) ? 0 : EXIT_USAGE;
}

struct wire_target cluster_target(const struct cluster *c, ps_time silence)
{
    return (struct wire_target){.endpoint = c->endpoint,
                                .token = c->token,
                                .tls = c->tls,
                                .silence = silence,
                                .insecure = c->insecure};
}
