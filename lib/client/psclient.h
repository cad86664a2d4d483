/* SPDX-License-Identifier: Apache-2.0 */
/* libpsclient: the client library of pskv, for training processes.
 *
 * A process opens one client on the Unix socket of its node's agent, declares
 * its keys, and starts operations on them. Every worker of the job does the
 * same; the n-th push of a key by each worker forms round n of that key.
 *
 *     struct psc_options o;
 *     struct psc_client *c;
 *     uint32_t key;
 *     char why[PSC_TEXT_MAX];
 *
 *     psc_options_init(&o, sizeof(o));
 *     if (psc_options_env(&o, why, sizeof(why)) != 0 ||
 *         psc_open(&o, &c, why, sizeof(why)) != 0) {
 *         return complain(why);
 *     }
 *     psc_key(c, "fc1.weight", PSC_FLOAT32, 1, &(uint64_t){n}, &key);
 *     psc_init(c, key, weights);
 *     for (;;) {
 *         psc_pushpull(c, key, gradient, weights);
 *     }
 *     psc_close(c);
 *
 * Functions return 0 or a negative PSC_E_*; results returned through pointers
 * are written on success only. psc_last_detail() returns the text of this
 * client's last error.
 *
 * A client may be used by any number of threads, an operation handle by one
 * thread at a time. The library starts no threads, installs no signal
 * handlers, keeps no state outside the client, and never ends the process. It
 * prints nothing but wait notes and psc_options_env()'s warnings of unknown
 * variables. After fork() the child's handle is dead: every call returns
 * PSC_E_FORKED, except psc_close(), which frees the child's copy.
 *
 * Progress is made inside calls: a thread that waits, tests or dispatches makes
 * progress for all threads. A program that starts operations and then computes
 * for long may call psc_dispatch() now and then, to send queued operations. */
#ifndef PSCLIENT_H
#define PSCLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "psclient_memory.h"
#include "psclient_profile.h"
#include "psclient_report.h"
#include "psclient_span.h"

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define PSC_VERSION        "0.2.0"
#define PSC_TEXT_MAX       1024 /* Holds any text of the library. */
#define PSC_RANK_ANY       (-1)
#define PSC_DEFAULT_SOCKET "/run/pskv/agent.sock"

/* ------------------------------------------------------------- constants */

enum psc_error {
    PSC_E_INVAL = -1,
    PSC_E_NOMEM = -2,
    PSC_E_TOOBIG = -3,
    PSC_E_PROTO = -4,   /* Malformed or unexpected message from the agent. */
    PSC_E_VERSION = -5, /* No common protocol version with the agent. */
    PSC_E_TIMEOUT = -6, /* The detail names the missing ranks. */
    PSC_E_CANCELED = -7,
    PSC_E_CLOSED = -8, /* Connection to the agent lost, without re-attach. */
    PSC_E_REFUSED = -9,
    PSC_E_PERM = -10,
    PSC_E_EXIST = -11,
    PSC_E_NOENT = -12,
    PSC_E_NOJOB = -13,
    PSC_E_NOKEY = -14,
    PSC_E_MISMATCH = -15,
    PSC_E_STALE = -16,
    PSC_E_FUTURE = -17,
    /* A worker died, and the job does not wait for it. */
    PSC_E_PEERLOST = -18,
    PSC_E_JOBFAILED = -19, /* The job has ended. */
    PSC_E_AGAIN = -20,     /* Still open, or in use. */
    PSC_E_IO = -21,
    PSC_E_CONFIG = -22,
    PSC_E_UNREACH = -23, /* No agent listens on the socket. */
    PSC_E_FORKED = -24,
    PSC_E_UNSUPPORTED = -25,
    PSC_E_FULL = -26,
    PSC_E_SYS = -27,
    PSC_E_BUG = -28,
    PSC_E_BUSY = -29,
    PSC_E_MIGRATING = -30,
    PSC_E_UNCONFIGURED = -31,
    PSC_E_DISCARDED = -32,
};

