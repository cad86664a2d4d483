/* SPDX-License-Identifier: Apache-2.0 */
/* A configuration file of any bytes either gives errors with their places, or
 * values within their ranges; and what is printed of those reads back as the
 * same values. The first byte chooses how the rest is used: as the file, or
 * as a -o option and a variable of the environment. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "conf/option.h"
#include "conf/yaml.h"
#include "fuzz.h"

struct values {
    bool enabled;
    int port;
    uint64_t count;
    uint64_t memory;
    ps_time grace;
    unsigned mode;
    const char *name;
    const char *path;
    int policy;
    struct ps_option_list allow;
    struct ps_option_list env;
};

#define AT(member) .offset = offsetof(struct values, member)

static const struct ps_option rows[] = {
    {.path = "tls.enabled",
     .type = PS_OPTION_BOOL,
     .text = "true",
     AT(enabled),
     .help = "Encrypt."},
    {.path = "listen.port",
     .type = PS_OPTION_INT,
     .text = "9091",
     AT(port),
     .min = -1,
     .max = 65535,
     .aliases = {{.name = "PORT"}},
     .help = "Port."},
    {.path = "compute.threads",
     .type = PS_OPTION_U64,
     .text = "auto",
     .special = "auto",
     AT(count),
     .min = 1,
     .max = 1024,
     .help = "Threads."},
    {.path = "limits.memory",
     .type = PS_OPTION_SIZE,
     .text = "80%",
     AT(memory),
     .min = 4096,
     .form = PS_OPTION_PERCENT,
     .help = "Memory."},
    {.path = "shutdown.grace",
     .type = PS_OPTION_DURATION,
     .text = "30s",
     AT(grace),
     .max = INT64_C(86400000000000),
     .aliases = {{.name = "GRACE", .unit = "ms", .values = "1=1s 2=1m"}},
     .help = "Patience."},
    {.path = "socket.mode",
     .type = PS_OPTION_MODE,
     .text = "0660",
     AT(mode),
     .help = "Permissions."},
    {.path = "cluster.name",
     .type = PS_OPTION_STRING,
     .text = "default",
     AT(name),
     .max = 64,
     .help = "Name."},
    {.path = "state.path",
     .type = PS_OPTION_STRING,
     .text = "${STATE:-/var/lib}/x",
     AT(path),
     .form = PS_OPTION_EXPANDED,
     .help = "Path."},
    {.path = "jobs.policy",
     .type = PS_OPTION_ENUM,
     .text = "wait",
     .enum_names = "wait|shrink|fail",
     AT(policy),
     .help = "Policy."},
    {.path = "tls.allow",
     .type = PS_OPTION_LIST,
     AT(allow),
     .max = 100,
     .help = "Networks."},
    {.path = "run.env",
     .type = PS_OPTION_LIST,
     AT(env),
     .form = PS_OPTION_PAIRS,
     .help = "Variables."},
};

static const struct ps_option_table table = {rows, PS_OPTION_COUNT(rows), 0};

static const struct ps_option_set set = {
    .program = "fuzz", .tables = &table, .table_count = 1};

#define MEMORY (UINT64_C(1) << 34)

static void check_values(const struct values *v)
{
    assert(v->port >= -1 && v->port <= 65535);
    assert(v->count <= 1024);
    assert(v->memory >= 4096);
    assert(v->grace <= PS_SECONDS(86400));
    assert(v->mode <= 07777);
    assert(strlen(v->name) <= 64);
    assert(v->path != NULL);
    assert(v->policy >= 0 && v->policy <= 2);
    assert(v->allow.count <= 100);
    for (size_t i = 0; i < v->env.count; i++) {
        assert(strchr(v->env.items[i], '=') != NULL);
    }
}

static void refuse_difference(void *ctx, const struct ps_option *row)
{
    (void)ctx;
    fprintf(stderr, "%s does not read back\n", row->path);
    abort();
}

static void read_back(const struct ps_options *o)
{
    char data[1024];
    struct ps_str report;
    struct values v;
    struct ps_options *again = NULL;
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    assert(f != NULL);
    ps_options_print(o, f);
    fclose(f);
    /* Origins and quotes make it longer than what it was read from. */
    if (len <= PS_YAML_FILE_MAX) {
        ps_str_init(&report, data, sizeof(data));
        int rc = ps_options_load(&set,
                                 &(struct ps_option_input){.file = "print",
                                                           .text = text,
                                                           .text_len = len,
                                                           .memory = MEMORY},
                                 &v, &again, &report);

        if (rc != 0) {
            fprintf(stderr, "%s%s", text, data);
            abort();
        }
        ps_options_compare(o, again, refuse_difference, NULL);
        ps_options_free(again);
    }
    free(text);
}

/* One line each, without control characters, that begins with a place. */
static void check_report(const struct ps_str *report)
{
    assert(report->len > 0);
    assert(report->truncated || report->data[report->len - 1] == '\n');
    for (size_t i = 0; i < report->len; i++) {
        unsigned char c = (unsigned char)report->data[i];

        assert((c >= 0x20 && c < 0x7f) || c == '\n');
    }
    assert(strncmp(report->data, "f.yaml:", 7) == 0 ||
           strncmp(report->data, "command line: ", 14) == 0 ||
           strncmp(report->data, "environment ", 12) == 0 ||
           /* A reference to a variable with invalid contents. */
           strncmp(report->data, "default: ", 9) == 0);
}

static void load(const struct ps_option_input *in)
{
    char data[4096];
    struct ps_str report;
    struct values v;
    struct ps_options *o = NULL;

    memset(&v, 0xa5, sizeof(v)); /* Every member must be written. */
    ps_str_init(&report, data, sizeof(data));
    int rc = ps_options_load(&set, in, &v, &o, &report);

    if (rc != 0) {
        assert(rc == PS_E_CONFIG && o == NULL);
        check_report(&report);
    } else {
        assert(report.len == 0);
        check_values(&v);
        read_back(o);
        ps_options_free(o);
    }
    assert(ps_alloc_live() == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    if (data[0] % 2 == 0) {
        load(&(struct ps_option_input){.file = "f.yaml",
                                       .text = (const char *)data + 1,
                                       .text_len = size - 1,
                                       .memory = MEMORY});
        return 0;
    }
    /* Not ps_alloc: load() expects that nothing is alive after it. */
    char *text = strndup((const char *)data + 1, size - 1);
    const char *const overrides[] = {text};
    char *const env[] = {text, NULL};

    assert(text != NULL);
    load(&(struct ps_option_input){
        .overrides = overrides, .override_count = 1, .memory = MEMORY});
    load(&(struct ps_option_input){.env = env, .memory = MEMORY});
    free(text);
    return 0;
}
