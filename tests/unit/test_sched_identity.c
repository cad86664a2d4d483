/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler machine: a hello against the certificate of its peer. */
#include "sched_world.h"

static void expect(const struct ps_peer_identity *identity, enum ps_role role,
                   const char *reason)
{
    struct world *w = world_new();
    struct peer *p = peer_new(w, role, "n1");

    p->identity = identity;
    p->by_tcp = true;
    connect_peer(w, p);
    if (reason == NULL) {
        assert_int_not_equal(p->conn, 0);
        assert_non_null(last_msg(p, PS_MSG_WELCOME));
    } else {
        assert_string_equal(last_msg(p, PS_MSG_REJECT)->reject.text, reason);
        assert_int_equal(last_msg(p, PS_MSG_REJECT)->reject.error, PS_E_PERM);
    }
    world_free(w);
}

static void hello_agrees_with_the_certificate(void **state)
{
    const struct ps_peer_identity agent = {PS_ROLE_AGENT, "c", "n1"};
    const struct ps_peer_identity server = {PS_ROLE_SERVER, "c", "n1"};
    const struct ps_peer_identity ctl = {PS_ROLE_CTL, "c", "operator"};
    const struct ps_peer_identity other_name = {PS_ROLE_AGENT, "c", "n2"};
    const struct ps_peer_identity other_cluster = {PS_ROLE_AGENT, "d", "n1"};

    (void)state;
    expect(NULL, PS_ROLE_AGENT, NULL);
    expect(&agent, PS_ROLE_AGENT, NULL);
    expect(&server, PS_ROLE_SERVER, NULL);
    expect(&ctl, PS_ROLE_CTL, NULL);
    expect(&agent, PS_ROLE_SERVER,
           "its certificate is of role agent, not server");
    expect(&agent, PS_ROLE_CTL, "its certificate is of role agent, not ctl");
    expect(&ctl, PS_ROLE_AGENT, "its certificate is of role ctl, not agent");
    expect(&other_name, PS_ROLE_AGENT, "its certificate is of 'n2', not 'n1'");
    expect(&other_cluster, PS_ROLE_AGENT,
           "its certificate is of cluster 'd', not 'c'");
}

/* Servers compare them with what an agent says (rule H9a). */
static void servers_learn_the_names_of_agents(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    const struct ps_msg_job_state *m = last_job_state(j.s[0]);

    (void)state;
    assert_int_equal(m->slots_count, 2);
    for (uint32_t i = 0; i < m->slots_count; i++) {
        assert_string_equal(m->slots[i].name, j.a[i]->name);
        assert_true(m->slots[i].instance != 0);
    }
    m = last_job_state(j.a[0]);
    assert_string_equal(m->slots[1].name, "");
    assert_int_equal(m->slots[1].instance, 0);
    finish_job(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(servers_learn_the_names_of_agents),
        cmocka_unit_test(hello_agrees_with_the_certificate),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