enum psc_dtype {
    PSC_FLOAT32 = 0,
    PSC_FLOAT64 = 1,
    PSC_FLOAT16 = 2, /* The sum of each two is rounded to the type. */
    PSC_UINT8 = 3,
    PSC_INT32 = 4, /* Integers wrap; a mean is truncated toward zero. */
    PSC_INT8 = 5,
    PSC_INT64 = 6,
    /* Bytes of 0 or 1; a sum is a logical or, a mean is refused. */
    PSC_BOOL = 7,
    PSC_BFLOAT16 = 12, /* As PSC_FLOAT16. */
};

enum psc_mode {
    PSC_MODE_SYNC = 0,  /* Rounds: each combines one push of every worker. */
    PSC_MODE_ASYNC = 1, /* Each push is applied when it arrives. */
    /* As ASYNC; a pull waits for workers that are more than `staleness` pushes
     * of the key behind. */
    PSC_MODE_SSP = 2,
};

/* Effect of a push in an async or ssp job without an optimizer. */
enum psc_rule {
    PSC_RULE_NONE = 0, /* An optimizer must be set before the first init. */
    PSC_RULE_ACCUMULATE = 2, /* Added to the value. */
    PSC_RULE_ASSIGN = 3,     /* Replaces the value. */
};

/* Reaction of the job to the death of a worker. */
enum psc_on_loss {
    PSC_ON_LOSS_WAIT = 0, /* Wait until it returns under its rank. */
    PSC_ON_LOSS_FAIL = 1, /* Every call of every worker fails: the default. */
};

enum psc_placement {
    PSC_PLACEMENT_BALANCED = 0,
    PSC_PLACEMENT_MXNET = 1, /* MXNet's formula, with big_array_bound. */
};

enum psc_reduce {
    PSC_SUM = 0,
    PSC_MEAN = 1, /* Sum divided by the workers, or by their samples. */
    PSC_MIN = 2,  /* NaN if any value is NaN. */
    PSC_MAX = 3,
    PSC_PRODUCT = 4,
};

/* Special values of a time limit in milliseconds. */
#define PSC_WAIT_DEFAULT (-1) /* op_timeout_ms of the options. */
#define PSC_WAIT_FOREVER (-2)

/* ------------------------------------------------------------------ open */

struct psc_options {
    uint32_t size; /* sizeof(struct psc_options), set by init. */
    int32_t rank;  /* Requested rank, or PSC_RANK_ANY. */
    /* Path of the agent's socket. The caller owns the strings. */
    const char *socket;
    const char *job; /* Name of the job, the same for all its workers. */
    uint32_t num_workers;
    uint32_t num_servers; /* 0: the agent holds the values (one node only). */
    uint32_t mode;        /* enum psc_mode */
    uint32_t on_loss;     /* enum psc_on_loss */
    uint32_t placement;   /* enum psc_placement */
    /* Size of the partitions of large keys; 0: the setting of psched. */
    uint32_t partition_bytes;
    uint64_t big_array_bound;   /* Elements; PSC_PLACEMENT_MXNET. */
    int32_t connect_timeout_ms; /* For the agent's socket to appear. */
    int32_t start_timeout_ms;   /* Time limit for the job to be complete. */
    int32_t op_timeout_ms;      /* Meaning of PSC_WAIT_DEFAULT; 0: no limit. */
    /* Time for which psc_close() waits for operations. */
    int32_t close_timeout_ms;
    uint32_t flags; /* PSC_OPEN_* */
    /* Busy polling before a waiting call sleeps, in microseconds; 0: up to 50
     * us where that has paid and no other process needs the processor; < 0:
     * none. */
    int32_t spin_us;
    uint32_t rule;      /* enum psc_rule; PSC_MODE_ASYNC and _SSP only. */
    uint32_t staleness; /* In pushes; PSC_MODE_SSP only. */
    /* Time for which a client that lost its agent waits for another agent on
     * the socket and re-attaches to it; 0: the client fails at once. Only in a
     * sync job with servers and PSC_ON_LOSS_WAIT. */
    int32_t agent_retry_ms;
    /* Time after which a waiting call names the missing ranks on standard error,
     * then at twice, ...; 0: 30 s, from rank 2 on later, psclient(3); < 0: no. */
    int32_t wait_notes_ms;
    uint32_t weight;        /* Share among jobs of servers and links; 0: 100. */
    const char *token_file; /* Token of the right train; NULL: none. */
    uint32_t replicas;      /* Servers that have each value, 1 or 2; 0: 1. */
};

