/* SPDX-License-Identifier: Apache-2.0 */
/* One port of io.h: its packet socket, what it captures, what it sends. */
#include "io_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define RECEIVE_BUFFER (16 << 20) /* bytes of socket buffer a port: some 7,000 small frames */
#define SEND_BUFFER (4 << 20)     /* the link's own queue is to be full first */
#define QUEUE_FRAMES 4096         /* a port's send queue, within one batch; a super-packet is one */
#define QUEUE_BYTES (16u << 20)
#define FULL_FRAMES 256 /* from here on the queue is sent before the batch has ended */
#define FULL_BYTES (256u << 10)
#define SLOT 16 /* a super_header and padding before each frame */
#define SEND_WAIT_MS 1 /* a full link may hold up a batch this long, then it drops */
#define CAPTURE_BUFFER (1 << 18)
#define VLAN_OFFSET 12

int64_t io_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t io_now_ms(void) { return io_now_ns() / 1000000; }

/* ---- captures: classic pcap, microseconds, Ethernet */

int capture_open(capture *c, const char *path) {
    static const uint32_t header[6] = {0xa1b2c3d4, 0x00040002, 0, 0, 262144, 1};
    c->file = fopen(path, "wbe");
    if (!c->file)
        return -errno;
    c->buffer = malloc(CAPTURE_BUFFER);
    if (c->buffer)
        setvbuf(c->file, c->buffer, _IOFBF, CAPTURE_BUFFER);
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

static void capture_lost(port *p, capture *c, const port_listener *l) {
    l->tell(l->context, IO_CAPTURE_LOST, p->number, errno);
    capture_close(c);
}

void capture_write(port *p, capture *c, const uint8_t *data, uint32_t len, const port_listener *l) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint32_t record[4] = {(uint32_t)t.tv_sec, (uint32_t)(t.tv_nsec / 1000), len, len};
    if (fwrite(record, sizeof record, 1, c->file) != 1 || fwrite(data, 1, len, c->file) != len)
        capture_lost(p, c, l);
}

/* ---- the socket */

void port_free(port *p) {
    if (p->fd >= 0)
        close(p->fd);
    capture_close(&p->in);
    capture_close(&p->out);
    line_free(&p->lines[IO_IN]);
    line_free(&p->lines[IO_OUT]);
    free(p->bytes);
    free(p->queue);
    free(p);
}

static void read_mtu(port *p, const char *interface) {
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    if (!ioctl(p->fd, SIOCGIFMTU, &request))
        p->longest = (uint32_t)request.ifr_mtu + ETH_HLEN;
}

static int attach(port *p) {
    p->ifindex = (int)if_nametoindex(p->interface);
    if (!p->ifindex)
        return -ENODEV;
    p->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); /* protocol 0: nothing before bind */
    if (p->fd < 0)
        return -errno;
    read_mtu(p, p->interface);
    int one = 1, in = RECEIVE_BUFFER, out = SEND_BUFFER;
    if (setsockopt(p->fd, SOL_SOCKET, SO_RCVBUFFORCE, &in, sizeof in))
        setsockopt(p->fd, SOL_SOCKET, SO_RCVBUF, &in, sizeof in);
    if (setsockopt(p->fd, SOL_SOCKET, SO_SNDBUFFORCE, &out, sizeof out))
        setsockopt(p->fd, SOL_SOCKET, SO_SNDBUF, &out, sizeof out);
    /* Linux before 4.20 lacks it; receive() then passes over our own frames. */
    setsockopt(p->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
    struct packet_mreq promiscuous = {.mr_ifindex = p->ifindex, .mr_type = PACKET_MR_PROMISC};
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = p->ifindex};
    if (setsockopt(p->fd, SOL_PACKET, PACKET_AUXDATA, &one, sizeof one) ||
        setsockopt(p->fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) ||
        setsockopt(p->fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &promiscuous, sizeof promiscuous) ||
        bind(p->fd, (struct sockaddr *)&address, sizeof address))
        return -errno;
    return 0;
}

int port_open(port *p, const char *interface) {
    p->fd = -1;
    p->batch = BATCH;
    line_init(&p->lines[IO_IN]);
    line_init(&p->lines[IO_OUT]);
    p->queue = malloc(QUEUE_FRAMES * sizeof *p->queue);
    if (!p->queue)
        return -ENOMEM;
    if (strlen(interface) >= sizeof p->interface)
        return -ENODEV;
    memcpy(p->interface, interface, strlen(interface) + 1);
    return attach(p);
}

void port_lose(port *p) {
    if (p->fd >= 0)
        close(p->fd); /* also leaves the epoll set */
    p->fd = -1;
    p->state = PORT_GONE;
}

