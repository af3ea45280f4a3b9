/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of io.h. A batch is what one recvmmsg of one port gave: it runs through the program at once,
 * what it emits is copied into the ports' send queues, and these leave with one sendmmsg each. */
#define _GNU_SOURCE
#include "io.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 64
#define PORT_NUMBERS 65536
#define MAX_PORTS 1024
#define HEADROOM 4                            /* for a VLAN tag that the kernel took out */
#define STRIDE (HEADROOM + SW_MAX_PACKET + 1 + 192) /* no power of two: buffers would share cache sets */
#define RECEIVE_BUFFER (16 << 20)             /* bytes of socket buffer a port: some 7,000 small frames */
#define QUEUE_PACKETS 4096                    /* a port's send queue, within one batch */
#define QUEUE_BYTES (16u << 20)
#define SEND_WAIT_MS 1                        /* a full link may hold up a batch this long, then it drops */
#define EVENTS 1024                           /* frames waiting for the CPU port's reader */
#define INJECTED 1024
#define TICK_MS 500                           /* captures are flushed and statistics read this often */
#define ATTACH_LIMIT_S 10
#define VLAN_OFFSET 12

typedef struct capture {
    FILE *file;
    char *buffer;
} capture;

enum port_state { PORT_UP, PORT_DOWN, PORT_GONE };

typedef struct port {
    uint32_t number;
    int fd;
    int ifindex;
    enum port_state state;
    capture in, out;
    /* what one batch sends here: bytes one after the other, and where each frame starts */
    uint8_t *bytes;
    size_t used, room;
    uint32_t count;
    uint32_t *offsets, *lengths;
    _Atomic uint64_t rx_packets, rx_bytes, rx_dropped, rx_errors;
    _Atomic uint64_t tx_packets, tx_bytes, tx_dropped, tx_errors;
} port;

typedef struct node {
    struct node *next;
    io_event event;
    uint8_t data[];
} node;

typedef struct queue {
    node *head, **tail;
    uint32_t packets;
} queue;

struct io {
    int64_t cpu_port;
    int epoll, wake;
    pthread_t thread;
    int started;
    atomic_int stop;
    port *by_number[PORT_NUMBERS];
    port *ports[MAX_PORTS];
    size_t port_count;
    port *touched[MAX_PORTS]; /* ports with frames to send */
    size_t touched_count;

    pthread_mutex_t control; /* guards the four below */
    pthread_cond_t changed;
    int running;
    io_process next_process;
    sw *next_program;
    atomic_int change;
    io_process process; /* of the thread */
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
};

/* ---- queues to and from Python */

static void queue_init(queue *q) {
    q->head = NULL;
    q->tail = &q->head;
    q->packets = 0;
}

static int queue_put(queue *q, io_event event, const uint8_t *data) {
    node *n = malloc(sizeof *n + event.len);
    if (!n)
        return -ENOMEM;
    n->next = NULL;
    n->event = event;
    if (event.len)
        memcpy(n->data, data, event.len);
    *q->tail = n;
    q->tail = &n->next;
    q->packets += event.kind == IO_PACKET_IN;
    return 0;
}

static node *queue_take(queue *q) {
    node *n = q->head;
    if (n) {
        q->head = n->next;
        if (!q->head)
            q->tail = &q->head;
        q->packets -= n->event.kind == IO_PACKET_IN;
    }
    return n;
}

