/* SPDX-License-Identifier: Apache-2.0 */
/* Rights of tools: every message that a tool may send, by every kind of user
 * and token. */
#include "sched_world.h"

#include "base/name_hash.h"

#include <inttypes.h>

#define ALL_RIGHTS 15u

/* ------------------------------------------------------------------ tokens
 *
 * A text is "token" and the place in this list. */

static struct ps_fixed_token_claims signed_claims[64];
static uint32_t signed_count;
static struct ps_token_record saved[PS_TOKENS_MAX];
static uint32_t saved_count;
static bool save_fails;

static bool fake_sign(void *arg, const struct ps_fixed_token_claims *claims,
                      char ret_text[PS_TOKEN_TEXT_MAX + 1])
{
    (void)arg;
    /* Later ones take the last place: nobody shows them. */
    snprintf(ret_text, PS_TOKEN_TEXT_MAX, "token%u", signed_count);
    signed_claims[signed_count] = *claims;
    signed_count += signed_count < 63;
    return true;
}

static bool fake_verify(void *arg, const char *text,
                        struct ps_fixed_token_claims *ret_claims)
{
    unsigned place;

    (void)arg;
    if (sscanf(text, "token%u", &place) != 1 || place >= signed_count) {
        return false;
    }
    *ret_claims = signed_claims[place];
    return true;
}

static bool fake_save(void *arg, const struct ps_token_record *list,
                      uint32_t count)
{
    (void)arg;
    if (save_fails) {
        return false;
    }
    memcpy(saved, list, count * sizeof(*list));
    saved_count = count;
    return true;
}

static const struct ps_token_ops fake_ops = {
    .sign = fake_sign, .verify = fake_verify, .save = fake_save};

static int set_up(void **state)
{
    (void)state;
    world_token_ops = &fake_ops;
    world_reading_needs_token = false;
    save_fails = false;
    signed_count = 0;
    saved_count = 0;
    return 0;
}

/* ------------------------------------------------------------------- tools */

static struct peer *tool_new(struct world *w, uint32_t uid, bool by_tcp,
                             const char *token)
{
    struct peer *ctl = peer_new(w, PS_ROLE_CTL, "");

    ctl->uid = uid;
    ctl->by_tcp = by_tcp;
    ctl->token = token;
    connect_peer(w, ctl);
    return ctl;
}

static void tool_free(struct world *w, struct peer *ctl)
{
    if (ctl->conn != 0) {
        lose_conn(w, ctl);
    }
    drop_inbox(ctl);
    ps_free(ctl->inbox);
    *ctl = (struct peer){0};
    w->peers--;
}

static struct ps_msg make_issue(uint32_t owner, uint32_t rights,
                                const char *job, uint64_t valid_s)
{
    return (struct ps_msg){.code = PS_MSG_TOKEN_ISSUE,
                           .token_issue = {.has_owner = true,
                                           .owner = owner,
                                           .rights = rights,
                                           .job = job,
                                           .valid_s = valid_s}};
}

/* Answer to the last request; NULL: none yet. */
static const struct ps_msg_query_end *answer(const struct peer *ctl)
{
    const struct ps_msg *msg = find_msg(ctl, PS_MSG_QUERY_END);

    return msg != NULL ? &last_msg(ctl, PS_MSG_QUERY_END)->query_end : NULL;
}

/* Issues a token as root; its number, and its text in `ret_text`. */
static uint64_t issue(struct world *w, const struct ps_msg *wish,
                      char ret_text[32])
{
    struct peer *root = tool_new(w, 0, false, NULL);
    uint64_t id;

    deliver_msg(w, root, *wish);
    assert_int_equal(answer(root)->error, 0);
    ps_str_copy(ret_text, 32, last_msg(root, PS_MSG_TOKEN_ROW)->token_row.text);
    id = last_msg(root, PS_MSG_TOKEN_ROW)->token_row.id;
    tool_free(w, root);
    return id;
}

static int revoke_as(struct world *w, uint32_t uid, uint64_t id)
{
    struct peer *ctl = tool_new(w, uid, false, NULL);
    int rc;

    deliver_msg(w, ctl,
                (struct ps_msg){.code = PS_MSG_TOKEN_REVOKE,
                                .token_revoke = {.id = id}});
    rc = answer(ctl)->error;
    tool_free(w, ctl);
    return rc;
}

/* ------------------------------------------------------------------ matrix */

/* Right that a message of a tool needs. */
enum need {
    NEED_READ,
    NEED_OPERATE,
    NEED_ISSUE,  /* A token of the job's owner. */
    NEED_MANAGE, /* That, listed or revoked. */
    NEED_LEVEL,  /* Operate, of an operator for all jobs. */
    NEEDS
};

