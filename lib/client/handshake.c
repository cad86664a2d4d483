/* SPDX-License-Identifier: Apache-2.0 */
#include "client/handshake.h"
#include "client/options.h"
#include "client/state.h"
#include "client/threads.h"

#include "base/limits.h"
#include "base/variables.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file_check.h"
#include "base/str.h"

/* Interval between dials of a socket that does not exist yet. */
#define CONNECT_RETRY_MS 50

/* Appends the remedy for an agent's socket that cannot be opened. */
static void add_socket_advice(int errnum, const char *path, struct ps_str *out)
{
    switch (errnum) {
    case ENOENT:
    case ECONNREFUSED:
        ps_str_add(out,
                   "; start psworker-agent on this node, start this program by "
                   "pslaunch, or name another socket (PSKV_SOCKET)");
        break;
    case EACCES:
        ps_str_add(
            out, "; this user has no access to it (client.mode of the agent)");
        ps_file_add_group(path, out);
        break;
    default:
        break;
    }
}

/* True if no agent can come to listen at this path: its folder is not there.
 * An agent that is started makes the folder first. */
static bool has_no_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX];

    if (path[0] == '@' || slash == NULL || slash == path ||
        (size_t)(slash - path) >= sizeof(folder)) {
        return false;
    }
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = '\0';
    return access(folder, F_OK) != 0 && errno == ENOENT;
}

int handshake_connect(struct psc_client *c, const struct psc_options *o,
                      char *err, size_t err_size)
{
    ps_time deadline = client_deadline(o->connect_timeout_ms);
    const bool searches = options_have_default_socket(o);
    char place[PS_SOCKET_PATH_MAX + 1];
    const char *path = o->socket;
    char text[PS_TEXT_MAX + 1];
    struct ps_str advice;

    for (;;) {
        int errnum = 0;
        int rc;

        if (searches) {
            ps_runtime_socket("agent.sock", place, sizeof(place));
            path = place;
        }
        rc = ps_sock_open(path, &c->sock, &errnum);

        if (rc == 0) {
            c->options.socket = strdup(path);
            return c->options.socket != NULL
                       ? 0
                       : client_open_error(err, err_size, PSC_E_NOMEM, "%s",
                                           ps_strerror(PS_E_NOMEM));
        }
        if (rc != PS_E_UNREACH || client_ms_until(deadline) == 0 ||
            has_no_folder(path)) {
            ps_str_init(&advice, text, sizeof(text));
            add_socket_advice(errnum, path, &advice);
            return client_open_error(
                err, err_size, rc, "no agent on the socket '%s': %s%s", path,
                errnum != 0 ? strerror(errnum) : ps_strerror(rc), text);
        }
        poll(NULL, 0, CONNECT_RETRY_MS);
    }
}

void handshake_hello(const struct psc_client *c, struct ps_msg *ret_msg)
{
    const struct psc_options *o = &c->options;

    *ret_msg = (struct ps_msg){
        .code = PS_MSG_L_HELLO,
        .l_hello = {
            .protocol = PS_PROTOCOL,
            .job = o->job,
            .num_workers = o->num_workers,
            .num_servers = o->num_servers,
            .rank = o->rank,
            .mode = (uint8_t)o->mode,
            .rule = (uint8_t)o->rule,
            .staleness = o->staleness,
            .on_loss = (uint8_t)o->on_loss,
            .placement = (uint8_t)o->placement,
            .big_array_bound = o->big_array_bound,
            .partition_bytes = o->partition_bytes,
            .start_timeout_ns = PS_MILLIS(o->start_timeout_ms),
            .weight = o->weight,
            .holds_segments = options_allow_reattach(o),
            .token = c->token,
            .process = waiting_process(),
        }};
}

void handshake_open_ring(struct psc_client *c, uint32_t layout)
{
    struct ps_msg m = {.code = PS_MSG_L_RING};
    void *memory;
    int fd;

    if (layout == 0 || layout != ps_ring_layout() || c->ring.memory != NULL) {
        return;
    }
    m.l_ring.size = ps_ring_bytes();
    if (ps_shm_make(ps_ring_bytes(), &memory, &fd) != 0) {
        return;
    }
    if (ps_sock_put(c->sock, &m, fd) != 0) {
        close(fd);
        munmap(memory, ps_ring_bytes());
        return;
    }
    c->ring.memory = memory;
    ps_ring_worker_init(&c->ring.worker, memory);
}

void handshake_welcome(struct psc_client *c, const struct ps_msg_l_welcome *m)
{
    c->id.gen = m->gen;
    c->id.rank = m->rank;
    c->id.size = m->num_workers;
    c->id.local_rank = m->local_rank;
    c->id.local_size = m->local_size;
    c->id.num_servers = m->num_servers;
    c->queues.barriers_sent = m->completed_barriers;
    c->id.agent_takes_devices = m->takes_devices;
    ps_str_copy(c->id.node, sizeof(c->id.node), m->node != NULL ? m->node : "");
    c->id.is_welcomed = true;
    handshake_open_ring(c, m->ring_layout);
    client_changed(c);
}