static void tell(io *o, int32_t kind, uint32_t number, int error) {
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

static int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* ---- captures: classic pcap, microseconds, Ethernet */

static int capture_open(capture *c, const char *path) {
    static const uint32_t header[6] = {0xa1b2c3d4, 0x00040002, 0, 0, 262144, 1};
    c->file = fopen(path, "wbe");
    if (!c->file)
        return -errno;
    c->buffer = malloc(1 << 18);
    if (c->buffer)
        setvbuf(c->file, c->buffer, _IOFBF, 1 << 18);
    if (fwrite(header, sizeof header, 1, c->file) != 1 || fflush(c->file))
        return -errno;
    return 0;
}

static void capture_close(capture *c) {
    if (c->file)
        fclose(c->file);
    free(c->buffer);
    c->file = NULL;
    c->buffer = NULL;
}

static void capture_lost(io *o, port *p, capture *c) {
    tell(o, IO_CAPTURE_LOST, p->number, errno);
    capture_close(c);
}

static void capture_write(io *o, port *p, capture *c, const uint8_t *data, uint32_t len) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint32_t record[4] = {(uint32_t)t.tv_sec, (uint32_t)(t.tv_nsec / 1000), len, len};
    if (fwrite(record, sizeof record, 1, c->file) != 1 || fwrite(data, 1, len, c->file) != len)
        capture_lost(o, p, c);
}

/* ---- sending */

static void port_failed(io *o, port *p, int error) {
    if (p->state == PORT_UP) {
        p->state = PORT_DOWN;
        tell(o, IO_PORT_DOWN, p->number, error);
    }
}

static void emit(void *context, uint32_t number, const uint8_t *data, uint32_t len) {
    io *o = context;
    if ((int64_t)number == o->cpu_port) {
        packet_in(o, data, len);
        return;
    }
    port *p = number < PORT_NUMBERS ? o->by_number[number] : NULL;
    if (!p)
        return; /* as in simple_switch: a port without interface swallows */
    if (p->state != PORT_UP || p->count >= QUEUE_PACKETS || p->used + len > QUEUE_BYTES) {
        p->tx_dropped++;
        return;
    }
    if (p->used + len > p->room) {
        size_t room = p->room ? p->room : 1 << 16;
        while (room < p->used + len)
            room *= 2;
        uint8_t *bytes = realloc(p->bytes, room);
        if (!bytes) {
            p->tx_dropped++;
            return;
        }
        p->bytes = bytes;
        p->room = room;
    }
    memcpy(p->bytes + p->used, data, len);
    if (p->count == 0)
        o->touched[o->touched_count++] = p;
    p->offsets[p->count] = (uint32_t)p->used;
    p->lengths[p->count++] = len;
    p->used += len;
}

static void sent(io *o, port *p, uint32_t from, uint32_t n) {
    for (uint32_t i = from; i < from + n; i++) {
        p->tx_packets++;
        p->tx_bytes += p->lengths[i];
        if (p->out.file)
            capture_write(o, p, &p->out, p->bytes + p->offsets[i], p->lengths[i]);
    }
}

