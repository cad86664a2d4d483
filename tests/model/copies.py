# SPDX-License-Identifier: Apache-2.0
"""A model of the copies of one partition, which has an optimizer: two servers,
two slots (agents) that give rounds, and psched with its file.

Modelled are deaths of a server's process, whose memory is kept, of a server's
host, of an agent, of a slot for good, and of psched; a server that psched
takes for dead and that lives (false suspicion); and the filling of a new
backup. The same history is the same bits, so a version is written as the
contributors of all its rounds, and a server that has lost the state of its
optimizer is one whose history is too short.

Not modelled are time; several partitions of a server, each of which lives as
this one does; transfers of partitions to another server, which are a filling
and a promotion; norms over all keys; a third server; values; async jobs; the
loss of a host that has the only copy that counts, after which the job goes
back to a snapshot; records that a death leaves half written; and a file of
psched that is older than the cluster.

The rules, with the name of the planted bug that leaves each out:

- A place says which server is primary and which is its backup. Only psched
  changes it, each time with an epoch that is greater by one, and a change is
  in its file before any server hears of it (unstored).
- A round is merged when each slot has contributed to it or passes, as a lost
  slot does. A contribution that arrives twice counts once (count). The new
  version is beside the old one until it is published.
- A primary whose backup counts publishes a version, and answers the round,
  when the backup has confirmed it (early), however long that takes (timer).
  A published version is in memory that outlives the process (late).
- A server that becomes a backup drops what it had of the partition (keep). The
  primary sends it its newest version and from then on each newer one, and
  answers alone. The backup confirms a version that it has (hole).
- When the backup has confirmed the primary's newest version (eager), the
  primary begins to wait for it (nowait), and then reports it to psched as
  filled. From then on the backup counts.
- Servers take versions and confirmations of their own epoch only (stale).
- A place names processes. A process that was started again has no role until
  it hears of an epoch after its start (name), even if its memory was kept
  (resume).
- psched promotes the backup if that counts, never one that is being filled
  (filling) or was dismissed (evicted). Else it waits for the primary's process
  to come back."""

from typing import Iterator, NamedTuple, Optional, Union

from explore import in_order, put

Slots = tuple[int, int]  # A number for each slot.
History = tuple[Slots, ...]  # Contributors of each published version.

NO_SERVER = -1
NO_SLOTS = (0, 0)

# Roles of a server.
NEW = "new"  # A process without a role yet.
NONE = "none"
BACKUP_EMPTY = "backup empty"  # Is being filled.
BACKUP = "backup"
PRIMARY_ALONE = "primary alone"
PRIMARY_FILLING = "primary filling"  # Answers alone.
PRIMARY_TWO = "primary two"  # Answers what its backup has.
BACKUPS = (BACKUP_EMPTY, BACKUP)
PRIMARIES = (PRIMARY_ALONE, PRIMARY_FILLING, PRIMARY_TWO)
COPIED_PRIMARIES = (PRIMARY_FILLING, PRIMARY_TWO)


class Server(NamedTuple):
    is_up: bool
    epoch: int  # Of its role, or from which on it is not named.
    role: str
    has_copy: bool  # In its memory, which outlives the process.
    history: History
    contributions: Slots  # To the round after those of the history.
    unconfirmed: Optional[Slots]  # Version that waits for the backup.
    passing: Slots


class Agent(NamedTuple):
    """It sends its pushes to every server that calls itself primary: it may
    not know yet that another one is."""
    is_lost: bool
    completed: int  # Rounds; it has contributed to the next one.


class Place(NamedTuple):
    """What psched's file has. psched has no other state, so that its death
    only means that nothing is decided for a while, as in every run."""
    epoch: int
    primary: int
    backup: int
    is_filled: bool
    passing: Slots


class Faults(NamedTuple):
    """How often each may still happen."""
    processes: int
    hosts: int
    agents: int
    slots: int
    suspicions: int  # Of a process that lives.
    fills: int  # Times that psched names a new backup.


class Push(NamedTuple):
    slot: int
    round: int
    kind: str = "push"


class Value(NamedTuple):
    """Answer of a round."""
    round: int
    contributors: Slots
    kind: str = "value"


class Copy(NamedTuple):
    epoch: int
    server: int
    round: int
    contributors: Slots
    kind: str = "copy"


