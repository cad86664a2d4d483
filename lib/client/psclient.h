/* SPDX-License-Identifier: Apache-2.0 */
/* libpsclient: a training process's side of pskv.
 *
 * A process opens one client on the Unix socket of its node's agent, names its
 * keys, and starts operations on them. Every worker of the job does the same;
 * the n-th push of a key by each worker forms round n of that key.
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
 * Functions return 0 or a negative PSC_E_*; what they return through pointers
 * is written on success alone. psc_last_detail() has the sentence that belongs
 * to the last error of this client.
 *
 * A client may be used from any number of threads, an operation handle by one
 * thread at a time. The library starts no threads, installs no signal
 * handlers, prints nothing, keeps no state outside the client, and never ends
 * the process. After fork() the child's handle is dead: every call returns
 * PSC_E_FORKED, except psc_close(), which frees the child's copy.
 *
 * Progress is made inside calls: whichever thread waits, tests or dispatches
 * speaks for all. A program that starts operations and then computes for long
 * may call psc_dispatch() now and then, so that queued ones go out. */
#ifndef PSCLIENT_H
#define PSCLIENT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifdef __GNUC__
#pragma GCC visibility push(default)
#endif

#define PSC_VERSION        "0.1.0"
#define PSC_TEXT_MAX       1024 /* Holds any text of the library. */
#define PSC_RANK_ANY       (-1)
#define PSC_DEFAULT_SOCKET "/run/pskv/agent.sock"

/* ------------------------------------------------------------- constants */

enum psc_error {
    PSC_E_INVAL = -1,
    PSC_E_NOMEM = -2,
    PSC_E_TOOBIG = -3,
    PSC_E_PROTO = -4,   /* The agent speaks nonsense. */
    PSC_E_VERSION = -5, /* The agent speaks another protocol. */
    PSC_E_TIMEOUT = -6, /* The detail names who is missing. */
    PSC_E_CANCELED = -7,
    PSC_E_CLOSED = -8, /* The agent hung up, and there is no other. */
    PSC_E_REFUSED = -9,
    PSC_E_PERM = -10,
    PSC_E_EXIST = -11,
    PSC_E_NOENT = -12,
    PSC_E_NOJOB = -13,
    PSC_E_NOKEY = -14,
    PSC_E_MISMATCH = -15,
    PSC_E_STALE = -16,
    PSC_E_FUTURE = -17,
    PSC_E_PEERLOST = -18,  /* A worker died and the job does not wait. */
    PSC_E_JOBFAILED = -19, /* The job is over. */
    PSC_E_AGAIN = -20,     /* Not done yet; in use. */
    PSC_E_IO = -21,
    PSC_E_CONFIG = -22,
    PSC_E_UNREACH = -23, /* No agent on the socket. */
    PSC_E_FORKED = -24,
    PSC_E_UNSUPPORTED = -25,
    PSC_E_FULL = -26,
    PSC_E_SYS = -27,
    PSC_E_BUG = -28,
};

enum psc_dtype {
    PSC_FLOAT32 = 0,
    PSC_FLOAT64 = 1,
    PSC_FLOAT16 = 2, /* Every sum of two is rounded to the type. */
    PSC_UINT8 = 3,
    PSC_INT32 = 4, /* Integers wrap; their mean is cut off toward zero. */
    PSC_INT8 = 5,
    PSC_INT64 = 6,
    PSC_BOOL = 7, /* Bytes of 0 or 1; the sum is "or", a mean is refused. */
    PSC_BFLOAT16 = 12, /* As PSC_FLOAT16. */
};

enum psc_mode {
    PSC_MODE_SYNC = 0,  /* Rounds, each with the push of every worker. */
    PSC_MODE_ASYNC = 1, /* Every push is applied when it arrives. */
    PSC_MODE_SSP = 2,   /* So it is, and a pull waits for workers that are more
                         * than `staleness` pushes of the key behind. */
};

/* What a push does in an async or ssp job where no optimizer applies it. */
enum psc_rule {
    PSC_RULE_NONE = 0, /* An optimizer is to be set before the first init. */
    PSC_RULE_ACCUMULATE = 2, /* It is added to the value. */
    PSC_RULE_ASSIGN = 3,     /* It becomes the value. */
};

/* What the job does when one of its workers dies. */
enum psc_on_loss {
    PSC_ON_LOSS_WAIT = 0, /* Wait for it to come back under its rank. */
    PSC_ON_LOSS_FAIL = 1, /* Every call of every worker fails. */
};