static void flush(io *o, port *p) {
    int64_t limit = 0;
    uint32_t at = 0;
    while (at < p->count) {
        struct mmsghdr messages[BATCH];
        struct iovec vectors[BATCH];
        uint32_t n = p->count - at < BATCH ? p->count - at : BATCH;
        memset(messages, 0, n * sizeof messages[0]);
        for (uint32_t i = 0; i < n; i++) {
            vectors[i].iov_base = p->bytes + p->offsets[at + i];
            vectors[i].iov_len = p->lengths[at + i];
            messages[i].msg_hdr.msg_iov = &vectors[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        int done = sendmmsg(p->fd, messages, n, MSG_DONTWAIT);
        if (done > 0) {
            sent(o, p, at, (uint32_t)done);
            at += (uint32_t)done;
        } else if (errno == EAGAIN) {
            int64_t now = now_ms();
            if (!limit)
                limit = now + SEND_WAIT_MS;
            struct pollfd wait = {p->fd, POLLOUT, 0};
            if (now >= limit || poll(&wait, 1, (int)(limit - now)) <= 0)
                break;
        } else if (errno == ENOBUFS) { /* the queueing discipline dropped it */
            p->tx_dropped++;
            at++;
        } else if (errno == ENETDOWN || errno == ENXIO || errno == ENODEV) {
            port_failed(o, p, errno);
            break;
        } else if (errno != EINTR) { /* EMSGSIZE, EINVAL: this frame fits no link of this kind */
            p->tx_errors++;
            at++;
        }
    }
    p->tx_dropped += p->count - at;
    p->count = 0;
    p->used = 0;
}

static void run(io *o, const sw_packet *packets, size_t n) {
    o->touched_count = 0;
    o->process(o->program, packets, n, emit, o);
    for (size_t i = 0; i < o->touched_count; i++)
        flush(o, o->touched[i]);
}

/* ---- receiving */

static uint32_t sum16(const uint8_t *data, uint32_t len, uint32_t sum) {
    for (; len > 1; data += 2, len -= 2)
        sum += (uint32_t)data[0] << 8 | data[1];
    return len ? sum + ((uint32_t)data[0] << 8) : sum;
}

/* A sender on this machine leaves TCP's and UDP's checksum to a network card that is not there: the field holds
 * the pseudo-header's sum. Compute it, so that the program sees what a cable would have carried. */
static void complete_checksum(uint8_t *frame, uint32_t len) {
    uint32_t at = 12;
    while (at + 2 <= len && ((frame[at] == 0x81 && frame[at + 1] == 0) || (frame[at] == 0x88 && frame[at + 1] == 0xa8)))
        at += 4;
    if (at + 2 > len)
        return;
    uint32_t type = (uint32_t)frame[at] << 8 | frame[at + 1], ip = at + 2, l4, total, protocol, sum = 0;
    if (type == ETH_P_IP && ip + 20 <= len) {
        l4 = ip + 4 * (frame[ip] & 15u);
        total = ip + ((uint32_t)frame[ip + 2] << 8 | frame[ip + 3]);
        protocol = frame[ip + 9];
        sum = sum16(frame + ip + 12, 8, sum);
    } else if (type == ETH_P_IPV6 && ip + 40 <= len) {
        l4 = ip + 40;
        total = l4 + ((uint32_t)frame[ip + 4] << 8 | frame[ip + 5]);
        protocol = frame[ip + 6];
        sum = sum16(frame + ip + 8, 32, sum);
    } else
        return;
    uint32_t field = l4 + (protocol == 6 ? 16 : 6);
    if ((protocol != 6 && protocol != 17) || total > len || field + 2 > total)
        return;
    frame[field] = frame[field + 1] = 0;
    sum = sum16(frame + l4, total - l4, sum + protocol + (total - l4));
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    sum = ~sum & 0xffff;
    if (!sum && protocol == 17)
        sum = 0xffff;
    frame[field] = (uint8_t)(sum >> 8);
    frame[field + 1] = (uint8_t)sum;
}

/* Undo what the kernel did to the frame on its way: put the VLAN tag back, complete the checksum. */
static uint8_t *restore(struct msghdr *header, uint8_t *frame, uint32_t *len) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        struct tpacket_auxdata aux;
        if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA || c->cmsg_len < CMSG_LEN(sizeof aux))
            continue;
        memcpy(&aux, CMSG_DATA(c), sizeof aux);
        if (aux.tp_status & TP_STATUS_VLAN_VALID && *len >= VLAN_OFFSET) {
            uint16_t tpid = aux.tp_status & TP_STATUS_VLAN_TPID_VALID ? aux.tp_vlan_tpid : ETH_P_8021Q;
            uint16_t tag[2] = {htons(tpid), htons(aux.tp_vlan_tci)};
            memmove(frame - HEADROOM, frame, VLAN_OFFSET);
            frame -= HEADROOM;
            memcpy(frame + VLAN_OFFSET, tag, sizeof tag);
            *len += HEADROOM;
        }
        if (aux.tp_status & TP_STATUS_CSUMNOTREADY)
            complete_checksum(frame, *len);
    }
    return frame;
}

