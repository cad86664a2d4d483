/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler machine: admission of keys, and the release of refused ones. */
#include "sched_world.h"

static const struct ps_msg_key_opened *answer(const struct peer *p)
{
    return &last_msg(p, PS_MSG_KEY_OPENED)->key_opened;
}

static uint32_t server_of(const struct peer *p)
{
    for (uint32_t i = p->count; i > 0; i--) {
        if (p->inbox[i - 1].msg->code == PS_MSG_KEY_OPENED) {
            uint32_t node;

            memcpy(&node, ps_slice_data(&p->inbox[i - 1].packet->slices[0]),
                   sizeof(node));
            return node;
        }
    }
    return 0;
}

static void close_key(const struct job *j, uint32_t agent, uint32_t key,
                      uint64_t request)
{
    deliver_msg(
        j->w, j->a[agent],
        (struct ps_msg){
            .code = PS_MSG_KEY_CLOSE,
            .key_close = {.gen = j->gen, .key = key, .request = request}});
}

/* ----------------------------------------------------------------- undoing */

/* Nothing remains of a key for which its agent had no memory: neither its name
 * nor its weight in the placement of other keys. */
static void key_that_its_agent_closes_is_removed(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "huge", 250000);
    assert_int_equal(answer(j.a[0])->error, 0);
    assert_int_equal(server_of(j.a[0]), j.s[0]->node);
    close_key(&j, 0, 0, 1);
    /* The first server is empty again. */
    open_key(j.w, j.a[1], j.gen, 1, "b", 10);
    assert_int_equal(answer(j.a[1])->error, 0);
    assert_int_equal(answer(j.a[1])->key, 1);
    assert_int_equal(server_of(j.a[1]), j.s[0]->node);
    /* The name is free for another array. */
    open_key(j.w, j.a[0], j.gen, 2, "huge", 20);
    assert_int_equal(answer(j.a[0])->error, 0);
    assert_int_equal(answer(j.a[0])->key, 2);
    /* The job, two keys, and two servers with partitions of it. */
    assert_int_equal(ps_sched_residue(j.w->sched), 1 + 2 + 2);
    finish_job(&j);
}

static void key_that_another_agent_has_is_kept(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", 100);
    open_key(j.w, j.a[1], j.gen, 1, "w", 100);
    close_key(&j, 0, 0, 1);
    open_key(j.w, j.a[0], j.gen, 2, "w", 101);
    assert_int_equal(answer(j.a[0])->error, PS_E_MISMATCH);
    close_key(&j, 0, 0, 1); /* The agent has no such key to close. */
    open_key(j.w, j.a[0], j.gen, 3, "w", 100);
    assert_int_equal(answer(j.a[0])->key, 0);
    close_key(&j, 0, 0, 3);
    close_key(&j, 1, 0, 1);
    close_key(&j, 1, 0, 1);
    close_key(&j, 1, 7, 1);
    open_key(j.w, j.a[1], j.gen, 2, "w", 101);
    assert_int_equal(answer(j.a[1])->error, 0);
    finish_job(&j);
}

/* Links keep no order. */
static void late_close_of_a_key_is_ignored(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", 100);
    open_key(j.w, j.a[0], j.gen, 5, "w", 100);
    close_key(&j, 0, 0, 1);
    open_key(j.w, j.a[1], j.gen, 1, "w", 101);
    assert_int_equal(answer(j.a[1])->error, PS_E_MISMATCH);
    close_key(&j, 0, 0, 5);
    open_key(j.w, j.a[1], j.gen, 2, "w", 101);
    assert_int_equal(answer(j.a[1])->error, 0);
    finish_job(&j);
}

/* ------------------------------------------------------------------ tables */

static void limit(enum ps_account_kind kind, enum ps_cost cost, uint64_t max,
                  const char *option)
{
    world_limits[kind].limit[cost] = (struct ps_account_limit){max, option};
}

