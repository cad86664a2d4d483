/* SPDX-License-Identifier: Apache-2.0 */
/* The agent machine with peers that send arbitrary messages: training processes
 * on its socket from the first hello on, a scheduler and servers. */
#include "fuzz.h"
#include "machine.h"

#include "base/pool.h"
#include "base/str.h"
#include "core/agent/agent.h"
#include "proto/ps_fixed.h"

static void destroy(void *self)
{
    ps_agent_free(self);
}

static struct ps_pool *results_new(void *ctx)
{
    (void)ctx;
    return ps_pool_new(&(struct ps_pool_options){.budget = 8u << 20});
}

/* The first byte chooses the start: a job of one worker with a key and a
 * region, without a server or with one; a job that fails when it loses a
 * worker, so that arrays may be streamed, with a key of two parts; a job with a
 * rows key; or a job of two workers that have pushed without an init, so that
 * sums are running. */
#define WITHOUT_SERVERS 0xff
#define WITH_A_SERVER   0xfe
#define GROWS_WITHOUT   0xfd
#define GROWS_WITH      0xfc
#define OF_ROWS         0xfb
#define PUSHED          0xfa
#define WIDTH           8u

enum { SCHED, WORKER, SERVER, OTHER };
#define GEN         1u
#define AGENT_NODE  1u
#define SERVER_NODE 2u
#define COUNT       256u

