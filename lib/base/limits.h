/* SPDX-License-Identifier: Apache-2.0 */
/* All fixed limits, with the reason of each and the effect of exceeding it. */
#pragma once

/* Header bytes of one frame: enough for a job_state of 1,024 slots, 4,096 ranks
 * and 2,048 multipliers. Each message has its own maximum (ps_msg_header_max),
 * mostly far below; a longer header closes the connection before any of it is
 * read. */
#define PS_HEADER_MAX              (384u * 1024u)
/* Payload bytes of one frame: the largest partition. A longer payload closes
 * the connection. */
#define PS_PAYLOAD_MAX             (64ull * 1024u * 1024u)
/* Parts in one data frame; further ones go into another frame. */
#define PS_PARTS_MAX               256u
/* Tensor bytes of a part that may share a frame with others. A larger one has a
 * frame of its own, so that its payload is received in its final place. */
#define PS_BATCH_PART_MAX          (16u * 1024u)
#define PS_BATCH_FRAME_MAX         (256u * 1024u)
/* Contributors of one job; job_open is refused above it. */
#define PS_SLOTS_MAX               1024u
#define PS_RANKS_MAX               4096u
/* Largest weight of a slot's contribution in a mean: 32-bit sample counts of
 * all ranks. */
#define PS_WEIGHT_MAX              ((uint64_t)PS_RANKS_MAX << 32)
/* Sessions of one agent: 64 processes with a few groups each, several times
 * over; further connections are refused. */
#define PS_LOCAL_MAX               4096u
/* Connections above that limit that still get the reason of their refusal;
 * further ones are closed without it. */
#define PS_LOCAL_SPARE             32u
/* Nanoseconds (7 days) that a job may take to become complete; a longer
 * time-out is refused, because waiting ranks hold slots of their nodes. */
#define PS_START_TIMEOUT_MAX       (7ull * 86400u * 1000000000u)
/* Weight of a job where it competes with others: that of a job that gives none,
 * and the largest; a larger one is refused. */
#define PS_JOB_WEIGHT_DEFAULT      100u
#define PS_JOB_WEIGHT_MAX          1000u
/* Servers that have each value of a job: a third copy would cost another half
 * of the memory, for the loss of two hosts within the time of a refill. */
#define PS_REPLICAS_MAX            2u
#define PS_SERVERS_MAX             256u
/* Lost servers that a job remembers, not to use their processes again; more
 * replace the oldest. Far more than a cluster has. */
#define PS_LOST_SERVERS_MAX        4096u
/* Confirmations of copies in one message. */
#define PS_COPIES_CONFIRMED_MAX    256u
/* Bytes of copies on their way to a backup: enough for the delay of a fast
 * network, and what a server that falls behind may cost. */
#define PS_COPYING_BYTES_MAX       (64ull * 1024u * 1024u)
/* Percent of its partitions by which a backup is more filled when the scheduler
 * hears of it: ten messages for each. */
#define PS_FILLED_STEP             10u
/* Names of the training scalars of one job; further ones are refused. Enough for
 * curves that a person compares, and a page of metrics stays short. */
#define PS_SCALARS_MAX             32u
#define PS_SCALAR_NAME_MAX         63u
/* Scalars in one report of an agent; further ones are in the next report. */
#define PS_REPORT_MAX              2048u
/* Entries of a member's trace ring, 56 bytes each; more replace the oldest. Some
 * tens of rounds of a model with a hundred keys, in less than a MiB. */
#define PS_TRACE_ENTRIES           16384u
/* Entries in one message. */
#define PS_TRACE_READ_MAX          1024u
/* Names of the spans of one worker; a further one is an error of its call. They
 * are parts of a program, written by people. */
#define PS_SPAN_NAMES_MAX          64u
/* Names of the spans of a job on one node; of further ones, the spans have none.
 * All workers of a node run the same program, as a rule. */
#define PS_SPAN_NAMES_NODE_MAX     256u
/* Spans in one message of a worker. */
#define PS_SPANS_SEND_MAX          64u
/* Spans that a worker keeps while its agent takes none; more replace the
 * oldest. */