static void keys_and_partitions_of_a_job_are_limited(void **state)
{
    struct job j;

    (void)state;
    limit(PS_ACCOUNT_JOB, PS_COST_KEYS, 3, "limits.job.keys");
    limit(PS_ACCOUNT_JOB, PS_COST_PARTITIONS, 8, "limits.job.partitions");
    j = start_job(PS_LOSS_POLICY_WAIT);
    open_key(j.w, j.a[0], j.gen, 1, "w0", 4 * 262144);
    assert_int_equal(answer(j.a[0])->error, 0);
    open_key(j.w, j.a[0], j.gen, 2, "w1", 5 * 262144);
    assert_int_equal(answer(j.a[0])->error, PS_E_FULL);
    assert_string_equal(answer(j.a[0])->text,
                        "key 'w1' is one too many: job train has 4 of 8 "
                        "partitions and needs 5 more (limits.job.partitions)");
    /* Nothing of it is left: not even its partitions. */
    open_key(j.w, j.a[0], j.gen, 3, "w1", 4 * 262144);
    assert_int_equal(answer(j.a[0])->error, 0);
    assert_int_equal(answer(j.a[0])->key, 1);
    close_key(&j, 0, 1, 3);
    open_key(j.w, j.a[0], j.gen, 4, "w2", 1);
    open_key(j.w, j.a[0], j.gen, 5, "w3", 1);
    assert_int_equal(answer(j.a[0])->error, 0);
    open_key(j.w, j.a[0], j.gen, 6, "w4", 1);
    assert_string_equal(answer(j.a[0])->text,
                        "key 'w4' is one too many: job train has 3 of 3 keys "
                        "(limits.job.keys)");
    /* A key that exists costs nothing more. */
    open_key(j.w, j.a[1], j.gen, 1, "w3", 1);
    assert_int_equal(answer(j.a[1])->error, 0);
    finish_job(&j);
    memset(world_limits, 0, sizeof(world_limits));
}

static void limits_of_a_user_cover_all_jobs(void **state)
{
    struct job j;
    uint64_t gen;

    (void)state;
    limit(PS_ACCOUNT_USER, PS_COST_KEYS, 2, "limits.user.keys");
    limit(PS_ACCOUNT_DAEMON, PS_COST_MEMORY, 4096, "limits.daemon.memory");
    j = start_job(PS_LOSS_POLICY_WAIT);
    open_key(j.w, j.a[0], j.gen, 1, "w0", 1);
    open_key(j.w, j.a[0], j.gen, 2, "w1", 1);
    assert_int_equal(answer(j.a[0])->error, 0);
    for (uint32_t uid = 7; uid <= 8; uid++) {
        struct ps_msg msg = make_job_open(9 + uid, 1, 1, -1);

        msg.job_open.name = uid == 7 ? "more" : "others";
        msg.job_open.uid = uid;
        deliver_msg(j.w, j.a[0], msg);
        gen = last_job_opened(j.a[0])->gen;
        open_key(j.w, j.a[0], gen, 3, "w0", 1);
        if (uid == 7) {
            assert_string_equal(answer(j.a[0])->text,
                                "key 'w0' is one too many: user 7 has 2 of 2 "
                                "keys (limits.user.keys)");
        } else {
            assert_int_equal(answer(j.a[0])->error, 0);
            open_key(j.w, j.a[0], gen, 4, "w1", 600 * 262144);
            expect_substring(answer(j.a[0])->text,
                             "KiB more (limits.daemon.memory)");
        }
        deliver_worker_gone(j.w, j.a[0], gen, 9 + uid, true);
    }
    finish_job(&j);
    memset(world_limits, 0, sizeof(world_limits));
}

/* Without memory for a table of half a megabyte the key is refused to its
 * caller, without another effect. */
static void key_without_memory_for_its_table_is_refused(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    uint32_t refusals = 0;

    (void)state;
    for (uint64_t n = 1; n < 40; n++) {
        ps_alloc_fail_at(n, 0);
        open_key(j.w, j.a[0], j.gen, n, "w", 600 * 262144);
        ps_alloc_fail_at(0, 0);
        if (answer(j.a[0])->error == 0) {
            close_key(&j, 0, answer(j.a[0])->key, n);
            continue;
        }
        assert_int_equal(answer(j.a[0])->error, PS_E_NOMEM);
        expect_substring(
            answer(j.a[0])->text,
            "key 'w' cannot be opened now: the scheduler has no memory "
            "for its table of partitions");
        refusals++;
    }
    assert_int_equal(refusals, 2);
    assert_int_equal(ps_sched_residue(j.w->sched), 1);
    open_key(j.w, j.a[0], j.gen, 99, "w", 600 * 262144);
    assert_int_equal(answer(j.a[0])->error, 0);
    finish_job(&j);
}

