/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of io.h. A batch is what one recvmmsg of one port gave: it runs through the program, super-packets cut
 * up, what it emits is put into the ports' send queues, and these leave with one sendmmsg each. */
#include "io_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* About what a receive call should bring: it stays in the cache, and no port waits long for another. */
#define BATCH_BYTES (128u << 10)
#define BATCH_LEAST 2
/* Of super-packets that are cut up one is enough: what is done with it stays in the cache, too. */
#define CUT_BYTES (64u << 10)
#define EVENTS 1024                                 /* frames waiting for the CPU port's reader */
#define TICK_MS 500 /* captures are flushed and statistics read this often */

/* ---- packets */

static void packet_in(io *o, const uint8_t *data, uint32_t len) {
    pthread_mutex_lock(&o->queues);
    io_event event = {IO_PACKET_IN, (uint32_t)o->cpu_port, len, 0};
    if (o->events.packets >= EVENTS || queue_put(&o->events, event, data))
        atomic_fetch_add(&o->packet_in_lost, 1);
    else
        pthread_cond_signal(&o->ready);
    pthread_mutex_unlock(&o->queues);
}

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
    if ((int64_t)number == o->cpu_port) {
        packet_in(o, data, len);
        return;
    }
    port *p = number < PORT_NUMBERS ? o->by_number[number] : NULL;
    if (!p) /* as in simple_switch, a port without interface swallows what is sent there */
        return;
    port_queue(p, data, len, sum);
    touch(o, p);
}

static void process(io *o, int (*next)(void *context, sw_packet *packet), void *context) {
    const sw_source source = {next, context};
    const sw_sink sink = {place, emit, o};
    o->process(o->program, &source, &sink);
    for (size_t i = 0; i < o->touched_count; i++)
        if (port_is_full(o->touched[i]))
            port_flush(o->touched[i], &o->listener);
}

static int next_ready(void *context, sw_packet *packet) {
    io *o = context;
    if (o->packet_at == o->packet_count)
        return 0;
    *packet = o->packets[o->packet_at++];
    return 1;
}

/* Runs what is ready through the program. */
static void run(io *o) {
    o->packet_at = 0;
    if (o->packet_count && o->process)
        process(o, next_ready, o);
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
static void take(io *o, port *p, const uint8_t *frame, uint32_t len, sw_sum sum) {
    received(o, p, frame, len);
    o->packets[o->packet_count++] = (sw_packet){.data = frame, .len = len, .port = p->number, .sum = sum};
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
        if (p && (h->len > p->longest || !super_like(o->cut, o->first, held_frame(o, i), h->len)))
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
    sw_packet first = {.port = p->number};
    first.data = super_cut_next(cut, &first.len);
    first.sum = cut->sum;
    o->first = first.data;
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
    while (p->in.file && cut->index < segments) {
        uint32_t len;
        const uint8_t *segment = super_cut_next(cut, &len);
        capture_write(p, &p->in, segment, len, &o->listener);
    }
    super_cut_skip(cut, segments);
}

typedef struct cutting {
    io *o;
    port *port;
    super_cut cut;
    unsigned left; /* of this batch */
} cutting;

static int next_segment(void *context, sw_packet *packet) {
    cutting *c = context;
    uint32_t len;
    const uint8_t *segment = c->left ? super_cut_next(&c->cut, &len) : NULL;
    if (!segment)
        return 0;
    c->left--;
    received(c->o, c->port, segment, len);
    *packet = (sw_packet){.data = segment, .len = len, .port = c->port->number, .sum = c->cut.sum};
    return 1;
}

static void take_super(io *o, port *p, uint8_t *frame, uint32_t len, const super_header *h) {
    cutting c = {.o = o, .port = p};
    if (super_cut_begin(&c.cut, frame, len, h->gso_type, h->gso_size)) {
        count(&p->rx_packets, 1);
        count(&p->rx_errors, 1);
        return;
    }
    count(&p->rx_supers, 1);
    run(o); /* what came before it */
    take_uniform(o, p, &c.cut);
    o->cut_bytes += c.cut.len - c.cut.at;
    /* There may be 65,000: no queue has room for so many, and whoever waits for the program is not to wait so long. */
    while (c.cut.at < c.cut.len) {
        c.left = BATCH;
        if (o->process)
            process(o, next_segment, &c);
        else
            for (sw_packet segment; next_segment(&c, &segment);)
                ;
    }
}

/* A frame that came, with its VLAN tag; it must stay until run(). */
static void enter(io *o, port *p, uint8_t *frame, uint32_t len, const super_header *h) {
    if (h->gso_type != VIRTIO_NET_HDR_GSO_NONE) {
        take_super(o, p, frame, len, h);
        return;
    }
    if (h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)
        super_complete(frame, len, h->csum_start, h->csum_offset);
    take(o, p, frame, len, (sw_sum){0, 0, 0});
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
        io_tell(o, IO_PORT_UP, p->number, 0);
    }
    size_t bytes = 0;
    o->cut_bytes = 0;
    delay_line *back = line_active(&p->lines[IO_IN]) ? &p->lines[IO_IN] : NULL;
    int64_t now = back ? io_now_ns() : 0;
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
        h.csum_start = (uint16_t)(h.csum_start + (len - untagged));
        if (!back)
            enter(o, p, frame, len, &h);
        else if (line_put(back, now, frame, len, &h, NULL))
            count(&p->rx_dropped, 1);
    }
    run(o);
    flush(o);
    if ((bytes > BATCH_BYTES && limit > BATCH_LEAST) || (o->cut_bytes > CUT_BYTES && limit > 1))
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