static void receive(io *o, port *p) {
    for (int i = 0; i < BATCH; i++) {
        o->messages[i].msg_hdr.msg_namelen = sizeof o->addresses[i];
        o->messages[i].msg_hdr.msg_controllen = sizeof o->controls[i];
        o->messages[i].msg_hdr.msg_flags = 0;
    }
    int n = recvmmsg(p->fd, o->messages, BATCH, MSG_DONTWAIT, NULL);
    if (n < 0) {
        if (errno != EAGAIN && errno != EINTR)
            port_failed(o, p, errno);
        return;
    }
    if (p->state == PORT_DOWN) {
        p->state = PORT_UP;
        tell(o, IO_PORT_UP, p->number, 0);
    }
    sw_packet packets[BATCH];
    size_t count = 0;
    for (int i = 0; i < n; i++) {
        struct msghdr *header = &o->messages[i].msg_hdr;
        if (o->addresses[i].sll_pkttype == PACKET_OUTGOING)
            continue;
        p->rx_packets++;
        if (header->msg_flags & MSG_TRUNC || !o->process) {
            p->rx_errors++;
            if (header->msg_flags & MSG_TRUNC)
                continue;
        }
        uint32_t len = o->messages[i].msg_len;
        uint8_t *frame = restore(header, (uint8_t *)header->msg_iov->iov_base, &len);
        p->rx_bytes += len;
        if (p->in.file)
            capture_write(o, p, &p->in, frame, len);
        packets[count++] = (sw_packet){frame, len, p->number};
    }
    if (count && o->process)
        run(o, packets, count);
}

static void receive_injected(io *o) {
    node *taken[BATCH];
    sw_packet packets[BATCH];
    size_t n;
    do {
        pthread_mutex_lock(&o->queues);
        for (n = 0; n < BATCH && (taken[n] = queue_take(&o->injected)); n++)
            packets[n] = (sw_packet){taken[n]->data, taken[n]->event.len, (uint32_t)o->cpu_port};
        pthread_mutex_unlock(&o->queues);
        if (n && o->process)
            run(o, packets, n);
        for (size_t i = 0; i < n; i++)
            free(taken[i]);
    } while (n == BATCH);
}

/* ---- the thread */

static void tick(io *o) {
    for (size_t i = 0; i < o->port_count; i++) {
        port *p = o->ports[i];
        capture *captures[2] = {&p->in, &p->out};
        for (int c = 0; c < 2; c++)
            if (captures[c]->file && fflush(captures[c]->file))
                capture_lost(o, p, captures[c]);
        struct tpacket_stats stats;
        socklen_t size = sizeof stats;
        if (p->fd >= 0 && !getsockopt(p->fd, SOL_PACKET, PACKET_STATISTICS, &stats, &size))
            p->rx_dropped += stats.tp_drops;
        char name[IF_NAMESIZE];
        struct ifreq request = {.ifr_ifindex = p->ifindex};
        if (p->state != PORT_DOWN)
            continue;
        if (!if_indextoname((unsigned)p->ifindex, name)) {
            p->state = PORT_GONE;
            close(p->fd); /* also leaves the epoll set */
            p->fd = -1;
            tell(o, IO_PORT_GONE, p->number, ENODEV);
        } else {
            memcpy(request.ifr_name, name, sizeof name);
            if (!ioctl(p->fd, SIOCGIFFLAGS, &request) && request.ifr_flags & IFF_UP) {
                p->state = PORT_UP;
                tell(o, IO_PORT_UP, p->number, 0);
            }
        }
    }
}

static void apply_change(io *o) {
    pthread_mutex_lock(&o->control);
    o->process = o->next_process;
    o->program = o->next_program;
    atomic_store(&o->change, 0);
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->control);
}