/* ------------------------------------------------------------------ memory */

#define KIB   UINT64_C(1024)
#define MIB   (1024 * KIB)
/* Bytes of a server's tables for a partition. */
#define TABLE UINT64_C(512)

/* As running(), with servers of this memory. */
static struct job running_with(uint64_t memory)
{
    struct job j = {.w = world_new()};

    for (int i = 0; i < 2; i++) {
        j.s[i] = peer_new(j.w, PS_ROLE_SERVER, i == 0 ? "s0" : "s1");
        j.s[i]->memory = memory;
        connect_peer(j.w, j.s[i]);
    }
    j.a[0] = join_peer(j.w, PS_ROLE_AGENT, "a0");
    j.a[1] = join_peer(j.w, PS_ROLE_AGENT, "a1");
    for (uint64_t i = 0; i < 4; i++) {
        deliver_msg(j.w, j.a[i / 2], make_job_open(1 + i % 2, 4, 2, -1));
    }
    j.gen = last_job_opened(j.a[0])->gen;
    for (int i = 0; i < 4; i++) {
        deliver_job_ready(j.w, j.s[i % 2]);
    }
    return j;
}

static struct ps_msg set_optimizer(const struct job *j, uint64_t request,
                                   const char *name)
{
    return (struct ps_msg){
        .code = PS_MSG_OPTIMIZER_SET,
        .optimizer_set = {.gen = j->gen, .request = request, .name = name}};
}

/* Partitions of about 1 MiB: two values each, and a contribution of each of two
 * slots to two of them. */
static void a_key_beyond_the_servers_memory_is_refused(void **state)
{
    struct job j = running_with(12 * MIB + 64 * KIB);

    (void)state;
    /* Two partitions on each server: 4 MiB, and 4 MiB for rounds. */
    open_key(j.w, j.a[0], j.gen, 1, "w0", MIB);
    assert_int_equal(answer(j.a[0])->error, 0);
    open_key(j.w, j.a[0], j.gen, 2, "w1", MIB);
    assert_int_equal(answer(j.a[0])->error, 0);
    open_key(j.w, j.a[0], j.gen, 3, "w2", MIB / 4);
    assert_int_equal(answer(j.a[0])->error, PS_E_FULL);
    expect_substring(
        answer(j.a[0])->text,
        "key 'w2' does not fit on server s0: job train would need 2.0 "
        "MiB more there, for values, the optimizer's state and open "
        "rounds, and 62.0 KiB of 12.1 MiB are free; raise store.memory");
    /* Nothing of it is left: the name and the memory are free. */
    close_key(&j, 0, 1, 2);
    open_key(j.w, j.a[0], j.gen, 4, "w2", MIB / 2);
    assert_int_equal(answer(j.a[0])->error, 0);
    assert_int_equal(answer(j.a[0])->key, 2);
    finish_job(&j);
}

static void an_optimizer_beyond_the_servers_memory_is_refused(void **state)
{
    struct job j = running_with(14 * MIB + 64 * KIB);

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w0", 2 * MIB);
    assert_int_equal(answer(j.a[0])->error, 0); /* 8 MiB, and 4. */
    deliver_msg(j.w, j.a[0], set_optimizer(&j, 1, "adam"));
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error,
        PS_E_FULL);
    expect_substring(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.text,
        "optimizer adam does not fit on server s0: job train would need "
        "8.0 MiB more there");
    deliver_msg(j.w, j.a[0], set_optimizer(&j, 2, "sgd"));
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    assert_int_equal(
        last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done.error, 0);
    finish_job(&j);
}