/* ---- what was held back */

static void release_in(io *o, port *p, int64_t now_ns) {
    parcel *next, *done = NULL;
    while ((next = line_take(&p->lines[IO_IN], now_ns))) {
        enter(o, p, next->data, next->len, &next->header);
        next->next = done;
        done = next;
    }
    if (!done)
        return;
    run(o);
    flush(o);
    while ((next = done)) {
        done = next->next;
        free(next);
    }
}

/* Lets go what is due, and sets the timer for what will be next. */
static void release(io *o) {
    int64_t now = io_now_ns(), next = INT64_MAX;
    for (size_t i = 0; i < o->port_count; i++) {
        port *p = o->ports[i];
        release_in(o, p, now);
        if (p->lines[IO_OUT].head)
            port_release(p, now, &o->listener);
    }
    for (size_t i = 0; i < o->port_count; i++)
        for (int direction = IO_IN; direction <= IO_OUT; direction++) {
            const parcel *first = o->ports[i]->lines[direction].head;
            if (first && first->due_ns < next)
                next = first->due_ns;
        }
    if (next == o->armed_ns)
        return;
    o->armed_ns = next;
    struct itimerspec when = {{0, 0}, {0, 0}};
    if (next != INT64_MAX)
        when.it_value = (struct timespec){next / 1000000000, next % 1000000000};
    timerfd_settime(o->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* ---- the thread */

void io_tick(io *o) {
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

void *io_loop(void *context) {
    io *o = context;
    int64_t next_tick = io_now_ms() + TICK_MS;
    while (!atomic_load(&o->stop)) {
        struct epoll_event ready[BATCH];
        int64_t left = next_tick - io_now_ms();
        int n = epoll_wait(o->epoll, ready, BATCH, left > 0 ? (int)left : 0);
        if (atomic_load(&o->change))
            apply_change(o);
        for (int i = 0; i < n; i++) {
            void *what = ready[i].data.ptr;
            port *p = what;
            uint64_t count;
            if (what == &o->timer) {
                ssize_t got = read(o->timer, &count, sizeof count);
                (void)got; /* nothing there: it was set anew */
                o->armed_ns = INT64_MAX;
            } else if (p) {
                if (p->fd >= 0)
                    receive(o, p);
            } else {
                ssize_t got = read(o->wake, &count, sizeof count);
                (void)got; /* nothing there: somebody else read it, and the queues tell what to do */
                receive_injected(o);
            }
        }
        if (atomic_load_explicit(&o->delaying, memory_order_relaxed))
            release(o);
        if (io_now_ms() >= next_tick) {
            io_tick(o);
            next_tick = io_now_ms() + TICK_MS;
        }
    }
    pthread_mutex_lock(&o->control);
    o->running = 0;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->control);
    return NULL;
}
