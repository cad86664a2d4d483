/* SPDX-License-Identifier: Apache-2.0 */
/* Options and their environment variables. An invalid value is an error: a job
 * that starts with the wrong size would be noticed only much later. */
#include "client/state.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/limits.h"
#include "base/num.h"
#include "base/variables.h"

/* One object: a caller that names the same path means it. */
static const char default_socket[] = PSC_DEFAULT_SOCKET;

bool options_have_default_socket(const struct psc_options *o)
{
    return o->socket == NULL || o->socket == default_socket;
}

void psc_options_init(struct psc_options *o, size_t size)
{
    const struct psc_options defaults = {
        .size = (uint32_t)ps_min_u64(size, sizeof(*o)),
        .rank = PSC_RANK_ANY,
        .socket = default_socket,
        .job = "default",
        .num_workers = 1,
        .num_servers = 1,
        .mode = PSC_MODE_SYNC,
        .on_loss = PSC_ON_LOSS_FAIL,
        .placement = PSC_PLACEMENT_BALANCED,
        .partition_bytes = 0,
        .big_array_bound = 1000000,
        .connect_timeout_ms = 10000,
        .start_timeout_ms = 120000,
        .op_timeout_ms = 0,
        .close_timeout_ms = 10000,
        .agent_retry_ms = 60000,
    };

    if (o == NULL) {
        return;
    }
    /* A caller built with a later header has more fields: zero is the default
     * of every field that this library does not know. */
    if (size > sizeof(*o)) {
        memset((char *)o + sizeof(*o), 0, size - sizeof(*o));
    }
    memcpy(o, &defaults, ps_min_u64(size, sizeof(*o)));
}

/* ------------------------------------------------------------------- ranges */

/* Longest busy poll, in microseconds; a longer one would delay messages of the
 * socket. */
#define SPIN_MAX_US 1000000

/* Checks the numbers of ranks, servers and replicas, and the weight. */
static int check_sizes(const struct psc_options *o, char *err, size_t size)
{
    if (o->num_workers == 0 || o->num_workers > PS_RANKS_MAX) {
        return client_open_error(err, size, PSC_E_INVAL,
                                 "num_workers is %u, but must be from 1 to %u",
                                 o->num_workers, PS_RANKS_MAX);
    }
    if (o->num_servers > PS_SERVERS_MAX) {
        return client_open_error(err, size, PSC_E_INVAL,
                                 "num_servers is %u, but must be at most %u",
                                 o->num_servers, PS_SERVERS_MAX);
    }
    if (o->rank < PSC_RANK_ANY ||
        (o->rank >= 0 && (uint32_t)o->rank >= o->num_workers)) {
        return client_open_error(
            err, size, PSC_E_INVAL,
            "rank %d is out of range: the job has %u workers", o->rank,
            o->num_workers);
    }
    if (o->weight > PS_JOB_WEIGHT_MAX) {
        return client_open_error(err, size, PSC_E_INVAL,
                                 "weight is %u, but must be from 1 to %u",
                                 o->weight, PS_JOB_WEIGHT_MAX);
    }
    if (o->replicas > PS_REPLICAS_MAX) {
        return client_open_error(err, size, PSC_E_INVAL,
                                 "replicas is %u, but must be 1 or 2",
                                 o->replicas);
    }
    return 0;
}

/* Checks the mode, with the options that depend on it. */
static int check_mode(const struct psc_options *o, char *err, size_t size)
{
    if (o->mode > PSC_MODE_SSP || o->on_loss > PSC_ON_LOSS_FAIL ||
        o->placement > PSC_PLACEMENT_MXNET) {
        return client_open_error(err, size, PSC_E_INVAL,
                                 "no such mode, on_loss or placement");
    }
    if (o->rule != PSC_RULE_NONE &&
        (o->mode == PSC_MODE_SYNC ||
         (o->rule != PSC_RULE_ACCUMULATE && o->rule != PSC_RULE_ASSIGN))) {
        return client_open_error(err, size, PSC_E_INVAL,
                                 "a rule is accumulate or assign, and applies "
                                 "to async and ssp jobs only");
    }
    if (o->staleness != 0 && o->mode != PSC_MODE_SSP) {
        return client_open_error(err, size, PSC_E_INVAL,
                                 "staleness applies to ssp jobs only");
    }
    if (o->mode != PSC_MODE_SYNC && o->num_servers == 0) {
        return client_open_error(
            err, size, PSC_E_INVAL,
            "an async or ssp job needs at least one server: servers "
            "apply its pushes");
    }
    return 0;
}

