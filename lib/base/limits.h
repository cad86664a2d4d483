/* SPDX-License-Identifier: Apache-2.0 */
/* Every maximum, with its reason and what happens when it is reached. */
#pragma once

/* Header bytes of one frame. Holds a job_state of 1,024 slots and 4,096 ranks.
 * Each message has a maximum of its own (ps_msg_header_max), mostly far below;
 * a longer header closes the connection before a byte of it is read. */
#define PS_HEADER_MAX              (256u * 1024u)
/* Payload bytes of one frame: the largest partition. Longer: connection cut. */
#define PS_PAYLOAD_MAX             (64ull * 1024u * 1024u)
/* Parts in one data frame; more go into another frame. */
#define PS_PARTS_MAX               256u
/* Tensor bytes of parts that travel together: beyond this a partition goes in
 * a frame of its own, so that it is received where it stays. */
#define PS_BATCH_PART_MAX          (16u * 1024u)
#define PS_BATCH_FRAME_MAX         (256u * 1024u)
/* Contributors of one job; job_open is refused beyond. */
#define PS_SLOTS_MAX               1024u
#define PS_RANKS_MAX               4096u
/* What a slot's ranks count in a mean: samples of 32 bits each. */
#define PS_WEIGHT_MAX              ((uint64_t)PS_RANKS_MAX << 32)
/* Local workers of one agent, 64 processes with a few groups each several
 * times; further connections are refused. */
#define PS_LOCAL_MAX               4096u
/* Connections beyond those for which there is a place: each is told which limit
 * turns it away. One more is closed without a word. */
#define PS_LOCAL_SPARE             32u
/* Time for a job to be complete, 7 days in nanoseconds: a longer time-out is
 * refused, because ranks that wait hold places of their nodes. */
#define PS_START_TIMEOUT_MAX       (7ull * 86400u * 1000000000u)
#define PS_SERVERS_MAX             256u
/* Live jobs; groups of ranks are jobs, too. One more is refused. */
#define PS_JOBS_MAX                1024u
/* Lost ranks of one job that psctl status is told by number. */
#define PS_LOST_SHOWN_MAX          64u
#define PS_KEYS_MAX                1000000u
/* Keys that an agent asks the scheduler for at a time, for each job: what other
 * jobs say to it waits behind so many declarations at most. More wait. */
#define PS_KEY_OPENS_MAX           512u
/* Messages by which the scheduler tells agents in one step where partitions of
 * lost servers lie now. The others follow, and heartbeats and other jobs go in
 * between. A key is told to all its agents in one step, which may be more. */
#define PS_PLACEMENTS_SENT_MAX     512u
/* Partitions of one key: 4 GiB in pieces of 64 KiB. */
#define PS_KEY_PARTS_MAX           65536u
/* Bytes of one key, 4 TiB: all partitions as large as a frame; a declaration
 * beyond is refused, so sums of sizes within a key never overflow. */
#define PS_KEY_BYTES_MAX           (PS_KEY_PARTS_MAX * PS_PAYLOAD_MAX)
/* Bytes of one row, as an optimizer keeps it: rows are never cut, so one row,
 * its number and what fills both up make the smallest frame of a key of rows. A
 * wider declaration is refused. */
#define PS_ROW_BYTES_MAX           (PS_PAYLOAD_MAX - 16u)
/* Partitions of a job that the scheduler plans moves for, at the cost of a part
 * of a second; it refuses to plan for more. */
#define PS_REBALANCE_PARTS_MAX     1000000u
/* Moves of partitions under way, of one job, and bytes of one that pass through
 * the scheduler at a time: it never holds more than one such piece of each. */
#define PS_MIGRATIONS_MAX          4u
#define PS_MIGRATION_CHUNK_MAX     (1024u * 1024u)
#define PS_PARTITION_BYTES_DEFAULT (1024u * 1024u)
#define PS_PARTITION_BYTES_MIN     4096u
#define PS_PARTITION_BYTES_MAX     (16u * 1024u * 1024u)
/* Sequenced frames of one link that are not acknowledged; more wait unsent.
 * The duplicate filter remembers as many. */
#define PS_LINK_IN_FLIGHT_MAX      1024u
/* TCP connections of one link; one more is turned away. */
#define PS_LINK_CONNECTIONS_MAX    16u
/* Loops of one daemon: the one that decides, and those that move bytes. */
#define PS_IO_THREADS_MAX          16u
/* What limits.session.regions may be set to. */
#define PS_REGIONS_MAX             65536u
/* Operations of one worker that are not done; one more ends its session with
 * the reason. */