/* ---- sending */

void port_failed(port *p, int error, const port_listener *l) {
    if (p->state == PORT_UP) {
        p->state = PORT_DOWN;
        l->tell(l->context, IO_PORT_DOWN, p->number, error);
    }
}

static int make_room(port *p, size_t bytes) {
    if (p->used + bytes > p->room) {
        size_t room = p->room ? p->room : 1 << 16;
        while (room < p->used + bytes)
            room *= 2;
        uint8_t *more = realloc(p->bytes, room);
        if (!more)
            return 0;
        p->bytes = more;
        p->room = room;
    }
    return 1;
}

uint8_t *port_place(port *p, uint32_t most) {
    if (p->state != PORT_UP || p->used + most + SLOT > QUEUE_BYTES || !make_room(p, most + SLOT))
        return NULL;
    return p->bytes + p->used + SLOT;
}

void port_queue(port *p, const uint8_t *data, uint32_t len, const sw_sum *sum) {
    if (p->state != PORT_UP || p->used + len + SLOT > QUEUE_BYTES || !make_room(p, len + SLOT)) {
        count(&p->tx_dropped, 1);
        return;
    }
    if (p->count && p->join) {
        waiting *last = &p->queue[p->count - 1];
        uint32_t payload = super_run_join(&last->run, p->bytes + last->at + SLOT, data, len, sum);
        if (payload) {
            memmove(p->bytes + p->used, data + (len - payload), payload);
            p->used += payload;
            return;
        }
    }
    if (p->count == QUEUE_FRAMES) {
        count(&p->tx_dropped, 1);
        return;
    }
    waiting *next = &p->queue[p->count++];
    next->at = p->used;
    if (data != p->bytes + p->used + SLOT)
        memcpy(p->bytes + p->used + SLOT, data, len);
    p->used += SLOT + len;
    super_run_begin(&next->run, data, len, sum, p->longest, p->join & IO_JOIN_UDP, p->join & IO_JOIN_TCP);
}

void port_queue_whole(port *p, const super_run *run, const uint8_t *headers, const uint8_t *payload) {
    if (p->state != PORT_UP || p->used + run->len + SLOT > QUEUE_BYTES || p->count == QUEUE_FRAMES ||
        !make_room(p, run->len + SLOT)) {
        count(&p->tx_dropped, run->segments);
        return;
    }
    waiting *next = &p->queue[p->count++];
    *next = (waiting){p->used, *run};
    uint8_t *frame = p->bytes + p->used + SLOT;
    memcpy(frame, headers, run->headers);
    memcpy(frame + run->headers, payload, run->len - run->headers);
    p->used += SLOT + run->len;
}

int port_is_full(const port *p) { return p->count >= FULL_FRAMES || p->used >= FULL_BYTES; }

static void capture_segments(port *p, const waiting *w, const port_listener *l) {
    uint8_t *frame = p->bytes + w->at + SLOT, *segment;
    super_cut cut;
    uint32_t len;
    if (w->run.segments == 1)
        capture_write(p, &p->out, frame, w->run.len, l);
    else if (!super_cut_begin(&cut, frame, w->run.len, super_run_kind(&w->run), (uint16_t)w->run.size))
        while (p->out.file && (segment = super_cut_next(&cut, &len)))
            capture_write(p, &p->out, segment, len, l);
}

static void sent(port *p, uint32_t from, uint32_t n, const port_listener *l) {
    for (const waiting *w = p->queue + from; w < p->queue + from + n; w++) {
        count(&p->tx_packets, w->run.segments);
        count(&p->tx_bytes, w->run.len + (uint64_t)w->run.headers * (w->run.segments - 1));
        count(&p->tx_supers, w->run.segments > 1);
        if (p->out.file)
            capture_segments(p, w, l);
    }
}