int options_check(const struct psc_options *o, char *err, size_t size)
{
    size_t name = o->job != NULL ? strlen(o->job) : 0;
    int rc;

    if (name == 0 || name > PS_NAME_MAX) {
        return client_open_error(err, size, PSC_E_INVAL,
                                 "the job's name must have 1 to %u bytes",
                                 PS_NAME_MAX);
    }
    rc = check_sizes(o, err, size);
    if (rc == 0) {
        rc = check_mode(o, err, size);
    }
    if (rc != 0) {
        return rc;
    }
    if ((o->flags & ~PSC_OPEN_QUIET) != 0) {
        return client_open_error(err, size, PSC_E_INVAL, "no such flags as %#x",
                                 o->flags);
    }
    if (o->start_timeout_ms < 0 || o->connect_timeout_ms < 0 ||
        o->op_timeout_ms < 0 || o->close_timeout_ms < 0 ||
        o->agent_retry_ms < 0) {
        return client_open_error(err, size, PSC_E_INVAL,
                                 "a time limit must not be negative");
    }
    if (o->spin_us > SPIN_MAX_US) {
        return client_open_error(err, size, PSC_E_INVAL,
                                 "spin_us is %d, but must be at most %d",
                                 o->spin_us, SPIN_MAX_US);
    }
    return 0;
}

bool options_allow_reattach(const struct psc_options *o)
{
    return o->num_servers > 0 && o->mode == PSC_MODE_SYNC &&
           o->on_loss == PSC_ON_LOSS_WAIT && o->agent_retry_ms > 0;
}

/* ------------------------------------------------------------- environment */

struct reader {
    char *err;
    size_t err_size;
    int rc;
};

static const char *variable_text(const char *name)
{
    const char *v = getenv(name);

    return v != NULL && v[0] != '\0' ? v : NULL;
}

static void refuse_option(struct reader *r, const char *name, const char *value,
                          const char *want)
{
    if (r->rc == 0 && r->err != NULL && r->err_size > 0) {
        snprintf(r->err, r->err_size, "%s is '%.64s', but must be %s", name,
                 value, want);
    }
    r->rc = PSC_E_INVAL;
}

/* True if the variable is set to a number in the range. */
static bool variable_number(struct reader *r, const char *name, uint64_t least,
                            uint64_t most, uint64_t *ret)
{
    const char *text = variable_text(name);
    unsigned long long v;
    char want[64];
    char *end;

    if (text == NULL) {
        return false;
    }
    errno = 0;
    v = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 ||
        v < least || v > most) {
        snprintf(want, sizeof(want), "a number from %llu to %llu",
                 (unsigned long long)least, (unsigned long long)most);
        refuse_option(r, name, text, want);
        return false;
    }
    *ret = v;
    return true;
}

static void read_u32(struct reader *r, const char *name, uint32_t least,
                     uint32_t most, uint32_t *ret)
{
    uint64_t v;

    if (variable_number(r, name, least, most, &v)) {
        *ret = (uint32_t)v;
    }
}

/* Reads a time in seconds or with a unit: "250ms", "30s", "5m". */
static void read_time(struct reader *r, const char *name, int32_t *ret_ms)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {
        {"", 1000}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};
    const char *text = variable_text(name);
    char *end;
    double v;

    if (text == NULL) {
        return;
    }
    v = strtod(text, &end);
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (end != text && strcmp(end, units[i].unit) == 0 && v >= 0 &&
            v * units[i].ms <= INT32_MAX) {
            *ret_ms = (int32_t)(v * units[i].ms);
            return;
        }
    }
    refuse_option(r, name, text, "a time such as 30s or 500ms");
}

/* Reads a time; 0 means never, which the option stores as -1. */
static void read_notes(struct reader *r, const char *name, int32_t *ret_ms)
{
    const char *text = variable_text(name);
    int32_t ms = -1;

    if (text != NULL && strcmp(text, "auto") == 0) {
        *ret_ms = 0;
    } else if (text != NULL) {
        read_time(r, name, &ms);
        *ret_ms = ms == 0 ? -1 : ms;
    }
}

/* Reads microseconds; 0 means never, which the option stores as -1. */
static void read_spin(struct reader *r, const char *name, int32_t *ret_us)
{
    const char *text = variable_text(name);
    uint64_t v;

    if (text != NULL && strcmp(text, "auto") == 0) {
        *ret_us = 0;
    } else if (variable_number(r, name, 0, SPIN_MAX_US, &v)) {
        *ret_us = v == 0 ? -1 : (int32_t)v;
    }
}

struct option_word {
    const char *text;
    uint32_t value;
};

static void read_word(struct reader *r, const char *name,
                      const struct option_word *words, size_t count,
                      const char *want, uint32_t *ret)
{
    const char *text = variable_text(name);

    if (text == NULL) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, words[i].text) == 0) {
            *ret = words[i].value;
            return;
        }
    }
    refuse_option(r, name, text, want);
}