/* Messages on the job "train" of user 7. */
static const struct {
    enum need need;
    struct ps_msg msg;
} requests[] = {
    {NEED_READ, {.code = PS_MSG_QUERY, .query = {.what = PS_QUERY_NODES}}},
    {NEED_READ, {.code = PS_MSG_QUERY, .query = {.what = PS_QUERY_JOBS}}},
    {NEED_READ, {.code = PS_MSG_QUERY, .query = {.what = PS_QUERY_KEYS}}},
    {NEED_READ, {.code = PS_MSG_QUERY, .query = {.what = PS_QUERY_STALL}}},
    {NEED_READ, {.code = PS_MSG_QUERY, .query = {.what = PS_QUERY_SHARES}}},
    {NEED_READ, {.code = PS_MSG_QUERY, .query = {.what = PS_QUERY_EVENTS}}},
    {NEED_READ,
     {.code = PS_MSG_QUERY,
      .query = {.what = PS_QUERY_REBALANCE_PLAN, .job = "train"}}},
    {NEED_READ, {.code = PS_MSG_TRACE_GET, .trace_get = {.job = "train"}}},
    {NEED_OPERATE,
     {.code = PS_MSG_QUERY,
      .query = {.what = PS_QUERY_REBALANCE, .job = "train"}}},
    {NEED_OPERATE,
     {.code = PS_MSG_QUERY,
      .query = {.what = PS_QUERY_REBALANCE,
                .job = "train",
                .drain_server = "s1"}}},
    {NEED_OPERATE, {.code = PS_MSG_JOB_CANCEL, .job_cancel = {.job = "train"}}},
    {NEED_OPERATE,
     {.code = PS_MSG_JOB_SET,
      .job_set = {.job = "train", .name = "lr", .value = 1, .round = 1}}},
    {NEED_ISSUE,
     {.code = PS_MSG_TOKEN_ISSUE,
      .token_issue = {.has_owner = true,
                      .owner = 7,
                      .job = "train",
                      .rights = 2,
                      .valid_s = 60}}},
    {NEED_LEVEL,
     {.code = PS_MSG_LOG_LEVEL, .log_level = {.level = PS_VERBOSITY_INFO}}},
    {NEED_MANAGE,
     {.code = PS_MSG_TOKEN_REVOKE, .token_revoke = {.id = 1 /* See below. */}}},
};

#define HELLO_REFUSED "hello from test refused: "

static const char no_job[] = "no job 'train' of uid 8 is there";

/* A tool, by its user or its token, and for each need why it is refused; NULL:
 * it is not. */
static const struct actor {
    const char *name;
    bool by_tcp;
    uint32_t uid;    /* Of the tool, or of the token. */
    uint32_t rights; /* 0: no token. */
    const char *job;
    enum { VALID, EXPIRED, REVOKED, FORGED } state;
    const char *refusal[NEEDS];
} actors[] = {
    {"owner",
     false,
     7,
     0,
     "",
     VALID,
     {NULL, NULL, NULL, NULL, "log levels are set by operators"}},
    {"root", false, 0, 0, "", VALID, {NULL}},
    {"psched's user", false, 55, 0, "", VALID, {NULL}},
    {"operator", false, 9, 0, "", VALID, {NULL}},
    {"other user",
     false,
     8,
     0,
     "",
     VALID,
     {NULL, "job 'train' belongs to user 7; ",
      "tokens of user 7 are issued to that user and to operators, not to user "
      "8",
      "no token ", "log levels are set by operators"}},
    {"nobody by TCP",
     true,
     0,
     0,
     "",
     VALID,
     {"control.read demands a token with the right read",
      "job 'train' belongs to user 7; ", "over the scheduler's Unix socket",
      "are managed by that user and by operators",
      "log levels are set by operators"}},
    {"operate on the job",
     true,
     7,
     PS_TOKEN_RIGHT_OPERATE,
     "train",
     VALID,
     {"is for job 'train' of user 7 only", NULL,
      "over the scheduler's Unix socket", "has the rights operate, not admin",
      "is for job 'train' of user 7 only"}},
    {"operate on all jobs of the owner",
     true,
     7,
     PS_TOKEN_RIGHT_OPERATE,
     "",
     VALID,
     {NULL, NULL, "over the scheduler's Unix socket",
      "has the rights operate, not admin", "is for jobs of user 7 only"}},
    {"operate on another job",
     true,
     7,
     PS_TOKEN_RIGHT_OPERATE,
     "other",
     VALID,
     {"is for job 'other' of user 7 only", "is for job 'other' of user 7 only",
      "over the scheduler's Unix socket", "has the rights operate, not admin",
      "is for job 'other' of user 7 only"}},
    {"operate on jobs of another user",
     true,
     8,
     PS_TOKEN_RIGHT_OPERATE,
     "",
     VALID,
     {NULL, "is for jobs of user 8 only", "over the scheduler's Unix socket",
      "has the rights operate, not admin", "is for jobs of user 8 only"}},
    {"operate of a namesake",
     true,
     8,
     PS_TOKEN_RIGHT_OPERATE,
     "train",
     VALID,
     {"is for job 'train' of user 8 only", "is for job 'train' of user 8 only",
      "over the scheduler's Unix socket", "has the rights operate, not admin",
      "is for job 'train' of user 8 only"}},
    {"read",
     true,
     7,
     PS_TOKEN_RIGHT_READ,
     "",
     VALID,
     {NULL, "has the rights read, not operate",
      "over the scheduler's Unix socket", "has the rights read, not admin",
      "has the rights read, not operate"}},
    {"all but admin",
     true,
     7,
     ALL_RIGHTS - PS_TOKEN_RIGHT_ADMIN,
     "",
     VALID,
     {NULL, NULL, "over the scheduler's Unix socket",
      "has the rights train,read,operate, not admin",
      "is for jobs of user 7 only"}},
    {"train",
     true,
     7,
     PS_TOKEN_RIGHT_TRAIN,
     "",
     VALID,
     {"has the rights train, not read", "has the rights train, not operate",
      "over the scheduler's Unix socket", "has the rights train, not admin",
      "has the rights train, not operate"}},
    {"admin of the owner",
     true,
     7,
     PS_TOKEN_RIGHT_ADMIN,
     "",
     VALID,
     {NULL, NULL, "over the scheduler's Unix socket", NULL,
      "is for jobs of user 7 only"}},
    {"admin of the job",
     true,
     7,
     PS_TOKEN_RIGHT_ADMIN,
     "train",
     VALID,
     {"is for job 'train' of user 7 only", NULL,
      "over the scheduler's Unix socket", "is not for all jobs of user 7",
      "is for job 'train' of user 7 only"}},
    {"admin of another user",
     true,
     8,
     PS_TOKEN_RIGHT_ADMIN,
     "",
     VALID,
     {NULL, "is for jobs of user 8 only", "over the scheduler's Unix socket",
      "no token ", "is for jobs of user 8 only"}},
    {"admin of an operator",
     true,
     9,
     PS_TOKEN_RIGHT_ADMIN,
     "",
     VALID,
     {NULL, NULL, "over the scheduler's Unix socket", NULL}},
    {"expired",
     true,
     0,
     ALL_RIGHTS,
     "",
     EXPIRED,
     {HELLO_REFUSED, HELLO_REFUSED, HELLO_REFUSED, HELLO_REFUSED,
      HELLO_REFUSED}},
    {"revoked",
     true,
     0,
     ALL_RIGHTS,
     "",
     REVOKED,
     {HELLO_REFUSED, HELLO_REFUSED, HELLO_REFUSED, HELLO_REFUSED,
      HELLO_REFUSED}},
    {"forged",
     true,
     0,
     ALL_RIGHTS,
     "",
     FORGED,
     {HELLO_REFUSED, HELLO_REFUSED, HELLO_REFUSED, HELLO_REFUSED,
      HELLO_REFUSED}},
};

