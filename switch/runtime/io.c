/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of io.h. A batch is what one recvmmsg of one port gave: it runs through the program, super-packets cut
 * up, what it emits is copied into the ports' send queues, and these leave with one sendmmsg each. */
#include "io_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define PORT_NUMBERS 65536
#define MAX_PORTS 1024
#define MESSAGE (sizeof(super_header) + 65536 + 64) /* a frame of 64 KiB and its Ethernet headers */
#define STRIDE (MESSAGE + 182)                      /* no power of two: buffers would share cache sets */
#define BATCH_BYTES (512u << 10) /* about what a receive call should bring, so that it stays in the cache */
#define BATCH_LEAST 8
#define EVENTS 1024                                 /* frames waiting for the CPU port's reader */
#define INJECTED 1024
#define HELD 8 /* ports that a super-packet may leave on whole */
#define TICK_MS 500 /* captures are flushed and statistics read this often */
#define ATTACH_LIMIT_S 10

typedef struct held {
    uint32_t port, len;
} held;

struct io {
    int64_t cpu_port;
    port_listener listener;
    int epoll, wake;
    pthread_t thread;
    int started;
    atomic_int stop;
    port *by_number[PORT_NUMBERS];
    port *ports[MAX_PORTS];
    size_t port_count;
    unsigned join;
    port *touched[MAX_PORTS]; /* ports with frames to send */
    size_t touched_count;

    pthread_mutex_t control; /* guards the five below */
    pthread_cond_t changed;
    int running;
    io_process next_process;
    io_alike next_alike;
    sw *next_program;
    atomic_int change;
    io_process process; /* of the thread */
    io_alike alike;
    sw *program;

    pthread_mutex_t queues;
    pthread_cond_t ready;
    queue events, injected;
    atomic_uint_fast64_t packet_in_lost;

    struct mmsghdr messages[BATCH];
    struct iovec vectors[BATCH];
    struct sockaddr_ll addresses[BATCH];
    union {
        char bytes[CMSG_SPACE(sizeof(struct tpacket_auxdata))];
        struct cmsghdr align;
    } controls[BATCH];
    uint8_t *buffers; /* BATCH of STRIDE bytes */
    uint8_t *segments; /* of one super-packet, at most BATCH at once */
    sw_packet packets[BATCH]; /* ready for the program */
    size_t packet_count;

    const super_cut *cut; /* whose first segment runs through the program for others, too */
    held held[HELD]; /* what came of it so far */
    uint32_t held_count;
    int unlike; /* nothing is held any more */
    uint8_t *held_bytes;
};

/* ---- queues to and from Python */

static void tell(void *context, int32_t kind, uint32_t number, int error) {
    io *o = context;
    pthread_mutex_lock(&o->queues);
    queue_put(&o->events, (io_event){kind, number, 0, error}, NULL);
    pthread_cond_signal(&o->ready);
    pthread_mutex_unlock(&o->queues);
}

static void packet_in(io *o, const uint8_t *data, uint32_t len) {
    pthread_mutex_lock(&o->queues);
    io_event event = {IO_PACKET_IN, (uint32_t)o->cpu_port, len, 0};
    if (o->events.packets >= EVENTS || queue_put(&o->events, event, data))
        atomic_fetch_add(&o->packet_in_lost, 1);
    else
        pthread_cond_signal(&o->ready);
    pthread_mutex_unlock(&o->queues);
}

static void wake(io *o) {
    uint64_t one = 1;
    ssize_t written = write(o->wake, &one, sizeof one);
    (void)written; /* a full counter wakes as well */
}

static struct timespec deadline(int ms) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += ms / 1000;
    t.tv_nsec += (long)(ms % 1000) * 1000000;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* ---- packets */

static void touch(io *o, port *p) {
    if (!p->touched) {
        p->touched = 1;
        o->touched[o->touched_count++] = p;
    }
}

static uint8_t *place(void *context, uint32_t number, uint32_t most) {
    io *o = context;
    port *p = number < PORT_NUMBERS ? o->by_number[number] : NULL;
    return p && (int64_t)number != o->cpu_port ? port_place(p, most) : NULL;
}