/* A time-out does not query the agent about the missing ranks, which can take
 * seconds; psc_op_why() does. For bindings that wait in slices. */
#define PSC_OPEN_QUIET 1u

/* Sets the defaults: job "default", one worker, one server, sync, wait,
 * balanced, 10 s to connect, 120 s to start, no limit for operations, 10 s to
 * close, 60 s for another agent, a line for each 30 s of waiting on a terminal.
 * `size` is sizeof(*o) as the caller's compiler sees it. */
void psc_options_init(struct psc_options *o, size_t size);

/* Overwrites the options that the environment sets; psclient(3) lists the
 * variables. PSC_E_INVAL names the variable in `err`. Strings point into the
 * environment. `err` may be NULL. */
int psc_options_env(struct psc_options *o, char *err, size_t err_size);

struct psc_client;
/* Connects and waits until the job is complete. The reason of a failure is
 * written to `err`, which may be NULL. */
int psc_open(const struct psc_options *o, struct psc_client **ret_client,
             char *err, size_t err_size);

/* Waits for open operations and detaches, so that the agent does not report
 * this worker as dead. Operations still open after close_timeout_ms end with
 * PSC_E_CLOSED, as does every later call; memory and views stay valid. */
int psc_leave(struct psc_client *c);
/* The same at once, in a program that has failed: the agent reports a death. */
int psc_abort(struct psc_client *c);
/* Leaves, unless it has, and frees the client with its operations, views and
 * memory. NULL is allowed. No other thread may be inside a call. */
void psc_close(struct psc_client *c);

int psc_rank(const struct psc_client *c);
int psc_size(const struct psc_client *c);
int psc_local_rank(const struct psc_client *c);
int psc_local_size(const struct psc_client *c);
int psc_num_servers(const struct psc_client *c);

/* ------------------------------------------------------------------ keys */

/* Declares a key by a name of at most 254 bytes: an array of `dtype`, whose
 * shape is the same on all workers. Waits for the answer. A second declaration
 * returns the same number. */
int psc_key(struct psc_client *c, const char *name, uint32_t dtype,
            uint32_t ndim, const uint64_t *shape, uint32_t *ret_key);

/* Declares a key by a number, not negative, which PSC_PLACEMENT_MXNET uses. The
 * string "3" and the number 3 are two keys. */
int psc_key_int(struct psc_client *c, int64_t number, uint32_t dtype,
                uint32_t ndim, const uint64_t *shape, uint32_t *ret_key);

struct psc_key_spec {
    const char *name; /* NULL: the key `number`. */
    int64_t number;
    uint32_t dtype;
    uint32_t ndim;
    const uint64_t *shape;
    uint32_t width; /* Row width of a rows key, see psc_key_rows(); else 0. */
    uint32_t flags; /* PSC_KEY_* */
};

/* Declares nothing: a key that no worker has declared is PSC_E_NOKEY. */
#define PSC_KEY_KNOWN   1u
/* As PSC_KEY_KNOWN where the job has an optimizer, which needs a first
 * value. */
#define PSC_KEY_OF_SUMS 2u

/* Declares many keys with one wait, in the order given; each worker may use its
 * own order. Stops at the first failure; keys after it may be declared
 * nevertheless. */