/* Makes a token, which is valid for 60 s, EXPIRED, REVOKED or FORGED. */
static void spoil_token(struct world *w, int state, uint64_t id, char text[32])
{
    if (state == EXPIRED) {
        advance_time(w, PS_SECONDS(60));
    } else if (state == REVOKED) {
        assert_int_equal(revoke_as(w, 0, id), 0);
    } else if (state == FORGED) {
        ps_str_copy(text, 32, "other");
    }
}

/* Connects the actor, with its token. */
static struct peer *actor_join(struct world *w, const struct actor *a,
                               char text[32])
{
    struct ps_msg wish = make_issue(a->uid, a->rights, a->job, 60);
    uint64_t id;

    if (a->rights == 0) {
        return tool_new(w, a->uid, a->by_tcp, NULL);
    }
    id = issue(w, &wish, text);
    spoil_token(w, (int)a->state, id, text);
    return tool_new(w, 0, true, text);
}

static void check_hello_refused(const struct world *w, const struct peer *ctl,
                                const struct actor *a)
{
    static const char *const reasons[] = {
        [EXPIRED] = "expired 0 s ago",
        [REVOKED] = "was revoked",
        [FORGED] = "the token is not one of this scheduler",
    };

    assert_int_equal(ctl->conn, 0);
    assert_int_equal(last_msg(ctl, PS_MSG_REJECT)->reject.error, PS_E_PERM);
    expect_substring(last_msg(ctl, PS_MSG_REJECT)->reject.text,
                     reasons[a->state]);
    expect_substring(w->story, HELLO_REFUSED);
}

/* Puts a name in the place of "train"; false: the request names no job. */
static bool set_job_name(struct ps_msg *msg, const char *name)
{
    switch (msg->code) {
    case PS_MSG_QUERY:
        if (msg->query.job == NULL) {
            return false;
        }
        msg->query.job = name;
        return true;
    case PS_MSG_JOB_CANCEL:
        msg->job_cancel.job = name;
        return true;
    case PS_MSG_JOB_SET:
        msg->job_set.job = name;
        return true;
    case PS_MSG_TRACE_GET:
        msg->trace_get.job = name;
        return true;
    default:
        return false;
    }
}

/* Job that a request to read names; NULL: none. */
static const char *job_to_read(const struct ps_msg *msg)
{
    return msg->code == PS_MSG_TRACE_GET ? msg->trace_get.job : msg->query.job;
}

/* The actor's token is for a job of this name. */
static bool has_token_for(const struct actor *a, const char *job)
{
    return a->rights != 0 && strcmp(a->job, job) == 0;
}