/* Sends all that is queued. */
static void send_queue(port *p, const port_listener *l) {
    int64_t limit = 0;
    uint32_t at = 0;
    struct mmsghdr messages[BATCH];
    struct iovec vectors[BATCH];
    for (uint32_t i = 0; i < p->count; i++) {
        super_header h;
        uint8_t *slot = p->bytes + p->queue[i].at;
        super_run_end(&p->queue[i].run, slot + SLOT, &h);
        memcpy(slot + SLOT - sizeof h, &h, sizeof h);
    }
    while (at < p->count) {
        uint32_t n = p->count - at < BATCH ? p->count - at : BATCH;
        memset(messages, 0, n * sizeof messages[0]);
        for (uint32_t i = 0; i < n; i++) {
            const waiting *w = &p->queue[at + i];
            vectors[i].iov_base = p->bytes + w->at + SLOT - sizeof(super_header);
            vectors[i].iov_len = sizeof(super_header) + w->run.len;
            messages[i].msg_hdr.msg_iov = &vectors[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        int done = sendmmsg(p->fd, messages, n, MSG_DONTWAIT);
        if (done > 0) {
            sent(p, at, (uint32_t)done, l);
            at += (uint32_t)done;
        } else if (errno == EAGAIN) {
            int64_t now = io_now_ms();
            if (!limit)
                limit = now + SEND_WAIT_MS;
            struct pollfd wait = {p->fd, POLLOUT, 0};
            if (now >= limit || poll(&wait, 1, (int)(limit - now)) <= 0)
                break;
        } else if (errno == ENOBUFS) { /* the queueing discipline dropped it */
            count(&p->tx_dropped, p->queue[at++].run.segments);
        } else if (errno == ENETDOWN || errno == ENXIO || errno == ENODEV) {
            port_failed(p, errno, l);
            break;
        } else if (errno != EINTR) { /* EMSGSIZE, EINVAL: this frame fits no link of this kind */
            count(&p->tx_errors, p->queue[at++].run.segments);
        }
    }
    for (; at < p->count; at++)
        count(&p->tx_dropped, p->queue[at].run.segments);
    p->count = 0;
    p->used = 0;
}

void port_flush(port *p, const port_listener *l) {
    delay_line *d = &p->lines[IO_OUT];
    if (!line_active(d)) {
        send_queue(p, l);
        return;
    }
    int64_t now = io_now_ns();
    for (const waiting *w = p->queue; w < p->queue + p->count; w++)
        if (line_put(d, now, p->bytes + w->at + SLOT, w->run.len, NULL, &w->run))
            count(&p->tx_dropped, w->run.segments);
    p->count = 0;
    p->used = 0;
}

void port_release(port *p, int64_t now_ns, const port_listener *l) {
    parcel *next;
    while ((next = line_take(&p->lines[IO_OUT], now_ns))) {
        port_queue_whole(p, &next->run, next->data, next->data + next->run.headers);
        free(next);
        if (port_is_full(p))
            send_queue(p, l);
    }
    send_queue(p, l);
}

/* ---- receiving */

uint8_t *port_restore_vlan(struct msghdr *header, uint8_t *frame, uint32_t *len) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
        struct tpacket_auxdata aux;
        if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA || c->cmsg_len < CMSG_LEN(sizeof aux))
            continue;
        memcpy(&aux, CMSG_DATA(c), sizeof aux);
        if (aux.tp_status & TP_STATUS_VLAN_VALID && *len >= VLAN_OFFSET) {
            uint16_t tpid = aux.tp_status & TP_STATUS_VLAN_TPID_VALID ? aux.tp_vlan_tpid : ETH_P_8021Q;
            uint16_t tag[2] = {htons(tpid), htons(aux.tp_vlan_tci)};
            memmove(frame - VLAN_BYTES, frame, VLAN_OFFSET);
            frame -= VLAN_BYTES;
            memcpy(frame + VLAN_OFFSET, tag, sizeof tag);
            *len += VLAN_BYTES;
        }
    }
    return frame;
}

/* ---- twice a second */

int port_tick(port *p, const port_listener *l) {
    capture *captures[2] = {&p->in, &p->out};
    for (int c = 0; c < 2; c++)
        if (captures[c]->file && fflush(captures[c]->file))
            capture_lost(p, captures[c], l);
    struct tpacket_stats stats;
    socklen_t size = sizeof stats;
    if (p->fd >= 0 && !getsockopt(p->fd, SOL_PACKET, PACKET_STATISTICS, &stats, &size))
        count(&p->rx_dropped, stats.tp_drops);
    int found = 0;
    if (p->state == PORT_GONE) {
        if (attach(p)) {
            port_lose(p);
            return 0;
        }
        p->state = PORT_DOWN;
        found = 1;
    }
    char name[IF_NAMESIZE];
    struct ifreq request = {0};
    int there = if_indextoname((unsigned)p->ifindex, name) != NULL;
    if (there)
        read_mtu(p, name);
    if (p->state != PORT_DOWN)
        return found;
    if (!there) {
        port_lose(p);
        l->tell(l->context, IO_PORT_GONE, p->number, ENODEV);
        return 0;
    }
    memcpy(request.ifr_name, name, sizeof name);
    if (!ioctl(p->fd, SIOCGIFFLAGS, &request) && request.ifr_flags & IFF_UP) {
        p->state = PORT_UP;
        l->tell(l->context, IO_PORT_UP, p->number, 0);
    }
    return found;
}