int psc_keys(struct psc_client *c, const struct psc_key_spec *specs,
             size_t count, uint32_t *ret_keys);

/* Declares a rows key: an array of `rows` x `width` elements. Pushes and pulls
 * name single rows, and no worker needs memory for all of it. The job must have
 * servers; a row is never split. psc_init_start() sets the first value, as for
 * any key, and must precede the first push. */
int psc_key_rows(struct psc_client *c, const char *name, uint32_t dtype,
                 uint64_t rows, uint32_t width, uint32_t *ret_key);
int psc_key_rows_int(struct psc_client *c, int64_t number, uint32_t dtype,
                     uint64_t rows, uint32_t width, uint32_t *ret_key);

/* Number of elements and bytes of the key's array. */
int psc_key_info(struct psc_client *c, uint32_t key, uint64_t *ret_count,
                 uint64_t *ret_bytes);

/* ------------------------------------------------------------ operations */

struct psc_op;

/* Runs only inside psc_dispatch(), once, after the operation has ended with
 * `rc`. May start operations and free this one. */
typedef void (*psc_callback)(struct psc_op *op, int rc, void *user);

/* All zero but `size`, or NULL, are the defaults. */
struct psc_op_options {
    uint32_t size;    /* sizeof(struct psc_op_options) */
    int32_t priority; /* Higher first; equal ones in order of their start. */
    uint32_t reduce;  /* enum psc_reduce; the same on all workers. */
    uint32_t root;    /* init, broadcast: rank that supplies the value. */
    /* Length of `srcs`, several arrays for the key; 0: `src`. They are combined
     * by `reduce` in a fixed order, and `src` is ignored. */
    uint32_t src_count;
    /* PSC_MEAN: samples in the sum that is pushed; the mean divides by the
     * samples of all workers; 0: 1. */
    uint32_t samples;
    const void *const *srcs;
    psc_callback callback;
    void *user;
    const struct psc_device *device; /* Of src and out; NULL: the host. */
};

/* Operations on one key take effect in the order of their start. An operation
 * that forms a round waits until every earlier operation on the key has ended;
 * a pull does not.
 *
 * src lies in shared memory, see psclient_memory.h, and must not change until the
 * operation ends; otherwise it is copied before the call returns. out is written before
 * the operation ends, possibly in part if it fails, and never after
 * psc_op_free(). With out NULL the result stays in the agent's memory, for
 * psc_op_view().
 *
 * With ret_op NULL the operation has no handle; psc_op_free() of an open
 * operation has the same effect. If it fails, the next call on its key returns
 * the error. */

/* Sets the first value of a key. Rank root supplies it, the others may pass
 * NULL; ends when it is stored. An existing value stays. */
int psc_init_start(struct psc_client *c, uint32_t key, const void *src,
                   const struct psc_op_options *o, struct psc_op **ret_op);
/* Contributes to the next round; ends when the round is merged. */
int psc_push_start(struct psc_client *c, uint32_t key, const void *src,
                   const struct psc_op_options *o, struct psc_op **ret_op);
/* Returns the value after all rounds this worker has pushed to. */
int psc_pull_start(struct psc_client *c, uint32_t key, void *out,
                   const struct psc_op_options *o, struct psc_op **ret_op);
/* Push and pull in one operation. out may be src. */
int psc_pushpull_start(struct psc_client *c, uint32_t key, const void *src,
                       void *out, const struct psc_op_options *o,
                       struct psc_op **ret_op);
/* A round to which only root contributes. src may be NULL elsewhere. */
int psc_broadcast_start(struct psc_client *c, uint32_t key, const void *src,
                        void *out, const struct psc_op_options *o,
                        struct psc_op **ret_op);
/* Rows of a rows key: their numbers, in any order, and count x width elements
 * in the same order. */