static void emit(void *context, uint32_t number, const uint8_t *data, uint32_t len, const sw_sum *sum) {
    io *o = context;
    (void)sum;
    if ((int64_t)number == o->cpu_port) {
        packet_in(o, data, len);
        return;
    }
    port *p = number < PORT_NUMBERS ? o->by_number[number] : NULL;
    if (!p) /* as in simple_switch, a port without interface swallows what is sent there */
        return;
    port_queue(p, data, len);
    touch(o, p);
}

/* Runs what is ready through the program. */
static void run(io *o) {
    if (o->packet_count && o->process) {
        const sw_sink sink = {place, emit, o};
        o->process(o->program, o->packets, o->packet_count, &sink);
        for (size_t i = 0; i < o->touched_count; i++)
            if (port_is_full(o->touched[i]))
                port_flush(o->touched[i], &o->listener);
    }
    o->packet_count = 0;
}

static void flush(io *o) {
    for (size_t i = 0; i < o->touched_count; i++) {
        o->touched[i]->touched = 0;
        port_flush(o->touched[i], &o->listener);
    }
    o->touched_count = 0;
}

static void received(io *o, port *p, const uint8_t *frame, uint32_t len) {
    count(&p->rx_packets, 1);
    count(&p->rx_bytes, len);
    count(&p->rx_errors, !o->process);
    if (p->in.file)
        capture_write(p, &p->in, frame, len, &o->listener);
}

/* A frame that came, as it was on the wire; it must stay until run(). */
static void take(io *o, port *p, const uint8_t *frame, uint32_t len) {
    received(o, p, frame, len);
    o->packets[o->packet_count++] = (sw_packet){.data = frame, .len = len, .port = p->number};
    if (o->packet_count == BATCH)
        run(o);
}

/* ---- super-packets that pass whole */

static uint8_t *held_frame(io *o, uint32_t i) { return o->held_bytes + (size_t)i * (SUPER_BYTES + 1); }

/* The first segment stands for itself alone: what came of it leaves, and what will come. */
static int unlike(io *o) {
    static const sw_sum nothing = {0, 0, 0};
    for (uint32_t i = 0; i < o->held_count; i++)
        emit(o, o->held[i].port, held_frame(o, i), o->held[i].len, &nothing);
    o->held_count = 0;
    o->unlike = 1;
    return 0;
}

static void hold(void *context, uint32_t number, const uint8_t *data, uint32_t len, const sw_sum *sum) {
    io *o = context;
    int twice = 0;
    for (uint32_t i = 0; i < o->held_count; i++)
        twice |= o->held[i].port == number;
    if (!o->unlike && (twice || o->held_count == HELD || (int64_t)number == o->cpu_port))
        unlike(o);
    if (o->unlike) {
        emit(o, number, data, len, sum);
        return;
    }
    memcpy(held_frame(o, o->held_count), data, len);
    o->held[o->held_count++] = (held){number, len};
}

static int agree(void *context) {
    io *o = context;
    for (uint32_t i = 0; i < o->held_count; i++) {
        const held *h = &o->held[i];
        const port *p = h->port < PORT_NUMBERS ? o->by_number[h->port] : NULL;
        if (p && (h->len > p->longest || !super_like(o->cut, o->segments, held_frame(o, i), h->len)))
            return 0;
    }
    return !o->unlike;
}

/* Runs the first segment through the program, for all that are uniform if it cannot tell them apart. Takes what it
 * could off the cut. */