static void play(struct fuzz_setup *setup, uint8_t how, const uint8_t *data,
                 size_t size)
{
    const uint32_t servers = how != WITHOUT_SERVERS && how != GROWS_WITHOUT;
    const uint32_t node = servers > 0 ? SERVER_NODE : 0;
    const bool grows = how == GROWS_WITHOUT || how == GROWS_WITH;
    const uint32_t parts = grows || how == PUSHED ? 2 : 1;
    const uint32_t workers = how == PUSHED ? 2 : 1;
    static const struct ps_msg welcome = {
        .code = PS_MSG_WELCOME,
        .welcome = {.protocol = PS_PROTOCOL,
                    .name = "peer",
                    .instance = 1,
                    .node = AGENT_NODE,
                    .incarnation = 1,
                    .heartbeat_ns = PS_SECONDS(1)}};
    static const struct ps_msg opened[] = {
        {.code = PS_MSG_JOB_OPENED,
         .job_opened = {.worker = 1, .text = "", .gen = GEN}},
        {.code = PS_MSG_JOB_OPENED,
         .job_opened = {.worker = 2, .text = "", .gen = GEN}}};
    const struct ps_msg l_key = {
        .code = PS_MSG_L_KEY,
        .l_key = {.request = 1,
                  .name = "w",
                  .dtype = PS_DTYPE_FLOAT32,
                  .count = COUNT,
                  .row_width = how == OF_ROWS ? WIDTH : 0,
                  .mxnet_key = -1}};
    const struct ps_msg key = {.code = PS_MSG_KEY_OPENED,
                               .key_opened = {.gen = GEN,
                                              .text = "",
                                              .epoch = 1,
                                              .parts = parts,
                                              .compression = ""}};
    const struct ps_rec_server server = {.node = SERVER_NODE,
                                         .name = "ps0",
                                         .incarnation = 1,
                                         .address = "ps0:1",
                                         .state = PS_NODE_STATE_ACTIVE};
    const struct ps_msg map = {
        .code = PS_MSG_MAP,
        .map = {.epoch = 1, .servers = &server, .servers_count = 1}};
    const struct ps_msg hello = {.code = PS_MSG_L_HELLO,
                                 .l_hello = {.protocol = PS_PROTOCOL,
                                             .job = "job",
                                             .num_workers = workers,
                                             .num_servers = servers,
                                             .on_loss = grows}};
    const struct ps_rec_slot slot = {
        .node = AGENT_NODE, .incarnation = 1, .ranks = workers};
    const struct ps_rec_rank ranks[] = {
        {.worker = 1, .state = PS_RANK_STATE_LIVE, .incarnation = 1},
        {.rank = 1,
         .worker = 2,
         .local_rank = 1,
         .state = PS_RANK_STATE_LIVE,
         .incarnation = 1}};
    const struct ps_msg job = {.code = PS_MSG_JOB_STATE,
                               .job_state = {.gen = GEN,
                                             .version = 1,
                                             .name = "job",
                                             .phase = PS_JOB_PHASE_RUNNING,
                                             .num_workers = workers,
                                             .num_servers = servers,
                                             .slots = &slot,
                                             .slots_count = 1,
                                             .ranks = ranks,
                                             .ranks_count = workers,
                                             .reason = "",
                                             .optimizer = ""}};
    static const struct ps_msg push = {
        .code = PS_MSG_L_OP,
        .l_op = {.op_id = 1, .op = PS_OP_PUSH, .region = 1, .round = 1}};
    const struct ps_fixed_placement_part part = {node, COUNT / parts};
    const struct ps_fixed_placement_part table[] = {part, part};
    struct fuzz_line line[20];
    uint32_t n = 0;

    line[n++] = (struct fuzz_line){SCHED, PS_CONN_DIALLED, &welcome, NULL, 0};
    line[n++] = (struct fuzz_line){SCHED, PS_CONN_DIALLED, &map, NULL, 0};
    line[n++] = (struct fuzz_line){WORKER, PS_CONN_LOCAL, &hello, NULL, 0};
    line[n++] = (struct fuzz_line){SCHED, PS_CONN_DIALLED, &opened[0], NULL, 0};
    if (workers > 1) {
        line[n++] = (struct fuzz_line){OTHER, PS_CONN_LOCAL, &hello, NULL, 0};
        line[n++] = (struct fuzz_line){SCHED, PS_CONN_DIALLED, &opened[1], NULL,
                                       0};
    }
    line[n++] = (struct fuzz_line){SCHED, PS_CONN_DIALLED, &job, NULL, 0};
    line[n++] = (struct fuzz_line){WORKER, PS_CONN_LOCAL, &l_key, NULL, 0};
    line[n++] = (struct fuzz_line){SCHED, PS_CONN_DIALLED, &key, table,
                                   (size_t)parts *
                                       PS_FIXED_PLACEMENT_PART_BYTES};
    line[n++] = (struct fuzz_line){WORKER, PS_CONN_LOCAL, NULL, NULL, 0};
    if (servers > 0) {
        line[n++] = (struct fuzz_line){SERVER, PS_CONN_DIALLED, &welcome, NULL,
                                       0};
    }
    if (how == PUSHED) {
        line[n++] = (struct fuzz_line){OTHER, PS_CONN_LOCAL, &l_key, NULL, 0};
        line[n++] = (struct fuzz_line){OTHER, PS_CONN_LOCAL, NULL, NULL, 0};
        line[n++] = (struct fuzz_line){WORKER, PS_CONN_LOCAL, &push, NULL, 0};
        line[n++] = (struct fuzz_line){OTHER, PS_CONN_LOCAL, &push, NULL, 0};
    }
    setup->line = line;
    setup->line_count = n;
    fuzz_machine(setup, data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ps_pool *sums = ps_pool_new(
        &(struct ps_pool_options){.budget = 8u << 20});
    struct ps_agent_options o = {.instance = 1,
                                 .seed = 1,
                                 .dial_backoff_min = PS_MILLIS(10),
                                 .dial_backoff_max = PS_SECONDS(1),
                                 .scratch_pool = sums,
                                 .result_pool_new = results_new};
    struct fuzz_setup setup = {.role = PS_ROLE_AGENT,
                               .accepts = PS_CONN_LOCAL,
                               .pools = {sums, NULL},
                               .destroy = destroy};

    ps_str_copy(o.name, sizeof(o.name), "node");
    ps_str_copy(o.cluster, sizeof(o.cluster), "default");
    ps_str_copy(o.sched_address, sizeof(o.sched_address), "psched:1");
    ps_str_copy(o.host, sizeof(o.host), "host");
    setup.machine = ps_agent_machine(ps_agent_new(&o, PS_SECONDS(1)));
    if (size > 0 && data[0] >= PUSHED) {
        play(&setup, data[0], data + 1, size - 1);
    } else {
        fuzz_machine(&setup, data, size);
    }
    return 0;
}