/* One cell of the matrix. */
static void check_request(const struct actor *a, size_t request)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_msg wish = make_issue(7, 2, "train", 3600);
    struct ps_msg msg = requests[request].msg;
    const char *refusal = a->refusal[requests[request].need];
    const struct ps_msg_query_end *end;
    struct peer *ctl;
    char text[32];
    uint64_t id = issue(j.w, &wish, text);

    if (msg.code == PS_MSG_TOKEN_REVOKE) {
        msg.token_revoke.id = id;
    }
    if (requests[request].need == NEED_READ && a->state == VALID &&
        (!world_reading_needs_token ||
         /* One job, which the token is for. */
         (job_to_read(&msg) != NULL && a->uid == 7 &&
          strcmp(a->job, job_to_read(&msg)) == 0))) {
        refusal = NULL;
    }
    if (requests[request].need == NEED_OPERATE && world_reading_needs_token &&
        a->refusal[NEED_READ] != NULL && !has_token_for(a, "train")) {
        refusal = a->refusal[NEED_READ]; /* It may not name the job. */
    }
    if (world_reading_needs_token && has_token_for(a, "train") && a->uid != 7 &&
        set_job_name(&msg, "train")) {
        refusal = no_job; /* It may name only its own. */
    }
    print_message("# %s by %s: %s\n", ps_msg_name(msg.code), a->name,
                  refusal != NULL ? refusal : "allowed");
    ctl = actor_join(j.w, a, text);
    if (a->state != VALID) {
        check_hello_refused(j.w, ctl, a);
    } else {
        deliver_msg(j.w, ctl, msg);
        end = answer(ctl);
        if (refusal == NULL) {
            assert_true(end == NULL ||
                        (end->error != PS_E_PERM && end->error != PS_E_NOENT));
        } else {
            assert_non_null(end);
            assert_int_equal(end->error, strcmp(refusal, "no token ") == 0
                                             ? PS_E_NOENT
                                         : refusal == no_job ? PS_E_NOJOB
                                                             : PS_E_PERM);
            expect_substring(end->text, refusal);
            /* The log names the peer and the reason. */
            if (refusal != no_job) {
                expect_substring(j.w->story, " for test: ");
                expect_substring(strstr(j.w->story, " for test: "), refusal);
            }
            assert_int_equal(last_job_state(j.a[1])->phase,
                             PS_JOB_PHASE_RUNNING);
        }
    }
    tool_free(j.w, ctl);
    finish_job(&j);
}

static void check_matrix(void)
{
    for (size_t a = 0; a < sizeof(actors) / sizeof(actors[0]); a++) {
        for (size_t r = 0; r < sizeof(requests) / sizeof(requests[0]); r++) {
            signed_count = 0;
            check_request(&actors[a], r);
        }
    }
}

static void every_message_of_tools_needs_its_right(void **state)
{
    (void)state;
    check_matrix();
}

static void reading_needs_a_token_where_the_option_says_so(void **state)
{
    (void)state;
    world_reading_needs_token = true;
    check_matrix();
}

/* The answer about a job is the same whether it exists or not. */
static void a_tool_that_may_not_read_learns_of_no_job(void **state)
{
    struct job j;

    (void)state;
    world_reading_needs_token = true;
    j = start_job(PS_LOSS_POLICY_WAIT);
    for (size_t r = 0; r < sizeof(requests) / sizeof(requests[0]); r++) {
        static const char *const names[] = {"train", "none"};
        struct ps_msg msg = requests[r].msg;

        for (size_t i = 0; i < 2 && set_job_name(&msg, names[i]); i++) {
            struct peer *ctl = tool_new(j.w, 0, true, NULL);

            deliver_msg(j.w, ctl, msg);
            assert_int_equal(answer(ctl)->error, PS_E_PERM);
            expect_substring(answer(ctl)->text, "control.read demands a token");
            tool_free(j.w, ctl);
        }
    }
    finish_job(&j);
}

/* Nor does one whose token is for another job, with all rights to that. */
static void a_token_for_a_job_tells_of_no_other(void **state)
{
    static const char *const names[] = {"train", "none"};
    struct ps_msg wish = make_issue(8, ALL_RIGHTS, "mine", 60);
    struct job j;
    char token[32];

    (void)state;
    world_reading_needs_token = true;
    j = start_job(PS_LOSS_POLICY_WAIT);
    (void)issue(j.w, &wish, token);
    for (size_t r = 0; r < sizeof(requests) / sizeof(requests[0]); r++) {
        struct ps_msg msg = requests[r].msg;
        char text[2][PS_TEXT_MAX + 1] = {"", ""};

        for (size_t i = 0; i < 2 && set_job_name(&msg, names[i]); i++) {
            struct peer *ctl = tool_new(j.w, 0, true, token);

            deliver_msg(j.w, ctl, msg);
            assert_int_equal(answer(ctl)->error, PS_E_PERM);
            ps_str_copy(text[i], sizeof(text[i]), answer(ctl)->text);
            expect_substring(text[i], "is for job 'mine' of user 8 only");
            tool_free(j.w, ctl);
        }
        assert_string_equal(text[0], text[1]);
    }
    /* A list of tokens says nothing of the job that the query names. */
    for (size_t i = 0; i < 2; i++) {
        struct peer *ctl = tool_new(j.w, 0, true, token);

        deliver_msg(j.w, ctl,
                    (struct ps_msg){
                        .code = PS_MSG_QUERY,
                        .query = {.what = PS_QUERY_TOKENS, .job = names[i]}});
        assert_int_equal(answer(ctl)->error, PS_E_PERM);
        tool_free(j.w, ctl);
    }
    finish_job(&j);
}

/* A new message or query has to come into the table. */
static void matrix_has_every_message_of_tools(void **state)
{
    (void)state;
    for (unsigned code = 0; code < 256; code++) {
        bool is_listed = code == PS_MSG_HELLO;

        if (!ps_msg_allowed((enum ps_msg_code)code, PS_ROLE_CTL,
                            PS_ROLE_SCHED)) {
            continue;
        }
        for (size_t r = 0; r < sizeof(requests) / sizeof(requests[0]); r++) {
            is_listed |= requests[r].msg.code == code;
        }
        assert_true(is_listed);
    }
    for (unsigned what = 0; what <= PS_QUERY_EVENTS; what++) {
        /* Lists of tokens have a test of their own. */
        bool is_listed = what == PS_QUERY_TOKENS;

        for (size_t r = 0; r < sizeof(requests) / sizeof(requests[0]); r++) {
            is_listed |= requests[r].msg.code == PS_MSG_QUERY &&
                         requests[r].msg.query.what == what;
        }
        assert_true(is_listed);
    }
}