class Copied(NamedTuple):
    epoch: int
    round: int
    kind: str = "copied"


class Fill(NamedTuple):
    """The newest version for an empty backup."""
    epoch: int
    server: int
    history: History
    kind: str = "fill"


class Filled(NamedTuple):
    epoch: int
    kind: str = "filled"


class PlaceChange(NamedTuple):
    place: Place
    kind: str = "place"


class Passing(NamedTuple):
    slots: Slots
    kind: str = "passing"


Message = Union[Push, Value, Copy, Copied, Fill, Filled, PlaceChange, Passing]


class State(NamedTuple):
    servers: tuple[Server, Server]
    agents: tuple[Agent, Agent]
    place: Place
    messages: frozenset[Message]
    faults: Faults

    def sent(self, *messages: Message) -> "State":
        return self._replace(messages=self.messages.union(messages))

    def with_server(self, index: int, server: Server) -> "State":
        return self._replace(servers=put(self.servers, index, server))

    def with_agent(self, slot: int, agent: Agent) -> "State":
        return self._replace(agents=put(self.agents, slot, agent))

    def spent(self, fault: str) -> "State":
        left = getattr(self.faults, fault) - 1
        return self._replace(faults=self.faults._replace(**{fault: left}))


def published(server: Server) -> Server:
    """The server with the version that waited."""
    return server._replace(
        history=server.history + (server.unconfirmed,),
        contributions=NO_SLOTS, unconfirmed=None)