#define PS_SPANS_KEPT_MAX          256u
/* Live jobs, groups of ranks included; further ones are refused. */
#define PS_JOBS_MAX                1024u
/* Lost ranks of one job that psctl status lists by number. */
#define PS_LOST_SHOWN_MAX          64u
/* Of a job in the answer to psctl: 32 numbers that its optimizer was declared
 * with, and 64 changes. */
#define PS_SETTINGS_MAX            96u
#define PS_KEYS_MAX                1000000u
/* Key declarations of one job that an agent has open with the scheduler;
 * further ones wait. Messages of other jobs on that link wait behind these at
 * most. */
#define PS_KEY_OPENS_MAX           512u
/* Placement messages that the scheduler sends per step after the loss of
 * servers; heartbeats and other jobs go in between. All agents of one key are
 * notified in one step, which may exceed it. */
#define PS_PLACEMENTS_SENT_MAX     512u
/* Partitions of one key: 4 GiB in partitions of 64 KiB. */
#define PS_KEY_PARTS_MAX           65536u
/* Bytes of one key (4 TiB), with every partition as large as a frame. A larger
 * declaration is refused, so sums of sizes within a key never overflow. */
#define PS_KEY_BYTES_MAX           (PS_KEY_PARTS_MAX * PS_PAYLOAD_MAX)
/* Bytes of one row in optimizer state: rows are not split, so one row with its
 * number and padding must fit into a frame. A wider declaration is refused. */
#define PS_ROW_BYTES_MAX           (PS_PAYLOAD_MAX - 16u)
/* Partitions of a job for which the scheduler plans a rebalance, in a fraction
 * of a second; it refuses to plan for more. */
#define PS_REBALANCE_PARTS_MAX     1000000u
/* Moves of partitions of one job under way; each costs its source a look at every
 * reply. */
#define PS_MOVES_MAX               8u
#define PS_PARTITION_BYTES_DEFAULT (1024u * 1024u)
#define PS_PARTITION_BYTES_MIN     4096u
#define PS_PARTITION_BYTES_MAX     (16u * 1024u * 1024u)
/* Unacknowledged frames of one link in flight; further ones wait unsent. The
 * duplicate filter covers the same number. */
#define PS_LINK_IN_FLIGHT_MAX      1024u
/* Subflows of one link; further connections are refused. */
#define PS_LINK_CONNECTIONS_MAX    16u
/* Threads with an event loop in one daemon: the main loop and those of the I/O
 * pool. */
#define PS_IO_THREADS_MAX          16u
/* Upper bound of limits.session.regions. */
#define PS_REGIONS_MAX             65536u
/* Operations of one worker in progress; one more ends its session with the
 * reason. */
#define PS_OPS_MAX                 65536u
/* Memory of output that waits for one training process or tool, for one daemon,
 * and for all peers together; the connection that holds most is closed. The
 * failures of all PS_OPS_MAX operations of a training process fit into 16 MiB,
 * because those after the first quarter refer to the texts of these. Payload
 * that a daemon keeps anyway and frames that a link keeps until they are
 * acknowledged do not count, so a link needs little. */
#define PS_OUTPUT_DEFAULT          (16u * 1024u * 1024u)
#define PS_OUTPUT_LINK_DEFAULT     (64u * 1024u * 1024u)
#define PS_OUTPUT_TOTAL_DEFAULT    (128u * 1024u * 1024u)
/* Memory reserve of a daemon for failing allocations: many times the memory of
 * one step of a machine. PS_RESERVE_EVICT_MIN: least memory of a connection
 * that is evicted then; a smaller one would not help. */
#define PS_RESERVE_BYTES           (16u * 1024u * 1024u)
#define PS_RESERVE_EVICT_MIN       (1024u * 1024u)
/* Descriptors that connections may not use: for configuration files, memory of
 * jobs, dials and descriptors from workers. */
#define PS_DESCRIPTORS_RESERVED    32u
/* Frames about what is not the peer's own that one connection may bring before
 * it is closed. No honest peer sends one; a few show in the log and in figures
 * what a dishonest one tries. */
