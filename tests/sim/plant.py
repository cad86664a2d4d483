#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one bug at a time in a copy of the machines and checks that a random
seed of the simulator finds it, or a story or unit test where seeds reach the
bug too seldom.

    plant.py CC SOURCE_ROOT BUILD_ROOT
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SEEDS = 3000  # Or until one finds the bug.

# The second encoding of a round begins with the residual of the first one.
NO_REWIND = ("lib/core/agent/residual_log.c",
             "p->encoding.record->encoded_round == p->key->round.number;",
             "p->encoding.record->encoded_round == UINT64_MAX;")

# "<module>: <its bug>" -> [(file, correct text, text with the bug)]
PLANTS = {
    "server/copies: replies before the backup has the version": [
        ("lib/core/server/copies.c",
         "if (c != NULL && c->defers && c->confirmed < c->changed) {",
         "        if (c != NULL && c->changed == 0) {"),
    ],
    "server/server: is silent about a backup that it cannot reach": [
        ("lib/core/server/server.c",
         "if (ps_server_peer_tick(st)) {",
         "    if (ps_server_peer_tick(st) && st->now == 0) {"),
    ],
    "sched/copies: counts on a backup that its owner cannot reach": [
        ("lib/core/sched/place/copies.c",
         "if (m->is_unreachable) {", "    if (m->is_unreachable && m->gen == 0) {"),
    ],
    "sched/copies: counts a backup that has not taken the job": [
        ("lib/core/sched/place/copies.c",
         "!ps_sched_job_server_has_taken(backup)) {", "false) {"),
    ],
    "sched/copies: forgets a filled backup that has not taken the job": [
        ("lib/core/sched/job/lifecycle.c",
         "ps_sched_copies_check(st, j);", "            ps_sched_moves_start(st, j);"),
    ],
    "sched/key: places partitions on a server that has not taken the job": [
        ("lib/core/sched/job/key.c",
         "if (!any || ps_sched_job_server_has_taken(on)) {", "        if (true) {"),
    ],
    "sched/key: cuts keys for the servers that are there": [
        ("lib/core/sched/job/key.c",
         ".servers = ps_sched_job_servers_needed(j),", "        .servers = server_count,"),
    ],
    "sched/lifecycle: ends a job without keys with its only server": [
        ("lib/core/sched/job/lifecycle.c",
         "const bool is_only = j->servers.count == 1 &&",
         "    const bool is_only = j->servers.count == 0 &&"),
    ],
    "sched/lifecycle: wants memory of a server that had no key": [
        ("lib/core/sched/job/lifecycle.c",
         "if (m->epoch == 0 || (!is_kept && on->bytes > 0)) {",
         "    if (m->epoch == 0 || !is_kept) {"),
    ],
    "sched/lifecycle: waits for a server where another could be had": [
        ("lib/core/sched/job/lifecycle.c",
         "ps_sched_job_next_server(s, j) == NULL;",
         "                         s != NULL;"),
    ],
    "sched/lifecycle: ends a job with its only server, which is silent": [
        ("lib/core/sched/job/lifecycle.c",
         "(!is_silent || is_only || j->optimizer.declared.name != NULL ||",
         "           (!is_silent || j->optimizer.declared.name != NULL ||"),
    ],
    "server/kept: takes for its own what has moved away": [
        ("lib/core/server/kept.c",
         "job->moves.was_rebalanced ? place_number : 0)", "0 * place_number)"),
    ],
    "server/kept: takes what has moved away for a copy of another server": [
        ("lib/core/server/backup.c",
         "has_place(m, b->number) && !b->is_own", "has_place(m, b->number)"),
    ],
    "server/kept: keeps no copies": [
        ("lib/core/server/backup.c",
         "b->store.changed = &job->server->kept.changed_copies;", ""),
    ],
    "server/backup: drops the record of a copy before there is another": [
        ("lib/core/server/backup.c",
         "swap_records(part, p->part);", "(void)swap_records;"),
    ],
    "server/backup: ends the records of copies with their process": [
        ("lib/core/server/backup.c",
         """next_drop(job, p);
            ps_free(p);
        }
        role_free""",
         """            part_free(job, p);
        }
        role_free"""),
    ],
    "server/copies: goes on alone when the link to the backup is lost": [
        ("lib/core/server/copies.c",
         "if (c != NULL && c->defers && c->confirmed < c->changed) {",
         "        if (c != NULL && c->defers && c->confirmed < c->changed &&\n"
         "            c->target->peer->dialer.conn != 0) {"),
    ],
    "server/step: forgets the norms of a step with its process": [
        ("lib/core/server/step.c",
         "im->norm_stages = stages;", "        im->norm_stages = 0;"),
    ],
    "sched/norm: gives a norm of all keys to a key that has stepped with it": [
        ("lib/core/sched/job/norm.c",
         "k->norm->number = ps_max_u64(k->norm->number, m->number);\n"
         "    note_answered(st, j, m->number);\n    struct key_sum *sum",
         "    struct key_sum *sum"),
    ],
    "sched/norm: keeps no result before the last one of its predecessor": [
        ("lib/core/sched/job/norm.c",
         "adopt_prior(st, j, k, m);", "(void)adopt_prior;"),
    ],
    "agent/reply: ends a pull when a push is refused": [
        ("lib/core/agent/reply.c",
         "return p->key->kind->has_rounds || (rec->round == 0 && rec->attempt == 0);",
         "    return p->key->kind != NULL && rec != NULL;"),
    ],
    "server/admission: takes a running job as if no partition had been here": [
        ("lib/core/server/admission.c",
         "if (job->kept.memory == PS_PART_MEMORY_KEPT ||\n"
         "            m->phase == PS_JOB_PHASE_RUNNING) {",
         "        if (job->kept.memory == PS_PART_MEMORY_KEPT) {"),
    ],
    "server/copies: forgets a partition that is made while there is a backup": [
        ("lib/core/server/copies.c",
         """if (c == NULL) {
            c = ps_server_copies_add(t, part->key, part->index, true);
        }""",
         "        if (c == NULL) { continue; }"),
    ],
    "server/copy: reports a full backup before it has all": [
        ("lib/core/server/copy.c",
         "t->unfilled > 0 ||", ""),
    ],
    "server/copy: does not wait for a backup that counts": [
        ("lib/core/server/copy.c",
         "c->defers = true;", "c->defers = false;"),
    ],
    "server/backup: confirms a version of which buffers are missing": [
        ("lib/core/server/backup.c",
         "if (p->next.missing == 0) {", "if (p->next.missing != 255) {"),
    ],
    "server/copies: takes a buffer for shared that has changed": [
        ("lib/core/server/copies.c",
         "c->unsent |= part->changed_buffers;",
         "c->unsent |= part->changed_buffers & 1;"),
    ],
    "server/copies: sends steps to a server that computes other bits": [
        ("lib/core/server/copies.c",
         "c->target->peer->kernel_class == own;", "true;"),
    ],
    "server/copy: leaves a copy that was refused as it is": [
        ("lib/core/server/copy.c",
         """ps_server_copies_forget_sent(c);
        ps_server_copies_begin_anew(c);
    }
}

/* Sends again""",
         """ps_server_copies_forget_sent(c);
    }
}

/* Sends again"""),
    ],
    "server/copy: sends what a new session lacks as the last one had it": [
        ("lib/core/server/copy.c",
         """if (c->sent != 0) {
            ps_server_copies_forget_sent(c);
            ps_server_copies_begin_anew(c);""",
         """        if (c->sent != 0) {
            ps_server_copies_forget_sent(c);
            ps_server_copies_enqueue(c);"""),
    ],
    "server/push: makes a partition that may be another server's": [
        ("lib/core/server/push.c",
         "if (part == NULL && in->slot->job->moves.has_moved &&",
         "if (part == NULL && in->slot == NULL &&"),
    ],
    "server/backup: has a partition of two places once": [
        ("lib/core/server/backup.c",
         """p = ps_map_get(r->backup->parts, id);
    if (p == NULL) {""",
         """    PS_MAP_EACH(struct ps_server_backup, b, r->job->copies.backups)
    {
        p = ps_map_get(b->parts, id);
        if (p != NULL) {
            break;
        }
    }
    if (p == NULL) {"""),
    ],
    "server/backup: takes a step to another version than the one before": [
        ("lib/core/server/backup.c",
         "if (m->base != p->number || s->job_version != job->version ||",
         "if (s->job_version != job->version ||"),
    ],
    "server/backup: takes a step under another declaration": [
        ("lib/core/server/backup.c",
         "if (m->base != p->number || s->job_version != job->version ||",
         "if (m->base != p->number ||"),
    ],
    "server/backup: takes buffers from another version than the one that is meant": [
        ("lib/core/server/backup.c",
         "if (m->base != 0 && (m->base != p->number || !has_shared(p, m))) {",
         "if (m->base != 0 && !has_shared(p, m)) {"),
    ],
    "server/backup: takes copies of an older epoch": [
        ("lib/core/server/backup.c",
         "(epoch == 0 || b->epoch == epoch)) {",
         "(epoch == 0 || b->epoch >= epoch)) {"),
    ],
    "server/backup: keeps what it had of the epoch before": [
        ("lib/core/server/backup.c",
         """        return;
    }
    drop_parts(job, b);""",
         """        return;
    }
    (void)drop_parts;"""),
    ],
    "server/backup: drops what it has when its owner is lost": [
        ("lib/core/server/backup.c",
         "adopt_part(st, job, p, p->number != 0);",
         "adopt_part(st, job, p, false);"),
    ],
    "sched/copies: promotes a backup that is being filled": [
        ("lib/core/sched/place/copies.c",
         "const uint32_t next = on->is_filled ? on->backup : 0;",
         "const uint32_t next = on->backup;"),
    ],
    "sched/copies: promotes a backup that was lost": [
        ("lib/core/sched/place/copies.c",
         "if (on->backup == lost->node) {",
         "if (on->backup == lost->node && on->backup == 0) {"),
    ],
    "sched/copies: leaves the place of a backup that takes over another as it is": [
        ("lib/core/sched/place/copies.c",
         """on = ps_sched_job_server_of(j, next);
    change_place(st, on, NULL);""",
         "on = ps_sched_job_server_of(j, next);"),
    ],
    "sched/diverged: believes that each operation waits for a rank": [
        ("lib/core/sched/query/diverged.c",
         "if (!q->is_blocked[n]) {",
         "if (false) {"),
    ],
    "sched/diverged: takes ranks that can go on for ranks that wait": [
        ("lib/core/sched/query/diverged.c",
         "at->still == PS_STILLNESS_MOVING || at->ops == 0) {",
         "at->ops == 0) {"),
    ],
    "sched/diverged: takes a quiet process for a still one": [
        ("lib/core/sched/query/diverged.c",
         "*ret_quiet || at->still == PS_STILLNESS_QUIET;",
         "*ret_quiet;"),
    ],
    "sched/diverged: does not see what moves between its questions": [
        ("lib/core/sched/query/diverged.c",
         "ok = ok && mark_of(w).moves == w->first.moves &&",
         "        ok = ok &&"),
    ],
    "sched/diverged: adds the times of two rings": [
        ("lib/core/sched/query/diverged.c",
         "w->ring_since == PS_TIME_NEVER || w->ring.moves != w->first.moves",
         "w->ring_since == PS_TIME_NEVER"),
    ],
    "sched/diverged: shows a ring that has ended": [
        ("lib/core/sched/query/diverged.c",
         """if (w->ring_since != PS_TIME_NEVER &&
        (now.waits != w->ring.waits || ++w->misses >= MISSES_MAX)) {""",
         "    if (now.waits == 0 && w->misses >= MISSES_MAX) {"),
    ],
    "agent/waits: leaves out operations in a barrier": [
        ("lib/core/agent/waits.c",
         """if (*count == WAITS_MAX) {
            return false;
        }""",
         """        if (*count == WAITS_MAX) {
            return false;
        }
        if (op->is_barrier) {
            continue;
        }"""),
    ],
    "agent/waits: names a rank that has reached the round": [
        ("lib/core/agent/waits.c",
         "(k == NULL || ps_agent_contribution_awaits_rank(k, i, round))) {",
         "            (k == NULL || round > 0)) {"),
    ],
    "agent/waits: waits for an init that has been made": [
        ("lib/core/agent/waits.c",
         "return j->local_rank_count == 0 || may_have_init(j, k)",
         "        return j->local_rank_count == 0 ||"
         " (may_have_init(j, k) && k == NULL)"),
    ],
    "agent/waits: takes the last answer for one to this question": [
        ("lib/core/agent/waits.c",
         "if (s->wait.query < c->query || process_of(s) == 0) {",
         "        if (c->query == 0 || process_of(s) == 0) {"),
    ],
    "agent/waits: believes an answer from before an operation began": [
        ("lib/core/agent/waits.c",
         """if (w->query != 0 && w->ops == ret->ops &&
        s->job->standstill.moved_at <= w->at) {""",
         "    if (w->query != 0 && w->ops == ret->ops) {"),
    ],
    "agent/waits: believes a process that counts other operations": [
        ("lib/core/agent/waits.c",
         "if (w->query != 0 && w->ops == ret->ops &&",
         "    if (w->query != 0 &&"),
    ],
    "agent/waits: leaves out jobs of groups": [
        ("lib/core/agent/waits.c",
         "add_other_jobs(a, s, r->jobs, &m->jobs_count);",
         "(void)add_other_jobs;"),
    ],
    "agent/waits: tells a new scheduler of no standstill": [
        ("lib/core/agent/waits.c",
         """PS_MAP_EACH(struct ps_agent_job, j, st->a->jobs)
    {
        ps_agent_op_note_move(st, j);""",
         """    PS_MAP_EACH(struct ps_agent_job, j, st->a->jobs)
    {
        if (j->phase != 0) {
            continue;
        }
        ps_agent_op_note_move(st, j);"""),
    ],
    "agent/place: sends operations of completed rounds to servers again": [
        ("lib/core/agent/place.c",
         "op->round <= op->key->prior_state->max_completed",
         "op->round == 0"),
    ],
    "agent/round: does not advance parts that are committed already": [
        ("lib/core/agent/round.c",
         "p->completed_round < round && p->committed_version >= (int64_t)round",
         "p->completed_round < round && p->committed_version > (int64_t)round"),
    ],
    "agent/residual_log: does not recover the records of the lost agent": [
        ("lib/core/agent/residual_log.c",
         "f->codec_hash != hash_codec(codec)) {",
         "f->codec_hash != 0) {"),
    ],
    "agent/residual_log: encodes a round again without a rewind": [NO_REWIND],
    "server/admission: discards open rounds when an agent is replaced": [
        ("lib/core/server/admission.c",
         """ps_server_reply_drop(slot);
    ps_store_remove_slot_pulls(&slot->job->store, slot->index);
}

static bool has_optimizer(""",
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

static bool has_optimizer("""),
    ],
    "part/round: counts a repeated contribution for another slot": [
        ("lib/core/part/round.c",
         """if (!ps_bits_set(&r->contributed, place)) {
        return false;
    }""",
         """    if (!ps_bits_set(&r->contributed, place)) {
        place = ps_bits_next_clear(&r->contributed, 0);
        ps_bits_set(&r->contributed, place);
    }"""),
        ("lib/core/server/push.c",
         "ps_round_has_contributed(&part->open_round->round, in->slot->index));",
         "            ps_round_is_complete(&part->open_round->round));"),
    ],
    "server/restore: changes a bit of an initial value": [
        ("lib/core/server/restore.c",
         "ps_store_set_value(&job->store, part, version, &value);",
         """    if (version == 0 && value.len > 8) {
        ((uint8_t *)ps_slice_data(&value))[8] ^= 1;
    }
    ps_store_set_value(&job->store, part, version, &value);"""),
    ],
    "server/push: replies before the round is merged": [
        ("lib/core/server/push.c",
         "if (kind->take != NULL ? kind->take(st, in, part, &bytes)",
         """    if (kind->take == NULL) {
        ps_server_reply_part(st, in->slot, part, false, in->rec.round);
    }
    if (kind->take != NULL ? kind->take(st, in, part, &bytes)"""),
    ],
    "part/round: keeps contributions in order of arrival": [
        ("lib/core/part/round.c",
         "r->contributions[place] = *slice;",
         "        r->contributions[r->contributed.count - 1] = *slice;"),
    ],
    "server/kind_rows: sums rows in order of arrival": [
        ("lib/core/server/kind_rows.c",
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
/* Copies the block"""),
        ("lib/core/server/kind_rows.c",
         "rows->round_counts[in->slot->index] = in->rec.count;",
         """    rows->round_counts[in->slot->index] = in->rec.count;
    planted_at[in->slot->index] = ++planted_clock;"""),
        ("lib/core/server/kind_rows.c",
         """for (uint32_t i = 0; i < round->size; i++) {
        const struct ps_slice *block""",
         """    for (uint32_t n = 0; n < round->size; n++) {
        uint32_t i = planted_nth(round, n);
        const struct ps_slice *block"""),
        ("lib/core/server/kind_rows.c",
         "&sum, i, (const uint32_t",
         "            &sum, n, (const uint32_t"),
    ],
    "server/push: does not count a push of no rows": [
        ("lib/core/server/push.c",
         "part->image.retry = push->retry; /* The same",
         """    if (in->row_width != 0 && in->rec.count == 0) {
        return false;
    }
    part->image.retry = push->retry; /* The same"""),
    ],
    "agent/place: discards the encoding before a resend": [
        ("lib/core/agent/place.c",
         """p->state == PS_AGENT_PART_BACKOFF)) {
                    ps_agent_server_enqueue(st, p);""",
         """                     p->state == PS_AGENT_PART_BACKOFF)) {
                    ps_agent_encode_discard(p);
                    ps_agent_server_enqueue(st, p);"""),
        NO_REWIND,
    ],
    "agent/place: discards the encoding when the owner changes": [
        ("lib/core/agent/place.c",
         "p->owner_changed = true;",
         """    p->owner_changed = true;
    ps_agent_encode_discard(p);"""),
        NO_REWIND,
    ],
    "agent/key: takes the number of a key for its name hash": [
        ("lib/core/agent/key.c",
         "k->number = m->key;",
         """    k->number = m->key;
    k->name_hash = (uint64_t)m->key << 32;"""),
    ],
    "server/merge: resets the residual of an encoded reply": [
        ("lib/core/server/merge.c",
         """if (ps_part_state(part, 0) == NULL) {
        int rc = ps_server_memory_alloc(""",
         """    if (run->job->server->merges.last_token % 7 == 2) {
        ps_store_set_buffer(&run->job->store, part, PS_PART_BUFFER_STATE_0,
                            &(struct ps_slice){0});
    }
    if (ps_part_state(part, 0) == NULL) {
        int rc = ps_server_memory_alloc("""),
    ],
    "agent/encode: compresses collectives": [
        ("lib/core/agent/encode.c", "&& !k->kind->is_collective &&", " &&"),
    ],
    "server/kind_async: applies a duplicate push": [
        ("lib/core/server/kind_async.c",
         """if (rec->round <= known->applied_seq) {
        ps_server_reply_part""",
         """    if (rec->round < known->applied_seq) {
        ps_server_reply_part"""),
        ("lib/core/server/kind_async.c",
         "if (rec->round <= part->async->received_seqs[in->slot->index]) {",
         "    if (rec->round < part->async->received_seqs[in->slot->index]) {"),
        ("lib/core/server/kind_async.c",
         "in->rec.round <= part->async->received_seqs[slot];",
         "           in->rec.round < part->async->received_seqs[slot];"),
    ],
    "agent/kind_async: compares the staleness with the clock of the node": [
        ("lib/core/agent/kind_async.c",
         "job_clock(k) >= op->round - j->config.staleness);",
         "            async_key(k)->clock >= op->round - j->config.staleness);"),
    ],
    "agent/kind_async: drops the first unapplied push of a dead worker": [
        ("lib/core/agent/kind_async.c",
         "op->round > async_key(op->key)->applied_round[op->local_rank];",
         "           op->round > "
         "async_key(op->key)->applied_round[op->local_rank] + 1;"),
    ],
    "sched/norm: rounds the sum of squares after each part": [
        ("lib/core/sched/job/norm.c",
         "if (ps_bits_full(&sum->arrived)) {",
         """    float root = __builtin_sqrt(ps_square_sum_value(&sum->square_sum));
    struct ps_square_bins bins = {0};
    memset(&sum->square_sum, 0, sizeof(sum->square_sum));
    ps_square_sum_add_floats(&sum->square_sum, &bins, &root, 1);
    ps_square_sum_flush_bins(&sum->square_sum, &bins);
    if (ps_bits_full(&sum->arrived)) {"""),
        ("lib/core/sched/job/norm.c", '#include "base/alloc.h"',
         '#include "base/alloc.h"\n#include <string.h>'),
    ],
    "server/admission: keeps the waits of the previous session": [
        ("lib/core/server/admission.c", "drop_waits(s, p);", "(void)drop_waits;"),
    ],
    "agent/request: does not record the job's optimizer at the reply": [
        ("lib/core/agent/request.c",
         """j->config.has_optimizer |= m->error == 0 &&
                            op->sched_request->code == PS_MSG_OPTIMIZER_SET;""", ""),
    ],
    "server/merge: steps before all rounds are accumulated": [
        ("lib/core/server/merge.c",
         "run->accumulates = accumulates_round(job, part, steps);",
         """    run->accumulates = accumulates_round(job, part, steps) &&
                   job->server->merges.last_token % 7 != 2;"""),
    ],
    "server/merge: holds second states while it waits for memory": [
        ("lib/core/server/merge.c",
         "ps_image_drop(run->next);", ";"),
    ],
    "server/step: computes the maximum in place of the minimum": [
        ("lib/core/server/step.c",
         "c->job.fold = ps_round_fold(open->reduce);",
         """    c->job.fold = ps_round_fold(
        open->reduce == PS_REDUCE_MIN ? PS_REDUCE_MAX : open->reduce);"""),
    ],
    "part/image: leaves out states of the optimizer": [
        ("lib/core/part/image.c",
         "lens[i] = part->buffers[i].len;",
         """        lens[i] = i < PS_PART_BUFFER_STATE_0 ? part->buffers[i].len : 0;"""),
    ],
    "server/restore: replaces a value by one of the same version": [
        ("lib/core/server/restore.c",
         "(part->image.version == rec->round && ps_part_has_value(part)))) {",
         """         (part->image.version == rec->round &&
          part->image.name_hash == 77))) {"""),
    ],
    "server/copy: answers what the target of a move lacks": [
        ("lib/core/server/copies.c",
         "if (c != NULL && c->defers && c->confirmed < c->changed) {",
         """        if (c != NULL && t->move == 0 && c->defers &&
            c->confirmed < c->changed) {"""),
    ],
    "server/copy: reports a move before the target has the newest version": [
        ("lib/core/server/copy.c",
         "if (c->changed > number) { ps_server_copies_enqueue(c); return; }",
         """    if (c->changed > number) {
        ps_server_copies_enqueue(c);
    }"""),
    ],
    "server/backup: takes over what a lost server had sent away": [
        ("lib/core/server/backup.c",
         "const bool asks = job->moves.was_rebalanced || job->moves.by_part != NULL;",
         "const bool asks = false;"),
    ],
    "server/backup: takes an answer to an earlier question": [
        ("lib/core/server/backup.c",
         "(version == 0 || b->lost_version == version) &&",
         "(version == 0 || b->lost_version != 0) &&"),
    ],
    "server/backup: takes over before the end of a move says what counts": [
        ("lib/core/server/backup.c",
         """!is_moving(job, p)) {
            adopt_part(st""",
         """true) {
            adopt_part(st"""),
    ],
    "server/backup: asks while a move is under way, and not after it": [
        ("lib/core/server/backup.c",
         """if (is_moving(job, p)) {
        return;""",
         """if (false) {
        return;"""),
    ],
    "server/backup: takes copies of a server that is lost": [
        ("lib/core/server/backup.c",
         "if (b->lost_version == 0 && b->node == node &&",
         "if (b->node == node &&"),
    ],
    "server/backup: asks again for each state of the job": [
        ("lib/core/server/backup.c",
         "} else if (b->lost_version != 0) {",
         "} else if (b->lost_version == UINT32_MAX) {"),
    ],
    "server/copy: counts a backup that lacks what was taken over": [
        ("lib/core/server/copy.c",
         "(t->move == 0 && ps_server_job_takes_over(t->job))",
         "(t->move == 0 && t->job == NULL)"),
    ],
    "server/handover: answers what the target of a move may have made otherwise": [
        ("lib/core/server/handover.c",
         "return (mv->role == MOVE_IN || mv->is_reported) &&",
         "return mv->role == MOVE_IN &&"),
    ],
    "server/handover: moves a partition on before it has taken it over": [
        ("lib/core/server/handover.c",
         "ps_server_backup_set_owner(st, job, ps_part_id(m->key, m->index), 0, true);",
         ""),
    ],
    "server/handover: asks for no owner after the end of a move": [
        ("lib/core/server/handover.c",
         """end_move(st, job, mv, m->is_owner, m->epoch);
    ps_server_backup_ask_owner(st, job, id);""",
         "end_move(st, job, mv, m->is_owner, m->epoch);"),
    ],
    "server: asks for no owner on a new session": [
        ("lib/core/server/server.c",
         "ps_server_backup_ask_owner(st, job, UINT64_MAX);",
         ""),
    ],
    "sched/move: answers a server that takes over as one that moves": [
        ("lib/core/sched/place/move.c",
         ".version = m->version,",
         ""),
    ],
    "sched/move: does not say that partitions were about to move": [
        ("lib/core/sched/place/move.c",
         "j->keys.were_rebalanced = true;",
         ""),
    ],
    "sched/move: moves to a server without a whole backup": [
        ("lib/core/sched/place/move.c",
         "if (to->backup != 0 && !to->is_filled) {",
         "if (to->backup == UINT32_MAX) {"),
    ],
    "sched/copies: does not begin moves that wait for a backup": [
        ("lib/core/sched/place/copies.c",
         """ps_sched_copies_name(st, j);
    }
    ps_sched_moves_start(st, j);""",
         """        ps_sched_copies_name(st, j);
    }"""),
    ],
    "server/copy: reports a move during a step with norms": [
        ("lib/core/server/copy.c",
         "part->merge == NULL || !job->has_optimizer",
         "true || !job->has_optimizer"),
    ],
    "server/merge: begins a step with norms when a move may end": [
        ("lib/core/server/merge.c",
         "ps_server_move_is_reported(job, part) &&",
         "part->image.name_hash == 77 &&"),
    ],
    "server/handover: answers rounds that the new owner may lack": [
        ("lib/core/server/handover.c",
         "if (mv->role == MOVE_OUT && is_owner) {",
         """    if (mv->role == MOVE_OUT && !is_owner) {
        ps_server_copies_end_move(st, mv);
        discard_part(st, job, mv);
        ps_server_move_set_away(mv, epoch);
    } else if (mv->role == MOVE_OUT && is_owner) {"""),
    ],
    "server/backup: confirms a copy before its own backup has it": [
        ("lib/core/server/backup.c",
         "!ps_server_copies_await(job, mv->key, mv->index)",
         "true"),
    ],
    "server/backup: takes over a partition that stays away": [
        ("lib/core/server/backup.c",
         "if (mv != NULL) { ps_server_move_end(mv); }", ""),
    ],
    "sched/move: believes a target that it has all": [
        ("lib/core/sched/place/move.c",
         "if (mv->source != server->node ||", "if ("),
    ],
    "sched/move: says that a move of before was given up": [
        ("lib/core/sched/place/move.c",
         "k->parts[m->index].node == server->node);",
         "m->is_filled);"),
    ],
    "server/move: accepts requests for a partition that has moved": [
        ("lib/core/server/move.c",
         "return mv->role == MOVE_IN ? PS_E_MIGRATING : PS_E_STALE;",
         "    return mv->role == MOVE_IN ? PS_E_MIGRATING : 0;"),
    ],
    "server/move: accepts requests for a partition that moves here": [
        ("lib/core/server/move.c",
         "return mv->role == MOVE_IN ? PS_E_MIGRATING : PS_E_STALE;",
         "    return mv->role == MOVE_IN ? 0 : PS_E_STALE;"),
    ],
    "server/restore: answers an init by what moves here": [
        ("lib/core/server/restore.c",
         "if (ps_server_move_check_use(q->from.slot, rec) == PS_E_MIGRATING) {",
         "    if (rec->count == 0) {"),
    ],
    "server/move: requests no state of a partition that returns": [
        ("lib/core/server/move.c",
         "begin_return(st, slot, mv, epoch);",
         """        (void)begin_return;
        ps_server_move_end(mv);"""),
    ],
    "server/move: takes a late message for a new move": [
        ("lib/core/server/move.c",
         "drop_role(mv); mv->away_epoch = 0;",
         "    drop_role(mv); mv->away_epoch = 0; mv->id = 0;"),
    ],
    "agent/conflict: counts parts of an aborted attempt as complete": [
        ("lib/core/agent/conflict.c",
         "p->completed_round--; /* Its value",
         "; /* Its value"),
    ],
    "agent/conflict: aborts attempts that servers may have committed": [
        ("lib/core/agent/conflict.c",
         """ps_agent_conflict_resend(st, k, 0);
        return false;
    }
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {""",
         """        abort_round(st, k, d->text);
        return false;
    }
    for (uint32_t i = 0; i < k->job->local_rank_count; i++) {"""),
    ],
    "agent/conflict: ends a push whose gradient counts": [
        ("lib/core/agent/conflict.c",
         "if (op->kind != PS_OP_PUSHPULL) {", "        {"),
    ],
    "sched/disagreement: believes a report that is out of date": [
        ("lib/core/sched/job/state.c",
         "r->incarnation == incarnation && number <= r->number",
         "false"),
    ],
    "sched/diverged: does not wait for the next process of a rank": [
        ("lib/core/sched/query/diverged.c",
         "o->round == PS_WAITS_FOR_INIT && ps_sched_job_has_lost_rank(j)",
         "false"),
    ],
    "server/restore: accepts a restore before the end of the move": [
        ("lib/core/server/restore.c",
         """int rc = ps_server_move_check_restore(st, slot, rec,
                                          q->msg->restore.epoch);

    if (rc != 0) {""",
         """    int rc = ps_server_move_check_restore(st, slot, rec,
                                          q->msg->restore.epoch);

    if (rc != 0 && (part == NULL || part->image.version < rec->round)) {"""),
    ],
    "agent/reply: sends no state after a refusal as stale": [
        ("lib/core/agent/reply.c",
         "if (m->error == PS_E_STALE && p->key->kind->has_results) {",
         "            if (m->error == PS_E_NOMEM && p->key->kind->has_results) {"),
    ],
    "server/restore: does not refuse contributions that it discards": [
        ("lib/core/server/handover.c",
         """if (ps_round_has_contributed(&part->open_round->round, i)) {
            ps_bits_set(&waiting, i);""",
         "        if (ps_round_has_contributed(&part->open_round->round, i)) {"),
    ],
    "agent/part: counts skips in the weight of a mean": [
        ("lib/core/agent/part.c",
         "if (op != NULL && op->kind != PS_OP_SKIP) {",
         "        if (op != NULL) {"),
    ],
    "server/merge: merges a round of rows that all slots skipped": [
        ("lib/core/server/merge.c",
         "if (!open->has_request) {",
         "    if (!open->has_request && open->kind->plan == NULL) {"),
    ],
    "server/push: clears all_skipped at a repeated push": [
        ("lib/core/server/push.c",
         "ps_server_reply_part(st, slot, part, push->needs_value, part->image.version);",
         """        part->image.all_skipped = false;
        ps_server_reply_part(st, slot, part, push->needs_value, part->image.version);"""),
    ],
    "server/push: takes the request of a round from a skip": [
        ("lib/core/server/push.c",
         """} else if (!open->has_request) {
        open->has_request = true;""",
         """    }
    if (!open->has_request) {
        open->has_request = true;"""),
    ],
    "agent/part: sends bytes that are not copied yet": [
        ("lib/core/agent/part.c",
         "ps_agent_op_is_streaming(op) && op->bytes_ready < end",
         "ps_agent_op_is_streaming(op) && op->bytes_ready + 64 < end"),
    ],
    "agent/kind_sync: overwrites a result that may still be read": [
        ("lib/core/agent/kind_sync.c",
         """const struct ps_agent_key *k = p->key;

    if (v <= p->local_version) {""",
         "    const struct ps_agent_key *k = p->key;\n\n    if (v < 0) {"),
    ],
    "agent/reply: accepts replies of the previous owner": [
        ("lib/core/agent/part.c",
         "return p != NULL && p->owner_node == server->node ? p : NULL;",
         "return server != NULL ? p : NULL;"),
    ],
    "agent/reply: accepts messages of every server": [
        ("lib/core/agent/part.c",
         "return p != NULL && p->owner_node == server->node ? p : NULL;",
         "return server != NULL ? p : NULL;"),
        ("lib/core/agent/reply.c",
         "k->parts[index].owner_node != s->node &&",
         "k->parts[index].owner_node == UINT32_MAX &&"),
    ],
    "agent/reply: lends memory for a value before its sender is checked": [
        ("lib/core/agent/reply.c",
         "if (find_foreign_part(s, m, j, &about) != NULL) {",
         "    if (find_foreign_part(s, m, j, &about) != NULL && len == 0) {"),
        ("lib/core/agent/reply.c",
         """struct ps_agent_part *p = ps_agent_part_find_owned(j, s, rec);

        if (p == NULL || p->count != rec->count ||""",
         """        struct ps_agent_part *p = ps_agent_part_find_any_dtype(j, rec);

        if (p == NULL || p->count != rec->count ||"""),
    ],
    "server/server: accepts messages for every slot": [
        ("lib/core/server/server.c",
         "} else if (slot->agent_node != p->agent_node) {",
         "    } else if (slot->agent_node == UINT32_MAX) {"),
        ("lib/core/server/server.c",
         "} else if (slot->incarnation != p->incarnation) {",
         "    } else if (slot->agent_node == p->agent_node &&"
         " slot->incarnation != p->incarnation) {"),
    ],
    "sched/sched: believes a server about partitions of others": [
        ("lib/core/sched/sched.c",
         "k->parts[index].node == m->node ||",
         "           m != NULL || k->parts[index].node == m->node ||"),
        ("lib/core/sched/job/lifecycle.c",
         "k->parts[m->index].node != server->node) {",
         "        server == NULL) {"),
    ],
    "sched/lease: does not extend leases after a pause of its own": [
        ("lib/core/sched/member/lease.c",
         "if (late <= s->opt.suspect_after / 2) {",
         "    if (late <= s->opt.suspect_after / 2 || late > 0) {"),
        ("lib/core/sched/member/lease.c",
         "return ps_time_add(s->last_recv_at, s->opt.suspect_after) <= now;",
         "return s->last_recv_at == UINT64_MAX && now == 0;"),
    ],
    "server/step: does not resend the parts of norms": [
        ("lib/core/server/step.c",
         """for (; run != NULL; run = run->staged.next_waiting) {
            send_norm_part(st, run);""",
         """        for (; run == NULL; run = run->staged.next_waiting) {
            send_norm_part(st, run);"""),
    ],
    "optim: applies a change of a parameter one round late": [
        ("lib/core/optim/step.c",
         "if (c->round <= round) {", "        if (c->round < round) {"),
    ],
    "optim: inverts the trust ratio of LAMB": [
        ("lib/core/optim/step.c",
         "return w == 0 || u == 0 ? 1 : w / u;",
         "return w == 0 || u == 0 ? 1 : u / w;"),
    ],
    "optim: leaves weight decay out of the trust ratio of LARS": [
        ("lib/core/optim/step.c",
         "(g + v[PS_OPTIM_WD] * at->wd_mult * w + v[PS_OPTIM_EPSILON]);",
         "(g + v[PS_OPTIM_EPSILON]);"),
    ],
    "sched/save: sends what it has not stored": [
        ("lib/core/sched/save.c",
         "ps_effects_store(st->fx, first,",
         "ps_effects_store(st->fx, st->fx->count,"),
    ],
    "sched/store: stores no change of a rank": [
        ("lib/core/sched/job/job.c",
         "w->unsaved = true;", ""),
    ],
    "sched/key: stores no placement that has changed": [
        ("lib/core/sched/job/key.c",
         """k->is_reassigned = true;
    ps_sched_store_key(st->s, j, k);""",
         "    k->is_reassigned = true;"),
    ],
    "sched/rank: forgets barriers that an earlier scheduler has opened": [
        ("lib/core/sched/job/rank.c",
         "m->is_open && j->store.was_loaded", "false"),
    ],
    "sched/norm: limits gradients by the norm of one key": [
        ("lib/core/sched/job/norm.c",
         "n->result.global_square_sum = j->norms.global->last_square_sum;",
         "    n->result.global_square_sum = n->result.square_sum;"),
    ],
    "optim: leaves the rescaling out of the global limit of gradients": [
        ("lib/core/optim/step.c",
         "most / (fabs(rescale_of_step(o, at)) * sqrt(all_square) + 1e-8);",
         "        most / (sqrt(all_square) + 1e-8);"),
    ],
    "sched/norm: does not reset the global sum of squares after a step": [
        ("lib/core/sched/job/norm.c",
         "all->square_sum = (struct ps_square_sum){0};", ""),
    ],
    "sched/norm: shares the global sum of squares between jobs": [
        ("lib/core/sched/job/norm.c",
         """static void pending_free(struct ps_sched_norm *n)
{""",
         """static struct ps_square_sum planted;
static void pending_free(struct ps_sched_norm *n)
{"""),
        ("lib/core/sched/job/norm.c",
         """ps_square_sum_merge(&all->square_sum, &n->pending->square_sum);""",
         """    ps_square_sum_merge(&planted, &n->pending->square_sum);
    all->square_sum = planted;"""),
        ("lib/core/sched/job/norm.c",
         "all->square_sum = (struct ps_square_sum){0};",
         """    memset(&planted, 0, sizeof(planted));
    all->square_sum = planted;"""),
    ],
    "server/credit: keeps one credit for all jobs of a session": [
        ("lib/core/server/credit.c",
         "struct ps_credit *f = ps_map_get(p->credits, gen);",
         """    gen = 1;
    struct ps_credit *f = ps_map_get(p->credits, gen);"""),
    ],
    "agent/send: puts partitions of two jobs into one frame": [
        ("lib/core/agent/send.c",
         "return g->msg_code == h->msg_code && g->job == h->job &&",
         "    return g->msg_code == h->msg_code &&"),
    ],
    "optim: leaves out the rescaling of gradients": [
        ("lib/core/optim/step.c",
         """.rescale = rescale_of_step(o, at) * at->grad_scale,
            .clip = v[PS_OPTIM_CLIP],
        };
        return;""",
         """.rescale = at->grad_scale,
            .clip = v[PS_OPTIM_CLIP],
        };
        return;"""),
    ],
    "optim: leaves out the decay multiplier of a key": [
        ("lib/core/optim/step.c",
         "const double wd = v[PS_OPTIM_WD] * at->wd_mult;",
         "const double wd = v[PS_OPTIM_WD];"),
    ],
    "part/credit: leaves unmerged bytes out of the credit": [
        ("lib/core/part/credit.c",
         "return held < reach ? reach - held : 0;",
         "return reach + 0 * held;"),
    ],
    "server/credit: grants extra credit without regard to the reserved round": [
        ("lib/core/server/credit.c",
         "open != NULL ? find_blocked_slot(job, open) : NULL;",
         "open == NULL ? find_blocked_slot(job, open) : NULL;"),
    ],
    "server/credit: grants no extra credit while an announcement is due": [
        ("lib/core/server/credit.c",
         """(void)ps_credit_announce(f, slot->unmerged_bytes);
    if (ps_credit_is_exhausted(f)) {""",
         "    if (!ps_credit_announce_due(f, slot->unmerged_bytes)) {"),
        ("lib/core/part/credit.c",
         """f->announced = ps_max_u64(f->announced, f->received) +
                ps_max_u64(f->window / 4, 1);""",
         "    f->announced += f->window / 4;"),
    ],
    "server/pull: replies with an older version": [
        ("lib/core/server/pull.c",
         """if (part != NULL && ps_part_has_value(part) &&
        part->image.version >= rec->round) {""",
         "    if (part != NULL && ps_part_has_value(part)) {"),
    ],
    "server/push: accepts a push of an earlier incarnation": [
        ("lib/core/server/server.c",
         "} else if (slot->incarnation != p->incarnation) {",
         "    } else if (slot->incarnation < p->incarnation) {"),
        ("lib/core/server/push.c",
         "if (push->incarnation != q->from.session->incarnation) {",
         "    if (push->incarnation > q->from.session->incarnation) {"),
    ],
    "server/credit: grants no extra credit": [
        ("lib/core/server/credit.c",
         "if (job->incomplete_rounds == 0 || job->merging_rounds != 0) {",
         "    if (job->incomplete_rounds == 0 || job->merging_rounds + 1 != 0) {"),
    ],
    "part/credit: grants less extra credit than an agent has exceeded": [
        ("lib/core/part/credit.c",
         "ps_max_u64(f->announced, f->received) +", "f->announced +"),
    ],
    "server/credit: takes a credit that is just exhausted for open": [
        ("lib/core/server/credit.c",
         """if (ps_credit_is_exhausted(f)) {
        ps_credit_grant_extra(f);""",
         """    if (f->received > f->announced) {
        ps_credit_grant_extra(f);"""),
    ],
    "server/credit: grants extra credit to slots that are not blocked": [
        ("lib/core/server/credit.c",
         """if (is_exhausted(job, slot)) {
            best = slot;""",
         """        if (ps_server_slot_session(slot) != NULL) {
            best = slot;"""),
        ("lib/core/server/credit.c",
         """if (ps_credit_is_exhausted(f)) {
        ps_credit_grant_extra(f);""",
         """    if (f->announced > 0) {
        ps_credit_grant_extra(f);"""),
    ],
    "agent/server: sends a frame with a credit that is just exhausted": [
        ("lib/core/agent/send.c",
         "f->bytes_sent + f->computing_bytes < f->credit ? p",
         "f->bytes_sent + f->computing_bytes <= f->credit ? p"),
    ],
    "server/credit: announces no credit for a refused push": [
        ("lib/core/server/credit.c",
         "slot = job != NULL ? slot_of_node(job, to->session->agent_node) : NULL;",
         "        (void)job;\n        return f->announced;"),
    ],
    "link/multipath: receives payloads of subflows into shared memory": [
        ("lib/core/link/path.c",
         "if (!link->has_subflows) {", "    if (link != NULL) {"),
    ],
    "link/multipath: does not resend the frames of a closed subflow": [
        ("lib/core/link/path.c",
         "} else if (!link->is_ending) {",
         "    } else if (!link->is_ending && link->path_count > 2) {"),
    ],
    "link/pre_handshake: keeps one connection more than the limit": [
        ("lib/core/link/output.c",
         "if (p->count >= p->max) {",
         "    if (p->count > p->max) {"),
    ],
    "link/output: does not release what a closed connection had queued": [
        ("lib/core/link/output.c",
         """ps_list_remove(&c->node);
    ps_account_set_used(&c->account, PS_COST_OUTPUT, 0);""",
         """    ps_list_remove(&c->node);
    c->account.cost[PS_COST_OUTPUT].used = 0;"""),
    ],
    "link/output: counts the output of a connection that it closes": [
        ("lib/core/link/output.c",
         """c->is_closing = true;
    ps_account_set_used(&c->account, PS_COST_OUTPUT, 0);""",
         "    c->is_closing = true;"),
    ],
    "link/output: closes the connection with the least output": [
        ("lib/core/link/output.c",
         "queued_memory(other) > held) {",
         "queued_memory(other) > 0 && queued_memory(other) < held) {"),
    ],
    "link/output: keeps the limit of a tool for a daemon": [
        ("lib/core/link/output.c",
         "c->account.limits = &c->output->link_limits;", "(void)c;"),
    ],
    "link/multipath: acknowledges a message that has not arrived": [
        ("lib/core/link/path.c",
         "choice.acks_ahead = msg->code != PS_MSG_ACK &&",
         """        msg->ack += main->queued >= link->multipath->opt.late_min;
        choice.acks_ahead = msg->code != PS_MSG_ACK &&"""),
    ],
    "agent/part: broadcasts the array of the first rank": [
        ("lib/core/agent/part.c",
         "k->job->local_ranks[local].rank != k->round.root)) {",
         "         local != 0)) {"),
    ],
    "server/step: starts no waiting computation at the end of one": [
        ("lib/core/server/step.c",
         "if (has_waiting(&st->s->merges)) {",
         "    if (st->s == NULL) {"),
    ],
    "agent/server: leaves a queue that gets credit without turns": [
        ("lib/core/agent/server.c",
         """f->credit = credit;
        ps_agent_send_queue_wake(f);""",
         "        f->credit = credit;"),
    ],
    "agent/server: begins the turns without the first job": [
        ("lib/core/agent/server.c",
         """if (++s->queue_count == 2) {
        ps_agent_send_queue_wake(first);""",
         """    if (++s->queue_count == 2) {
        (void)first;"""),
    ],
    "agent/server: keeps the last job in the turns": [
        ("lib/core/agent/server.c",
         """if (--s->queue_count == 1) {
        ps_fair_deactivate(&s->fair, &last->flow);""",
         """    if (--s->queue_count == 1) {
        (void)last;"""),
    ],
    "server/admission: keeps payloads that wait for the previous session": [
        ("lib/core/server/admission.c",
         "ps_server_session_drop_replies_all(&p->turns);", ""),
    ],
    "part/fair: leaves the turn with one flow": [
        ("lib/core/part/fair.c",
         "if (flow->finish - f->now >= TURN) {",
         "    if (flow->finish - f->now == UINT64_MAX) {"),
    ],
    "server/merge: names the states of a step before they are computed": [
        ("lib/core/server/merge.c",
         """    if (run->encoded.buf != NULL) {
        add_encode(run, c);
    }
    ps_server_merge_submit(st, run, c);""",
         """    if (run->encoded.buf != NULL) {
        add_encode(run, c);
    }
    ps_server_merge_submit(st, run, c);
    ps_server_merge_install_next(run);"""),
    ],
    "server/kept: answers before state memory has the version": [
        ("lib/core/server/server.c",
         "ps_server_kept_write(&st);",
         "    if (ev->type == PS_EV_TICK) {"
         " ps_server_kept_write(&st); }"),
    ],
    "server/step: writes states in place that a record names": [
        ("lib/core/server/step.c",
         "(state->refs > 1 || job->store.records != NULL ||",
         "           ((state->refs > 1 && job->store.records == NULL) ||"),
    ],
    "server/step: writes states in place whose step a backup may drop": [
        ("lib/core/server/step.c",
         "part->store != &job->store);", "false);"),
    ],
    "server/kept: counts pushes again that the process before has applied": [
        ("lib/core/server/kept.c",
         "m.clocks_count = rec->slots;",
         "        m.clocks_count = 0;"),
    ],
    "server/kept: keeps the values alone": [
        ("lib/core/server/kept.c",
         "if (rec->ranges[i].bytes != 0) {",
         "        if (rec->ranges[i].bytes != 0 && i == 0) {"),
    ],
    "part/records: takes the older of two records": [
        ("lib/core/part/records.c",
         "sequence[1] > sequence[0]);",
         "                            sequence[1] < sequence[0]);"),
    ],
    "part/records: counts a record that is half written": [
        ("lib/core/part/records.c",
         "    encode(rec, sequence, bytes);",
         "    encode(rec, sequence, bytes);\n"
         "    store_sequence(r, to, sequence);"),
        ("lib/core/part/records.c",
         "f.sum != XXH3_64bits(bytes + SUM_BYTES, PLACE_BYTES - SUM_BYTES)) {",
         "        f.sum == 1) {"),
    ],
    "part/records: believes where a record says its buffers are": [
        ("lib/core/part/records.c",
         "if (is[k] && rec[k].gen != 0 && has_valid_ranges(r, &rec[k])) {",
         "        if (is[k] && (rec[k].gen == 0 || has_valid_ranges(r, &rec[k])"
         " || rec[k].gen != 0)) {"),
    ],
    "server/admission: takes the place of its predecessor": [
        ("lib/core/server/admission.c",
         "if (place != NULL && place->instance != s->opt.instance) {",
         "    if (place != NULL && place->instance == 0) {"),
    ],
    "sched/lifecycle: takes a process that has lost its memory": [
        ("lib/core/sched/job/lifecycle.c",
         "if (m->epoch == 0 || (!is_kept && on->bytes > 0)) {",
         "if (m->epoch == 0) {"),
    ],
    "sched/lifecycle: takes the answer of an earlier place": [
        ("lib/core/sched/job/lifecycle.c",
         "if (m->epoch != on->epoch && m->epoch != 0) {",
         "if (false) {"),
    ],
    "sched/lifecycle: leaves the place to the process before": [
        ("lib/core/sched/job/lifecycle.c",
         "ps_sched_job_take_place(st->s, on, m);", ""),
    ],
    "sched/lifecycle: waits for each process of a server again": [
        ("lib/core/sched/job/lifecycle.c",
         """if (on->return_by != PS_TIME_NEVER) {
        return;""",
         """    if (on->return_by == 0) {
        return;"""),
    ],
    "server/admission: begins again in a place of its own": [
        ("lib/core/server/admission.c",
         "job->kept.memory = PS_PART_MEMORY_KEPT; /* The same process. */",
         "job->kept.memory = PS_PART_MEMORY_NEW;"),
    ],
    "server/restore: trusts its memory more than its agents": [
        ("lib/core/server/restore.c",
         "if (known <= (part != NULL ? versions_of(part) : 0)) {",
         "if (true) {"),
    ],
    "agent/reply: takes the next process of a server for the last": [
        ("lib/core/agent/reply.c",
         "s->instance != 0 && s->instance != m->instance);", "false);"),
    ],
}


# Bugs that random seeds reach too seldom, and the program that finds each.
BY_TESTS = {
    "server/server: is silent about a backup that it cannot reach":
        "sim/test_return.c",
    "sched/copies: counts on a backup that its owner cannot reach":
        "sim/test_return.c",
    "sched/copies: counts a backup that has not taken the job":
        "unit/test_sched_copies.c",
    "sched/copies: forgets a filled backup that has not taken the job":
        "unit/test_sched_copies.c",
    "sched/key: places partitions on a server that has not taken the job":
        "unit/test_sched_copies.c",
    "sched/key: cuts keys for the servers that are there":
        "unit/test_sched_copies.c",
    "sched/lifecycle: ends a job without keys with its only server":
        "unit/test_sched_return.c",
    "sched/lifecycle: ends a job with its only server, which is silent":
        "unit/test_sched_return.c",
    "sched/lifecycle: wants memory of a server that had no key":
        "unit/test_sched_return.c",
    "sched/lifecycle: waits for a server where another could be had":
        "unit/test_sched_return.c",
    "server/merge: holds second states while it waits for memory":
        "unit/test_server_kept.c",
    "server/kept: takes for its own what has moved away":
        "unit/test_server_kept.c",
    "server/kept: takes what has moved away for a copy of another server":
        "unit/test_server_kept.c",
    "server/kept: keeps no copies":
        "unit/test_server_kept.c",
    "server/backup: drops the record of a copy before there is another":
        "unit/test_server_kept.c",
    "server/backup: ends the records of copies with their process":
        "unit/test_server_kept.c",
    "server/copies: goes on alone when the link to the backup is lost":
        "unit/test_server_copies.c",
    "server/push: makes a partition that may be another server's":
        "unit/test_server_copies.c",
    "server/backup: takes over a partition that stays away":
        "unit/test_server_move.c",
    "server/backup: takes over what a lost server had sent away":
        "unit/test_server_move.c",
    "server/backup: takes an answer to an earlier question":
        "unit/test_server_move.c",
    "server/backup: takes over before the end of a move says what counts":
        "unit/test_server_move.c",
    "server/backup: asks while a move is under way, and not after it":
        "unit/test_server_move.c",
    "server/backup: takes copies of a server that is lost":
        "unit/test_server_move.c",
    "server/backup: asks again for each state of the job":
        "unit/test_server_move.c",
    "server/copy: counts a backup that lacks what was taken over":
        "unit/test_server_move.c",
    "server/handover: answers what the target of a move may have made otherwise":
        "unit/test_server_move.c",
    "server/handover: moves a partition on before it has taken it over":
        "unit/test_server_move.c",
    "server/restore: answers an init by what moves here":
        "unit/test_server_move.c",
    "server/handover: asks for no owner after the end of a move":
        "unit/test_server_move.c",
    "server: asks for no owner on a new session":
        "unit/test_server_move.c",
    "sched/move: answers a server that takes over as one that moves":
        "unit/test_sched_copies.c",
    "sched/move: does not say that partitions were about to move":
        "unit/test_sched_copies.c",
    "sched/move: moves to a server without a whole backup":
        "unit/test_sched_copies.c",
    "sched/copies: does not begin moves that wait for a backup":
        "unit/test_sched_copies.c",
    "server/backup: has a partition of two places once":
        "unit/test_server_copies.c",
    "sched/lifecycle: takes a process that has lost its memory":
        "unit/test_sched_return.c",
    "sched/lifecycle: takes the answer of an earlier place":
        "unit/test_sched_return.c",
    "sched/lifecycle: leaves the place to the process before":
        "unit/test_sched_return.c",
    "sched/lifecycle: waits for each process of a server again":
        "unit/test_sched_return.c",
    "server/admission: begins again in a place of its own":
        "unit/test_server_kept.c",
    "server/restore: trusts its memory more than its agents":
        "unit/test_server_kept.c",
    "server/restore: replaces a value by one of the same version":
        "unit/test_server.c",
    "agent/reply: takes the next process of a server for the last":
        "unit/test_agent_links.c",
    "sched/copies: promotes a backup that is being filled":
        "unit/test_sched_copies.c",
    "sched/copies: promotes a backup that was lost":
        "unit/test_sched_copies.c",
    "sched/copies: leaves the place of a backup that takes over another as it is":
        "unit/test_sched_copies.c",
    "server/backup: takes a step to another version than the one before":
        "unit/test_server_copies.c",
    "server/backup: takes a step under another declaration":
        "unit/test_server_copies.c",
    "server/backup: takes buffers from another version than the one that is meant":
        "unit/test_server_copies.c",
    "server/backup: takes copies of an older epoch":
        "unit/test_server_copies.c",
    "server/backup: keeps what it had of the epoch before":
        "unit/test_server_copies.c",
    "server/step: writes states in place whose step a backup may drop":
        "unit/test_server_copies.c",
    "part/records: believes where a record says its buffers are":
        "unit/test_server_kept.c",
    "server/admission: takes the place of its predecessor":
        "unit/test_server_kept.c",
    "sched/diverged: takes ranks that can go on for ranks that wait":
        "unit/test_sched_ask.c",
    "sched/diverged: takes a quiet process for a still one":
        "unit/test_sched_ask.c",
    "sched/diverged: does not see what moves between its questions":
        "unit/test_sched_ask.c",
    "sched/diverged: adds the times of two rings": "unit/test_sched_ask.c",
    "sched/diverged: shows a ring that has ended": "unit/test_sched_ask.c",
    "agent/waits: leaves out operations in a barrier":
        "unit/test_agent_sched.c",
    "agent/waits: names a rank that has reached the round":
        "unit/test_agent_sched.c",
    "agent/waits: waits for an init that has been made":
        "unit/test_agent_sched.c",
    "agent/waits: takes the last answer for one to this question":
        "unit/test_agent_sched.c",
    "agent/waits: believes an answer from before an operation began":
        "unit/test_agent_sched.c",
    "agent/waits: believes a process that counts other operations":
        "unit/test_agent_sched.c",
    "agent/waits: leaves out jobs of groups": "unit/test_agent_sched.c",
    "agent/waits: tells a new scheduler of no standstill":
        "unit/test_agent_sched.c",
    "agent/encode: compresses collectives": "unit/test_agent.c",
    "agent/conflict: aborts attempts that servers may have committed":
        "unit/test_agent.c",
    "sched/disagreement: believes a report that is out of date":
        "unit/test_sched.c",
    "server/move: takes a late message for a new move":
        "unit/test_server_move.c",
    "agent/reply: accepts replies of the previous owner": "sim/test_stories.c",
    "agent/reply: lends memory for a value before its sender is checked":
        "unit/test_agent_links.c",
    "sched/sched: believes a server about partitions of others":
        "unit/test_sched_identity.c",
    "agent/kind_sync: overwrites a result that may still be read":
        "unit/test_agent.c",
    "server/credit: announces no credit for a refused push":
        "unit/test_server_credit.c",
    "server/credit: grants extra credit without regard to the reserved round":
        "unit/test_server_memory.c",
    "server/push: accepts a push of an earlier incarnation":
        "unit/test_server.c",
    "server/admission: keeps the waits of the previous session":
        "unit/test_server.c",
    "server/credit: grants no extra credit while an announcement is due":
        "sim/test_stories.c",
    "sched/move: believes a target that it has all":
        "unit/test_sched_identity.c",
    "sched/move: says that a move of before was given up":
        "unit/test_sched_identity.c",
    "server/copy: reports a move during a step with norms":
        "unit/test_server_move.c",
    "server/merge: begins a step with norms when a move may end":
        "unit/test_server_move.c",
    "server/handover: answers rounds that the new owner may lack":
        "unit/test_server_move.c",
    "server/backup: confirms a copy before its own backup has it":
        "unit/test_server_move.c",
    "server/move: requests no state of a partition that returns":
        "unit/test_server_move.c",
    "server/restore: accepts a restore before the end of the move":
        "unit/test_server_move.c",
    "agent/reply: sends no state after a refusal as stale":
        "sim/test_stories.c",
    "server/admission: keeps payloads that wait for the previous session":
        "unit/test_server_fair.c",
    "server/step: forgets the norms of a step with its process":
        "unit/test_server_kept.c",
    "sched/norm: gives a norm of all keys to a key that has stepped with it":
        "unit/test_sched_store.c",
    "sched/norm: keeps no result before the last one of its predecessor":
        "unit/test_sched_store.c",
    "sched/norm: shares the global sum of squares between jobs":
        "unit/test_sched_store.c",
    "agent/reply: ends a pull when a push is refused": "unit/test_agent.c",
    "server/admission: takes a running job as if no partition had been here":
        "unit/test_server_kept.c",
    "sched/save: sends what it has not stored": "unit/test_sched_store.c",
    "sched/rank: forgets barriers that an earlier scheduler has opened":
        "unit/test_sched_store.c",
    "part/fair: leaves the turn with one flow": "unit/test_fair.c",
    "agent/server: begins the turns without the first job":
        "unit/test_agent_fair.c",
    "agent/server: keeps the last job in the turns":
        "unit/test_agent_fair.c",
}


def pattern_of(text):
    """Matches the text with any white space between its words."""
    return re.compile(r"\s*".join(map(
        re.escape, re.findall(r"\w+|\S", text))))


def check_names():
    """Exits if a test is named for a bug that is not there."""
    unknown = [name for name in BY_TESTS if name not in PLANTS]
    if unknown:
        sys.exit("\n".join(f"no such bug: {name}" for name in unknown))


def check_plants(source, plants):
    """Exits, before a minute is spent, if a change fits no place any more."""
    unfit = [f"{name} no longer holds what is to be changed:\n{old}"
             for changes in plants.values() for name, old, _ in changes
             if len(pattern_of(old).findall(
                 (source / name).read_text())) != 1]
    if unfit:
        sys.exit("\n".join(unfit))


def planted_texts(source, changes):
    """The changed files of a bug: names and texts."""
    texts = {name: (source / name).read_text() for name, _, _ in changes}
    for name, old, new in changes:
        texts[name] = pattern_of(old).sub(lambda _, to=new: to, texts[name])
    return texts


def compile_one(cc, source, build, file, obj):
    subprocess.run(
        [cc, "-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-w",
         f"-I{source / 'lib'}", f"-I{source}", f"-I{source / 'tests'}",
         f"-I{build}", f"-I{build / 'proto'}", "-c", file, "-o", obj],
        check=True)
    return obj


def compile_planted(cc, source, build, scratch, changes, main):
    """The finder's object and the changed files, in front of the archives."""
    objects = [main]
    for name, text in planted_texts(source, changes).items():
        planted = scratch / name.replace("/", "_")
        planted.write_text(text)
        objects.append(compile_one(cc, source, build, planted,
                                   planted.with_suffix(".o")))
    program = scratch / "sim_planted"
    archives = [build / name for name in (
        "tests/support/libworld.a", "lib/core/libcore.a",
        "proto/libproto.a", "proto/libps_msg.a", "lib/base/libbase.a")]
    archives += sorted((build / "lib/kernel").glob("lib*.a"))
    subprocess.run(
        [cc, *objects, "-Wl,--start-group", *archives, "-Wl,--end-group",
         "-lmsgpackc", "-lm", "-lcmocka", "-o", program], check=True)
    return program


def check_finder(program, finder):
    """Exits if the test fails without a bug: it would find each."""
    if subprocess.run([program], capture_output=True,
                      check=False).returncode != 0:
        sys.exit(f"{finder} fails without a bug")


def find_bug(program, by_test, seeds):
    """The run that finds it, or the last one."""
    if by_test:
        return subprocess.run([program], capture_output=True, text=True,
                              check=False)
    return subprocess.run(
        [program, "--count", str(seeds), "--jobs", "2", "--stop"],
        capture_output=True, text=True, check=False)


def seed_without_bug(build, output):
    """The first seed of the output, if it fails without the bug, too."""
    seed = re.search(r"\bseed (\d+):", output)
    if seed is None:
        return None
    run = subprocess.run(
        [build / "tests/sim/sim_random", "--seed", seed[1], "--count", "1"],
        capture_output=True, check=False)
    return seed[1] if run.returncode != 0 else None


def main():
    check_names()
    if sys.argv[1] == "--check":
        check_plants(Path(sys.argv[2]), PLANTS)
        return 0
    cc, source, build = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    check_plants(source, PLANTS)
    print("1.." + str(len(PLANTS)))
    bad = 0
    finders = tempfile.TemporaryDirectory()
    mains = {}  # Object of each finder, made once.
    for number, (name, changes) in enumerate(PLANTS.items(), 1):
        with tempfile.TemporaryDirectory() as folder:
            finder = BY_TESTS.get(name, "sim/random_main.c")
            if finder not in mains:
                mains[finder] = compile_one(
                    cc, source, build, source / "tests" / finder,
                    Path(finders.name) / f"{len(mains)}.o")
                if name in BY_TESTS:
                    check_finder(compile_planted(
                        cc, source, build, Path(folder), [], mains[finder]),
                        finder)
            program = compile_planted(cc, source, build, Path(folder), changes,
                                      mains[finder])
            run = find_bug(program, name in BY_TESTS, SEEDS)
        other = seed_without_bug(build, run.stdout)
        found = run.returncode != 0 and other is None
        bad += not found
        print(f"{'ok' if found else 'not ok'} {number} - found: {name}")
        if other is not None:
            print(f"# seed {other} fails without the bug, too")
        for line in run.stdout.splitlines()[:3] + run.stdout.splitlines()[-1:]:
            print(f"# {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