/* ----------------------------------------------------------------- workers */

/* A token of user 7, unless stated, by which a worker of user 8 opens job
 * "train", and why it is refused; NULL: it is not. */
static const struct join {
    uint32_t uid;
    uint32_t rights;
    const char *job;
    int state;
    const char *refusal;
} joins[] = {
    {7, PS_TOKEN_RIGHT_TRAIN, "", VALID, NULL},
    {7, PS_TOKEN_RIGHT_TRAIN, "train", VALID, NULL},
    {7, ALL_RIGHTS, "train", VALID, NULL},
    {7, PS_TOKEN_RIGHT_TRAIN, "other", VALID, "is for job 'other' of user 7"},
    {7, PS_TOKEN_RIGHT_TRAIN, "trai", VALID, "is for job 'trai' of user 7"},
    {7, PS_TOKEN_RIGHT_TRAIN, "train/g", VALID, "is for job 'train/g' of"},
    {7, PS_TOKEN_RIGHT_READ, "", VALID, "has the rights read, not train"},
    {7, PS_TOKEN_RIGHT_OPERATE, "", VALID, "has the rights operate, not train"},
    {7, PS_TOKEN_RIGHT_ADMIN, "", VALID, "has the rights admin, not train"},
    {0, PS_TOKEN_RIGHT_ADMIN, "", VALID, "has the rights admin, not train"},
    {7, PS_TOKEN_RIGHT_TRAIN, "train", EXPIRED, "expired 0 s ago"},
    {7, PS_TOKEN_RIGHT_TRAIN, "train", REVOKED, "was revoked"},
    {7, PS_TOKEN_RIGHT_TRAIN, "train", FORGED, "is not one of this scheduler"},
};

/* A worker of user 8 opens a job; the error of the answer. */
static int open_by_token(struct world *w, struct peer *agent, uint64_t worker,
                         const char *name, const char *token)
{
    struct ps_msg msg = make_job_open(worker, 2, 0, -1);

    msg.job_open.name = name;
    msg.job_open.uid = 8;
    msg.job_open.token = token;
    deliver_msg(w, agent, msg);
    return last_job_opened(agent)->error;
}

static void workers_need_a_token_with_the_right_train(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(joins) / sizeof(joins[0]); i++) {
        const struct join *c = &joins[i];
        struct ps_msg wish = make_issue(c->uid, c->rights, c->job, 60);
        struct world *w = world_new();
        struct peer *a;
        char text[32];
        uint64_t id;

        signed_count = 0;
        id = issue(w, &wish, text);
        spoil_token(w, c->state, id, text);
        a = join_peer(w, PS_ROLE_AGENT, "a0");
        if (c->refusal == NULL) {
            assert_int_equal(open_by_token(w, a, 1, "train", text), 0);
            /* The owner's, not that of the worker's user. */
            expect_substring(w->story, "FORMING uid 7");
            deliver_worker_gone(w, a, 0, 1, true);
        } else {
            assert_int_equal(open_by_token(w, a, 1, "train", text), PS_E_PERM);
            expect_substring(last_job_opened(a)->text, c->refusal);
            /* The log names the worker and the reason, not the token. */
            expect_substring(w->story, "worker 1 of agent a0 refused: ");
            expect_substring(strstr(w->story, "worker 1 of agent a0 refused: "),
                             c->refusal);
            assert_null(strstr(w->story, text));
        }
        end_world(w);
    }
}

static void token_of_a_job_is_for_its_groups_too(void **state)
{
    static const char *const cut = "a-name-of-thirty-one-characters";
    struct ps_msg other = make_job_open(7, 2, 0, -1);
    char group[PS_NAME_MAX + 1];
    char nested[PS_NAME_MAX + 1];
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a0");
    struct ps_msg wish = make_issue(7, PS_TOKEN_RIGHT_TRAIN, "train", 60);
    struct ps_msg cut_wish = make_issue(7, PS_TOKEN_RIGHT_TRAIN, cut, 60);
    char text[32];
    char cut_text[32];

    (void)state;
    other.job_open.name = "a-name-of-thirty-one-characters-and-more";
    (void)issue(w, &wish, text);
    (void)issue(w, &cut_wish, cut_text);
    assert_int_equal(open_by_token(w, a, 1, "train", text), 0);
    assert_int_equal(open_by_token(w, a, 2, "train/g", text), 0);
    assert_int_equal(open_by_token(w, a, 3, "trainer", text), PS_E_PERM);
    assert_int_equal(open_by_token(w, a, 4, cut, cut_text), 0);
    ps_group_name(cut, "a-group-of-the-job-of-31-characters", group);
    assert_int_equal(strlen(group), PS_NAME_MAX - 1);
    assert_int_equal(open_by_token(w, a, 5, group, cut_text), 0);
    ps_group_name(group, "a-group-of-that-group", nested);
    assert_int_equal(open_by_token(w, a, 6, nested, cut_text), 0);
    /* Another job of the user begins with the same bytes. */
    deliver_msg(w, a, other);
    assert_int_equal(last_job_opened(a)->error, 0);
    ps_group_name(other.job_open.name, "a-group-of-the-job-of-31-characters",
                  group);
    assert_int_equal(open_by_token(w, a, 8, group, cut_text), PS_E_PERM);
    ps_group_name(group, "a-group-of-that-group", nested);
    assert_int_equal(open_by_token(w, a, 8, nested, cut_text), PS_E_PERM);
    assert_int_equal(open_by_token(w, a, 8, "a-name-of-thirty-one/g", cut_text),
                     PS_E_PERM);
    for (uint64_t i = 1; i <= 8; i++) {
        deliver_worker_gone(w, a, 0, i, true);
    }
    end_world(w);
}

