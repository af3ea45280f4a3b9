/* SPDX-License-Identifier: Apache-2.0 */
/* The face of io.h: making, starting, stopping, and the queues to and from Python. */
#include "io_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define MESSAGE (sizeof(super_header) + 65536 + 64) /* a frame of 64 KiB and its Ethernet headers */
#define STRIDE (MESSAGE + 182)                      /* no power of two: buffers would share cache sets */
#define INJECTED 1024
#define ATTACH_LIMIT_S 10

/* ---- queues to and from Python */

void io_tell(void *context, int32_t kind, uint32_t number, int error) {
    io *o = context;
    pthread_mutex_lock(&o->queues);
    queue_put(&o->events, (io_event){kind, number, 0, error}, NULL);
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

/* ---- the face */

io *io_new(int64_t cpu_port, unsigned join) {
    io *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->cpu_port = cpu_port;
    o->join = join;
    o->listener = (port_listener){io_tell, o};
    o->epoll = epoll_create1(EPOLL_CLOEXEC);
    o->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    o->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    o->armed_ns = INT64_MAX;
    o->buffers = malloc((size_t)BATCH * STRIDE);
    o->held_bytes = malloc((size_t)HELD * (SUPER_BYTES + 1));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    struct epoll_event due = {.events = EPOLLIN, .data.ptr = &o->timer};
    if (o->epoll < 0 || o->wake < 0 || o->timer < 0 || !o->buffers || !o->held_bytes ||
        epoll_ctl(o->epoll, EPOLL_CTL_ADD, o->wake, &event) || epoll_ctl(o->epoll, EPOLL_CTL_ADD, o->timer, &due)) {
        if (o->epoll >= 0)
            close(o->epoll);
        if (o->wake >= 0)
            close(o->wake);
        if (o->timer >= 0)
            close(o->timer);
        free(o->buffers);
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
    int status = pthread_create(&o->thread, NULL, io_loop, o);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    o->started = !status;
    o->running = !status;
    return -status;
}

void io_stop(io *o) {
    if (o->started && !atomic_exchange(&o->stop, 1)) {
        wake(o);
        pthread_join(o->thread, NULL);
        io_tick(o);
        io_tell(o, IO_STOPPED, 0, 0);
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
    close(o->timer);
    pthread_cond_destroy(&o->changed);
    pthread_cond_destroy(&o->ready);
    pthread_mutex_destroy(&o->control);
    pthread_mutex_destroy(&o->queues);
    free(o->buffers);
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

int io_set_delay(io *o, uint32_t number, uint32_t direction, int64_t delay_ns) {
    port *p = number < PORT_NUMBERS ? o->by_number[number] : NULL;
    if (!p)
        return -ENODEV;
    if (direction > IO_OUT || delay_ns < 0)
        return -EINVAL;
    atomic_store(&p->lines[direction].delay_ns, delay_ns);
    if (delay_ns)
        atomic_store(&o->delaying, 1);
    return 0;
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