enum psc_placement {
    PSC_PLACEMENT_BALANCED = 0,
    PSC_PLACEMENT_MXNET = 1, /* The classic formula, with big_array_bound. */
};

enum psc_reduce {
    PSC_SUM = 0,
    PSC_MEAN = 1, /* Sum divided by the workers, or by their samples. */
    PSC_MIN = 2,  /* NaN where there is one. */
    PSC_MAX = 3,
    PSC_PRODUCT = 4,
};

/* Instead of a number of milliseconds. */
#define PSC_WAIT_DEFAULT (-1) /* op_timeout_ms of the options. */
#define PSC_WAIT_FOREVER (-2)

/* ------------------------------------------------------------------ open */

struct psc_options {
    uint32_t size;      /* sizeof(struct psc_options), set by init. */
    int32_t rank;       /* Wanted rank; PSC_RANK_ANY. */
    const char *socket; /* Of the agent. Strings stay the caller's. */
    const char *job;    /* Workers find each other by this name. */
    uint32_t num_workers;
    uint32_t num_servers;       /* 0: the agent answers by itself (one node). */
    uint32_t mode;              /* enum psc_mode */
    uint32_t on_loss;           /* enum psc_on_loss */
    uint32_t placement;         /* enum psc_placement */
    uint32_t partition_bytes;   /* Large keys are cut in pieces of this size;
                                 * 0: as psched is told to. */
    uint64_t big_array_bound;   /* Elements; PSC_PLACEMENT_MXNET. */
    int32_t connect_timeout_ms; /* For the agent's socket to appear. */
    int32_t start_timeout_ms;   /* For the job to be complete. */
    int32_t op_timeout_ms;      /* PSC_WAIT_DEFAULT means this; 0: no limit. */
    int32_t close_timeout_ms;   /* psc_close() waits for open operations. */
    uint32_t flags;             /* PSC_OPEN_* */
    /* How long a call that waits looks before it sleeps; 0: up to 50 us where
     * that has paid and nobody else needs the processor; < 0: not at all. */
    int32_t spin_us;
    uint32_t rule;      /* enum psc_rule; PSC_MODE_ASYNC and _SSP alone. */
    uint32_t staleness; /* PSC_MODE_SSP alone. */
    /* A sync job with servers that waits for lost workers: when the connection
     * to the agent ends, another agent on the socket is waited for that long,
     * and takes this worker up where it was; 0: the client fails at once. */
    int32_t agent_retry_ms;
    /* A call that waits for others writes a line to standard error that says for
     * whom, each time that this has passed; 0: 30 s where standard error is a
     * terminal, else never; < 0: never. */
    int32_t wait_notes_ms;
};

/* A time limit does not ask the agent for whom the operation waits, which can
 * take seconds; psc_op_why() does. For bindings that wait in slices. */
#define PSC_OPEN_QUIET 1u

/* Defaults: job "default", one worker, one server, sync, wait, balanced, 10 s
 * to connect, 120 s to start, no limit for operations, 10 s to close, 60 s for
 * another agent, a line for each 30 s of waiting on a terminal.
 * `size` is sizeof(*o) as the caller's compiler sees it. */
void psc_options_init(struct psc_options *o, size_t size);

/* Overwrites what the environment knows; psclient(3) lists the variables.
 * PSC_E_INVAL names the variable in `err`. Strings point into the environment.
 * `err` may be NULL. */
int psc_options_env(struct psc_options *o, char *err, size_t err_size);

struct psc_client;

/* Connects and waits until the job is complete. The reason of a failure, or
 * of a refusal by the agent, is left in `err`, which may be NULL. */
int psc_open(const struct psc_options *o, struct psc_client **ret_client,
             char *err, size_t err_size);

/* Waits for open operations and detaches in good order, so that the others do
 * not take this worker for dead. What is open after close_timeout_ms ends with
 * PSC_E_CLOSED, like every later call, but memory and views stay. */
int psc_leave(struct psc_client *c);
/* Leaves, if that was not done, and frees the client with all its operations,
 * views and memory. NULL is fine. No other thread may be inside a call. */
void psc_close(struct psc_client *c);

int psc_rank(const struct psc_client *c);
int psc_size(const struct psc_client *c);
int psc_local_rank(const struct psc_client *c);
int psc_local_size(const struct psc_client *c);
int psc_num_servers(const struct psc_client *c);