struct psc_rows {
    const int64_t *numbers;
    size_t count;
    const void *src; /* Of a push. */
    void *out;       /* Of a pull. */
};
/* Rows key: contributes rows to the next round. Duplicate rows are added. All
 * workers must take part, those without rows with count 0. Copied before the
 * call returns; ends when the round is merged. Rows without a contribution are
 * treated by an optimizer as its lazy_update says, psclient(3); without one
 * they are zero afterwards. */
int psc_push_rows_start(struct psc_client *c, uint32_t key,
                        const struct psc_rows *rows,
                        const struct psc_op_options *o, struct psc_op **ret_op);
/* Writes the rows, possibly repeated, to out, after all rounds this worker has
 * pushed to. `numbers` may be reused when the call returns. */
int psc_pull_rows_start(struct psc_client *c, uint32_t key,
                        const struct psc_rows *rows,
                        const struct psc_op_options *o, struct psc_op **ret_op);
/* Ends when every worker of the job has started its barrier. */
int psc_barrier_start(struct psc_client *c, const struct psc_op_options *o,
                      struct psc_op **ret_op);

/* Declares how servers turn the sum of a round into the new value; without an
 * optimizer the sum is the value. Once for a job, before its first push; every
 * worker may declare the same. "sgd" takes learning_rate, momentum, wd,
 * rescale_grad and clip_gradient; psclient(3) has the others. */
struct psc_param {
    const char *name;
    double value;
};
int psc_optimizer_start(struct psc_client *c, const char *name,
                        const struct psc_param *params, uint32_t param_count,
                        const struct psc_op_options *o, struct psc_op **ret_op);
#define PSC_TUNING_PLAIN                                                       \
    1u /* LARS does not scale the step of this key; the default for names that
        * end with gamma, beta or bias. */
struct psc_key_tuning {
    const char *name; /* NULL: the key `number`. */
    int64_t number;
    double lr_mult;
    double wd_mult;
    uint32_t flags; /* PSC_TUNING_* */
    uint32_t reserved;
};
struct psc_optimizer {
    uint32_t size; /* sizeof(struct psc_optimizer) */
    uint32_t param_count;
    const char *name;
    const struct psc_param *params;
    const struct psc_key_tuning *keys; /* In any order. */
    uint32_t key_count;
    uint32_t reserved;
};
/* As psc_optimizer_start(), with settings for single keys. The rate of a key
 * is learning_rate times lr_mult, its decay wd times wd_mult. At most 2,048
 * keys. */
int psc_optimizer_declare_start(struct psc_client *c,
                                const struct psc_optimizer *declaration,
                                const struct psc_op_options *o,
                                struct psc_op **ret_op);
/* Changes "learning_rate" (or "lr"), "wd", "rescale_grad" ("rescale") or
 * "clip_gradient" ("clip") of the job's optimizer, for the steps that make
 * round `round` of each key and later ones. 0: the first round that this worker
 * has not begun on any key. Ends when all servers have the value. Every worker
 * may set the same; another value for the same round is PSC_E_MISMATCH. For a
 * rate with a schedule, learning_rate is its initial value. */
int psc_set_start(struct psc_client *c, const char *name, double value,
                  uint64_t round, const struct psc_op_options *o,
                  struct psc_op **ret_op);
/* The same for multipliers of single keys, of an optimizer that has been
 * declared: each key has the given ones in these rounds, others keep theirs. At
 * most 2,048 keys of a job have multipliers. */
int psc_tune_start(struct psc_client *c, const struct psc_key_tuning *keys,
                   uint32_t key_count, uint64_t round,
                   const struct psc_op_options *o, struct psc_op **ret_op);
/* Declares the codec for gradients of float32 keys between agents and servers,
 * after the sum over the workers of a node; without one they are not
 * compressed. Once for a job, before its first key; every worker may declare
 * the same. "2bit" takes threshold; psclient(3) has the others. */
int psc_compression_start(struct psc_client *c, const char *name,
                          const struct psc_param *params, uint32_t param_count,
                          const struct psc_op_options *o,
                          struct psc_op **ret_op);

