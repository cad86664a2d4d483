# SPDX-License-Identifier: Apache-2.0
"""A model of ranks that come and go while a job runs: two partitions, A and B,
on a server each; one rank a slot, which in each step pushes A, waits for it,
pushes B and waits for it; and psched with its file.

Modelled are the loss of a rank, a pause of all ranks behind a step, and what
is done in it: a rank joins or leaves, or a snapshot is taken; another process
in the place of a worker; and the death of psched. A version is written as the
contributors of all its rounds.

Not modelled are time, with the limits that give up a pause; deaths of agents
and servers, which copies.py has; several ranks of an agent; values; norms over
all keys; and async jobs.

The rules, with the name of the planted bug that leaves each out:

- The job changes at a step, which is the same for all keys. A boundary that
  each partition has for itself lets a program that waits for A before it
  pushes B wait for ever (unaligned).
- psched asks all agents for their step. An agent answers with the greatest
  step that its rank is in, and from then on lets it begin none beyond
  (nopromise). psched takes the greatest of all (least), and sends it: ranks
  before it go on to it, ranks that have ended it are held.
- When all are held (hasty), psched stores the change, sends it, still with the
  pause, waits for the servers (early), and then lets the ranks run. What it
  sends is in its file before (unstored).
- A joiner is a member from the change on, held at its step (late). It begins
  with the next step, and with the round of each key that follows the version
  at the servers.
- An agent never lets a rank go by itself: if psched dies in a pause, the job
  waits for the next psched (release), which sends what its file has to the
  servers first.
- A slot that is lost passes: each server completes rounds without it, from the
  first round on to which it has not contributed.
- A process that takes the place of a worker does the step again, and the agent
  answers rounds that are there with their values (skewed)."""

from typing import Any, Iterator, NamedTuple, Optional, Union

from explore import in_order, put

Slots = tuple[int, ...]  # A number for each slot.

# Of a slot, as psched and the servers have it.
NO_MEMBER = 0
MEMBER = 1
PASSES = 2

# Of a rank.
OUTSIDE = "outside"  # Not a member yet.
RUNS = "runs"
LOST = "lost"
LEFT = "left"

# Where a rank is in its step.
BETWEEN = 0  # It is in none.
WAITS_A = 1
WAITS_B = 2
WAITS_NEXT_A = 3  # Only with the bug "skewed".

# Pauses of a job at psched, and in messages.
ASKED = "asked"  # Agents are asked for their steps.
HOLDING = "holding"  # Ranks stop behind a step.
STORED = "stored"  # The change is stored; servers take it.
ASK = "ask"
HOLD = "hold"
KEEP = "keep"  # Held ranks stay so, after psched's death.
RUN = "run"

A = 0
B = 1


class Rank(NamedTuple):
    state: str
    step: int  # Steps that it has ended.
    phase: int
    hold: Optional[int]  # Step behind which its agent stops it.


class Server(NamedTuple):
    history: tuple[Slots, ...]  # Contributors of each version.
    contributions: Slots  # To the round after those of the history.
    slots: Slots
    version: int  # Of the job's state that it has.


class Cut(NamedTuple):
    """A snapshot."""
    step: int
    versions: tuple[int, int]  # Of A and B.


class File(NamedTuple):
    version: int  # Of the job's state; grows with each change.
    slots: Slots
    change_step: int  # Of the last change.
    cut: Optional[Cut]


class Pause(NamedTuple):
    stage: str
    step: int


class Sched(NamedTuple):
    is_up: bool
    file: File
    pause: Optional[Pause]


class Faults(NamedTuple):
    """How often each may still happen, and changes that are wanted."""
    losses: int
    leaves: int
    sched_deaths: int
    snapshots: int
    replacements: int  # Of a worker by another process.


class Push(NamedTuple):
    part: int
    slot: int
    round: int
    kind: str = "push"


class JobState(NamedTuple):
    version: int
    slots: Slots
    pause: str
    step: int
    change_step: int
    kind: str = "job_state"


class Reached(NamedTuple):
    """Answer to ASK."""
    version: int
    slot: int
    step: int
    kind: str = "reached"


class Held(NamedTuple):
    version: int
    slot: int
    kind: str = "held"


class Ready(NamedTuple):
    version: int
    server: int
    kind: str = "ready"


class Base(NamedTuple):
    """What a joiner begins with."""
    slot: int
    versions: tuple[int, int]  # Of A and B.
    step: int
    kind: str = "base"


Message = Union[Push, JobState, Reached, Held, Ready, Base]


