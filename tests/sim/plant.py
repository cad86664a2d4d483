#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one bug of each kind in a copy of the machines and checks that the
simulator's seeds find it, or a story or unit test does, where all must come
together at one moment. A simulator that finds nothing proves nothing.

    plant.py CC SOURCE_ROOT BUILD_ROOT [--verbose]
"""
import subprocess
import sys
import tempfile
from pathlib import Path

SEEDS = 3000  # Or until one finds the bug.

# A second code of a round goes on from what the first one has left over.
FROM_THE_LAST = ("lib/core/agent_keep.c",
                 "p->kept->round == p->key->round;",
                 "p->kept->round == UINT64_MAX;")

# name -> [(file, what stands there, what is planted)]
PLANTS = {
    "offers a round that is over to the servers again": [
        ("lib/core/agent_resume.c",
         "op->round > op->key->past->most",
         "op->round > 0"),
    ],
    "a new agent does not hear what the old one has made": [
        ("lib/core/agent_resume.c",
         "p->reached < round && p->committed >= (int64_t)round",
         "p->reached < round && p->committed > (int64_t)round"),
    ],
    "a new agent does not find what codes have left over": [
        ("lib/core/agent_keep.c",
         "f->press != hash_press(press)) {",
         "f->press != 0) {"),
    ],
    "encodes once more from what the lost agent had made": [FROM_THE_LAST],
    "forgets with the agent what it had pushed": [
        ("lib/core/shard_job.c",
         "    ps_shard_answer_drop(slot);\n"
         "    ps_store_unpark_slot(&slot->job->store, slot->index);\n}\n\n"
         "void ps_shard_job_forget",
         """    ps_shard_answer_drop(slot);
    ps_store_unpark_slot(&slot->job->store, slot->index);
    struct ps_map_cursor planted = {0};
    struct ps_part *part;
    while ((part = ps_map_next(slot->job->store.parts, &planted)) != NULL) {
        if (part->open != NULL) {
            ps_shard_merge_drop(slot->job->shard, slot->job, part);
        }
    }
}