/* ---------------------------------------------------------------- memory */

/* Memory shared with the agent, aligned to 64 bytes, contents undefined.
 * Arrays that lie in it are given without a copy. psc_free() of memory that an
 * open operation uses returns PSC_E_AGAIN and frees nothing. Freeing NULL is
 * fine. */
int psc_alloc(struct psc_client *c, size_t size, void **ret_data);
int psc_free(struct psc_client *c, void *data);

/* ------------------------------------------------------------------ keys */

/* A key by its name, of at most 254 bytes: an array of `dtype`, its shape
 * agreed by all workers. Waits for the answer. Naming a key again gives the same number. */
int psc_key(struct psc_client *c, const char *name, uint32_t dtype,
            uint32_t ndim, const uint64_t *shape, uint32_t *ret_key);

/* A key by its number, not negative, with which PSC_PLACEMENT_MXNET computes.
 * The string "3" and the number 3 are two keys. */
int psc_key_int(struct psc_client *c, int64_t number, uint32_t dtype,
                uint32_t ndim, const uint64_t *shape, uint32_t *ret_key);

struct psc_key_spec {
    const char *name; /* NULL: the key `number`. */
    int64_t number;
    uint32_t dtype;
    uint32_t ndim;
    const uint64_t *shape;
    uint32_t width; /* Of a key of rows, as below; else 0. */
    uint32_t flags; /* PSC_KEY_* */
};

/* Declares nothing: a key that no worker has declared is PSC_E_NOKEY. */
#define PSC_KEY_KNOWN   1u
/* The same where the job has an optimizer, which needs a first value. */
#define PSC_KEY_OF_SUMS 2u

/* Many keys with one wait, in the order given; every worker may have its own.
 * The first that fails ends it; others may be known then all the same. */
int psc_keys(struct psc_client *c, const struct psc_key_spec *specs,
             size_t count, uint32_t *ret_keys);

/* A key of rows: an array of `rows` x `width` elements of which pushes and
 * pulls name the rows they are about, and no worker needs memory for all of
 * it. The job must have servers; a row is never cut. Its first value comes by
 * psc_init_start() as of any key, and must come before the first push. */
int psc_key_rows(struct psc_client *c, const char *name, uint32_t dtype,
                 uint64_t rows, uint32_t width, uint32_t *ret_key);
int psc_key_rows_int(struct psc_client *c, int64_t number, uint32_t dtype,
                     uint64_t rows, uint32_t width, uint32_t *ret_key);

/* Elements and bytes of its array. */
int psc_key_info(struct psc_client *c, uint32_t key, uint64_t *ret_count,
                 uint64_t *ret_bytes);

/* ------------------------------------------------------------ operations */

struct psc_op;

/* Runs inside psc_dispatch() alone, once, after the operation has ended with
 * `rc`. May start operations and free this one. */
typedef void (*psc_callback)(struct psc_op *op, int rc, void *user);

/* Zeroed apart from size is the default; so is NULL instead of it. */
struct psc_op_options {
    uint32_t size;      /* sizeof(struct psc_op_options) */
    int32_t priority;   /* Higher first; equal ones in order. */
    uint32_t reduce;    /* enum psc_reduce; the same on all workers. */
    uint32_t root;      /* init, broadcast: the rank that gives the value. */
    uint32_t src_count; /* Of srcs: more than one array for the key. They are
                         * summed, or what reduce says, in a fixed order, and
                         * src is ignored. */
    uint32_t samples;   /* PSC_MEAN: what is pushed is a sum over so many
                         * samples, and the mean divides by all; 0: by 1. */
    const void *const *srcs;
    psc_callback callback;
    void *user;
};

/* Operations on one key take effect in the order of their start. A push, and
 * whatever else makes a round, is held back until everything before it on the
 * key has ended; a pull is not.
 *
 * src lies in memory of psc_alloc() and stays untouched until the operation
 * ends, or it is copied before the call returns. out is written before the
 * operation ends, that of one that fails perhaps in part, and no more after
 * psc_op_free(). With out NULL the result is
 * left where the agent put it, for psc_op_view().
 *
 * With ret_op NULL nobody waits for the operation; psc_op_free() of an open
 * operation does the same. If it fails, the next call on its key says so. */

