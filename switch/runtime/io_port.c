/* SPDX-License-Identifier: Apache-2.0 */
/* One port of io.h: its packet socket, what it captures, what it sends. */
#include "io_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define RECEIVE_BUFFER (16 << 20) /* bytes of socket buffer a port: some 7,000 small frames */
#define QUEUE_PACKETS 4096        /* a port's send queue, within one batch */
#define QUEUE_BYTES (16u << 20)
#define SEND_WAIT_MS 1 /* a full link may hold up a batch this long, then it drops */
#define CAPTURE_BUFFER (1 << 18)
#define VLAN_OFFSET 12

int64_t io_now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

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
    free(p->bytes);
    free(p->offsets);
    free(p->lengths);
    free(p);
}

int port_open(port *p, const char *interface) {
    p->fd = -1;
    p->offsets = malloc(QUEUE_PACKETS * sizeof *p->offsets);
    p->lengths = malloc(QUEUE_PACKETS * sizeof *p->lengths);
    if (!p->offsets || !p->lengths)
        return -ENOMEM;
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

/* ---- sending */

void port_failed(port *p, int error, const port_listener *l) {
    if (p->state == PORT_UP) {
        p->state = PORT_DOWN;
        l->tell(l->context, IO_PORT_DOWN, p->number, error);
    }
}

int port_queue(port *p, const uint8_t *data, uint32_t len) {
    if (p->state != PORT_UP || p->count >= QUEUE_PACKETS || p->used + len > QUEUE_BYTES) {
        p->tx_dropped++;
        return 0;
    }
    if (p->used + len > p->room) {
        size_t room = p->room ? p->room : 1 << 16;
        while (room < p->used + len)
            room *= 2;
        uint8_t *bytes = realloc(p->bytes, room);
        if (!bytes) {
            p->tx_dropped++;
            return 0;
        }
        p->bytes = bytes;
        p->room = room;
    }
    memcpy(p->bytes + p->used, data, len);
    p->offsets[p->count] = (uint32_t)p->used;
    p->lengths[p->count] = len;
    p->used += len;
    return p->count++ == 0;
}

static void sent(port *p, uint32_t from, uint32_t n, const port_listener *l) {
    for (uint32_t i = from; i < from + n; i++) {
        p->tx_packets++;
        p->tx_bytes += p->lengths[i];
        if (p->out.file)
            capture_write(p, &p->out, p->bytes + p->offsets[i], p->lengths[i], l);
    }
}

void port_flush(port *p, const port_listener *l) {
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
            p->tx_dropped++;
            at++;
        } else if (errno == ENETDOWN || errno == ENXIO || errno == ENODEV) {
            port_failed(p, errno, l);
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
uint8_t *port_restore(struct msghdr *header, uint8_t *frame, uint32_t *len) {
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

/* ---- twice a second */

void port_tick(port *p, const port_listener *l) {
    capture *captures[2] = {&p->in, &p->out};
    for (int c = 0; c < 2; c++)
        if (captures[c]->file && fflush(captures[c]->file))
            capture_lost(p, captures[c], l);
    struct tpacket_stats stats;
    socklen_t size = sizeof stats;
    if (p->fd >= 0 && !getsockopt(p->fd, SOL_PACKET, PACKET_STATISTICS, &stats, &size))
        p->rx_dropped += stats.tp_drops;
    if (p->state != PORT_DOWN)
        return;
    char name[IF_NAMESIZE];
    struct ifreq request = {0};
    if (!if_indextoname((unsigned)p->ifindex, name)) {
        p->state = PORT_GONE;
        close(p->fd); /* also leaves the epoll set */
        p->fd = -1;
        l->tell(l->context, IO_PORT_GONE, p->number, ENODEV);
        return;
    }
    memcpy(request.ifr_name, name, sizeof name);
    if (!ioctl(p->fd, SIOCGIFFLAGS, &request) && request.ifr_flags & IFF_UP) {
        p->state = PORT_UP;
        l->tell(l->context, IO_PORT_UP, p->number, 0);
    }
}