/* Waits until the operation has ended and returns its result. PSC_E_TIMEOUT: it
 * is still open; the detail names the missing ranks. */
int psc_op_wait(struct psc_op *op, int timeout_ms);
/* As psc_op_wait(), for a caller that at PSC_E_TIMEOUT waits again or gives up:
 * the wait counts as one without a limit (DIVERGED, docs/modes.md). */
int psc_op_wait_slice(struct psc_op *op, int timeout_ms);
/* Its result, without a wait; PSC_E_AGAIN: it is open. Reads the socket. */
int psc_op_test(struct psc_op *op);
/* Waits for all but NULL; returns the first failure in their order, or 0. */
int psc_ops_wait(struct psc_op *const *ops, size_t count, int timeout_ms);
/* Waits until one operation has ended and returns its index in the array. */
int psc_ops_wait_any(struct psc_op *const *ops, size_t count, int timeout_ms,
                     size_t *ret_index);
/* Describes in one sentence why an operation is open, and since when, or how it
 * ended. Queries the agent, for 5 s at most; another thread may wait for it. */
int psc_op_why(struct psc_op *op, char *text, size_t size);
/* The result in the agent's memory, read-only: valid until the second-next
 * round of its key is pushed or the operation is freed. PSC_E_AGAIN: not ended;
 * PSC_E_NOENT: no result. */
int psc_op_view(struct psc_op *op, const void **ret_data, size_t *ret_bytes);
/* Round whose value the result is; of a join, the rank that joined last. */
int psc_op_version(struct psc_op *op, uint64_t *ret_version);
/* Ends an operation that was not sent, or a pull that waits: it ends with
 * PSC_E_CANCELED, at once or soon, as if it had not been started. Its arrays are
 * the caller's again when this returns. PSC_E_REFUSED: the agent has it, or it is
 * a collective, and other ranks may count on it; PSC_E_NOENT: it has ended. */
int psc_op_cancel(struct psc_op *op);
/* Frees the handle; NULL is allowed. An open operation continues, but writes no
 * out, unless that is memory of a GPU (psclient_stream.h). */
void psc_op_free(struct psc_op *op);

/* Blocking forms of the calls above, within op_timeout_ms. */
int psc_init(struct psc_client *c, uint32_t key, const void *src);
int psc_push(struct psc_client *c, uint32_t key, const void *src);
int psc_pull(struct psc_client *c, uint32_t key, void *out);
int psc_pushpull(struct psc_client *c, uint32_t key, const void *src,
                 void *out);
int psc_broadcast(struct psc_client *c, uint32_t key, const void *src,
                  void *out, uint32_t root);
/* After PSC_E_TIMEOUT the next call waits for the same barrier. */
int psc_barrier(struct psc_client *c);
int psc_optimizer_set(struct psc_client *c, const char *name,
                      const struct psc_param *params, uint32_t param_count);
int psc_optimizer_declare(struct psc_client *c,
                          const struct psc_optimizer *declaration);
int psc_set(struct psc_client *c, const char *name, double value,
            uint64_t round);
int psc_tune(struct psc_client *c, const struct psc_key_tuning *keys,
             uint32_t key_count, uint64_t round);
/* Save writes the optimizer state of every key that this worker has declared to
 * a file, and load restores it: momenta, step counts, and for keys of 16-bit
 * types the float32 weights, which become the value. One worker of the job
 * calls it, between rounds, while no worker pushes, and psc_barrier() after
 * loading. Before a load, declare the same optimizer and initialise the keys;
 * the numbers of workers and servers may differ. A truncated or modified file
 * is refused before any state is restored. Both wait. */
int psc_state_save(struct psc_client *c, const char *path);
int psc_state_load(struct psc_client *c, const char *path);
int psc_compression_set(struct psc_client *c, const char *name,
                        const struct psc_param *params, uint32_t param_count);