/* Rank root gives the first value, the others may pass NULL; ends when it is
 * stored. A key that has a value keeps it. */
int psc_init_start(struct psc_client *c, uint32_t key, const void *src,
                   const struct psc_op_options *o, struct psc_op **ret_op);
/* Gives to the next round; ends when the round is merged. */
int psc_push_start(struct psc_client *c, uint32_t key, const void *src,
                   const struct psc_op_options *o, struct psc_op **ret_op);
/* The value after all rounds this worker has pushed to. */
int psc_pull_start(struct psc_client *c, uint32_t key, void *out,
                   const struct psc_op_options *o, struct psc_op **ret_op);
/* Both, in one go. out may be src. */
int psc_pushpull_start(struct psc_client *c, uint32_t key, const void *src,
                       void *out, const struct psc_op_options *o,
                       struct psc_op **ret_op);
/* One round to which root alone gives. src may be NULL elsewhere. */
int psc_broadcast_start(struct psc_client *c, uint32_t key, const void *src,
                        void *out, const struct psc_op_options *o,
                        struct psc_op **ret_op);
/* Keys of rows. Gives `count` rows, whose numbers stand in `row`, to the next
 * round; src has them one after the other. Any order; rows that come twice are
 * added. All workers must take part, those without rows with count 0. Copied
 * before the call returns; ends when the round is merged. What an optimizer
 * does to rows that nobody gave is its lazy_update, psclient(3); without one
 * these are zero afterwards. */
int psc_push_rows_start(struct psc_client *c, uint32_t key, const int64_t *row,
                        size_t count, const void *src,
                        const struct psc_op_options *o, struct psc_op **ret_op);
/* The rows whose numbers stand in `row`, in any order, some more than once,
 * into out, count x width elements, after all rounds this worker has pushed
 * to. `row` may be reused when the call returns. */
int psc_pull_rows_start(struct psc_client *c, uint32_t key, const int64_t *row,
                        size_t count, void *out, const struct psc_op_options *o,
                        struct psc_op **ret_op);
/* Ends when every worker of the job has started its barrier. */
int psc_barrier_start(struct psc_client *c, const struct psc_op_options *o,
                      struct psc_op **ret_op);

/* How servers turn the sum of a round into the new value; without one the sum
 * is the value. Once for a job, before its first push; every worker may say
 * the same. "sgd" knows learning_rate, momentum, wd, rescale_grad and
 * clip_gradient; psclient(3) has the others. */
struct psc_param {
    const char *name;
    double value;
};
int psc_optimizer_start(struct psc_client *c, const char *name,
                        const struct psc_param *params, uint32_t param_count,
                        const struct psc_op_options *o, struct psc_op **ret_op);
/* The same with what is different for single keys. The rate of a key is
 * learning_rate times lr_mult, its decay wd times wd_mult. At most 2,048 keys. */
#define PSC_TUNING_PLAIN                                                       \
    1u /* LARS does not scale its step, as of a key
                             * whose name ends with gamma, beta or bias. */
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
int psc_optimizer_declare_start(struct psc_client *c,
                                const struct psc_optimizer *declaration,
                                const struct psc_op_options *o,
                                struct psc_op **ret_op);
/* Another value for "learning_rate" (or "lr"), "wd", "rescale_grad"
 * ("rescale") or "clip_gradient" ("clip") of the job's optimizer, for the steps
 * that make round `round` of each key and later ones. 0: the first round that
 * this worker has begun of no key. Ends when all servers know. Every worker may
 * say the same; another value for the same round is PSC_E_MISMATCH. Where the
 * rate has a schedule, learning_rate is what that begins with. */
int psc_set_start(struct psc_client *c, const char *name, double value,
                  uint64_t round, const struct psc_op_options *o,
                  struct psc_op **ret_op);
/* How gradients of float32 keys travel from agents to servers, after the sum
 * over the workers of a node; without one as they are. Once for a job, before
 * its first key; every worker may say the same. "2bit" knows threshold;
 * psclient(3) has the others. */
int psc_compression_start(struct psc_client *c, const char *name,
                          const struct psc_param *params, uint32_t param_count,
                          const struct psc_op_options *o,
                          struct psc_op **ret_op);

/* Waits until the operation has ended and returns how. PSC_E_TIMEOUT: it is
 * still open; the detail says for whom it waits. */