/* Keys of collectives may exist before it. */
static void compression_beyond_the_servers_memory_is_refused(void **state)
{
    struct job j = running_with(14 * MIB + 64 * KIB);
    static const struct ps_rec_param both = {"both", 1};
    struct ps_msg set = {.code = PS_MSG_COMPRESSION_SET,
                         .compression_set = {.gen = j.gen,
                                             .request = 1,
                                             .name = "fp16",
                                             .params = &both,
                                             .params_count = 1}};
    const struct ps_msg_optimizer_done *d;

    (void)state;
    open_kind(j.w, j.a[0], j.gen,
              &(struct ps_msg_key_open){.kind = PS_KEY_KIND_COLLECTIVE,
                                        .request = 1,
                                        .name = "sum",
                                        .count = 2 * MIB});
    assert_int_equal(answer(j.a[0])->error, 0); /* 8 MiB, and 4. */
    deliver_msg(j.w, j.a[0], set);
    d = &last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done;
    assert_int_equal(d->error, PS_E_FULL);
    expect_substring(d->text, "compression fp16 does not fit on server s0: "
                              "job train would need ");
    /* One that keeps nothing on servers fits; nothing is left of it all. */
    set.compression_set.params_count = 0;
    set.compression_set.request = 2;
    deliver_msg(j.w, j.a[0], set);
    deliver_job_ready(j.w, j.s[0]);
    deliver_job_ready(j.w, j.s[1]);
    d = &last_msg(j.a[0], PS_MSG_OPTIMIZER_DONE)->optimizer_done;
    assert_int_equal(d->error, 0);
    close_key(&j, 0, 0, 1);
    open_key(j.w, j.a[0], j.gen, 3, "w", 2 * MIB);
    assert_int_equal(answer(j.a[0])->error, 0);
    finish_job(&j);
}

/* Servers free the memory at the failure; workers may leave much later. */
static void failed_job_frees_its_quota_at_once(void **state)
{
    struct job j = running_with(12 * MIB);
    struct peer *ctl = join_peer(j.w, PS_ROLE_CTL, "ctl");
    uint32_t servers = 0;

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", MIB);
    assert_int_equal(answer(j.a[0])->error, 0);
    deliver_msg(j.w, j.s[0],
                (struct ps_msg){.code = PS_MSG_VALUE_LOST,
                                .value_lost = {.gen = j.gen, .version = 1}});
    assert_int_equal(last_job_state(j.a[0])->phase, PS_JOB_PHASE_FAILED);
    deliver_msg(j.w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_NODES, .job = ""}});
    for (uint32_t i = 0; i < ctl->count; i++) {
        if (ctl->inbox[i].msg->code == PS_MSG_NODE_ROW) {
            assert_int_equal(ctl->inbox[i].msg->node_row.memory_reserved, 0);
            servers += ctl->inbox[i].msg->node_row.memory_limit == 12 * MIB;
        }
    }
    assert_int_equal(servers, 2);
    finish_job(&j);
}

static void keys_of_a_lost_server_must_fit_on_the_others(void **state)
{
    for (uint64_t memory = 16; memory <= 24; memory += 8) {
        struct job j = running_with(memory * MIB + 64 * KIB);

        (void)state;
        open_key(j.w, j.a[0], j.gen, 1, "w0", 2 * MIB);
        assert_int_equal(answer(j.a[0])->error, 0);
        lose_conn(j.w, j.s[1]);
        advance_time(j.w, PS_SECONDS(3));
        if (memory == 24) {
            assert_int_equal(last_job_state(j.a[0])->phase,
                             PS_JOB_PHASE_RUNNING);
        } else {
            assert_int_equal(last_job_state(j.a[0])->phase,
                             PS_JOB_PHASE_FAILED);
            expect_substring(last_job_state(j.a[0])->reason,
                             "server s1 was lost: ");
            expect_substring(
                last_job_state(j.a[0])->reason,
                "; what it held does not fit on server s0: job train "
                "would need 8.0 MiB more there");
        }
        finish_job(&j);
    }
}

/* Servers get the quotas of jobs, changes within a short time together. */
static void servers_get_the_quotas_of_jobs(void **state)
{
    struct job j = running_with(64 * MIB);
    const struct ps_msg_job_quota *r;

    (void)state;
    for (uint64_t i = 1; i <= 4; i++) {
        char name[8];

        snprintf(name, sizeof(name), "w%u", (unsigned)i);
        open_key(j.w, j.a[0], j.gen, i, name, MIB);
    }
    advance_time(j.w, PS_MILLIS(50));
    assert_int_equal(count_msgs(j.s[0], PS_MSG_JOB_QUOTA), 1);
    r = &last_msg(j.s[0], PS_MSG_JOB_QUOTA)->job_quota;
    assert_int_equal(r->gen, j.gen);
    assert_int_equal(r->bytes, 20 * MIB + 8 * TABLE);
    assert_int_equal(r->round_bytes, 4 * MIB);
    finish_job(&j);
}