/* ------------------------------------------------------------ collectives */

/* Every worker of the client's job takes part in the same collectives in the
 * same order; the n-th call of each one is one operation. If ranks make
 * different requests (operation, name, element type, shape, reduction, root or
 * scale), all get PSC_E_MISMATCH, and the detail lists each rank's request. An
 * optimizer on the servers does not apply to collectives.
 *
 * Data is in row-major order. `src` lies in shared memory, aligned to 8
 * bytes, and must not change until the operation ends; otherwise it is copied
 * before the call returns. `out` is written before the operation ends; with
 * NULL the result stays in memory for psc_op_view(), valid until psc_op_free(),
 * and for an allreduce or broadcast until the second-next one of the same
 * number of elements is started. `out` may be `src`. `name` is for errors and
 * comparison, at most 200 bytes; NULL: none. */

/* Arrays of one rank in a collective. */
struct psc_array {
    uint32_t dtype; /* enum psc_dtype */
    uint32_t ndim;  /* 0: one element. */
    const uint64_t *dims;
    const void *src;
    void *out;
    /* Bytes at out, of an allgather, reducescatter or alltoall; if they are too
     * few, only this caller gets PSC_E_TOOBIG. */
    size_t out_size;
};

/* Ranks that have joined, see psc_join_start(), in a collective of others. */
enum psc_joined {
    PSC_JOINED_LEAVE = 0,  /* A mean is over the ranks that have not joined. */
    PSC_JOINED_COUNT = 1,  /* A mean divides by all ranks. */
    PSC_JOINED_REFUSE = 2, /* Fails with PSC_E_INVAL if ranks have joined. */
};

/* All zero but `size`, or NULL, are the defaults. */
struct psc_coll_options {
    uint32_t size;    /* sizeof(struct psc_coll_options) */
    int32_t priority; /* Higher first. */
    uint32_t reduce;  /* enum psc_reduce */
    uint32_t root;    /* Broadcast: rank that supplies the array. */
    /* Factor of the source before the sum; 0: 1. Real types only. */
    double prescale;
    double postscale; /* Factor of the result; 0: 1. Real types only. */
    psc_callback callback;
    void *user;
    /* Words compared and reported in place of type and shape; those behind a
     * line feed are reported in place of the others. NULL: none. */
    const char *array_words;
    uint32_t joined;                 /* enum psc_joined */
    const struct psc_device *device; /* Of all arrays; NULL: the host. */
};

/* Every rank gets the sum, or other reduction, over all ranks. */
int psc_allreduce_start(struct psc_client *c, const char *name,
                        const struct psc_array *array,
                        const struct psc_coll_options *o,
                        struct psc_op **ret_op);
/* One array of a grouped allreduce. */
struct psc_piece {
    const void *src;
    void *out;
    uint64_t count; /* Elements. */
};
struct psc_pieces {
    uint32_t dtype; /* enum psc_dtype, of all. */
    uint32_t count;
    const struct psc_piece *pieces;
};
/* Allreduce of many arrays, which costs less than one for each. The structs are
 * copied, the arrays are not. */
int psc_allreduce_many_start(struct psc_client *c, const char *name,
                             const struct psc_pieces *arrays,
                             const struct psc_coll_options *o,
                             struct psc_op **ret_op);
/* Every rank gets the root's array. Other ranks may pass NULL for src. */
int psc_bcast_start(struct psc_client *c, const char *name,
                    const struct psc_array *array,
                    const struct psc_coll_options *o, struct psc_op **ret_op);
/* Every rank gets the arrays of all ranks, concatenated by rank. Their first
 * dimensions may differ; psc_op_rows() returns them. */
int psc_allgather_start(struct psc_client *c, const char *name,
                        const struct psc_array *array,
                        const struct psc_coll_options *o,
                        struct psc_op **ret_op);
/* Each rank gets its share of the rows of the sum, or other reduction, over all
 * ranks: of n rows and W ranks n / W, the first n % W ranks one more. */