int psc_op_wait(struct psc_op *op, int timeout_ms);
/* PSC_E_AGAIN while it is open. Reads the socket, never waits. */
int psc_op_test(struct psc_op *op);
/* Waits for all; the first failure in the order of the array, or 0. NULL
 * entries are skipped. */
int psc_ops_wait(struct psc_op *const *ops, size_t count, int timeout_ms);
/* Waits until one has ended and gives its place in the array. */
int psc_ops_wait_any(struct psc_op *const *ops, size_t count, int timeout_ms,
                     size_t *ret_index);
/* One sentence: what an open operation waits for, and since when; how an ended
 * one ended. Asks the agent, for at most five seconds. */
int psc_op_why(struct psc_op *op, char *text, size_t size);
/* The result in the agent's memory, read-only: valid until the second-next
 * round of its key is pushed or the operation is freed. PSC_E_AGAIN: not ended; PSC_E_NOENT: it has no
 * result. */
int psc_op_view(struct psc_op *op, const void **ret_data, size_t *ret_bytes);
/* Round whose value the result is; of a join, the rank that was last. */
int psc_op_version(struct psc_op *op, uint64_t *ret_version);
/* NULL is fine. Also of an open operation: it goes on, but writes no out. */
void psc_op_free(struct psc_op *op);

/* The same with the waiting done, within op_timeout_ms. */
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
/* Writes what servers keep for the optimizer of every key that this worker has
 * named into a file, and reads it from there: momenta, counts of steps, and of
 * keys of 16-bit types the weights in float32, which become the value. Of the
 * job one worker suffices, while nobody pushes: call it between rounds, and
 * psc_barrier() after loading. To load, declare the same optimizer and
 * initialise the keys first; any number of workers and servers will do. A file
 * that is cut off or changed is refused before anything is taken from it.
 * Waits. */
int psc_state_save(struct psc_client *c, const char *path);
int psc_state_load(struct psc_client *c, const char *path);
int psc_compression_set(struct psc_client *c, const char *name,
                        const struct psc_param *params, uint32_t param_count);

/* ------------------------------------------------------------ collectives */

/* Every worker of the client's job takes part in the same collectives in the
 * same order; the n-th that each one starts is one operation. Ranks that ask
 * for different things (another operation, name, element type, shape,
 * reduction, root or scale) all get PSC_E_MISMATCH, and the detail names who
 * asks for what. An optimizer on the servers steps for keys alone.
 *
 * Data is in row-major order. `src` lies in memory of psc_alloc(), aligned to
 * 8 bytes, and stays untouched until the operation ends, or it is copied
 * before the call returns. `out` is written before the operation ends; with
 * NULL the result is left for psc_op_view(), which is valid until
 * psc_op_free(), of an allreduce or broadcast until the second-next one of the
 * same number of elements is started. `out` may be `src`. `name` is for errors and
 * comparison, of at most 200 bytes; NULL: none. */

/* Element type and dimensions; an array of `ndim` 0 has one element. */
struct psc_shape {
    uint32_t dtype; /* enum psc_dtype */
    uint32_t ndim;
    const uint64_t *dims;
};

/* Zeroed apart from size is the default; so is NULL instead of it. */
struct psc_coll_options {
    uint32_t size;    /* sizeof(struct psc_coll_options) */
    int32_t priority; /* Higher first. */
    uint32_t reduce;  /* enum psc_reduce */
    uint32_t root;    /* Broadcast: who gives. */
    double prescale;  /* What is given is multiplied by it before the sum, */
    double postscale; /* the result after it; 0: 1. Real numbers alone. */
    psc_callback callback;
    void *user;
};

/* The sum, or what reduce says, over all ranks, everywhere. */
int psc_allreduce_start(struct psc_client *c, const char *name,
                        const struct psc_shape *shape, const void *src,
                        void *out, const struct psc_coll_options *o,
                        struct psc_op **ret_op);
/* One of several arrays, as one operation: cheaper than one for each. The
 * pieces are copied, the arrays are not. */
struct psc_piece {
    const void *src;
    void *out;
    uint64_t count; /* Elements. */
};
int psc_allreduce_many_start(struct psc_client *c, const char *name,
                             uint32_t dtype, const struct psc_piece *pieces,
                             uint32_t count, const struct psc_coll_options *o,
                             struct psc_op **ret_op);
/* The root's array, everywhere. The others may pass NULL for src. */
int psc_bcast_start(struct psc_client *c, const char *name,
                    const struct psc_shape *shape, const void *src, void *out,
                    const struct psc_coll_options *o, struct psc_op **ret_op);