class State(NamedTuple):
    ranks: tuple[Rank, ...]
    servers: tuple[Server, Server]
    sched: Sched
    messages: frozenset[Message]
    faults: Faults

    def sent(self, *messages: Message) -> "State":
        return self._replace(messages=self.messages.union(messages))

    def with_rank(self, slot: int, **changes: Any) -> "State":
        rank = self.ranks[slot]._replace(**changes)
        return self._replace(ranks=put(self.ranks, slot, rank))

    def spent(self, fault: str) -> "State":
        left = getattr(self.faults, fault) - 1
        return self._replace(faults=self.faults._replace(**{fault: left}))

    def versions(self) -> tuple[int, int]:
        """Those of A and B."""
        a, b = self.servers
        return len(a.history), len(b.history)

    def next_round(self, slot: int, part: int) -> int:
        """Round of the partition in the rank's next step. A joiner counts
        from what it began with."""
        step = self.ranks[slot].step
        for message in self.messages:
            if message.kind == "base" and message.slot == slot:
                return message.versions[part] + step - message.step + 1
        return step + 1

    def with_sched(self, changed: File, pause: Optional[Pause]) -> "State":
        """psched has stored the file with its next version."""
        file = changed._replace(version=changed.version + 1)
        return self._replace(sched=Sched(True, file, pause))


def merge(state: State, part: int, server: Server) -> State:
    """The state with that server, which merges its round if that is
    complete."""
    given = server.contributions
    if any(given) and not any(slot == MEMBER and not g for slot, g
                              in zip(server.slots, given)):
        server = server._replace(history=server.history + (given,),
                                 contributions=(0,) * len(given))
    return state._replace(servers=put(state.servers, part, server))