static void take_uniform(io *o, port *p, super_cut *cut) {
    uint32_t segments = o->alike && p->join & IO_JOIN_TCP ? super_uniform(cut) : 0;
    if (!segments)
        return;
    const uint8_t *payload = cut->frame + cut->at;
    sw_packet first = {.data = o->segments, .port = p->number};
    first.len = super_cut_next(cut, o->segments);
    o->cut = cut;
    o->held_count = 0;
    o->unlike = 0;
    const sw_sink sink = {NULL, hold, o};
    if (!o->alike(o->program, &first, segments, &sink, agree)) {
        unlike(o);
        received(o, p, first.data, first.len);
        return;
    }
    count(&p->rx_wholes, 1);
    super_run run;
    super_run_whole(&run, cut, segments);
    for (uint32_t i = 0; i < o->held_count; i++) {
        port *to = o->held[i].port < PORT_NUMBERS ? o->by_number[o->held[i].port] : NULL;
        if (to) {
            port_queue_whole(to, &run, held_frame(o, i), payload);
            touch(o, to);
        }
    }
    count(&p->rx_packets, segments);
    count(&p->rx_bytes, (uint64_t)segments * first.len);
    if (p->in.file)
        capture_write(p, &p->in, first.data, first.len, &o->listener);
    while (cut->index < segments) {
        if (p->in.file)
            capture_write(p, &p->in, o->segments, super_cut_next(cut, o->segments), &o->listener);
        else
            super_cut_skip(cut, segments);
    }
}

static void take_super(io *o, port *p, const uint8_t *frame, uint32_t len, const super_header *h) {
    super_cut cut;
    if (super_cut_begin(&cut, frame, len, h->gso_type, h->gso_size)) {
        count(&p->rx_packets, 1);
        count(&p->rx_errors, 1);
        return;
    }
    count(&p->rx_supers, 1);
    run(o); /* from now on what is ready lies in o->segments */
    take_uniform(o, p, &cut);
    size_t used = 0;
    for (uint32_t n; (n = super_cut_next(&cut, o->segments + used));) {
        used += n;
        take(o, p, o->segments + used - n, n);
        if (!o->packet_count)
            used = 0;
    }
    run(o);
}

static void receive(io *o, port *p) {
    unsigned limit = p->batch;
    for (unsigned i = 0; i < limit; i++) {
        o->messages[i].msg_hdr.msg_namelen = sizeof o->addresses[i];
        o->messages[i].msg_hdr.msg_controllen = sizeof o->controls[i];
        o->messages[i].msg_hdr.msg_flags = 0;
    }
    int n = recvmmsg(p->fd, o->messages, limit, MSG_DONTWAIT, NULL);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            port_failed(p, errno, &o->listener);
        return;
    }
    if (p->state == PORT_DOWN) {
        p->state = PORT_UP;
        tell(o, IO_PORT_UP, p->number, 0);
    }
    size_t bytes = 0;
    for (int i = 0; i < n; i++) {
        struct msghdr *header = &o->messages[i].msg_hdr;
        if (o->addresses[i].sll_pkttype == PACKET_OUTGOING)
            continue;
        super_header h;
        bytes += o->messages[i].msg_len;
        if (header->msg_flags & MSG_TRUNC || o->messages[i].msg_len < sizeof h) {
            count(&p->rx_packets, 1);
            count(&p->rx_errors, 1);
            continue;
        }
        memcpy(&h, header->msg_iov->iov_base, sizeof h);
        uint32_t len = o->messages[i].msg_len - (uint32_t)sizeof h, untagged = len;
        uint8_t *frame = port_restore_vlan(header, (uint8_t *)header->msg_iov->iov_base + sizeof h, &len);
        if (h.gso_type != VIRTIO_NET_HDR_GSO_NONE) {
            take_super(o, p, frame, len, &h);
            continue;
        }
        if (h.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)
            super_complete(frame, len, h.csum_start + (len - untagged), h.csum_offset);
        take(o, p, frame, len);
    }
    run(o);
    flush(o);
    if (bytes > BATCH_BYTES && limit > BATCH_LEAST)
        p->batch = limit / 2;
    else if (bytes < BATCH_BYTES / 4 && limit < BATCH)
        p->batch = limit * 2;
}