class Copies:
    def __init__(self, rounds: int = 2, processes: int = 0, hosts: int = 0,
                 agents: int = 0, slots: int = 0, suspicions: int = 0,
                 fills: int = 1, has_backup: bool = True,
                 bug: str = "") -> None:
        self.rounds = rounds
        self.bug = bug
        first = Server(True, 1, PRIMARY_TWO, True, (), NO_SLOTS, None,
                       NO_SLOTS)
        second = first._replace(role=BACKUP)
        place = Place(1, 0, 1, True, NO_SLOTS)
        if not has_backup:
            first = first._replace(role=PRIMARY_ALONE)
            second = Server(True, 0, NEW, False, (), NO_SLOTS, None, NO_SLOTS)
            place = place._replace(backup=NO_SERVER, is_filled=False)
        self.initial = State(
            (first, second), (Agent(False, 0),) * 2, place,
            frozenset((Push(0, 1), Push(1, 1), PlaceChange(place))),
            Faults(processes, hosts, agents, slots, suspicions, fills))
        self.handlers = {
            Push: self.on_push, Value: self.on_value, Copy: self.on_copy,
            Copied: self.on_copied, Fill: self.on_fill,
            Filled: self.on_filled, PlaceChange: self.on_place_change,
            Passing: self.on_passing}

    def successors(self, state: State) -> Iterator[State]:
        for successor in self.steps(state):
            successor = self.without_spent_messages(successor)
            if successor != state:
                yield successor

    def steps(self, state: State) -> Iterator[State]:
        for message in in_order(state.messages):
            yield from self.handlers[type(message)](state, message)
        for index in 0, 1:
            yield from self.server_steps(state, index)
        yield from self.sched_steps(state)
        for index in 0, 1:
            yield from self.server_faults(state, index)
        for slot in 0, 1:
            yield from self.agent_faults(state, slot)

    def without_spent_messages(self, state: State) -> State:
        """Leaves out messages that can change nothing any more, which joins
        states that differ in nothing else."""
        completed = min([a.completed for a in state.agents if not a.is_lost]
                        + [self.rounds])
        epoch = min(s.epoch for s in state.servers)
        copy_epoch = 0 if self.bug == "stale" else epoch
        place = state.place

        def is_spent(message: Message) -> bool:
            kind = message.kind
            if kind == "push":
                return message.round <= completed
            if kind == "passing":
                return message.slots != place.passing
            if kind == "filled":
                return message.epoch != place.epoch
            if kind == "place":
                other = message.place.epoch
                return other <= copy_epoch and other < place.epoch
            if kind in ("copy", "fill"):
                return message.epoch < copy_epoch
            return kind == "copied" and (
                message.epoch < copy_epoch
                or any(has_used(s, message) for s in state.servers))

        return state._replace(messages=frozenset(
            m for m in state.messages if not is_spent(m)))

    def merge(self, state: State, index: int, server: Server) -> State:
        """The state with that server, which merges its round if that is
        complete."""
        given = server.contributions
        if self.bug == "count":
            is_complete = sum(given) >= 2
        else:
            is_complete = all(g or p for g, p in zip(given, server.passing))
        if server.role not in PRIMARIES or server.unconfirmed is not None \
                or not is_complete or not any(given):
            return state.with_server(index, server)
        number = len(server.history) + 1
        if server.role in COPIED_PRIMARIES:
            state = state.sent(Copy(server.epoch, 1 - index, number, given))
        server = server._replace(unconfirmed=given)
        if server.role != PRIMARY_TWO:
            server = published(server)
        if server.role != PRIMARY_TWO or self.bug == "early":
            state = state.sent(Value(number, given))
        return state.with_server(index, server)

    def on_push(self, state: State, push: Push) -> Iterator[State]:
        for index, server in enumerate(state.servers):
            if not server.is_up or server.role not in PRIMARIES:
                continue
            done = len(server.history)
            given = server.contributions
            if push.round <= done:
                yield state.sent(Value(done, server.history[-1]))
            elif push.round == done + 1 and server.unconfirmed is None \
                    and not server.passing[push.slot] \
                    and (not given[push.slot] or self.bug == "count"):
                times = min(given[push.slot] + 1, 2)
                yield self.merge(state, index, server._replace(
                    contributions=put(given, push.slot, times)))

    def on_value(self, state: State, value: Value) -> Iterator[State]:
        for slot, agent in enumerate(state.agents):
            if agent == Agent(False, value.round - 1):
                after = state.with_agent(slot, Agent(False, value.round))
                if value.round < self.rounds:
                    after = after.sent(Push(slot, value.round + 1))
                yield after

    def on_copy(self, state: State, copy: Copy) -> Iterator[State]:
        server = state.servers[copy.server]
        is_of_epoch = copy.epoch == server.epoch or (
            self.bug == "stale" and copy.epoch < server.epoch)
        if not server.is_up or server.role not in BACKUPS or not is_of_epoch:
            return
        confirmed = state.sent(Copied(copy.epoch, copy.round))
        if server.role == BACKUP_EMPTY:
            if self.bug == "hole":
                yield confirmed
        elif copy.round == len(server.history) + 1:
            yield confirmed.with_server(copy.server, server._replace(
                history=server.history + (copy.contributors,)))
        elif copy.round <= len(server.history):
            yield confirmed

    def on_copied(self, state: State, copied: Copied) -> Iterator[State]:
        for index, server in enumerate(state.servers):
            if server.is_up and server.role == PRIMARY_TWO \
                    and copied.epoch == server.epoch \
                    and server.unconfirmed is not None \
                    and copied.round == len(server.history) + 1:
                answer = Value(copied.round, server.unconfirmed)
                yield state.sent(answer).with_server(index, published(server))

    def on_fill(self, state: State, fill: Fill) -> Iterator[State]:
        server = state.servers[fill.server]
        if not server.is_up or server.role != BACKUP_EMPTY \
                or fill.epoch != server.epoch:
            return
        history = fill.history
        if self.bug == "keep" and server.has_copy:
            history = server.history
        confirmed = state.sent(Copied(fill.epoch, len(history)))
        yield confirmed.with_server(fill.server, server._replace(
            role=BACKUP, has_copy=True, history=history,
            contributions=NO_SLOTS, unconfirmed=None))

    def on_filled(self, state: State, filled: Filled) -> Iterator[State]:
        place = state.place
        if filled.epoch == place.epoch and place.backup != NO_SERVER \
                and not place.is_filled:
            yield state._replace(place=place._replace(is_filled=True))

    def on_place_change(self, state: State,
                        change: PlaceChange) -> Iterator[State]:
        place = change.place
        for index, server in enumerate(state.servers):
            if not server.is_up or place.epoch <= server.epoch:
                continue
            after = server._replace(epoch=place.epoch, unconfirmed=None,
                                    passing=place.passing)
            if server.role not in PRIMARIES or index != place.primary:
                after = after._replace(contributions=NO_SLOTS)
            if index == place.primary:
                if server.has_copy:
                    yield self.become_primary(state, index, after, place)
            elif index == place.backup:
                after = after._replace(role=BACKUP_EMPTY)
                if self.bug != "keep":
                    after = after._replace(has_copy=False, history=())
                yield state.with_server(index, after)
            else:
                yield state.with_server(index, after._replace(role=NONE))

    def become_primary(self, state: State, index: int, server: Server,
                       place: Place) -> State:
        if place.backup == NO_SERVER:
            server = server._replace(role=PRIMARY_ALONE)
        else:
            server = server._replace(role=PRIMARY_FILLING)
            state = state.sent(
                Fill(place.epoch, place.backup, server.history))
        return self.merge(state, index, server)

    def on_passing(self, state: State, passing: Passing) -> Iterator[State]:
        for index, server in enumerate(state.servers):
            if server.is_up and server.passing != passing.slots:
                yield self.merge(state, index,
                                 server._replace(passing=passing.slots))

    def server_steps(self, state: State, index: int) -> Iterator[State]:
        server = state.servers[index]
        if not server.is_up:
            return
        newest = Copied(server.epoch, len(server.history))
        if server.role == PRIMARY_FILLING \
                and (newest in state.messages or self.bug == "eager"):
            # First it waits for the backup, then psched hears of it.
            after = server
            if self.bug != "nowait":
                after = server._replace(role=PRIMARY_TWO)
            yield state.sent(Filled(server.epoch)).with_server(index, after)
        if self.bug == "timer" and server.role == PRIMARY_TWO \
                and server.unconfirmed is not None:
            answer = Value(len(server.history) + 1, server.unconfirmed)
            yield state.sent(answer).with_server(
                index, published(server)._replace(role=PRIMARY_ALONE))
        if self.bug == "resume" and server.role == NEW and server.has_copy:
            yield state.with_server(
                index, server._replace(role=PRIMARY_ALONE))

    def decide(self, state: State, primary: int, backup: int,
               fault: str = "") -> Iterator[State]:
        """psched changes the place, where a fault is the reason with one
        fault less."""
        if fault:
            state = state.spent(fault)
        place = Place(state.place.epoch + 1, primary, backup, False,
                      state.place.passing)
        sent = state.sent(PlaceChange(place))
        yield sent._replace(place=place)
        if self.bug == "unstored":
            # psched dies between sending and storing.
            yield sent

    def sched_steps(self, state: State) -> Iterator[State]:
        if state.place.backup == NO_SERVER:
            yield from self.decide_alone(state)
        else:
            yield from self.decide_two(state)
        for slot, agent in enumerate(state.agents):
            if agent.is_lost and not state.place.passing[slot]:
                passing = put(state.place.passing, slot, 1)
                place = state.place._replace(passing=passing)
                yield state.sent(Passing(passing))._replace(place=place)

    def decide_two(self, state: State) -> Iterator[State]:
        """Decisions about a primary with a backup."""
        place, servers = state.place, state.servers
        is_primary_gone = is_gone(servers[place.primary], place)
        is_backup_gone = is_gone(servers[place.backup], place)
        if (place.is_filled or self.bug == "filling") \
                and has_kept(servers[place.backup]):
            if is_primary_gone:
                yield from self.decide(state, place.backup, NO_SERVER)
            elif state.faults.suspicions and not is_backup_gone:
                yield from self.decide(state, place.backup, NO_SERVER,
                                       "suspicions")
        if has_kept(servers[place.primary]):
            if is_backup_gone or is_primary_gone and not place.is_filled:
                yield from self.decide(state, place.primary, NO_SERVER)
            elif state.faults.suspicions:
                yield from self.decide(state, place.primary, NO_SERVER,
                                       "suspicions")

    def decide_alone(self, state: State) -> Iterator[State]:
        """Decisions about a primary without a backup."""
        primary = state.place.primary
        other = 1 - primary
        is_primary_gone = is_gone(state.servers[primary], state.place)
        if has_kept(state.servers[primary]):
            if is_primary_gone:
                yield from self.decide(state, primary, NO_SERVER)
            elif state.servers[other].is_up and state.faults.fills:
                yield from self.decide(state, primary, other, "fills")
        if self.bug == "evicted" and is_primary_gone \
                and has_kept(state.servers[other]):
            yield from self.decide(state, other, NO_SERVER)

    def server_faults(self, state: State, index: int) -> Iterator[State]:
        """Its process or its host dies, or its process is started again."""
        server, other = state.servers[index], state.servers[1 - index]
        place = state.place
        if server.is_up and state.faults.processes:
            history = server.history
            if self.bug == "late":
                history = history[:-1]
            yield state.spent("processes").with_server(index, server._replace(
                is_up=False, role=NEW, history=history,
                contributions=NO_SLOTS, unconfirmed=None))
        is_second_copy = other.has_copy and (
            1 - index == place.primary
            or 1 - index == place.backup and place.is_filled)
        if server.has_copy and state.faults.hosts and (
                is_second_copy or self.bug == "evicted" and other.has_copy):
            yield state.spent("hosts").with_server(
                index, Server(False, 0, NEW, False, (), NO_SLOTS, None,
                              NO_SLOTS))
        if not server.is_up:
            # Places of the present epoch and before do not name it.
            epoch = place.epoch - (self.bug == "name")
            yield state.with_server(index, server._replace(
                is_up=True, epoch=max(server.epoch, epoch)))

    def agent_faults(self, state: State, slot: int) -> Iterator[State]:
        """The agent dies, and the next one of the slot gets the same arrays
        from the workers, which live; or the slot is lost for good. Pushes that
        were on their way may be lost with it."""
        agent = state.agents[slot]
        if agent.is_lost:
            return
        without = state._replace(messages=frozenset(
            m for m in state.messages
            if m.kind != "push" or m.slot != slot))
        if state.faults.agents and agent.completed < self.rounds:
            yield without.spent("agents").sent(
                Push(slot, agent.completed + 1))
        if state.faults.slots and not state.agents[1 - slot].is_lost:
            for after in state, without:
                yield after.spent("slots").with_agent(
                    slot, agent._replace(is_lost=True))

    def violation(self, state: State) -> str:
        results: dict[int, Slots] = {}
        for message in sorted(m for m in state.messages if m.kind == "value"):
            number, contributors = message.round, message.contributors
            if max(contributors) > 1:
                return (f"round {number} has a contribution twice: "
                        f"{contributors}")
            result = results.setdefault(number, contributors)
            if result != contributors:
                return (f"two results of round {number}: {result}, "
                        f"{contributors}")
        place, going_on = state.place, [state.place.primary]
        if place.is_filled:
            going_on.append(place.backup)
            one, two = (state.servers[i] for i in going_on)
            if one.has_copy and two.has_copy and any(
                    a != b for a, b in zip(one.history, two.history)):
                return f"the two copies differ: {one.history}, {two.history}"
        for index in going_on:
            wrong = self.lost_result(results, index, state.servers[index])
            if wrong:
                return wrong
        return ""

    def lost_result(self, results: dict[int, Slots], index: int,
                    server: Server) -> str:
        """What a server that may go on lacks of what was answered."""
        if not server.has_copy:
            return ""
        for number, contributors in results.items():
            if len(server.history) < number:
                return (f"round {number} was answered, and server {index}, "
                        "which may go on, lacks it")
            if server.history[number - 1] != contributors:
                return (f"round {number} was answered as {contributors}, "
                        f"server {index} has {server.history[number - 1]}")
        return ""

    def is_end(self, state: State) -> bool:
        primary = state.servers[state.place.primary]
        return all(a.is_lost or a.completed == self.rounds
                   for a in state.agents) \
            and primary.is_up and primary.epoch == state.place.epoch \
            and primary.role in PRIMARIES


def has_used(server: Server, copied: Copied) -> bool:
    """Whether the server needs that confirmation no more."""
    if server.epoch != copied.epoch or server.role not in COPIED_PRIMARIES:
        return False
    return copied.round < len(server.history) or (
        server.role == PRIMARY_TWO and copied.round == len(server.history))


def is_gone(server: Server, place: Place) -> bool:
    """Whether there is no process, or another one than the place names."""
    return not server.is_up or (
        server.role == NEW and server.epoch >= place.epoch)


def has_kept(server: Server) -> bool:
    """Whether there is a process whose memory has a copy."""
    return server.is_up and server.has_copy
