/* SPDX-License-Identifier: Apache-2.0 */
/* Identity of a daemon: node name, host, instance, and the addresses that peers
 * dial. */
#include "common/daemon_inner.h"

#include "base/fnv1a.h"
#include "base/log.h"
#include "common/logsink.h"
#include "net/addr.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static uint64_t random_instance(void)
{
    uint64_t n = 0;

    while (n == 0) {
        if (getrandom(&n, sizeof(n), 0) != (ssize_t)sizeof(n)) {
            n = 0;
        }
    }
    return n;
}

/* Makes the node name: that of the certificate or of the option, or one that is
 * the same after a restart, and unique on the host by the port or the path of
 * the socket. */
static void make_name(struct daemon *d)
{
    struct ps_daemon_facts *f = &d->facts;
    const char *path = d->sockets.local_path;

    if (daemon_tls_identity(d) != NULL) {
        ps_str_copy(f->name, sizeof(f->name), daemon_tls_identity(d)->name);
    } else if (daemon_common_options(d)->node[0] != '\0') {
        ps_str_copy(f->name, sizeof(f->name), daemon_common_options(d)->node);
    } else if (daemon_listen_options(d) != NULL) {
        snprintf(f->name, sizeof(f->name), "%.50s-%u", f->host,
                 (unsigned)d->sockets.listen_port);
    } else {
        snprintf(f->name, sizeof(f->name), "%.50s-%08x", f->host,
                 (unsigned)ps_fnv1a_32(PS_FNV1A_32, path, strlen(path)));
    }
}

static int make_addresses(struct daemon *d)
{
    const struct ps_scheduler_options *s = daemon_scheduler_options(d);
    const struct ps_listen_options *l = daemon_listen_options(d);
    struct ps_daemon_facts *f = &d->facts;
    char host[PS_ADDRESS_MAX + 1];

    if (s != NULL && !ps_addr_format(s->address, (uint16_t)s->port,
                                     f->scheduler, sizeof(f->scheduler))) {
        return ps_exit_refused("scheduler.address", s->address, PS_E_TOOBIG);
    }
    if (l == NULL || d->spec->advertise == NULL) {
        return PS_EXIT_OK;
    }
    if (!d->spec->advertise(d->config.values, host, sizeof(host))) {
        return PS_EXIT_CONFIG;
    }
    if (host[0] == '\0') {
        ps_str_copy(host, sizeof(host),
                    strcmp(l->address, "localhost") == 0 ? "127.0.0.1"
                                                         : l->address);
    }
    if (ps_addr_kind(host) == PS_ADDR_ANY) {
        struct ps_addr peer;
        int rc = ps_addr_parse(f->scheduler, &peer);

        if (rc == 0) {
            rc = ps_addr_local_for(&peer, host, sizeof(host));
        }
        if (rc != 0) {
            ps_log(PS_LOG_ERROR,
                   "no address to advertise: no route to %s; set "
                   "advertise.address",
                   f->scheduler);
            return PS_EXIT_CONFIG;
        }
    }
    if (!ps_addr_format(host, d->sockets.listen_port, f->address,
                        sizeof(f->address))) {
        return ps_exit_refused("advertise.address", host, PS_E_TOOBIG);
    }
    return PS_EXIT_OK;
}

static void set_process_facts(struct daemon *d)
{
    const struct ps_transport_options *t = daemon_transport_options(d);
    struct ps_daemon_facts *f = &d->facts;
    struct rlimit limit;

    ps_str_copy(f->process.version, sizeof(f->process.version), PS_VERSION);
    f->process.descriptors = getrlimit(RLIMIT_NOFILE, &limit) == 0
                                 ? limit.rlim_cur
                                 : 0;
    f->process.wall_zero_ns = f->wall_ns - f->now;
    f->process.avoids_shm = t != NULL && t->same_host != 0;
}

int daemon_make_facts(struct daemon *d)
{
    const struct ps_common_options *c = daemon_common_options(d);
    struct ps_daemon_facts *f = &d->facts;
    struct timespec wall;

    if (gethostname(f->host, sizeof(f->host)) != 0 || f->host[0] == '\0') {
        ps_str_copy(f->host, sizeof(f->host), "localhost");
    }
    f->host[sizeof(f->host) - 1] = '\0';
    make_name(d);
    ps_str_copy(f->cluster, sizeof(f->cluster),
                daemon_tls_identity(d) != NULL ? daemon_tls_identity(d)->cluster
                                               : c->cluster);
    f->socket = d->sockets.local_path != NULL ? d->sockets.local_path : "";
    f->uid = (uint32_t)geteuid();
    clock_gettime(CLOCK_REALTIME, &wall);
    f->wall_ns = (uint64_t)wall.tv_sec * 1000000000u + (uint64_t)wall.tv_nsec;
    f->instance = random_instance();
    f->seed = random_instance();
    f->now = ps_loop_now(d->loop);
    f->link = (struct ps_link_options){.resend_timeout = c->resend_timeout,
                                       .resend_max = c->resend_max,
                                       .memory_max = c->link_output};
    set_process_facts(d);
    ps_logsink_set_node(f->name);
    int code = make_addresses(d);

    if (code == PS_EXIT_OK) {
        daemon_listen_shm(d);
    }
    return code;
}