static void receive_injected(io *o) {
    node *taken[BATCH];
    size_t n;
    do {
        pthread_mutex_lock(&o->queues);
        for (n = 0; n < BATCH && (taken[n] = queue_take(&o->injected)); n++)
            o->packets[n] = (sw_packet){.data = taken[n]->data, .len = taken[n]->event.len, .port = (uint32_t)o->cpu_port};
        pthread_mutex_unlock(&o->queues);
        o->packet_count = n;
        run(o);
        flush(o);
        for (size_t i = 0; i < n; i++)
            free(taken[i]);
    } while (n == BATCH);
}

/* ---- the thread */

static void tick(io *o) {
    for (size_t i = 0; i < o->port_count; i++) {
        port *p = o->ports[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = p};
        if (port_tick(p, &o->listener) && epoll_ctl(o->epoll, EPOLL_CTL_ADD, p->fd, &event))
            port_lose(p);
    }
}

static void apply_change(io *o) {
    pthread_mutex_lock(&o->control);
    o->process = o->next_process;
    o->alike = o->next_alike;
    o->program = o->next_program;
    atomic_store(&o->change, 0);
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->control);
}

static void *loop(void *context) {
    io *o = context;
    int64_t next_tick = io_now_ms() + TICK_MS;
    while (!atomic_load(&o->stop)) {
        struct epoll_event ready[BATCH];
        int64_t left = next_tick - io_now_ms();
        int n = epoll_wait(o->epoll, ready, BATCH, left > 0 ? (int)left : 0);
        if (atomic_load(&o->change))
            apply_change(o);
        for (int i = 0; i < n; i++) {
            port *p = ready[i].data.ptr;
            if (p) {
                if (p->fd >= 0)
                    receive(o, p);
            } else {
                uint64_t count;
                ssize_t got = read(o->wake, &count, sizeof count);
                (void)got; /* nothing there: somebody else read it, and the queues tell what to do */
                receive_injected(o);
            }
        }
        if (io_now_ms() >= next_tick) {
            tick(o);
            next_tick = io_now_ms() + TICK_MS;
        }
    }
    pthread_mutex_lock(&o->control);
    o->running = 0;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->control);
    return NULL;
}

/* ---- the face */

io *io_new(int64_t cpu_port, unsigned join) {
    io *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->cpu_port = cpu_port;
    o->join = join;
    o->listener = (port_listener){tell, o};
    o->epoll = epoll_create1(EPOLL_CLOEXEC);
    o->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    o->buffers = malloc((size_t)BATCH * STRIDE);
    o->segments = malloc(SUPER_BYTES + (BATCH + 1) * SUPER_HEADERS + 64);
    o->held_bytes = malloc((size_t)HELD * (SUPER_BYTES + 1));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (o->epoll < 0 || o->wake < 0 || !o->buffers || !o->segments || !o->held_bytes ||
        epoll_ctl(o->epoll, EPOLL_CTL_ADD, o->wake, &event)) {
        if (o->epoll >= 0)
            close(o->epoll);
        if (o->wake >= 0)
            close(o->wake);
        free(o->buffers);
        free(o->segments);
        free(o->held_bytes);
        free(o);
        return NULL;
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&o->changed, &monotonic);
    pthread_cond_init(&o->ready, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&o->control, NULL);
    pthread_mutex_init(&o->queues, NULL);
    queue_init(&o->events);
    queue_init(&o->injected);
    for (int i = 0; i < BATCH; i++) {
        struct msghdr *header = &o->messages[i].msg_hdr;
        o->vectors[i].iov_base = o->buffers + (size_t)i * STRIDE;
        o->vectors[i].iov_len = MESSAGE;
        header->msg_iov = &o->vectors[i];
        header->msg_iovlen = 1;
        header->msg_name = &o->addresses[i];
        header->msg_control = &o->controls[i];
    }
    return o;
}