#define PS_OPS_MAX                 65536u
/* Memory that output may take which waits for one training process or tool,
 * for one daemon, and for all peers together; the connection that holds most
 * is closed. A training process that has PS_OPS_MAX operations open is told of
 * all their ends in 16 MiB: when they fail, those in the first quarter say why,
 * and the others name these. Payload that a daemon keeps anyway and what a link
 * keeps until it is acknowledged do not count, so a link needs little. */
#define PS_OUTPUT_DEFAULT          (16u * 1024u * 1024u)
#define PS_OUTPUT_LINK_DEFAULT     (64u * 1024u * 1024u)
#define PS_OUTPUT_TOTAL_DEFAULT    (128u * 1024u * 1024u)
/* Memory that a daemon keeps for the moment when an allocation fails: what one
 * step of a machine allocates, many times over. What a connection must hold to
 * be ended then: less would not help. */
#define PS_RESERVE_BYTES           (16u * 1024u * 1024u)
#define PS_RESERVE_EVICT_MIN       (1024u * 1024u)
/* Descriptors that a daemon keeps free of connections: for its configuration,
 * memory of jobs, dials and what workers pass. */
#define PS_DESCRIPTORS_RESERVED    32u
/* Lines of one kind that the log takes as they come, so that the loss of many
 * ranks or nodes is told one by one; more are counted. Kinds of lines that are
 * told apart. */
#define PS_LOG_BURST               100u
#define PS_LOG_KINDS_MAX           64u
/* Questions what operations of one user wait for that an agent has with the
 * scheduler at a time; more of them wait behind these, so that they delay
 * nothing else on that link. */
#define PS_QUERIES_SENT_MAX        4u
/* Times in a second that a process may ask what its operations wait for: the
 * library asks a few times a minute. A search among 256 operations counts as
 * another question. One more ends its session, because reading
 * them alone would slow down everybody else. */
#define PS_QUERIES_RATE_MAX        1000u
/* Costs that a daemon shows: its own, and the heaviest of all others. */
#define PS_COSTS_SHOWN_MAX         16u
/* Bytes of a name of a node, job or cluster; of a key. */
#define PS_NAME_MAX                64u
#define PS_KEY_NAME_MAX            256u
#define PS_ADDRESS_MAX             255u
/* Bytes of a Unix socket's path that the system takes. */
#define PS_SOCKET_PATH_MAX         107u
/* Connections to the scheduler's Unix socket; one more is refused. A tool has
 * one, for the time of a question. */
#define PS_CONTROL_MAX             256u
/* Of these, tools of one user, unless it is root or the scheduler's own: one
 * user cannot keep others from their jobs. */
#define PS_CONTROL_USER_MAX        32u
#define PS_TEXT_MAX                512u
/* Push bytes that an agent may send of a job before the server has said
 * anything; every server's window is at least this. */
#define PS_CREDIT_INITIAL          (4u * 1024u * 1024u)
/* Agents that a server remembers, connections to it: the oldest one that is
 * not connected is forgotten, else the new one is refused. */
#define PS_PEERS_MAX               4096u
/* Greetings that wait at a server until the scheduler has named their agents:
 * those of all nodes of a job that comes to it. The oldest is refused when
 * there are more. */
#define PS_UNVERIFIED_MAX          1024u
/* Answers to an agent that it has not acknowledged; a server forgets the link
 * of one that has more, and the agent begins afresh. */
#define PS_BACKLOG_MAX             (128u * 1024u)
/* On one server, of one job: partitions, pulls that wait, and places (slots)
 * of rounds under way. Beyond, an agent is asked to try again later. */
#define PS_STORE_PARTS_MAX         (4u * 1024u * 1024u)
#define PS_WAITING_PULLS_MAX       (4u * 1024u * 1024u)
#define PS_OPEN_ROUND_SLOTS_MAX    (32u * 1024u * 1024u)
/* So long after the end of a job its tensor memory goes back to the system: what
 * the last frames still carry has come back then, and a next job that starts
 * at once finds it warm. */
#define PS_TRIM_WAIT               PS_SECONDS(2)
/* Rounds of a key, and steps of an optimizer, so that sums of two of them fit in
 * 63 bits: what a peer states beyond is refused. */
#define PS_ROUND_MAX               (UINT64_C(1) << 61)
/* Generations of jobs whose end a server remembers, so that what was sent
 * earlier and arrives later does not bring them back. */
#define PS_ENDED_JOBS_MAX          256u