/* Of large keys a server holds each value once, and 64 MiB of new ones. */
static void quota_counts_values_of_large_keys_once(void **state)
{
    struct job j = running_with(1124 * MIB);

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w0", 512 * MIB);
    assert_int_equal(answer(j.a[0])->error, 0);
    finish_job(&j);
}

/* A server without a stated limit gets keys without limit. */
static void server_without_a_memory_limit_admits_all_keys(void **state)
{
    struct job j = running_with(0);

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w0", 1024 * MIB);
    assert_int_equal(answer(j.a[0])->error, 0);
    finish_job(&j);
}

/* Reason of a wait if the server of the key has no memory, and its report to an
 * operator. */
static void a_full_server_is_named(void **state)
{
    struct job j = running_with(64 * MIB);
    struct peer *ctl;
    const struct ps_msg_node_row *n = NULL;

    (void)state;
    open_key(j.w, j.a[0], j.gen, 1, "w", MIB);
    deliver_unsequenced(j.w, j.s[0],
                        (struct ps_msg){.code = PS_MSG_PING,
                                        .ping = {.memory_used = 63 * MIB,
                                                 .memory_short = true}});
    deliver_msg(j.w, j.a[0],
                (struct ps_msg){
                    .code = PS_MSG_STALL_QUERY,
                    .stall_query = {.gen = j.gen, .request = 1, .round = 1}});
    for (int i = 0; i < 2; i++) {
        deliver_msg(j.w, j.a[i],
                    (struct ps_msg){
                        .code = PS_MSG_STALL_REPORT,
                        .stall_report = {
                            .gen = j.gen,
                            .request = last_msg(j.a[i], PS_MSG_STALL_COLLECT)
                                           ->stall_collect.request}});
    }
    assert_string_equal(
        last_msg(j.a[0], PS_MSG_STALL_REPLY)->stall_reply.other_causes,
        "memory on server s0, where 63.0 MiB of 64.0 MiB are taken");
    ctl = join_peer(j.w, PS_ROLE_CTL, "ctl");
    deliver_msg(j.w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_NODES, .job = ""}});
    for (uint32_t i = 0; i < ctl->count; i++) {
        if (ctl->inbox[i].msg->code == PS_MSG_NODE_ROW &&
            strcmp(ctl->inbox[i].msg->node_row.name, "s0") == 0) {
            n = &ctl->inbox[i].msg->node_row;
        }
    }
    assert_non_null(n);
    assert_true(n->memory_short);
    assert_int_equal(n->memory_limit, 64 * MIB);
    assert_int_equal(n->memory_used, 63 * MIB);
    assert_int_equal(n->memory_reserved, 8 * MIB + 2 * TABLE);
    finish_job(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(key_that_its_agent_closes_is_removed),
        cmocka_unit_test(key_that_another_agent_has_is_kept),
        cmocka_unit_test(late_close_of_a_key_is_ignored),
        cmocka_unit_test(keys_and_partitions_of_a_job_are_limited),
        cmocka_unit_test(limits_of_a_user_cover_all_jobs),
        cmocka_unit_test(key_without_memory_for_its_table_is_refused),
        cmocka_unit_test(a_key_beyond_the_servers_memory_is_refused),
        cmocka_unit_test(an_optimizer_beyond_the_servers_memory_is_refused),
        cmocka_unit_test(compression_beyond_the_servers_memory_is_refused),
        cmocka_unit_test(failed_job_frees_its_quota_at_once),
        cmocka_unit_test(keys_of_a_lost_server_must_fit_on_the_others),
        cmocka_unit_test(servers_get_the_quotas_of_jobs),
        cmocka_unit_test(quota_counts_values_of_large_keys_once),
        cmocka_unit_test(server_without_a_memory_limit_admits_all_keys),
        cmocka_unit_test(a_full_server_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