/* Job "train" of user 7 with a server; worker 1 is user 7's, workers 2 and 3
 * joined by token. */
struct shared_job {
    struct world *w;
    struct peer *s;
    struct peer *a;
    uint64_t gen;
    uint64_t id; /* Of the token. */
    char text[32];
};

static struct shared_job start_shared_job(enum ps_loss_policy on_loss)
{
    struct shared_job j = {.w = world_new()};
    struct ps_msg wish = make_issue(7, PS_TOKEN_RIGHT_TRAIN, "train", 60);

    j.s = join_peer(j.w, PS_ROLE_SERVER, "s0");
    j.a = join_peer(j.w, PS_ROLE_AGENT, "a0");
    j.id = issue(j.w, &wish, j.text);
    for (uint32_t i = 0; i < 3; i++) {
        struct ps_msg msg = make_job_open(1 + i, 3, 1, (int32_t)i);

        msg.job_open.on_loss = (uint8_t)on_loss;
        if (i > 0) {
            msg.job_open.uid = 8;
            msg.job_open.token = j.text;
        }
        deliver_msg(j.w, j.a, msg);
        assert_int_equal(last_job_opened(j.a)->error, 0);
    }
    deliver_job_ready(j.w, j.s);
    j.gen = last_job_opened(j.a)->gen;
    assert_int_equal(last_job_state(j.a)->phase, PS_JOB_PHASE_RUNNING);
    drop_inbox(j.a);
    return j;
}

/* Answers with an error that this agent got for workers. */
static uint32_t count_ended(const struct peer *a, const char *why)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < a->count; i++) {
        const struct ps_msg *m = a->inbox[i].msg;

        if (m->code == PS_MSG_JOB_OPENED && m->job_opened.error == PS_E_PERM) {
            expect_substring(m->job_opened.text, why);
            assert_int_not_equal(m->job_opened.worker, 1);
            count++;
        }
    }
    return count;
}

static void end_of_a_token_ends_the_workers_that_joined_by_it(void **state)
{
    (void)state;
    for (int expires = 0; expires < 2; expires++) {
        const char *why = expires ? "expired 0 s ago" : "was revoked";
        struct shared_job j;
        const struct ps_msg_job_state *m;

        signed_count = 0;
        j = start_shared_job(PS_LOSS_POLICY_WAIT);
        if (expires) {
            advance_time(j.w, PS_SECONDS(60));
        } else {
            assert_int_equal(revoke_as(j.w, 7, j.id), 0);
        }
        assert_int_equal(count_ended(j.a, why), 2);
        advance_time(j.w, PS_MILLIS(50));
        m = last_job_state(j.a);
        assert_int_equal(m->phase, PS_JOB_PHASE_RUNNING);
        assert_int_equal(m->ranks[0].state, PS_RANK_STATE_LIVE);
        assert_int_equal(m->ranks[1].state, PS_RANK_STATE_LOST);
        assert_int_equal(m->ranks[2].state, PS_RANK_STATE_LOST);
        expect_substring(strstr(j.w->story, "ranks 1-2 on"), why);
        /* The agent offers them again on a fresh link: in vain. */
        drop_inbox(j.a);
        deliver_msg(j.w, j.a,
                    (struct ps_msg){.code = PS_MSG_JOB_OPEN,
                                    .job_open = {.worker = 2,
                                                 .name = "train",
                                                 .uid = 8,
                                                 .num_workers = 3,
                                                 .num_servers = 1,
                                                 .rank = 1,
                                                 .gen = j.gen,
                                                 .token = j.text}});
        assert_int_equal(last_job_opened(j.a)->error, PS_E_PERM);
        for (uint64_t i = 1; i <= 3; i++) {
            deliver_worker_gone(j.w, j.a, j.gen, i, true);
        }
        world_free(j.w);
    }
}

static void job_that_fails_by_a_loss_fails_by_the_end_of_a_token(void **state)
{
    struct shared_job j = start_shared_job(PS_LOSS_POLICY_FAIL);

    (void)state;
    assert_int_equal(revoke_as(j.w, 7, j.id), 0);
    assert_int_equal(count_ended(j.a, "was revoked"), 2);
    assert_int_equal(last_job_state(j.a)->phase, PS_JOB_PHASE_FAILED);
    expect_substring(last_job_state(j.a)->reason, "was revoked");
    for (uint64_t i = 1; i <= 3; i++) {
        deliver_worker_gone(j.w, j.a, j.gen, i, false);
    }
    world_free(j.w);
}