void ps_shard_job_forget"""),
    ],
    "counts requests instead of contributors": [
        ("lib/core/round.c",
         """    if (!ps_bits_set(&r->in, place)) {
        return false;
    }""",
         """    if (!ps_bits_set(&r->in, place)) {
        place = ps_bits_next_clear(&r->in, 0);
        ps_bits_set(&r->in, place);
    }"""),
        ("lib/core/shard_attempt.c",
         "            ps_round_has(&part->open->round, slot));",
         "            ps_round_complete(&part->open->round));"),
    ],
    "acknowledges before it has merged": [
        ("lib/core/shard_push.c",
         """bytes.buf != NULL ? &bytes : NULL,
                   m->ranks);""",
         """bytes.buf != NULL ? &bytes : NULL,
                   m->ranks);
    ps_shard_answer(st, slot, part, false, rec->round);"""),
    ],
    "adds in order of arrival": [
        ("lib/core/round.c",
         "        r->part[place] = *slice;",
         "        r->part[r->in.count - 1] = *slice;"),
    ],
    "merges rows in order of arrival": [
        ("lib/core/shard_rows.c",
         "/* Keeps the block: its own memory,",
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
/* Keeps the block: its own memory,"""),
        ("lib/core/shard_rows.c",
         "    open->rows_given[slot->index] = rec->count;",
         """    open->rows_given[slot->index] = rec->count;
    planted_at[slot->index] = ++planted_clock;"""),
        ("lib/core/shard_rows.c",
         """    for (uint32_t i = 0; i < round->size; i++) {
        const struct ps_slice *block""",
         """    for (uint32_t n = 0; n < round->size; n++) {
        uint32_t i = planted_nth(round, n);
        const struct ps_slice *block"""),
        ("lib/core/shard_rows.c",
         "            &sum, i, (const uint32_t",
         "            &sum, n, (const uint32_t"),
    ],
    "does not count a push without rows": [
        ("lib/core/shard_rows.c",
         """    part->width = rec->width;
    part->attempt""",
         """    part->width = rec->width;
    if (rec->count == 0) {
        return 0;
    }
    part->attempt"""),
    ],
    "encodes again what it sends again": [
        ("lib/core/agent_send.c",
         """                     p->state == PS_AGENT_PART_HELD_BACK)) {
                    ps_agent_send_queue(st, p);""",
         """                     p->state == PS_AGENT_PART_HELD_BACK)) {
                    ps_agent_code_drop(p);
                    ps_agent_send_queue(st, p);"""),
        FROM_THE_LAST,
    ],
    "encodes again what goes to another server": [
        ("lib/core/agent_key.c",
         "    p->moved = true;",
         "    p->moved = true;\n    ps_agent_code_drop(p);"),
        FROM_THE_LAST,
    ],
    "draws random numbers by the number of a key": [
        ("lib/core/agent_key.c",
         "    k->number = m->key;",
         "    k->number = m->key;\n    k->label = (uint64_t)m->key << 32;"),
    ],
    "starts the residual of an answer anew": [
        ("lib/core/shard_merge.c",
         "    if (part->state[0] == NULL) {\n"
         "        rc = ps_shard_room_take(run->job, size",
         """    if (run->job->shard->next_token % 7 == 2) {
        ps_store_set_state(&run->job->store, part, 0, NULL);
    }
    if (part->state[0] == NULL) {
        rc = ps_shard_room_take(run->job, size"""),
    ],
    "compresses collectives": [
        ("lib/core/agent_code.c", " && !k->collective &&", " &&"),
    ],
    "applies a push that comes twice twice": [
        ("lib/core/shard_apply.c",
         "    if (rec->round <= known->done) {\n        ps_shard_answer",
         "    if (rec->round < known->done) {\n        ps_shard_answer"),
        ("lib/core/shard_apply.c",
         "    if (rec->round <= known->taken) {",
         "    if (rec->round < known->taken) {"),
        ("lib/core/shard_apply.c",
         "           rec->round <= part->applied[m->slot].taken;",
         "           rec->round < part->applied[m->slot].taken;"),
    ],
    "lets a pull go when the puller's agent has caught up": [
        ("lib/core/agent_async.c",
         "            clock_of_all(k) >= op->round - j->staleness);",
         "            k->clock >= op->round - j->staleness);"),
    ],
    "forgets what a dead worker has pushed": [
        ("lib/core/agent_async.c",
         "           op->round > op->key->applied[op->local];",
         "           op->round > op->key->applied[op->local] + 1;"),
    ],
    "adds up norms in order of arrival": [
        ("lib/core/sched_norm.c",
         "    if (ps_bits_full(&sum->in)) {",
         """    float root = __builtin_sqrt(ps_squares_value(&sum->squares));
    struct ps_squares_bins bins = {0};
    memset(&sum->squares, 0, sizeof(sum->squares));
    ps_squares_add_floats(&sum->squares, &bins, &root, 1);
    ps_squares_empty(&sum->squares, &bins);
    if (ps_bits_full(&sum->in)) {"""),
        ("lib/core/sched_norm.c", '#include "base/alloc.h"',
         '#include "base/alloc.h"\n#include <string.h>'),
    ],
    "answers on a new link what was asked on the old one": [
        ("lib/core/shard_peer.c", "        ps_shard_job_forget(s, p);\n", ""),
    ],
    "knows of an optimizer from the last word alone": [
        ("lib/core/agent_job.c",
         """            j->optimizes |= m->error == 0 &&
                            op->message->code == PS_MSG_OPTIMIZER_SET;
""", ""),
    ],
    "steps before all rounds are gathered": [
        ("lib/core/shard_merge.c",
         "    run->gathers = gathers(job, part, steps);",
         """    run->gathers = gathers(job, part, steps) &&
                   job->shard->next_token % 7 != 2;"""),
    ],
    "takes the greatest for the least": [
        ("lib/core/shard_merge.c",
         "    c->job.fold = ps_round_fold(open->reduce);",
         """    c->job.fold = ps_round_fold(
        open->reduce == PS_REDUCE_MIN ? PS_REDUCE_MAX : open->reduce);"""),
    ],
    "leaves states behind when a partition moves": [
        ("lib/core/shard_move.c",
         """        if (part->state[i] != NULL) {
            list[STATES + i]""",
         """        if (part->state[i] != NULL && i > 3) {
            list[STATES + i]"""),
    ],
    "takes a value of an agent for what was moved": [
        ("lib/core/shard_pull.c",
         """         (part->version == rec->round && ps_part_has_value(part)))) {
        return 0;
    }
    int rc = ps_shard_move_resumes""",
         """         (part->version == rec->round && part->label == 77))) {
        return 0;
    }
    int rc = ps_shard_move_resumes"""),
    ],
    "goes on with a partition while it is moved": [
        ("lib/core/shard_merge.c",
         "    if (ps_shard_move_freezes(job, part)) {",
         "    if (part->label == 77 && ps_shard_move_freezes(job, part)) {"),
    ],
    "begins anew with a partition that has gone": [
        ("lib/core/shard_move.c",
         "    return mv != NULL && mv->kind != OUT;",
         "    return mv != NULL && mv->kind == IN;"),
    ],
    "says nothing of what it forgets with a partition": [
        ("lib/core/shard_move.c",
         "        if (ps_round_has(&part->open->round, i)) {\n"
         "            ps_bits_set(&who, i);",
         "        if (ps_round_has(&part->open->round, i)) {"),
    ],
    "counts who passes in a mean": [
        ("lib/core/agent_round.c",
         "        if (op != NULL && op->kind != PS_OP_PASS) {",
         "        if (op != NULL) {"),
    ],
    "makes something of a round that all pass": [
        ("lib/core/shard_merge.c",
         "    if (ps_open_passes(open)) {",
         "    if (ps_open_passes(open) && !open->rows) {"),
    ],
    "says once that all have passed": [
        ("lib/core/shard_push.c",
         "        ps_shard_answer(st, slot, part, m->want, part->version);",
         "        part->passed = false;\n"
         "        ps_shard_answer(st, slot, part, m->want, part->version);"),
    ],
    "lets who passes say what others do": [
        ("lib/core/shard_push.c",
         "    } else if (!open->settled) {\n"
         "        open->settled = true;",
         "    }\n"
         "    if (!open->settled) {\n"
         "        open->settled = true;"),
    ],
    "sends what is not copied": [
        ("lib/core/agent_round.c",
         "is_growing(op) && op->there < end",
         "is_growing(op) && op->there + 64 < end"),
    ],
    "overwrites a result that may still be read": [
        ("lib/core/agent_server.c",
         "    const struct ps_agent_key *k = p->key;\n\n    if (v <= p->held) {",
         "    const struct ps_agent_key *k = p->key;\n\n    if (v < 0) {"),
    ],
    "heeds the old owner of a moved partition": [
        ("lib/core/agent_server.c",
         "return p->moved && p->node != s->node;",
         "return p->moved && p->node == UINT32_MAX && s != NULL;"),
    ],
    "takes its own sleep for the death of others": [
        ("lib/core/sched_lease.c",
         "    if (late <= s->opt.suspect_after / 2) {",
         "    if (late <= s->opt.suspect_after / 2 || late > 0) {"),
        ("lib/core/sched_lease.c",
         "return ps_time_add(s->heard, s->opt.suspect_after) <= now;",
         "return s->heard == UINT64_MAX && now == 0;"),
    ],
    "repeats no norms that were lost with a link": [
        ("lib/core/shard_norm.c",
         "        for (; run != NULL; run = run->next) {\n            ask(st, run);",
         "        for (; run == NULL; run = run->next) {\n            ask(st, run);"),
    ],
    "changes a rate a round late": [
        ("lib/core/optim.c",
         "        if (c->round <= round) {", "        if (c->round < round) {"),
    ],
    "takes the ratio of LAMB upside down": [
        ("lib/core/optim.c",
         "return w == 0 || u == 0 ? 1 : w / u;",
         "return w == 0 || u == 0 ? 1 : u / w;"),
    ],
    "leaves the decay out of the ratio of LARS": [
        ("lib/core/optim.c",
         "(g + v[PS_OPTIM_WD] * at->wd_mult * w + v[PS_OPTIM_EPSILON]);",
         "(g + v[PS_OPTIM_EPSILON]);"),
    ],
    "forgets to rescale gradients": [
        ("lib/core/optim.c",
         ".rescale = v[PS_OPTIM_RESCALE] * at->scale,\n"
         "            .clip = v[PS_OPTIM_CLIP],\n        };\n        return;",
         ".rescale = at->scale,\n"
         "            .clip = v[PS_OPTIM_CLIP],\n        };\n        return;"),
    ],
    "takes no heed of what keys decay by": [
        ("lib/core/optim.c",
         "const double wd = v[PS_OPTIM_WD] * at->wd_mult;",
         "const double wd = v[PS_OPTIM_WD];"),
    ],
    "does not count what is held": [
        ("lib/core/flow.c",
         "return held < reach ? reach - held : 0;",
         "return reach + 0 * held;"),
    ],
    "lets on whom the next round does not lack": [
        ("lib/core/shard_credit.c",
         "open != NULL ? poorest(job, open) : NULL;",
         "open == NULL ? poorest(job, open) : NULL;"),
    ],
    "lets nobody on whose answer is yet to be sent": [
        ("lib/core/shard_credit.c",
         "        (void)ps_flow_announce(f, slot->held);\n"
         "        if (ps_flow_spent(f)) {",
         "        if (!ps_flow_due(f, slot->held)) {"),
        ("lib/core/flow.c",
         "    f->credit = ps_max_u64(f->credit, f->received) +\n"
         "                ps_max_u64(f->window / 4, 1);",
         "    f->credit += f->window / 4;"),
    ],
    "answers a pull with an older version": [
        ("lib/core/shard_pull.c",
         "    if (part != NULL && ps_part_has_value(part) &&\n"
         "        part->version >= rec->round) {",
         "    if (part != NULL && ps_part_has_value(part)) {"),
    ],
    "takes the push of an agent's earlier life": [
        ("lib/core/shard_job.c",
         "    if (job->slots[slot].incarnation != p->incarnation) {",
         "    if (job->slots[slot].incarnation < p->incarnation) {"),
        ("lib/core/shard_push.c",
         "    if (rc == 0 && m->incarnation != p->incarnation) {",
         "    if (rc == 0 && m->incarnation > p->incarnation) {"),
    ],
    "lets nobody on when all have used up their credit": [
        ("lib/core/shard_credit.c",
         "        if (job->lacking == 0 || job->running != 0) {",
         "        if (job->lacking == 0 || job->running + 1 != 0) {"),
    ],
    "lets on by less than was sent beyond the credit": [
        ("lib/core/flow.c",
         "ps_max_u64(f->credit, f->received) +", "f->credit +"),
    ],
    "takes a window that is just full for room": [
        ("lib/core/shard_credit.c",
         "        if (ps_flow_spent(f)) {\n            ps_flow_raise(f);",
         "        if (f->received > f->credit) {\n            ps_flow_raise(f);"),
    ],
    "gives no credit for what it refused": [
        ("lib/core/shard_credit.c",
         "        slot = slot_of(job, p->number);",
         "        return f->credit;"),
    ],
    "broadcasts the array of the first rank": [
        ("lib/core/agent_round.c",
         "k->job->local[i].rank != k->root)) {",
         "i != 0)) {"),
    ],
}


# What random seeds meet too seldom, and the program that finds it.
BY_TESTS = {
    "heeds the old owner of a moved partition": "sim/test_stories.c",
    "overwrites a result that may still be read": "unit/test_agent.c",
    "gives no credit for what it refused": "unit/test_shard_credit.c",
    "lets on whom the next round does not lack": "unit/test_shard_room.c",
    "takes the push of an agent's earlier life": "unit/test_shard.c",
    "answers on a new link what was asked on the old one": "unit/test_shard.c",
    "lets nobody on whose answer is yet to be sent": "sim/test_stories.c",
}

def compile_planted(cc, source, build, scratch, changes, finder):
    """The simulator with the changed files in front of the core's archive."""
    objects = []
    texts = {name: (source / name).read_text() for name, _, _ in changes}
    for name, old, new in changes:
        if texts[name].count(old) != 1:
            sys.exit(f"{name} no longer holds what is to be changed:\n{old}")
        texts[name] = texts[name].replace(old, new)
    for name, text in texts.items():
        planted = scratch / Path(name).name
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
