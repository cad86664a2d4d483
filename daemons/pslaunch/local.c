/* SPDX-License-Identifier: Apache-2.0 */
/* Launcher for this host: the processes of the job are child processes. */
#include "crypto/pki.h"
#include "pslaunch/credential.h"
#include "pslaunch/folder.h"
#include "pslaunch/job.h"
#include "pslaunch/launcher.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static bool local_open(struct run *r)
{
    struct place *at = &r->places[0];

    gethostname(at->name, sizeof(at->name) - 1);
    snprintf(at->address, sizeof(at->address), "127.0.0.1");
    if (getenv("MASTER_ADDR") == NULL && getenv("MASTER_PORT") == NULL) {
        port_reserve(at->store_port);
    }
    snprintf(at->dir, sizeof(at->dir), "%s", folder_path());
    if (r->plan->socket == NULL) {
        port_reserve(at->sched_port);
    }
    return true;
}

static int take_pipe(int fd)
{
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return fd;
}

/* Makes key and certificate of a daemon. Returns their descriptor; -1 after a
 * message. */
static int open_credential(struct run *r, struct child *c)
{
    char pem[AUTHORITY_TEXT_BYTES];
    char text[256];
    struct ps_str certificates;
    struct ps_str why;
    EVP_PKEY *key = NULL;
    int fd = -1;

    ps_str_init(&certificates, pem, sizeof(pem));
    ps_str_init(&why, text, sizeof(text));
    if (ps_pki_key_new(&key, &why) != 0) {
        sink_print(&r->err, "no certificate for %s: %s", c->name, text);
        return -1;
    }
    if (child_certify(r, c, key, &certificates) && !certificates.truncated) {
        fd = credential_open(key, pem);
        if (fd < 0) {
            sink_print(&r->err, "no memory for the certificate of %s: %s",
                       c->name, strerror(-fd));
            fd = -1;
        }
    }
    ps_pki_key_free(key);
    return fd;
}

static bool local_start(struct run *r, struct child *c, const struct spawn *s)
{
    struct spawn spawn = *s;
    struct process p;
    int error;

    if (c->role != 0) {
        spawn.credential = open_credential(r, c);
        if (spawn.credential < 0) {
            child_on_ended(r, c, W_EXITCODE(EXIT_FAILED, 0));
            return false;
        }
    }
    error = process_start(&spawn, &p);
    if (spawn.credential != 0) {
        close(spawn.credential);
    }
    if (error != 0) {
        sink_print(&r->err, "cannot start %s: %s", c->name, strerror(error));
        child_on_ended(r, c, W_EXITCODE(EXIT_FAILED, 0));
        return false;
    }
    c->pid = p.pid;
    c->out->in = take_pipe(p.out);
    c->err->in = take_pipe(p.err);
    c->ready = p.ready >= 0 ? take_pipe(p.ready) : -1;
    return true;
}

static void local_signal(struct run *r, bool daemons, int sig)
{
    for (uint32_t i = 0; i < r->child_count; i++) {
        if (r->child[i].is_daemon == daemons && r->child[i].pid != 0) {
            process_signal_group(r->child[i].pid, sig);
        }
    }
}

static void local_close(struct run *r)
{
    (void)r;
    process_kill_all();
}

const struct launcher launcher_local = {
    .name = "local",
    .open = local_open,
    .start = local_start,
    .signal = local_signal,
    .close = local_close,
};