static void end_of_a_token_before_the_start_frees_the_place(void **state)
{
    struct world *w = world_new();
    struct peer *a = join_peer(w, PS_ROLE_AGENT, "a0");
    struct ps_msg wish = make_issue(7, PS_TOKEN_RIGHT_TRAIN, "train", 60);
    char text[32];
    uint64_t id = issue(w, &wish, text);

    (void)state;
    assert_int_equal(open_by_token(w, a, 1, "train", text), 0);
    assert_int_equal(revoke_as(w, 7, id), 0);
    assert_int_equal(last_job_opened(a)->error, PS_E_PERM);
    deliver_worker_gone(w, a, 0, 1, false);
    end_world(w);
}

/* An agent that was restarted: the worker needs what it needed at first. */
static void workers_reattach_by_their_token_only(void **state)
{
    struct shared_job j = start_shared_job(PS_LOSS_POLICY_WAIT);
    struct ps_msg msg = make_job_open(12, 3, 1, 1);

    (void)state;
    lose_conn(j.w, j.a);
    j.a->instance += 100;
    j.a->session += 100;
    connect_peer(j.w, j.a);
    msg.job_open.uid = 8;
    msg.job_open.gen = j.gen;
    msg.job_open.reattach = true;
    deliver_msg(j.w, j.a, msg);
    assert_int_equal(last_job_opened(j.a)->error, PS_E_PERM);
    expect_substring(last_job_opened(j.a)->text,
                     "job train belongs to uid 7, not to uid 8");
    msg.job_open.name = "other"; /* The job is that of the generation. */
    msg.job_open.token = j.text;
    deliver_msg(j.w, j.a, msg);
    assert_int_equal(last_job_opened(j.a)->error, 0);
    assert_int_equal(revoke_as(j.w, 7, j.id), 0);
    assert_int_equal(last_job_opened(j.a)->error, PS_E_PERM);
    msg.job_open.worker = 13;
    deliver_msg(j.w, j.a, msg);
    assert_int_equal(last_job_opened(j.a)->error, PS_E_PERM);
    expect_substring(last_job_opened(j.a)->text, "was revoked");
    world_free(j.w);
}

/* ------------------------------------------------------------------- lists */

static uint32_t count_tokens(struct world *w, struct peer *ctl)
{
    uint32_t count = 0;

    drop_inbox(ctl);
    deliver_msg(w, ctl,
                (struct ps_msg){.code = PS_MSG_QUERY,
                                .query = {.what = PS_QUERY_TOKENS}});
    for (uint32_t i = 0; i < ctl->count; i++) {
        const struct ps_msg *m = ctl->inbox[i].msg;

        count += m->code == PS_MSG_TOKEN_ROW;
        assert_true(m->code != PS_MSG_TOKEN_ROW || m->token_row.text == NULL ||
                    m->token_row.text[0] == '\0');
    }
    return answer(ctl)->error == 0 ? count : UINT32_MAX;
}

static void users_list_their_own_tokens_and_operators_all(void **state)
{
    struct world *w = world_new();
    struct ps_msg wishes[] = {make_issue(7, 2, "", 60),
                              make_issue(7, 2, "", 90),
                              make_issue(8, 8, "", 90)};
    struct peer *ctl;
    char text[32];

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        (void)issue(w, &wishes[i], text);
    }
    for (uint32_t uid = 6; uid <= 9; uid++) {
        ctl = tool_new(w, uid, false, NULL);
        assert_int_equal(count_tokens(w, ctl), ((int[]){0, 2, 1, 3})[uid - 6]);
        tool_free(w, ctl);
    }
    ctl = tool_new(w, 0, true, text); /* The token of user 8. */
    assert_int_equal(count_tokens(w, ctl), 1);
    tool_free(w, ctl);
    ctl = tool_new(w, 0, true, NULL);
    assert_int_equal(count_tokens(w, ctl), UINT32_MAX);
    tool_free(w, ctl);
    advance_time(w, PS_SECONDS(60));
    ctl = tool_new(w, 0, false, NULL);
    assert_int_equal(count_tokens(w, ctl), 2);
    tool_free(w, ctl);
    end_world(w);
}

/* ----------------------------------------------------------- time and life */

/* Both hold for connections that were made before. */
static void expiry_and_revocation_count_at_the_next_request(void **state)
{
    struct job j = start_job(PS_LOSS_POLICY_WAIT);
    struct ps_msg wish = make_issue(7, PS_TOKEN_RIGHT_OPERATE, "train", 60);
    const struct ps_msg set = {
        .code = PS_MSG_JOB_SET,
        .job_set = {.job = "train", .name = "lr", .value = 1, .round = 1}};
    struct peer *first;
    struct peer *second;
    char texts[2][32];
    uint64_t id;

    (void)state;
    (void)issue(j.w, &wish, texts[0]);
    id = issue(j.w, &wish, texts[1]);
    first = tool_new(j.w, 0, true, texts[0]);
    second = tool_new(j.w, 0, true, texts[1]);
    deliver_msg(j.w, second, set);
    assert_int_not_equal(answer(second)->error, PS_E_PERM);
    assert_int_equal(revoke_as(j.w, 7, id), 0);
    assert_int_equal(revoke_as(j.w, 7, id), 0); /* Nothing more. */
    deliver_msg(j.w, second, set);
    assert_int_equal(answer(second)->error, PS_E_PERM);
    expect_substring(answer(second)->text, "was revoked");
    deliver_msg(j.w, first, set);
    assert_int_not_equal(answer(first)->error, PS_E_PERM);
    advance_time(j.w, PS_SECONDS(61));
    deliver_msg(j.w, first, set);
    assert_int_equal(answer(first)->error, PS_E_PERM);
    expect_substring(answer(first)->text, "expired 1 s ago");
    tool_free(j.w, second);
    tool_free(j.w, first);
    finish_job(&j);
}