static void *loop(void *context) {
    io *o = context;
    int64_t next_tick = now_ms() + TICK_MS;
    while (!atomic_load(&o->stop)) {
        struct epoll_event ready[BATCH];
        int64_t left = next_tick - now_ms();
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
        if (now_ms() >= next_tick) {
            tick(o);
            next_tick = now_ms() + TICK_MS;
        }
    }
    pthread_mutex_lock(&o->control);
    o->running = 0;
    pthread_cond_broadcast(&o->changed);
    pthread_mutex_unlock(&o->control);
    return NULL;
}

/* ---- the face */

io *io_new(int64_t cpu_port) {
    io *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->cpu_port = cpu_port;
    o->epoll = epoll_create1(EPOLL_CLOEXEC);
    o->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    o->buffers = malloc((size_t)BATCH * STRIDE);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (o->epoll < 0 || o->wake < 0 || !o->buffers || epoll_ctl(o->epoll, EPOLL_CTL_ADD, o->wake, &event)) {
        if (o->epoll >= 0)
            close(o->epoll);
        if (o->wake >= 0)
            close(o->wake);
        free(o->buffers);
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
        o->vectors[i].iov_base = o->buffers + (size_t)i * STRIDE + HEADROOM;
        o->vectors[i].iov_len = SW_MAX_PACKET + 1;
        header->msg_iov = &o->vectors[i];
        header->msg_iovlen = 1;
        header->msg_name = &o->addresses[i];
        header->msg_control = &o->controls[i];
    }
    return o;
}

static void port_free(port *p) {
    if (p->fd >= 0)
        close(p->fd);
    capture_close(&p->in);
    capture_close(&p->out);
    free(p->bytes);
    free(p->offsets);
    free(p->lengths);
    free(p);
}

static int port_open(port *p, const char *interface) {
    p->ifindex = (int)if_nametoindex(interface);
    if (!p->ifindex)
        return -ENODEV;
    p->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); /* protocol 0: nothing before bind */
    if (p->fd < 0)
        return -errno;
    int one = 1, bytes = RECEIVE_BUFFER;
    if (setsockopt(p->fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes))
        setsockopt(p->fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    /* Linux before 4.20 lacks it; receive() then passes over our own frames. */
    setsockopt(p->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
    struct packet_mreq promiscuous = {.mr_ifindex = p->ifindex, .mr_type = PACKET_MR_PROMISC};
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = p->ifindex};
    if (setsockopt(p->fd, SOL_PACKET, PACKET_AUXDATA, &one, sizeof one) ||
        setsockopt(p->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) ||
        bind(p->fd, (struct sockaddr *)&address, sizeof address))
        return -errno;
    return 0;
}

int io_add_port(io *o, uint32_t number, const char *interface, const char *in_path, const char *out_path) {
    if (number >= PORT_NUMBERS || o->port_count == MAX_PORTS || o->by_number[number] || o->started)
        return -EINVAL;
    port *p = calloc(1, sizeof *p);
    if (!p)
        return -ENOMEM;
    p->number = number;
    p->fd = -1;
    p->offsets = malloc(QUEUE_PACKETS * sizeof *p->offsets);
    p->lengths = malloc(QUEUE_PACKETS * sizeof *p->lengths);
    int status = p->offsets && p->lengths ? port_open(p, interface) : -ENOMEM;
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
    free(o);
}

int io_attach(io *o, io_process process, sw *program) {
    int status = 0;
    struct timespec limit = deadline(ATTACH_LIMIT_S * 1000);
    pthread_mutex_lock(&o->control);
    o->next_process = process;
    o->next_program = program;
    atomic_store(&o->change, 1);
    wake(o);
    while (o->running && atomic_load(&o->change) && !status)
        status = pthread_cond_timedwait(&o->changed, &o->control, &limit);
    if (!o->running) {
        o->process = process;
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
    *out = (io_stats){p->rx_packets, p->rx_bytes,   p->rx_dropped, p->rx_errors,
                      p->tx_packets, p->tx_bytes, p->tx_dropped, p->tx_errors};
    return 0;
}
