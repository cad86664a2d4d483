#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one bug of each kind in a copy of the machines and checks that the
simulator's seeds find it, or a story or unit test does, where all must come
together at one moment. A simulator that finds nothing proves nothing.

    plant.py CC SOURCE_ROOT BUILD_ROOT [--verbose]
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SEEDS = 3000  # Or until one finds the bug.

# A second code of a round goes on from what the first one has left over.
FROM_THE_LAST = ("lib/core/agent/residual_log.c",
                 "p->encoding.record->encoded_round == p->key->round.number;",
                 "p->encoding.record->encoded_round == UINT64_MAX;")

# name -> [(file, what stands there, what is planted)]
PLANTS = {
    "offers a round that is over to the servers again": [
        ("lib/core/agent/reattach.c",
         "op->round > op->key->prior_state->max_completed",
         "op->round > 0"),
    ],
    "a new agent does not hear what the old one has made": [
        ("lib/core/agent/advance.c",
         "p->completed_round < round && p->committed_version >= (int64_t)round",
         "p->completed_round < round && p->committed_version > (int64_t)round"),
    ],
    "a new agent does not find what codes have left over": [
        ("lib/core/agent/residual_log.c",
         "f->codec_hash != hash_codec(codec)) {",
         "f->codec_hash != 0) {"),
    ],
    "encodes once more from what the lost agent had made": [FROM_THE_LAST],
    "forgets with the agent what it had pushed": [
        ("lib/core/server/job_state.c",
         """ps_server_reply_drop(slot);
    ps_store_remove_slot_pulls(&slot->job->store, slot->index);
}

/* NULL if the state""",
         """    ps_server_reply_drop(slot);
    ps_store_remove_slot_pulls(&slot->job->store, slot->index);
    struct ps_map_cursor planted = {0};
    struct ps_part *part;
    while ((part = ps_map_next(slot->job->store.parts, &planted)) != NULL) {
        if (part->open_round != NULL) {
            ps_server_merge_discard(slot->job->server, slot->job, part);
        }
    }
}

/* NULL if the state"""),
    ],
    "counts requests instead of contributors": [
        ("lib/core/round/round.c",
         """if (!ps_bits_set(&r->contributed, place)) {
        return false;
    }""",
         """    if (!ps_bits_set(&r->contributed, place)) {
        place = ps_bits_next_clear(&r->contributed, 0);
        ps_bits_set(&r->contributed, place);
    }"""),
        ("lib/core/server/contribution.c",
         "ps_round_has_contributed(&part->open_round->round, slot));",
         "            ps_round_is_complete(&part->open_round->round));"),
    ],
    "replies to an init with other bytes": [
        ("lib/core/server/restore.c",
         "ps_store_set_value(&job->store, part, version, &value);",
         """    if (version == 0 && value.len > 8) {
        ((uint8_t *)ps_slice_data(&value))[8] ^= 1;
    }
    ps_store_set_value(&job->store, part, version, &value);"""),
    ],
    "acknowledges before it has merged": [
        ("lib/core/server/contribution.c",
         "if (kind->take != NULL ? kind->take(st, in, part, &bytes)",
         """    if (kind->take == NULL) {
        ps_server_reply_part(st, in->slot, part, false, in->rec.round);
    }
    if (kind->take != NULL ? kind->take(st, in, part, &bytes)"""),
    ],
    "adds in order of arrival": [
        ("lib/core/round/round.c",
         "r->contributions[place] = *slice;",
         "        r->contributions[r->contributed.count - 1] = *slice;"),
    ],
    "merges rows in order of arrival": [
        ("lib/core/server/rows.c",
         "/* Copies the block",
         """static uint64_t planted_at[4096], planted_clock;
static uint32_t planted_nth(const struct ps_round *r, uint32_t n)
{
    for (uint32_t slot = 0; slot < r->size; slot++) {
        uint32_t before = 0;

        for (uint32_t i = 0; i < r->size; i++) {
            before += planted_at[i] < planted_at[slot] ||
                      (planted_at[i] == planted_at[slot] && i < slot);
        }
        if (before == n) {
            return slot;
        }
    }
    return n;
}
/* Keeps the block: its own encode_buffers,"""),
        ("lib/core/server/rows.c",
         "open->row_counts[slot->index] = in->rec.count;",
         """    open->row_counts[slot->index] = in->rec.count;
    planted_at[slot->index] = ++planted_clock;"""),
        ("lib/core/server/rows.c",
         """for (uint32_t i = 0; i < round->size; i++) {
        const struct ps_slice *block""",
         """    for (uint32_t n = 0; n < round->size; n++) {
        uint32_t i = planted_nth(round, n);
        const struct ps_slice *block"""),
        ("lib/core/server/rows.c",
         "&sum, i, (const uint32_t",
         "            &sum, n, (const uint32_t"),
    ],
    "does not count a push without rows": [
        ("lib/core/server/contribution.c",
         """push->kind->declare(in, part);
    part->retry""",
         """    push->kind->declare(in, part);
    if (part->row_width != 0 && in->rec.count == 0) {
        return;
    }
    part->retry"""),
    ],
    "encodes again what it sends again": [
        ("lib/core/agent/resend.c",
         """p->state == PS_AGENT_PART_BACKOFF)) {
                    ps_agent_send_enqueue(st, p);""",
         """                     p->state == PS_AGENT_PART_BACKOFF)) {
                    ps_agent_encode_discard(p);
                    ps_agent_send_enqueue(st, p);"""),
        FROM_THE_LAST,
    ],
    "encodes again what goes to another server": [
        ("lib/core/agent/placement.c",
         "p->owner_changed = true;",
         """    p->owner_changed = true;
    ps_agent_encode_discard(p);"""),
        FROM_THE_LAST,
    ],
    "draws random numbers by the number of a key": [
        ("lib/core/agent/key.c",
         "k->number = m->key;",
         """    k->number = m->key;
    k->name_hash = (uint64_t)m->key << 32;"""),
    ],
    "resets the residual of an answer": [
        ("lib/core/server/merge.c",
         """if (part->states[0] == NULL) {
        rc = ps_server_memory_alloc(run->job, size""",
         """    if (run->job->server->merges.last_token % 7 == 2) {
        ps_store_set_state(&run->job->store, part, 0, NULL);
    }
    if (part->states[0] == NULL) {
        rc = ps_server_memory_alloc(run->job, size"""),
    ],
    "compresses collectives": [
        ("lib/core/agent/encode.c", "&& !k->kind->is_collective &&", " &&"),
    ],
    "applies a push that comes twice twice": [
        ("lib/core/server/async.c",
         """if (rec->round <= known->applied_seq) {
        ps_server_reply_part""",
         """    if (rec->round < known->applied_seq) {
        ps_server_reply_part"""),
        ("lib/core/server/async.c",
         "if (rec->round <= known->received_seq) {",
         "    if (rec->round < known->received_seq) {"),
        ("lib/core/server/async.c",
         "rec->round <= part->async_slots[m->slot].received_seq;",
         "           rec->round < part->async_slots[m->slot].received_seq;"),
    ],
    "lets a pull go when the puller's agent has caught up": [
        ("lib/core/agent/async.c",
         "job_clock(k) >= op->round - j->config.staleness);",
         "            k->async.clock >= op->round - j->config.staleness);"),
    ],
    "forgets what a dead worker has pushed": [
        ("lib/core/agent/async.c",
         "op->round > op->key->async.applied_round[op->local_rank];",
         "           op->round > op->key->async.applied_round[op->local_rank] + 1;"),
    ],
    "adds up norms in order of arrival": [
        ("lib/core/sched/norm.c",
         "if (ps_bits_full(&sum->arrived)) {",
         """    float root = __builtin_sqrt(ps_square_sum_value(&sum->square_sum));
    struct ps_square_bins bins = {0};
    memset(&sum->square_sum, 0, sizeof(sum->square_sum));
    ps_square_sum_add_floats(&sum->square_sum, &bins, &root, 1);
    ps_square_sum_flush_bins(&sum->square_sum, &bins);
    if (ps_bits_full(&sum->arrived)) {"""),
        ("lib/core/sched/norm.c", '#include "base/alloc.h"',
         '#include "base/alloc.h"\n#include <string.h>'),
    ],
    "answers on a new link what was asked on the old one": [
        ("lib/core/server/hello.c", "drop_waits(s, p);", "(void)drop_waits;"),
    ],
    "knows of an optimizer from the last word alone": [
        ("lib/core/agent/request.c",
         """j->config.has_optimizer |= m->error == 0 &&
                            op->sched_request->code == PS_MSG_OPTIMIZER_SET;""", ""),
    ],
    "steps before all rounds are gathered": [
        ("lib/core/server/merge.c",
         "run->accumulates = accumulates_round(job, part, steps);",
         """    run->accumulates = accumulates_round(job, part, steps) &&
                   job->server->merges.last_token % 7 != 2;"""),
    ],
    "takes the greatest for the least": [
        ("lib/core/server/merge_run.c",
         "c->job.fold = ps_round_fold(open->reduce);",
         """    c->job.fold = ps_round_fold(
        open->reduce == PS_REDUCE_MIN ? PS_REDUCE_MAX : open->reduce);"""),
    ],
    "leaves states behind when a partition moves": [
        ("lib/core/server/migration_out.c",
         """if (part->states[i] != NULL) {
            list[MIG_BUF_STATES + i]""",
         """        if (part->states[i] != NULL && i > 3) {
            list[MIG_BUF_STATES + i]"""),
    ],
    "takes a value of an agent for what was moved": [
        ("lib/core/server/restore.c",
         """(part->version == rec->round && ps_part_has_value(part)))) {
        return 0;
    }
    if (job->has_optimizer""",
         """         (part->version == rec->round && part->name_hash == 77))) {
        return 0;
    }
    if (job->has_optimizer"""),
    ],
    "goes on with a partition while it is moved": [
        ("lib/core/server/merge.c",
         "ps_server_migration_freezes(job, part)) {",
         "part->name_hash == 77 && ps_server_migration_freezes(job, part)) {"),
    ],
    "creates a partition again that has gone": [
        ("lib/core/server/migration.c",
         "return mv->role == MIG_IN ? PS_E_MIGRATING : PS_E_STALE;",
         "    return mv->role == MIG_IN ? PS_E_MIGRATING : 0;"),
    ],
    "asks nobody for the state of a partition that comes back": [
        ("lib/core/server/migration.c",
         "begin_return(st, slot, mv);",
         """        (void)begin_return;
        ps_server_migration_free(slot->job, mv);"""),
    ],
    "takes a state before the end of the move away": [
        ("lib/core/server/restore.c",
         """int rc = ps_server_migration_check_restore(st, slot, rec, epoch);

    if (rc != 0) {""",
         """    int rc = ps_server_migration_check_restore(st, slot, rec, epoch);

    if (rc != 0 && (part == NULL || part->version < rec->round)) {"""),
    ],
    "sends no state to a server that has nothing": [
        ("lib/core/agent/reply.c",
         "if (m->error == PS_E_STALE && p->key->kind->has_results) {",
         "            if (m->error == PS_E_NOMEM && p->key->kind->has_results) {"),
    ],
    "says nothing of what it forgets with a partition": [
        ("lib/core/server/migration_end.c",
         """if (ps_round_has_contributed(&part->open_round->round, i)) {
            ps_bits_set(&waiting, i);""",
         "        if (ps_round_has_contributed(&part->open_round->round, i)) {"),
    ],
    "counts who passes in a mean": [
        ("lib/core/agent/contribution.c",
         "if (op != NULL && op->kind != PS_OP_SKIP) {",
         "        if (op != NULL) {"),
    ],
    "makes something of a round that all pass": [
        ("lib/core/server/merge.c",
         "if (ps_open_round_all_skip(open)) {",
         "    if (ps_open_round_all_skip(open) && !ps_open_round_has_rows(open)) {"),
    ],
    "says once that all have passed": [
        ("lib/core/server/contribution.c",
         "ps_server_reply_part(st, slot, part, push->needs_value, part->version);",
         """        part->all_skipped = false;
        ps_server_reply_part(st, slot, part, push->needs_value, part->version);"""),
    ],
    "lets who passes say what others do": [
        ("lib/core/server/contribution.c",
         """} else if (!open->has_request) {
        open->has_request = true;""",
         """    }
    if (!open->has_request) {
        open->has_request = true;"""),
    ],
    "sends what is not copied": [
        ("lib/core/agent/contribution.c",
         "ps_agent_op_is_streaming(op) && op->bytes_ready < end",
         "ps_agent_op_is_streaming(op) && op->bytes_ready + 64 < end"),
    ],
    "overwrites a result that may still be read": [
        ("lib/core/agent/sync.c",
         """const struct ps_agent_key *k = p->key;

    if (v <= p->local_version) {""",
         "    const struct ps_agent_key *k = p->key;\n\n    if (v < 0) {"),
    ],
    "heeds the old owner of a moved partition": [
        ("lib/core/agent/reply.c",
         "return p->owner_changed && p->owner_node != s->node;",
         "return p->owner_changed && p->owner_node == UINT32_MAX && s != NULL;"),
    ],
    "takes its own sleep for the death of others": [
        ("lib/core/sched/lease.c",
         "if (late <= s->opt.suspect_after / 2) {",
         "    if (late <= s->opt.suspect_after / 2 || late > 0) {"),
        ("lib/core/sched/lease.c",
         "return ps_time_add(s->last_recv_at, s->opt.suspect_after) <= now;",
         "return s->last_recv_at == UINT64_MAX && now == 0;"),
    ],
    "repeats no norms that were lost with a link": [
        ("lib/core/server/norm.c",
         """for (; run != NULL; run = run->staged.next_waiting) {
            send_norm_part(st, run);""",
         """        for (; run == NULL; run = run->staged.next_waiting) {
            send_norm_part(st, run);"""),
    ],
    "changes a rate a round late": [
        ("lib/core/optim/optim.c",
         "if (c->round <= round) {", "        if (c->round < round) {"),
    ],
    "takes the ratio of LAMB upside down": [
        ("lib/core/optim/optim.c",
         "return w == 0 || u == 0 ? 1 : w / u;",
         "return w == 0 || u == 0 ? 1 : u / w;"),
    ],
    "leaves the decay out of the ratio of LARS": [
        ("lib/core/optim/optim.c",
         "(g + v[PS_OPTIM_WD] * at->wd_mult * w + v[PS_OPTIM_EPSILON]);",
         "(g + v[PS_OPTIM_EPSILON]);"),
    ],
    "limits gradients by the norm of one key": [
        ("lib/core/sched/norm.c",
         "n->result.global_square_sum = square;",
         "            n->result.global_square_sum = n->result.square_sum + 0 * square;"),
    ],
    "limits gradients as if they were not rescaled": [
        ("lib/core/optim/optim.c",
         "most / (fabs(o->value[PS_OPTIM_RESCALE]) * sqrt(all_square) + 1e-8);",
         "        most / (sqrt(all_square) + 1e-8);"),
    ],
    "adds the norm of the last step to that of the next": [
        ("lib/core/sched/norm.c",
         ".expected_keys = j->norms.global->expected_keys};",
         """        .square_sum = j->norms.global->square_sum,
        .expected_keys = j->norms.global->expected_keys};"""),
    ],
    "lets the norm of one job count in another": [
        ("lib/core/sched/norm.c",
         """static void pending_free(struct ps_sched_norm *n)
{""",
         """static struct ps_square_sum planted;
static void pending_free(struct ps_sched_norm *n)
{"""),
        ("lib/core/sched/norm.c",
         """ps_square_sum_merge(&j->norms.global->square_sum, &n->pending->square_sum);""",
         """    ps_square_sum_merge(&planted, &n->pending->square_sum);
    j->norms.global->square_sum = planted;"""),
        ("lib/core/sched/norm.c",
         "*j->norms.global = (struct ps_sched_global_norm){",
         """    memset(&planted, 0, sizeof(planted));
    *j->norms.global = (struct ps_sched_global_norm){"""),
    ],
    "has one credit for all jobs of a link": [
        ("lib/core/server/credit.c",
         "struct ps_credit *f = ps_map_get(p->credits, gen);",
         """    gen = 1;
    struct ps_credit *f = ps_map_get(p->credits, gen);"""),
    ],
    "batches partitions of two jobs in one frame": [
        ("lib/core/agent/batch.c",
         "return g->msg_code == h->msg_code && g->job == h->job &&",
         "    return g->msg_code == h->msg_code &&"),
    ],
    "forgets to rescale gradients": [
        ("lib/core/optim/optim.c",
         """.rescale = v[PS_OPTIM_RESCALE] * at->grad_scale,
            .clip = v[PS_OPTIM_CLIP],
        };
        return;""",
         """.rescale = at->grad_scale,
            .clip = v[PS_OPTIM_CLIP],
        };
        return;"""),
    ],
    "takes no heed of what keys decay by": [
        ("lib/core/optim/optim.c",
         "const double wd = v[PS_OPTIM_WD] * at->wd_mult;",
         "const double wd = v[PS_OPTIM_WD];"),
    ],
    "does not count what is held": [
        ("lib/core/round/credit.c",
         "return held < reach ? reach - held : 0;",
         "return reach + 0 * held;"),
    ],
    "lets on whom the next round does not lack": [
        ("lib/core/server/grant.c",
         "open != NULL ? find_blocked_slot(job, open) : NULL;",
         "open == NULL ? find_blocked_slot(job, open) : NULL;"),
    ],
    "lets nobody on whose answer is yet to be sent": [
        ("lib/core/server/grant.c",
         """(void)ps_credit_announce(f, slot->unmerged_bytes);
        if (ps_credit_is_exhausted(f)) {""",
         "        if (!ps_credit_announce_due(f, slot->unmerged_bytes)) {"),
        ("lib/core/round/credit.c",
         """f->announced = ps_max_u64(f->announced, f->received) +
                ps_max_u64(f->window / 4, 1);""",
         "    f->announced += f->window / 4;"),
    ],
    "answers a pull with an older version": [
        ("lib/core/server/pull.c",
         """if (part != NULL && ps_part_has_value(part) &&
        part->version >= rec->round) {""",
         "    if (part != NULL && ps_part_has_value(part)) {"),
    ],
    "takes the push of an agent's earlier life": [
        ("lib/core/server/job.c",
         "if (job->slots[slot].incarnation != p->incarnation) {",
         "    if (job->slots[slot].incarnation < p->incarnation) {"),
        ("lib/core/server/contribution.c",
         "if (rc == 0 && push->incarnation != p->incarnation) {",
         "    if (rc == 0 && push->incarnation > p->incarnation) {"),
    ],
    "lets nobody on when all have used up their credit": [
        ("lib/core/server/grant.c",
         "if (job->incomplete_rounds == 0 || job->merging_rounds != 0) {",
         "        if (job->incomplete_rounds == 0 || job->merging_rounds + 1 != 0) {"),
    ],
    "lets on by less than was sent beyond the credit": [
        ("lib/core/round/credit.c",
         "ps_max_u64(f->announced, f->received) +", "f->announced +"),
    ],
    "takes a window that is just full for room": [
        ("lib/core/server/grant.c",
         """if (ps_credit_is_exhausted(f)) {
            ps_credit_grant_extra(f);""",
         """        if (f->received > f->announced) {
            ps_credit_grant_extra(f);"""),
    ],
    "lets on whom nothing keeps": [
        ("lib/core/server/grant.c",
         """if (p != NULL && ps_credit_is_exhausted(
                         ps_server_credit_get(job->server, p, job->gen))) {""",
         "        if (p != NULL) {"),
        ("lib/core/server/grant.c",
         """if (ps_credit_is_exhausted(f)) {
            ps_credit_grant_extra(f);""",
         """        if (f->announced > 0) {
            ps_credit_grant_extra(f);"""),
    ],
    "sends one more when its credit is just used up": [
        ("lib/core/agent/send.c",
         "f->bytes_sent + f->computing_bytes >= f->credit",
         "f->bytes_sent + f->computing_bytes > f->credit"),
    ],
    "gives no credit for what it refused": [
        ("lib/core/server/credit.c",
         "slot = slot_of_node(job, p->agent_node);",
         "        return f->announced;"),
    ],
    "receives from several connections where the machine reads": [
        ("lib/core/link/multipath.c",
         "if (link->is_multiple || link->path_count > 1) {",
         "    if (link == NULL) {"),
    ],
    "lets the frames of a closed connection wait for the link": [
        ("lib/core/link/multipath.c",
         "} else if (!link->is_ending) {",
         "    } else if (!link->is_ending && link->path_count > 2) {"),
    ],
    "lets connections that send nothing keep others out": [
        ("lib/core/link/pre_handshake.c",
         "if (p->count >= p->max) {",
         "    if (p->count > p->max) {"),
    ],
    "acknowledges ahead what has not arrived": [
        ("lib/core/link/multipath.c",
         "choice.acks_ahead = msg->code != PS_MSG_ACK &&",
         """        msg->ack += main->queued >= link->multipath->opt.late_min;
        choice.acks_ahead = msg->code != PS_MSG_ACK &&"""),
    ],
    "broadcasts the array of the first rank": [
        ("lib/core/agent/contribution.c",
         "k->job->local_ranks[i].rank != k->round.root)) {",
         "i != 0)) {"),
    ],
}