static void senseless_and_too_many_tokens_are_refused(void **state)
{
    struct world *w = world_new();
    const struct {
        struct ps_msg wish;
        int rc;
        const char *text;
    } wishes[] = {
        {make_issue(7, 0, "", 60), PS_E_INVAL, "the rights of a token are"},
        {make_issue(7, 32, "", 60), PS_E_INVAL, "the rights of a token are"},
        {make_issue(7, 2, "a b", 60), PS_E_INVAL, "a job's name has"},
        {make_issue(7, 2, "", 0), PS_E_INVAL, "valid for 1 s to 366 days"},
        {make_issue(7, 2, "", UINT64_MAX), PS_E_INVAL, "valid for 1 s"},
    };
    struct ps_msg wish = make_issue(7, 2, "", 60);
    struct peer *ctl = tool_new(w, 0, false, NULL);

    (void)state;
    for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]); i++) {
        deliver_msg(w, ctl, wishes[i].wish);
        assert_int_equal(answer(ctl)->error, wishes[i].rc);
        expect_substring(answer(ctl)->text, wishes[i].text);
    }
    save_fails = true;
    deliver_msg(w, ctl, wish);
    assert_int_equal(answer(ctl)->error, PS_E_IO);
    save_fails = false;
    for (uint32_t i = 0; i < PS_TOKENS_USER_MAX; i++) {
        drop_inbox(ctl);
        deliver_msg(w, ctl, wish);
        assert_int_equal(answer(ctl)->error, 0);
    }
    assert_int_equal(saved_count, PS_TOKENS_USER_MAX);
    deliver_msg(w, ctl, wish);
    assert_int_equal(answer(ctl)->error, PS_E_FULL);
    wish = make_issue(8, 2, "", 60); /* Others have their own limit. */
    deliver_msg(w, ctl, wish);
    assert_int_equal(answer(ctl)->error, 0);
    advance_time(w, PS_SECONDS(61));
    wish = make_issue(7, 2, "", 60);
    deliver_msg(w, ctl, wish);
    assert_int_equal(answer(ctl)->error, 0);
    assert_int_equal(saved_count, 1);
    tool_free(w, ctl);
    end_world(w);
}

/* Without a store a revocation holds for this scheduler, and says so. */
static void revocation_that_is_not_stored_is_reported(void **state)
{
    struct world *w = world_new();
    struct ps_msg wish = make_issue(7, PS_TOKEN_RIGHT_ADMIN, "", 60);
    struct peer *ctl;
    char text[32];
    uint64_t id = issue(w, &wish, text);

    (void)state;
    save_fails = true;
    assert_int_equal(revoke_as(w, 0, id), PS_E_IO);
    ctl = tool_new(w, 0, true, text);
    assert_int_equal(last_msg(ctl, PS_MSG_REJECT)->reject.error, PS_E_PERM);
    tool_free(w, ctl);
    end_world(w);
}

static void scheduler_without_keys_has_no_tokens(void **state)
{
    struct ps_msg wish = make_issue(7, 2, "", 60);
    struct world *w;
    struct peer *ctl;

    (void)state;
    world_token_ops = NULL;
    w = world_new();
    ctl = tool_new(w, 0, false, NULL);
    deliver_msg(w, ctl, wish);
    assert_int_equal(answer(ctl)->error, PS_E_UNSUPPORTED);
    tool_free(w, ctl);
    ctl = tool_new(w, 0, false, "token0");
    assert_int_equal(last_msg(ctl, PS_MSG_REJECT)->reject.error, PS_E_PERM);
    tool_free(w, ctl);
    end_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_message_of_tools_needs_its_right, set_up),
        cmocka_unit_test_setup(reading_needs_a_token_where_the_option_says_so,
                               set_up),
        cmocka_unit_test_setup(a_token_for_a_job_tells_of_no_other, set_up),
        cmocka_unit_test_setup(a_tool_that_may_not_read_learns_of_no_job,
                               set_up),
        cmocka_unit_test_setup(matrix_has_every_message_of_tools, set_up),
        cmocka_unit_test_setup(workers_need_a_token_with_the_right_train,
                               set_up),
        cmocka_unit_test_setup(token_of_a_job_is_for_its_groups_too, set_up),
        cmocka_unit_test_setup(
            end_of_a_token_ends_the_workers_that_joined_by_it, set_up),
        cmocka_unit_test_setup(
            job_that_fails_by_a_loss_fails_by_the_end_of_a_token, set_up),
        cmocka_unit_test_setup(end_of_a_token_before_the_start_frees_the_place,
                               set_up),
        cmocka_unit_test_setup(workers_reattach_by_their_token_only, set_up),
        cmocka_unit_test_setup(users_list_their_own_tokens_and_operators_all,
                               set_up),
        cmocka_unit_test_setup(expiry_and_revocation_count_at_the_next_request,
                               set_up),
        cmocka_unit_test_setup(senseless_and_too_many_tokens_are_refused,
                               set_up),
        cmocka_unit_test_setup(revocation_that_is_not_stored_is_reported,
                               set_up),
        cmocka_unit_test_setup(scheduler_without_keys_has_no_tokens, set_up),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