/* Launchers, in order of preference. A rank counts only together with its size,
 * because a stray RANK in the environment is common. */
static const struct {
    const char *rank;
    const char *size;
} launchers[] = {
    {"RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"SLURM_PROCID", "SLURM_NTASKS"},
    {"PMI_RANK", "PMI_SIZE"},
};

static void read_launcher(struct reader *r, struct psc_options *o,
                          bool size_known, bool rank_known)
{
    const char *other = NULL; /* Size that differs from the stated one. */
    char want[80];

    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        uint64_t rank;
        uint64_t size;

        if (variable_text(launchers[i].rank) == NULL ||
            variable_text(launchers[i].size) == NULL) {
            continue;
        }
        if (!variable_number(r, launchers[i].size, 1, PS_RANKS_MAX, &size) ||
            !variable_number(r, launchers[i].rank, 0, size - 1, &rank)) {
            return;
        }
        if (size_known && size != o->num_workers) {
            other = other == NULL && size > 1 ? launchers[i].size : other;
            continue; /* Set by another launch. */
        }
        if (!rank_known) {
            o->rank = (int32_t)rank;
        }
        o->num_workers = (uint32_t)size;
        return;
    }
    /* Ranks by arrival would make several jobs of these processes. */
    if (other != NULL && !rank_known) {
        snprintf(want, sizeof(want),
                 "%u, the stated number of workers; correct one, or unset it",
                 o->num_workers);
        refuse_option(r, other, variable_text(other), want);
    }
}

static void read_ranks(struct reader *r, struct psc_options *o)
{
    static const char *const sizes[] = {"PSKV_NUM_WORKERS", "DMLC_NUM_WORKER"};
    static const char *const ranks[] = {"PSKV_RANK", "DMLC_WORKER_ID",
                                        "DMLC_RANK", "DMLC_TASK_ID"};
    static const char index[] = "JOB_COMPLETION_INDEX"; /* Kubernetes. */
    bool size_known = false;
    bool rank_known = false;
    uint64_t v;

    for (size_t i = 0; i < 2 && !size_known; i++) {
        size_known = variable_number(r, sizes[i], 1, PS_RANKS_MAX, &v);
        if (size_known) {
            o->num_workers = (uint32_t)v;
        }
    }
    for (size_t i = 0; i < 4 && !rank_known; i++) {
        rank_known = variable_number(r, ranks[i], 0, PS_RANKS_MAX - 1, &v);
        if (rank_known) {
            o->rank = (int32_t)v;
        }
    }
    if (r->rc == 0 && (!size_known || !rank_known)) {
        read_launcher(r, o, size_known, rank_known);
        rank_known = rank_known || o->rank != PSC_RANK_ANY;
    }
    if (r->rc == 0 && size_known && !rank_known &&
        variable_number(r, index, 0, o->num_workers - 1, &v)) {
        o->rank = (int32_t)v;
    }
}

/* In MXNet's store this variable makes a program the scheduler or a server;
 * here these are daemons. */
static void read_role(struct reader *r)
{
    const char *role = variable_text("DMLC_ROLE");

    if (role != NULL && strcmp(role, "worker") != 0) {
        refuse_option(r, "DMLC_ROLE", role,
                      "worker in a training process; start psched or psserver "
                      "instead");
    }
}

/* Elements of 4 bytes, as in MXNet's store with priorities. */
static void read_slice(struct reader *r, struct psc_options *o)
{
    uint64_t v;

    if (variable_number(r, "MXNET_KVSTORE_SLICE_THRESHOLD",
                        PS_PARTITION_BYTES_MIN / 4, PS_PARTITION_BYTES_MAX / 4,
                        &v)) {
        o->partition_bytes = (uint32_t)v * 4;
    }
}