/* The arrays of all ranks one behind the other, everywhere. Their first
 * dimensions may differ; psc_op_rows() tells them. `out` has room for
 * `out_size` bytes; PSC_E_TOOBIG for the caller alone if that is too little. */
int psc_allgather_start(struct psc_client *c, const char *name,
                        const struct psc_shape *shape, const void *src,
                        void *out, size_t out_size,
                        const struct psc_coll_options *o,
                        struct psc_op **ret_op);
/* The sum, or what reduce says, over all ranks, of which each gets its share of rows: with
 * n rows and W ranks, n / W, the first n % W ranks one more. */
int psc_reducescatter_start(struct psc_client *c, const char *name,
                            const struct psc_shape *shape, const void *src,
                            void *out, size_t out_size,
                            const struct psc_coll_options *o,
                            struct psc_op **ret_op);
/* Sends splits[r] rows of src to rank r, in order; NULL: as many to each. The
 * result is what came, by rank; psc_op_rows() tells how many rows from each.
 * Rows of a rank travel to every node that has a rank of the job. */
int psc_alltoall_start(struct psc_client *c, const char *name,
                       const struct psc_shape *shape, const uint64_t *splits,
                       const void *src, void *out, size_t out_size,
                       const struct psc_coll_options *o,
                       struct psc_op **ret_op);
/* Rows from each rank of an allgather or alltoall; `count` is psc_size(). */
int psc_op_rows(struct psc_op *op, uint64_t *rows, uint32_t count);

/* This rank has no more data: it takes part in whatever collectives the others
 * start, giving zeros to sums and no rows, until all ranks have joined; the
 * operation ends then, and psc_op_version() tells the rank that joined last.
 * A mean of real numbers is of the ranks that have not joined. A broadcast
 * from one that has is PSC_E_INVAL for the others.
 * Rounds of keys, where there are rounds, are of the others, too: this rank
 * passes in those of every key that it has declared, behind what it has pushed
 * before, and cannot push until the operation has ended (PSC_E_INVAL); it may
 * pull. When it has ended, all ranks are at the same round of every key, and
 * the value is that of the last round in which somebody gave. All ranks must
 * have declared the same keys, else all get PSC_E_MISMATCH at the end; there
 * may be 16,384 of them, PSC_E_FULL. A broadcast of a key from a rank that has
 * joined is PSC_E_MISMATCH for the others.
 * psc_op_free() leaves an open join going on; the next call of this gives the
 * same one again. */
int psc_join_start(struct psc_client *c, const struct psc_coll_options *o,
                   struct psc_op **ret_op);

/* A client for some ranks of the job, or all with NULL: position in `ranks` is
 * rank in the group. A group is a job of its own, "job/name", with the same
 * number of servers: psc_size(), psc_barrier(), keys, optimizers and
 * collectives are of its members alone, and what it kept anywhere is gone when
 * its members have closed it. Each member calls this with the same arguments
 * and waits for the others; ranks that are no members do not call it.
 * psc_alloc() of one client is foreign memory to another. Closing `c` leaves
 * its groups open. */
int psc_group_open(struct psc_client *c, const char *name,
                   const uint32_t *ranks, uint32_t count,
                   struct psc_client **ret_group);

/* ----------------------------------------------------------------- loops */

/* A descriptor that becomes readable when psc_dispatch() has something to do.
 * The client's; to be polled, not read or closed. */
int psc_fd(struct psc_client *c);
/* Reads what has come, sends what is queued, runs callbacks; never waits.
 * Returns the number of callbacks, or how the client failed. */
int psc_dispatch(struct psc_client *c);

/* ----------------------------------------------------------------- texts */

const char *psc_strerror(int rc);
/* The sentence that belongs to the last error that a call on this client
 * returned; "" when there was none. Always terminated. */
int psc_last_detail(struct psc_client *c, char *text, size_t size);
const char *psc_version(void);

struct psc_stats {
    uint32_t size;         /* sizeof(struct psc_stats), set by the caller. */
    uint32_t resumes;      /* Times that another agent took this worker up. */
    uint64_t ops;          /* Ended. */
    uint64_t rounds;       /* Pushes, pushpulls and broadcasts ended. */
    uint64_t bytes_given;  /* Tensor bytes offered to the agent. */
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