#define PS_MISUSE_MAX              16u
/* Lines of one kind that the log writes before it only counts them, so that the
 * loss of many ranks or nodes is logged one by one; and the number of kinds,
 * a format for each user or host, that it distinguishes (100 KiB). */
#define PS_LOG_BURST               100u
#define PS_LOG_KINDS_MAX           256u
/* Stall queries of one user that an agent has open with the scheduler; further
 * ones wait, so that they do not delay other messages of that link. */
#define PS_QUERIES_SENT_MAX        4u
/* Stall queries per second that a process may send; the library sends a few per
 * minute. Each search among 256 operations counts as one more. Exceeding it
 * ends the session, because reading the queries would slow down all others. */
#define PS_QUERIES_RATE_MAX        1000u
/* Costs that a daemon reports: its own, and the largest of its peers. */
#define PS_COSTS_SHOWN_MAX         16u
/* Peers whose refused frames it reports. */
#define PS_REFUSALS_SHOWN_MAX      16u
/* Bytes of a name of a node, job or cluster, and of a key. */
#define PS_NAME_MAX                64u
#define PS_KEY_NAME_MAX            254u
/* Round of an operation that waits for the init of its key (open_wait). */
#define PS_WAITS_FOR_INIT          UINT64_MAX
#define PS_ADDRESS_MAX             255u
/* Bytes of a Unix socket's path (limit of the system). */
#define PS_SOCKET_PATH_MAX         107u
/* Connections to the scheduler's Unix socket; further ones are refused. A tool
 * has one, for the time of a request. */
#define PS_CONTROL_MAX             256u
/* Of these, connections of one user, except root and the scheduler's own user:
 * one user cannot block the tools of others. */
#define PS_CONTROL_USER_MAX        32u
/* Users that control.operators names. */
#define PS_OPERATORS_MAX           64u
/* Key of the connection between pslaunch and a supervisor. */
#define PS_LAUNCH_SECRET_BYTES     32u
/* Tokens of all users that have not expired, and of one user, who cannot use up
 * those of others; a check goes through the list. */
#define PS_TOKENS_MAX              4096u
#define PS_TOKENS_USER_MAX         256u
/* Seconds: longer ones would outlive the reason for which they were issued. */
#define PS_TOKEN_VALID_MAX         (366u * 86400u)
/* Bytes of a token's text; it has fewer (crypto/token.h). */
#define PS_TOKEN_TEXT_MAX          400u
#define PS_TEXT_MAX                512u
/* Push bytes of a job that an agent may send before the first credit of the
 * server; every server's window is at least this. */
#define PS_CREDIT_INITIAL          (4u * 1024u * 1024u)
/* Agents for which a server keeps a session. For one more, the oldest
 * disconnected session is dropped; if there is none, the agent is refused. */
#define PS_PEERS_MAX               4096u
/* Unverified agents of a server: those of all nodes of a new job. The oldest is
 * refused above it. */
#define PS_UNVERIFIED_MAX          1024u
/* Unacknowledged replies to an agent; above it the server drops the session,
 * and the agent starts a new one. */
#define PS_BACKLOG_MAX             (128u * 1024u)
/* Partitions, waiting pulls and slots of open rounds of one job on one server.
 * Above it, agents must retry later. */
#define PS_STORE_PARTS_MAX         (4u * 1024u * 1024u)
#define PS_WAITING_PULLS_MAX       (4u * 1024u * 1024u)
#define PS_OPEN_ROUND_SLOTS_MAX    (32u * 1024u * 1024u)
/* Time from the end of a job until its tensor memory returns to the system: the
 * last frames have released theirs by then, and a job that starts at once
 * reuses resident pages. */
#define PS_TRIM_WAIT               PS_SECONDS(2)
/* Rounds of a key, and steps of an optimizer, so that the sum of two fits into
 * 63 bits; larger numbers of peers are refused. */
#define PS_ROUND_MAX               (UINT64_C(1) << 61)
/* Ended job generations that a server remembers, so that delayed messages do
 * not recreate a job. */
#define PS_ENDED_JOBS_MAX          256u