int psc_reducescatter_start(struct psc_client *c, const char *name,
                            const struct psc_array *array,
                            const struct psc_coll_options *o,
                            struct psc_op **ret_op);
/* Sends splits[r] rows of src to rank r, in order; NULL: equal shares. The
 * result is the received rows, by rank; psc_op_rows() returns their number from
 * each. Rows of a rank travel to every node that has a rank of the job. */
int psc_alltoall_start(struct psc_client *c, const char *name,
                       const struct psc_array *array, const uint64_t *splits,
                       const struct psc_coll_options *o,
                       struct psc_op **ret_op);
/* Rows from each rank of an allgather or alltoall; `count` is psc_size(). */
int psc_op_rows(struct psc_op *op, uint64_t *rows, uint32_t count);

/* This rank has no more data: it takes part in all collectives of the other
 * ranks, contributing zeros to sums and no rows, until all ranks have joined.
 * The operation ends then, and psc_op_version() returns the rank that joined
 * last. A mean of real types is over the ranks that have not joined. A
 * broadcast whose root has joined is PSC_E_INVAL for the others.
 *
 * In jobs with rounds, this rank also skips the rounds of every key that it has
 * declared, after its earlier pushes. Until the operation has ended it may pull
 * but not push (PSC_E_INVAL). Then all ranks are at the same round of every
 * key, and the value is that of the last round with a contribution. All ranks
 * must have declared the same keys, at most 16,384 (PSC_E_FULL), else all get
 * PSC_E_MISMATCH at the end. A broadcast of a key whose root has joined is
 * PSC_E_MISMATCH for the others.
 *
 * psc_op_free() does not cancel an open join; the next call returns the same
 * join. */
int psc_join_start(struct psc_client *c, const struct psc_coll_options *o,
                   struct psc_op **ret_op);

/* Opens a client for some ranks of the job, or all with NULL: the position in
 * `ranks` is the rank in the group. A group is a job of its own, "job/name",
 * with the same number of servers: psc_size(), psc_barrier(), keys, optimizers
 * and collectives concern its members only, and its state is deleted when all
 * members have closed it. Each member calls this with the same arguments and
 * waits for the others; other ranks do not call it. Memory of psc_alloc()
 * belongs to one client only. Closing `c` leaves its groups open. */
int psc_group_open(struct psc_client *c, const char *name,
                   const uint32_t *ranks, uint32_t count,
                   struct psc_client **ret_group);

/* ----------------------------------------------------------------- loops */

/* A descriptor, for polling only, that becomes readable when psc_dispatch() has
 * work, or an operation has ended in another call. Owned by the client. */
int psc_fd(struct psc_client *c);
/* Handles received messages, sends queued operations, runs callbacks; never
 * waits. Returns the number of callbacks, or the client's failure. */
int psc_dispatch(struct psc_client *c);

/* ----------------------------------------------------------------- texts */

const char *psc_strerror(int rc);
/* Text of the last error that a call on this client returned; "" if there was
 * none. Always terminated. */
int psc_last_detail(struct psc_client *c, char *text, size_t size);
const char *psc_version(void);

struct psc_stats {
    uint32_t size;         /* sizeof(struct psc_stats), set by the caller. */
    uint32_t resumes;      /* Agents that this worker re-attached to. */
    uint64_t ops;          /* Operations ended. */
    uint64_t rounds;       /* Pushes, pushpulls and broadcasts ended. */
    uint64_t bytes_given;  /* Tensor bytes given to the agent. */
    uint64_t bytes_got;    /* Tensor bytes of results. */
    uint64_t bytes_copied; /* Copied or summed by this process. */
    uint64_t sends;        /* System calls that wrote or read the socket. */
    uint64_t receives;
};
int psc_get_stats(struct psc_client *c, struct psc_stats *ret_stats);

#ifdef __GNUC__
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