class Members:
    def __init__(self, ranks: int = 2, joiners: int = 0, steps: int = 2,
                 losses: int = 0, leaves: int = 0, sched_deaths: int = 0,
                 snapshots: int = 0, replacements: int = 0,
                 bug: str = "") -> None:
        self.steps = steps
        self.bug = bug
        self.all_slots = range(ranks + joiners)
        nothing = (0,) * len(self.all_slots)
        slots = (MEMBER,) * ranks + (NO_MEMBER,) * joiners
        pushes = [Push(A, slot, 1) for slot in range(ranks)]
        self.initial = State(
            (Rank(RUNS, 0, WAITS_A, None),) * ranks
            + (Rank(OUTSIDE, 0, BETWEEN, None),) * joiners,
            (Server((), nothing, slots, 1),) * 2,
            Sched(True, File(1, slots, 0, None), None),
            frozenset([*pushes, JobState(1, slots, RUN, 0, 0)]),
            Faults(losses, leaves, sched_deaths, snapshots, replacements))

    def successors(self, state: State) -> Iterator[State]:
        for successor in self.transitions(state):
            successor = without_spent_messages(successor)
            if successor != state:
                yield successor

    def transitions(self, state: State) -> Iterator[State]:
        for slot in self.all_slots:
            yield from self.rank_steps(state, slot)
        newest = max(m.version for m in state.messages
                     if m.kind == "job_state")
        for message in in_order(state.messages):
            if message.kind == "push":
                yield from self.on_push(state, message)
            elif message.kind == "job_state":
                yield from self.servers_on_job_state(state, message)
                if message.version == newest:
                    yield from self.agents_on_job_state(state, message)
        if state.sched.is_up:
            yield from self.sched_steps(state)
        else:
            yield restarted_sched(state)
        for slot in self.all_slots:
            yield from self.rank_faults(state, slot)

    def rank_steps(self, state: State, slot: int) -> Iterator[State]:
        """A wait ends, or a step begins."""
        rank = state.ranks[slot]
        if rank.state != RUNS:
            return
        if rank.phase == BETWEEN:
            if rank.step < self.steps and (
                    rank.hold is None or rank.step < rank.hold):
                push = Push(A, slot, state.next_round(slot, A))
                yield state.sent(push).with_rank(slot, phase=WAITS_A)
            return
        part = B if rank.phase == WAITS_B else A
        awaited = state.next_round(slot, part) + (rank.phase == WAITS_NEXT_A)
        if state.versions()[part] < awaited:
            return
        if part == B:
            yield state.with_rank(slot, step=rank.step + 1, phase=BETWEEN)
        else:
            push = Push(B, slot, state.next_round(slot, B))
            yield state.sent(push).with_rank(slot, phase=WAITS_B)

    def on_push(self, state: State, push: Push) -> Iterator[State]:
        server = state.servers[push.part]
        given = server.contributions
        if push.round == len(server.history) + 1 and not given[push.slot] \
                and server.slots[push.slot] == MEMBER:
            yield merge(state, push.part, server._replace(
                contributions=put(given, push.slot, 1)))

    def servers_on_job_state(self, state: State,
                             job: JobState) -> Iterator[State]:
        for part, server in enumerate(state.servers):
            if server.version < job.version:
                yield merge(
                    state.sent(Ready(job.version, part)), part,
                    server._replace(slots=job.slots, version=job.version))

    def agents_on_job_state(self, state: State,
                            job: JobState) -> Iterator[State]:
        for slot, rank in enumerate(state.ranks):
            if job.slots[slot] != MEMBER:
                continue
            if rank.state == RUNS:
                yield from self.agent_on_job_state(state, job, slot)
            elif rank.state == OUTSIDE:
                if self.bug != "late" or job.pause == RUN:
                    yield self.joined(state, job, slot)

    def agent_on_job_state(self, state: State, job: JobState,
                           slot: int) -> Iterator[State]:
        rank = state.ranks[slot]
        if job.pause == ASK:
            # The step that it is in it may end.
            step = rank.step + (rank.phase != BETWEEN)
            reached = Reached(job.version, slot, step)
            if reached not in state.messages:
                after = state.sent(reached)
                if self.bug != "nopromise":
                    after = after.with_rank(slot, hold=step)
                yield after
        elif job.pause == HOLD:
            held = Held(job.version, slot)
            if rank.hold != job.step:
                yield state.with_rank(slot, hold=job.step)
            elif rank.phase == BETWEEN and rank.step >= job.step \
                    and held not in state.messages:
                yield state.sent(held)
        elif job.pause == RUN and rank.hold is not None:
            yield state.with_rank(slot, hold=None)

    def joined(self, state: State, job: JobState, slot: int) -> State:
        """A joiner begins with what the servers have."""
        step = job.change_step
        base = Base(slot, state.versions(), step)
        hold = None if self.bug == "late" else step
        return state.sent(base).with_rank(
            slot, state=RUNS, step=step, phase=BETWEEN, hold=hold)

    def publish(self, state: State, changed: File, pause: str, step: int,
                after: Optional[Pause]) -> Iterator[State]:
        """psched stores the file with its next version, and sends it."""
        sent = state.sent(JobState(changed.version + 1, changed.slots, pause,
                                   step, changed.change_step))
        yield sent.with_sched(changed, after)
        if self.bug == "unstored" and state.faults.sched_deaths:
            # It dies between sending and storing.
            yield dead_sched(sent)

    def sched_steps(self, state: State) -> Iterator[State]:
        pause = state.sched.pause
        members = [slot for slot in self.all_slots
                   if state.sched.file.slots[slot] == MEMBER]
        joiners = [slot for slot in self.all_slots
                   if state.sched.file.slots[slot] == NO_MEMBER
                   and state.ranks[slot].state == OUTSIDE]
        if members and pause is None:
            yield from self.begin_pause(state, members, joiners)
        elif members and pause.stage == ASKED:
            yield from self.hold_ranks(state, members)
        elif members and pause.stage == HOLDING:
            yield from self.change_members(state, members, joiners)
        if pause is not None and pause.stage == STORED:
            yield from self.end_pause(state)
        yield from self.pass_lost_slots(state)
        if state.faults.sched_deaths:
            after = dead_sched(state)
            if self.bug == "release":
                after = after._replace(ranks=tuple(
                    rank._replace(hold=None) for rank in after.ranks))
            yield after

    def begin_pause(self, state: State, members: list[int],
                    joiners: list[int]) -> Iterator[State]:
        file = state.sched.file
        if joiners and self.bug == "unaligned":
            step = max(state.ranks[slot].step for slot in members)
            joined = file._replace(slots=put(file.slots, joiners[0], MEMBER),
                                   change_step=step)
            yield from self.publish(state, joined, RUN, step, None)
        elif joiners or state.faults.snapshots or state.faults.leaves:
            yield from self.publish(state, file, ASK, 0, Pause(ASKED, 0))

    def hold_ranks(self, state: State, members: list[int]) -> Iterator[State]:
        """When all have answered, they get the step."""
        file = state.sched.file
        # Of several answers of a slot the last one, which is the greatest.
        steps = {m.slot: m.step for m in in_order(state.messages)
                 if m.kind == "reached" and m.version == file.version}
        if all(slot in steps for slot in members):
            choose = min if self.bug == "least" else max
            step = choose(steps[slot] for slot in members)
            yield from self.publish(state, file, HOLD, step,
                                    Pause(HOLDING, step))

    def change_members(self, state: State, members: list[int],
                       joiners: list[int]) -> Iterator[State]:
        """When all are held: one of the changes that are wanted, if any."""
        file, step = state.sched.file, state.sched.pause.step
        is_held = all(Held(file.version, slot) in state.messages
                      for slot in members)
        if not is_held and self.bug != "hasty":
            return
        stored = Pause(STORED, step)
        for slot in joiners:
            joined = file._replace(slots=put(file.slots, slot, MEMBER),
                                   change_step=step)
            yield from self.publish(state, joined, HOLD, step, stored)
        if state.faults.snapshots:
            taken = file._replace(cut=Cut(step, state.versions()))
            yield from self.publish(state.spent("snapshots"), taken, HOLD,
                                    step, stored)
        if state.faults.leaves and len(members) > 1:
            slot = members[-1]
            left = file._replace(slots=put(file.slots, slot, NO_MEMBER),
                                 change_step=step)
            yield from self.publish(
                state.spent("leaves").with_rank(slot, state=LEFT), left, HOLD,
                step, stored)
        if not joiners and not state.faults.snapshots \
                and not state.faults.leaves:
            yield from self.publish(state, file, HOLD, step, stored)

    def end_pause(self, state: State) -> Iterator[State]:
        """The ranks run when the servers have what is stored."""
        file = state.sched.file
        if self.bug == "early" or all(
                Ready(file.version, part) in state.messages
                for part in (A, B)):
            yield from self.publish(state, file, RUN, state.sched.pause.step,
                                    None)

    def pass_lost_slots(self, state: State) -> Iterator[State]:
        """A loss ends a pause, unless its change is stored."""
        file, pause = state.sched.file, state.sched.pause
        is_stored = pause is not None and pause.stage == STORED
        for slot, rank in enumerate(state.ranks):
            if rank.state == LOST and file.slots[slot] == MEMBER:
                passed = file._replace(slots=put(file.slots, slot, PASSES))
                yield from self.publish(
                    state, passed, HOLD if is_stored else RUN,
                    file.change_step, pause if is_stored else None)

    def rank_faults(self, state: State, slot: int) -> Iterator[State]:
        """The rank is lost, with or without what it has sent, or another
        process takes the place of its worker."""
        rank = state.ranks[slot]
        if rank.state != RUNS:
            return
        running = sum(r.state == RUNS for r in state.ranks)
        if state.faults.losses and running > 1:
            without = state._replace(messages=frozenset(
                m for m in state.messages
                if m.kind != "push" or m.slot != slot))
            for after in state, without:
                yield after.spent("losses").with_rank(slot, state=LOST)
        if state.faults.replacements and rank.phase == WAITS_B:
            after = state.spent("replacements")
            if self.bug == "skewed":
                # Its push of A counts for the round after.
                push = Push(A, slot, state.next_round(slot, A) + 1)
                yield after.sent(push).with_rank(slot, phase=WAITS_NEXT_A)
            else:
                # The agent answers A with the value that is there.
                yield after.with_rank(slot, phase=WAITS_A)

    def violation(self, state: State) -> str:
        for message in in_order(state.messages):
            if message.kind == "base":
                a, b = message.versions
                if a != b:
                    return (f"slot {message.slot} begins at round {a + 1} of "
                            f"A and at round {b + 1} of B")
        histories = [server.history for server in state.servers]
        for number, given in enumerate(zip(*histories), 1):
            for slot, rank in enumerate(state.ranks):
                if given[A][slot] != given[B][slot] and rank.state != LOST:
                    return (f"round {number}: slot {slot}, which was never "
                            "lost, is in one partition alone")
        cut = state.sched.file.cut
        if cut and cut.versions != (cut.step, cut.step):
            a, b = cut.versions
            return (f"snapshot of step {cut.step} has round {a} of A and "
                    f"round {b} of B")
        return ""

    def is_end(self, state: State) -> bool:
        return all(rank.state in (LOST, LEFT, OUTSIDE)
                   or rank.step == self.steps
                   for rank in state.ranks)


def without_spent_messages(state: State) -> State:
    """Leaves out messages that can change nothing any more, which joins states
    that differ in nothing else."""
    version = state.sched.file.version
    versions = state.versions()

    def is_spent(message: Message) -> bool:
        if message.kind == "push":
            return message.round <= versions[message.part]
        return message.kind in ("reached", "held", "ready") \
            and message.version < version

    return state._replace(messages=frozenset(
        m for m in state.messages if not is_spent(m)))


def dead_sched(state: State) -> State:
    return state.spent("sched_deaths")._replace(
        sched=Sched(False, state.sched.file, None))


def restarted_sched(state: State) -> State:
    """Agents stay held until the servers have what is in its file."""
    file = state.sched.file
    sent = state.sent(JobState(file.version + 1, file.slots, KEEP,
                               file.change_step, file.change_step))
    return sent.with_sched(file, Pause(STORED, file.change_step))