int io_add_port(io *o, uint32_t number, const char *interface, const char *in_path, const char *out_path) {
    if (number >= PORT_NUMBERS || o->port_count == MAX_PORTS || o->by_number[number] || o->started)
        return -EINVAL;
    port *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->number = number;
    p->join = o->join;
    int status = port_open(p, interface);
    if (!status && in_path)
        status = capture_open(&p->in, in_path);
    if (!status && out_path)
        status = capture_open(&p->out, out_path);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = p};
    if (!status && epoll_ctl(o->epoll, EPOLL_CTL_ADD, p->fd, &event))
        status = -errno;
    if (status) {
        port_free(p);
        return status;
    }
    o->by_number[number] = o->ports[o->port_count++] = p;
    return 0;
}

int io_start(io *o) {
    if (o->started)
        return -EALREADY;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for Python's main thread */
    o->running = 1;
    int status = pthread_create(&o->thread, NULL, loop, o);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    o->started = !status;
    o->running = !status;
    return -status;
}

void io_stop(io *o) {
    if (o->started && !atomic_exchange(&o->stop, 1)) {
        wake(o);
        pthread_join(o->thread, NULL);
        tick(o);
        tell(o, IO_STOPPED, 0, 0);
    }
}

void io_free(io *o) {
    io_stop(o);
    for (size_t i = 0; i < o->port_count; i++)
        port_free(o->ports[i]);
    node *n;
    while ((n = queue_take(&o->events)) || (n = queue_take(&o->injected)))
        free(n);
    close(o->epoll);
    close(o->wake);
    pthread_cond_destroy(&o->changed);
    pthread_cond_destroy(&o->ready);
    pthread_mutex_destroy(&o->control);
    pthread_mutex_destroy(&o->queues);
    free(o->buffers);
    free(o->segments);
    free(o->held_bytes);
    free(o);
}

int io_attach(io *o, io_process process, io_alike alike, sw *program) {
    int status = 0;
    struct timespec limit = deadline(ATTACH_LIMIT_S * 1000);
    pthread_mutex_lock(&o->control);
    o->next_process = process;
    o->next_alike = alike;
    o->next_program = program;
    atomic_store(&o->change, 1);
    wake(o);
    while (o->running && atomic_load(&o->change) && !status)
        status = pthread_cond_timedwait(&o->changed, &o->control, &limit);
    if (!o->running) {
        o->process = process;
        o->alike = alike;
        o->program = program;
        atomic_store(&o->change, 0);
        status = 0;
    }
    pthread_mutex_unlock(&o->control);
    return -status;
}

int io_inject(io *o, const uint8_t *data, uint32_t len) {
    if (o->cpu_port < 0)
        return -ENXIO;
    pthread_mutex_lock(&o->queues);
    io_event event = {IO_PACKET_IN, (uint32_t)o->cpu_port, len, 0};
    int status = o->injected.packets >= INJECTED ? -ENOBUFS : queue_put(&o->injected, event, data);
    pthread_mutex_unlock(&o->queues);
    if (!status)
        wake(o);
    return status;
}

void io_wait(io *o, int timeout_ms, io_event *event, uint8_t *buffer, size_t cap) {
    struct timespec limit = deadline(timeout_ms);
    pthread_mutex_lock(&o->queues);
    node *n;
    while (!(n = queue_take(&o->events)))
        if (pthread_cond_timedwait(&o->ready, &o->queues, &limit))
            break;
    pthread_mutex_unlock(&o->queues);
    if (!n) {
        *event = (io_event){IO_TIMEOUT, 0, 0, 0};
        return;
    }
    *event = n->event;
    if (event->len > cap)
        event->len = (uint32_t)cap;
    if (event->len)
        memcpy(buffer, n->data, event->len);
    free(n);
}

uint64_t io_packet_in_lost(io *o) { return atomic_load(&o->packet_in_lost); }

int io_port_stats(io *o, uint32_t number, io_stats *out) {
    port *p = number < PORT_NUMBERS ? o->by_number[number] : NULL;
    if (!p)
        return -ENODEV;
    *out = (io_stats){p->rx_packets, p->rx_bytes,   p->rx_dropped, p->rx_errors, p->tx_packets,
                      p->tx_bytes,   p->tx_dropped, p->tx_errors,  p->rx_supers, p->tx_supers,
                      p->rx_wholes};
    return 0;
}
