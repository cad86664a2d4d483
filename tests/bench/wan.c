/* SPDX-License-Identifier: Apache-2.0 */
/* A long link between two network namespaces, where the kernel has no netem:
 *
 *     wan NAMESPACE NAMESPACE ONE_WAY_MS MBIT_PER_S LOSS_PER_MILLE [QUEUE_MS]
 *
 * The namespaces get a device wan0 each, with the addresses 10.77.0.1 and
 * 10.77.0.2. In each direction packets leave at the rate of the link, from a
 * queue that drops its tail beyond QUEUE_MS, are lost at random, and arrive
 * ONE_WAY_MS after they left. Prints "up" when packets go, and forwards them
 * until a signal ends it. Any failure ends it with a message and exit code
 * 1. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MTU         1500u
#define ETHERNET    14u /* Bytes on the link beside the IP packet. */
#define PACKETS_MAX 65536u
/* Packets read of one direction before the other has its turn. */
#define BATCH       256
#define QUEUE_MS    200.0
#define NS_PER_MS   1e6
#define NS_PER_MBIT 1e3 /* A bit at 1 Mbit/s. */
#define BITS        8.0

struct packet {
    int64_t due;
    uint32_t len;
    uint8_t bytes[MTU];
};

struct direction {
    int in;
    int out;
    struct packet *ring; /* Ordered by time of arrival. */
    uint32_t head;
    uint32_t tail;
    int64_t free_at; /* When the link has sent what is in its queue. */
};

struct link {
    int64_t delay;
    int64_t queue;
    double rate_mbit;
    unsigned loss_per_mille;
    unsigned seed;
    int timer;
    struct direction ways[2];
};

static void give_up(const char *what)
{
    fprintf(stderr, "wan: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The near end of a device in that namespace. */
static int open_device(const char *name_space, const char *address)
{
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    char text[256];
    int back = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int there;
    int fd;

    snprintf(text, sizeof(text), "/run/netns/%s", name_space);
    there = open(text, O_RDONLY | O_CLOEXEC);
    if (back < 0 || there < 0 || setns(there, CLONE_NEWNET) != 0) {
        give_up(text);
    }
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    memcpy(request.ifr_name, "wan0", sizeof("wan0"));
    if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0) {
        give_up("/dev/net/tun");
    }
    snprintf(text, sizeof(text),
             "ip addr add %s/24 dev wan0 && "
             "ip link set wan0 mtu %u txqueuelen 10000 up",
             address, MTU);
    if (system(text) != 0 || setns(back, CLONE_NEWNET) != 0) {
        give_up("wan0");
    }
    close(there);
    close(back);
    return fd;
}

/* Moves one packet from the device to the ring; false: it has none. */
static bool read_packet(struct link *l, struct direction *w, int64_t now)
{
    struct packet *p = &w->ring[w->tail % PACKETS_MAX];
    ssize_t len = read(w->in, p->bytes, sizeof(p->bytes));

    if (len <= 0) {
        return false;
    }
    int64_t begin = w->free_at > now ? w->free_at : now;

    if (begin - now > l->queue || w->tail - w->head >= PACKETS_MAX - 1) {
        return true; /* The queue is full. */
    }
    w->free_at = begin + (int64_t)(((double)len + ETHERNET) * BITS *
                                   NS_PER_MBIT / l->rate_mbit);
    if ((unsigned)rand_r(&l->seed) % 1000 >= l->loss_per_mille) {
        p->len = (uint32_t)len;
        p->due = w->free_at + l->delay;
        w->tail++;
    }
    return true;
}

/* Delivers what has arrived; when the next does, 0: nothing is under way. */
static int64_t deliver(struct direction *w, int64_t now)
{
    while (w->head != w->tail) {
        const struct packet *p = &w->ring[w->head % PACKETS_MAX];

        if (p->due > now) {
            return p->due;
        }
        if (write(w->out, p->bytes, p->len) < 0 && errno != ENOBUFS &&
            errno != EAGAIN) {
            give_up("write");
        }
        w->head++;
    }
    return 0;
}

static void forward(struct link *l)
{
    int64_t next = 0;
    int64_t now = now_ns();
    struct pollfd fds[3] = {{.fd = l->ways[0].in, .events = POLLIN},
                            {.fd = l->ways[1].in, .events = POLLIN},
                            {.fd = l->timer, .events = POLLIN}};

    for (int i = 0; i < 2; i++) {
        int64_t due = deliver(&l->ways[i], now);

        if (due != 0 && (next == 0 || due < next)) {
            next = due;
        }
    }
    struct itimerspec at = {.it_value = {.tv_sec = next / 1000000000,
                                         .tv_nsec = next % 1000000000}};

    if (timerfd_settime(l->timer, TFD_TIMER_ABSTIME, &at, NULL) != 0 ||
        poll(fds, 3, -1) < 0) {
        give_up("poll");
    }
    now = now_ns();
    for (int i = 0; i < 2; i++) {
        for (int n = 0; n < BATCH && read_packet(l, &l->ways[i], now); n++) {
        }
    }
}

int main(int argc, char **argv)
{
    struct link l = {.seed = 1};

    if (argc < 6 || argc > 7) {
        fprintf(stderr, "usage: wan NAMESPACE NAMESPACE ONE_WAY_MS MBIT_PER_S "
                        "LOSS_PER_MILLE [QUEUE_MS]\n");
        return 2;
    }
    l.delay = (int64_t)(strtod(argv[3], NULL) * NS_PER_MS);
    l.rate_mbit = strtod(argv[4], NULL);
    l.loss_per_mille = (unsigned)strtoul(argv[5], NULL, 10);
    l.queue = (int64_t)((argc > 6 ? strtod(argv[6], NULL) : QUEUE_MS) *
                        NS_PER_MS);
    l.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    int first = open_device(argv[1], "10.77.0.1");
    int second = open_device(argv[2], "10.77.0.2");

    l.ways[0] = (struct direction){.in = first, .out = second};
    l.ways[1] = (struct direction){.in = second, .out = first};
    for (int i = 0; i < 2; i++) {
        l.ways[i].ring = calloc(PACKETS_MAX, sizeof(struct packet));
        if (l.ways[i].ring == NULL) {
            give_up("memory");
        }
    }
    printf("up\n");
    fflush(stdout);
    for (;;) {
        forward(&l);
    }
}