static void read_all(struct reader *r, struct psc_options *o)
{
    static const struct option_word modes[] = {
        {"sync", PSC_MODE_SYNC},
        {"dist", PSC_MODE_SYNC},
        {"dist_sync", PSC_MODE_SYNC},
        {"dist_sync_device", PSC_MODE_SYNC},
        {"dist_device_sync", PSC_MODE_SYNC},
        {"dist_sync_mpi", PSC_MODE_SYNC},
        {"async", PSC_MODE_ASYNC},
        {"dist_async", PSC_MODE_ASYNC},
        {"dist_async_device", PSC_MODE_ASYNC},
        {"dist_device_async", PSC_MODE_ASYNC},
        {"ssp", PSC_MODE_SSP},
        {"dist_ssp", PSC_MODE_SSP}};
    static const struct option_word rules[] = {
        {"none", PSC_RULE_NONE},
        {"accumulate", PSC_RULE_ACCUMULATE},
        {"assign", PSC_RULE_ASSIGN}};
    static const struct option_word losses[] = {{"wait", PSC_ON_LOSS_WAIT},
                                                {"fail", PSC_ON_LOSS_FAIL}};
    static const struct option_word placements[] = {
        {"balanced", PSC_PLACEMENT_BALANCED}, {"mxnet", PSC_PLACEMENT_MXNET}};
    const char *text = variable_text("PSKV_SOCKET");
    uint64_t v;

    if (text != NULL) {
        o->socket = text;
    }
    text = variable_text("PSKV_JOB");
    if (text != NULL) {
        o->job = text;
    }
    text = variable_text("PSKV_TOKEN_FILE");
    if (text != NULL) {
        o->token_file = text;
    }
    read_role(r);
    read_ranks(r, o);
    read_slice(r, o);
    read_u32(r, "DMLC_NUM_SERVER", 0, PS_SERVERS_MAX, &o->num_servers);
    read_u32(r, "PSKV_NUM_SERVERS", 0, PS_SERVERS_MAX, &o->num_servers);
    read_word(r, "PSKV_MODE", modes, sizeof(modes) / sizeof(modes[0]),
              "dist_sync, dist_async, dist_ssp or another name of these",
              &o->mode);
    read_word(r, "PSKV_RULE", rules, 3, "none, accumulate or assign", &o->rule);
    read_u32(r, "PSKV_STALENESS", 0, UINT32_MAX, &o->staleness);
    read_u32(r, "PSKV_WEIGHT", 1, PS_JOB_WEIGHT_MAX, &o->weight);
    read_u32(r, "PSKV_REPLICAS", 1, PS_REPLICAS_MAX, &o->replicas);
    read_word(r, "PSKV_ON_LOSS", losses, 2, "wait or fail", &o->on_loss);
    read_word(r, "PSKV_PLACEMENT", placements, 2, "balanced or mxnet",
              &o->placement);
    read_u32(r, "PSKV_PARTITION_BYTES", PS_PARTITION_BYTES_MIN,
             PS_PARTITION_BYTES_MAX, &o->partition_bytes);
    if (variable_number(r, "PSKV_BIG_ARRAY_BOUND", 1, UINT32_MAX, &v) ||
        variable_number(r, "MXNET_KVSTORE_BIGARRAY_BOUND", 1, UINT32_MAX, &v)) {
        o->big_array_bound = v;
    }
    read_time(r, "PSKV_CONNECT_TIMEOUT", &o->connect_timeout_ms);
    read_time(r, "PSKV_START_TIMEOUT", &o->start_timeout_ms);
    read_time(r, "PSKV_OP_TIMEOUT", &o->op_timeout_ms);
    read_time(r, "PSKV_CLOSE_TIMEOUT", &o->close_timeout_ms);
    read_time(r, "PSKV_AGENT_RETRY", &o->agent_retry_ms);
    read_notes(r, "PSKV_WAIT_NOTES", &o->wait_notes_ms);
    read_spin(r, "PSKV_SPIN", &o->spin_us);
}

/* Warns of unknown PSKV_ variables such as PSKV_NUM_WORKER, on standard error,
 * once in the life of the process: a misspelled name would silently give the
 * job the wrong size. pslaunch has checked the names that its workers get. */
static void warn_unknown_variables(void)
{
    static atomic_flag is_warned = ATOMIC_FLAG_INIT;
    const char *near = NULL;
    const char *entry;
    size_t cursor = 0;

    if (atomic_flag_test_and_set(&is_warned) ||
        variable_text("PSKV_LAUNCHER") != NULL) {
        return;
    }
    while ((entry = ps_variables_unknown(environ, &cursor, &near)) != NULL) {
        fprintf(stderr,
                "pskv: %.*s has no effect, there is no such variable%s%s%s\n",
                (int)strcspn(entry, "="), entry,
                near != NULL ? "; did you mean " : "", near != NULL ? near : "",
                near != NULL ? "?" : "");
    }
}

int psc_options_env(struct psc_options *o, char *err, size_t err_size)
{
    struct reader r = {.err = err, .err_size = err_size};
    struct psc_options read;

    if (o == NULL) {
        return PSC_E_INVAL;
    }
    psc_options_init(&read, sizeof(read));
    memcpy(&read, o, ps_min_u64(o->size, sizeof(read)));
    warn_unknown_variables();
    read_all(&r, &read);
    if (r.rc == 0) {
        memcpy(o, &read, ps_min_u64(o->size, sizeof(read)));
    }
    return r.rc;
}
