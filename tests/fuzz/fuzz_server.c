/* SPDX-License-Identifier: Apache-2.0 */
/* The server machine with peers that send arbitrary messages. */
#include "fuzz.h"
#include "machine.h"

#include "base/pool.h"
#include "base/str.h"
#include "core/server/server.h"

static void destroy(void *self)
{
    ps_server_free(self);
}

/* Starts: a job and a linked agent of it; or also a partition with a value,
 * whose rows may be pushed and pulled. */
#define WITH_A_JOB   255u
#define WITH_A_VALUE 254u
#define COUNT        64u

enum { SCHED, AGENT };

static void play(struct fuzz_setup *setup, bool value, const uint8_t *data,
                 size_t size)
{
    static const float zeros[COUNT];
    static const struct ps_rec_part part = {
        .key = 1, .dtype = PS_DTYPE_FLOAT32, .count = COUNT};
    static const struct ps_msg init = {
        .code = PS_MSG_INIT,
        .seq = 1,
        .init = {.gen = 1, .parts = &part, .parts_count = 1}};
    static const struct ps_msg welcome = {
        .code = PS_MSG_WELCOME,
        .welcome = {.protocol = PS_PROTOCOL,
                    .name = "peer",
                    .instance = 1,
                    .node = 9,
                    .incarnation = 1,
                    .heartbeat_ns = PS_SECONDS(1)}};
    static const struct ps_msg hello = {
        .code = PS_MSG_HELLO,
        .hello = {.protocol = PS_PROTOCOL,
                  .protocol_least = PS_PROTOCOL_LEAST,
                  .role = PS_ROLE_AGENT,
                  .name = "node",
                  .cluster = "default",
                  .instance = 1,
                  .node = 1,
                  .incarnation = 1,
                  .session = 1,
                  .address = ""}};
    struct ps_rec_slot slots[3];
    const struct ps_msg job = {.code = PS_MSG_JOB_STATE,
                               .job_state = {.gen = 1,
                                             .version = 1,
                                             .name = "job",
                                             .phase = PS_JOB_PHASE_RUNNING,
                                             .num_workers = 3,
                                             .num_servers = 1,
                                             .slots = slots,
                                             .slots_count = 3,
                                             .reason = "",
                                             .optimizer = ""}};
    const struct fuzz_line line[] = {
        {SCHED, PS_CONN_DIALLED, &welcome, NULL, 0},
        {SCHED, PS_CONN_DIALLED, &job, NULL, 0},
        {AGENT, PS_CONN_ACCEPTED, &hello, NULL, 0},
        {AGENT, PS_CONN_ACCEPTED, &init, zeros, sizeof(zeros)},
    };

    for (uint32_t i = 0; i < 3; i++) {
        slots[i] = (struct ps_rec_slot){
            .node = 1 + i, .incarnation = 1, .ranks = 1, .instance = 1};
    }
    setup->line = line;
    setup->line_count = sizeof(line) / sizeof(line[0]) - !value;
    fuzz_machine(setup, data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ps_pool *pool = ps_pool_new(
        &(struct ps_pool_options){.budget = 8u << 20});
    struct ps_server_options o = {.instance = 1,
                                  .seed = 1,
                                  .dial_backoff_min = PS_MILLIS(10),
                                  .dial_backoff_max = PS_SECONDS(1),
                                  .link_linger = PS_MILLIS(100),
                                  .pool = pool};
    struct fuzz_setup setup = {.role = PS_ROLE_SERVER,
                               .accepts = PS_CONN_ACCEPTED,
                               .pools = {pool, NULL},
                               .destroy = destroy};

    ps_str_copy(o.name, sizeof(o.name), "node");
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    ps_str_copy(o.sched_address, sizeof(o.sched_address), "psched:1");
    ps_str_copy(o.address, sizeof(o.address), "node:1");
    setup.machine = ps_server_machine(ps_server_new(&o, PS_SECONDS(1)));
    if (size > 0 && data[0] >= WITH_A_VALUE) {
        play(&setup, data[0] == WITH_A_VALUE, data + 1, size - 1);
    } else {
        fuzz_machine(&setup, data, size);
    }
    return 0;
}