# Bugs that random seeds meet too seldom, and the program that finds each.
BY_TESTS = {
    "heeds the old owner of a moved partition": "sim/test_stories.c",
    "overwrites a result that may still be read": "unit/test_agent.c",
    "gives no credit for what it refused": "unit/test_server_credit.c",
    "lets on whom the next round does not lack": "unit/test_server_memory.c",
    "takes the push of an agent's earlier life": "unit/test_server.c",
    "answers on a new link what was asked on the old one": "unit/test_server.c",
    "lets nobody on whose answer is yet to be sent": "sim/test_stories.c",
    "asks nobody for the state of a partition that comes back":
        "unit/test_server_migration.c",
    "takes a state before the end of the move away":
        "unit/test_server_migration.c",
    "sends no state to a server that has nothing": "sim/test_stories.c",
}

def compile_planted(cc, source, build, scratch, changes, finder):
    """The simulator with the changed files in front of the core's archive."""
    objects = []
    texts = {name: (source / name).read_text() for name, _, _ in changes}
    for name, old, new in changes:
        pattern = re.compile(r"\s*".join(map(
            re.escape, re.findall(r"\w+|\S", old))))
        if len(pattern.findall(texts[name])) != 1:
            sys.exit(f"{name} no longer holds what is to be changed:\n{old}")
        texts[name] = pattern.sub(lambda _, to=new: to, texts[name])
    for name, text in texts.items():
        planted = scratch / name.replace("/", "_")
        planted.write_text(text)
        obj = planted.with_suffix(".o")
        subprocess.run(
            [cc, "-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-w",
             f"-I{source / 'lib'}", f"-I{source}", f"-I{build}",
             f"-I{build / 'proto'}", "-c", planted, "-o", obj], check=True)
        objects.append(obj)
    program = scratch / "sim_planted"
    archives = [build / name for name in (
        "tests/support/libworld.a", "lib/core/libcore.a",
        "proto/libproto.a", "proto/libps_msg.a", "lib/base/libbase.a")]
    archives += sorted((build / "lib/kernel").glob("lib*.a"))
    main = subprocess.run(
        [cc, "-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-w",
         f"-I{source / 'lib'}", f"-I{source}", f"-I{source / 'tests'}",
         f"-I{build}", f"-I{build / 'proto'}",
         source / "tests" / finder, *objects, "-Wl,--start-group",
         *archives, "-Wl,--end-group", "-lmsgpackc", "-lm", "-lcmocka",
         "-o", program],
        check=False)
    if main.returncode != 0:
        sys.exit("the planted simulator does not build")
    return program


def find_bug(program, by_test, seeds):
    """The run that finds it, or the last one."""
    if by_test:
        return subprocess.run([program], capture_output=True, text=True,
                              check=False)
    return subprocess.run(
        [program, "--count", str(seeds), "--jobs", "2", "--stop"],
        capture_output=True, text=True, check=False)


def main():
    cc, source, build = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    print("1.." + str(len(PLANTS)))
    bad = 0
    for number, (name, changes) in enumerate(PLANTS.items(), 1):
        with tempfile.TemporaryDirectory() as folder:
            finder = BY_TESTS.get(name, "sim/random_main.c")
            program = compile_planted(cc, source, build, Path(folder), changes,
                                      finder)
            run = find_bug(program, name in BY_TESTS, SEEDS)
        found = run.returncode != 0
        bad += not found
        print(f"{'ok' if found else 'not ok'} {number} - what {name} is found")
        for line in run.stdout.splitlines()[:3] + run.stdout.splitlines()[-1:]:
            print(f"# {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
