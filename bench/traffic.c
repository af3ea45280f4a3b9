/* SPDX-License-Identifier: Apache-2.0 */
/* Traffic through a switch: prepared frames out of memory by packet sockets, what comes back counted and compared.
 *
 * A lane is one interface at the other end of a switch's port. It sends chunks 0, 1, 2, ..., `window` of them under way
 * (closed loop, docs/protocol.md's send rule); their frames are `window` templates in turn, with the chunk's number and version
 * (docs/protocol.md, The packet) put in. Functions return 0 or a negative errno.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5 /* Linux 6.2 */
#endif

/* Offsets in a frame: Ethernet, IPv4 without options, UDP; and in its payload. */
enum { TYPE = 12, IP = 14, IP_LENGTH = 16, IP_PROTOCOL = 23, IP_SUM = 24, IP_ADDRESSES = 26, UDP = 34 };
enum { UDP_LENGTH = UDP + 4, UDP_SUM = UDP + 6, HEAD = UDP + 8, UDP_SUM_OFFSET = 6, PROTOCOL_UDP = 17 };
enum { CHUNK = 2, PLACE = 6, VALUES = 10, VERSION = 0x80 };

#define MESSAGES 64       /* of one system call; */
#define SUPERS 8          /* where they are super-packets */
#define SUPER_SEGMENTS 64 /* UDP_MAX_SEGMENTS of the older kernels */
#define SUPER_BYTES 65535
#define MESSAGE (sizeof(struct virtio_net_hdr) + ETH_HLEN + SUPER_BYTES)
#define BUFFER (16 << 20)
#define SEND_LIMIT_S 2
#define RESEND_NS 500000000ll    /* a lane without an answer for this long sends again what is missing */
#define SILENCE_NS 10000000000ll /* nothing came at all: give up */
/* Nobody waits for a socket: the switch is spared waking us packet by packet, as a network card spares interrupts. */
#define NAP_NS 20000
#define LONGEST_NAP_NS 320000

typedef struct lane {
    int fd;
    uint32_t moves;  /* the lane whose chunks are answered here */
    uint8_t *heads;  /* window of HEAD bytes */
    uint8_t *bodies; /* window of `payload` bytes */
    uint8_t *wanted; /* window of payload - VALUES bytes: the values that answers must have here */
    uint8_t *have;   /* window, of the chunks from `first` on: answered */
    uint64_t first;  /* least chunk without answer */
    uint64_t next;   /* least chunk not sent yet */
    int64_t heard;
} lane;

typedef struct traffic_counts {
    uint64_t chunks;    /* of each lane, all answered */
    uint64_t answers;
    uint64_t resent;
    uint64_t repeated;  /* second answers */
    uint64_t strangers; /* frames that are no answers */
    uint64_t trouble;   /* the chunk that -EBADMSG (wrong values) or -ETIME (no answer) is about */
    int64_t elapsed_ns; /* of the last run, from the first frame to the last answer */
    int64_t idle_ns;    /* of the last run: there was nothing to send and nothing to take */
} traffic_counts;

typedef struct traffic {
    uint32_t lane_count, window, payload, burst, segments; /* burst: worth a call; segments of a super-packet, 0: none */
    lane *lanes;
    uint64_t end; /* chunks from here on are not sent */
    traffic_counts counts;
    uint8_t *buffers; /* MESSAGES of `stride` bytes, SUPERS in case of super-packets */
    size_t stride;
    int64_t now;
    uint32_t batch;
    struct {
        struct virtio_net_hdr h;
        uint8_t head[HEAD];
    } __attribute__((packed)) supers[SUPERS];
} traffic;

static int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint32_t get16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static uint32_t get32(const uint8_t *p) { return get16(p) << 16 | get16(p + 2); }

static void put16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static uint32_t fold(uint32_t sum) {
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

static uint32_t add(const uint8_t *p, size_t n, uint32_t sum) {
    for (size_t i = 0; i < n; i += 2)
        sum += get16(p + i);
    return sum;
}

/* ---- set-up */

void traffic_free(traffic *t) {
    for (uint32_t i = 0; i < t->lane_count && t->lanes; i++) {
        lane *l = &t->lanes[i];
        if (l->fd >= 0)
            close(l->fd);
        free(l->heads);
        free(l->bodies);
        if (!i || l->wanted != t->lanes[0].wanted)
            free(l->wanted);
        free(l->have);
    }
    free(t->lanes);
    free(t->buffers);
    free(t);
}

/* NULL only without memory. `payload` bytes follow each UDP header. */
traffic *traffic_new(uint32_t lanes, uint32_t window, uint32_t payload, int super_packets) {
    traffic *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    uint32_t most = (SUPER_BYTES - (HEAD - IP)) / payload;
    t->lane_count = lanes;
    t->window = window;
    t->payload = payload;
    t->burst = window / 4 ? window / 4 : 1;
    t->segments = super_packets ? (most < SUPER_SEGMENTS ? most : SUPER_SEGMENTS) : 0;
    t->batch = super_packets ? SUPERS : MESSAGES;
    t->stride = (super_packets ? MESSAGE : HEAD + payload + 1) + 192; /* no power of two: they would share cache sets */
    t->buffers = malloc(t->batch * t->stride);
    t->lanes = calloc(lanes, sizeof *t->lanes);
    for (uint32_t i = 0; i < lanes && t->lanes; i++)
        t->lanes[i].fd = -1;
    if (t->buffers && t->lanes)
        return t;
    traffic_free(t);
    return NULL;
}

static int open_socket(lane *l, const char *interface, int super_packets) {
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP)};
    struct timeval limit = {.tv_sec = SEND_LIMIT_S};
    int one = 1, size = BUFFER;
    address.sll_ifindex = (int)if_nametoindex(interface);
    if (!address.sll_ifindex)
        return -ENODEV;
    l->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (l->fd < 0)
        return -errno;
    /* In a user namespace the ordinary options have to do, which stop at net.core.rmem_max and wmem_max. */
    if (setsockopt(l->fd, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size))
        setsockopt(l->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    if (setsockopt(l->fd, SOL_SOCKET, SO_SNDBUFFORCE, &size, sizeof size))
        setsockopt(l->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (setsockopt(l->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) ||
        (super_packets && setsockopt(l->fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one)))
        return -errno;
    setsockopt(l->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one); /* else they are strangers */
    return bind(l->fd, (struct sockaddr *)&address, sizeof address) ? -errno : 0;
}

/* `frames`: `window` whole frames with right checksums. `wanted`: the values of the answers that come here, to chunks of
 * lane `moves`. */
int traffic_lane(traffic *t, uint32_t number, const char *interface, const uint8_t *frames, const uint8_t *wanted,
                 uint32_t moves) {
    lane *l = &t->lanes[number];
    size_t window = t->window, values = t->payload - VALUES;
    l->moves = moves;
    l->heads = malloc(window * HEAD);
    l->bodies = malloc(window * t->payload);
    l->wanted = malloc(window * values);
    l->have = calloc(window, 1);
    if (!l->heads || !l->bodies || !l->wanted || !l->have)
        return -ENOMEM;
    for (size_t i = 0; i < window; i++) {
        const uint8_t *frame = frames + i * (HEAD + t->payload);
        memcpy(l->heads + i * HEAD, frame, HEAD);
        memcpy(l->bodies + i * t->payload, frame + HEAD, t->payload);
    }
    memcpy(l->wanted, wanted, window * values);
    /* One copy of what all lanes want: four would push other things out of the cache. */
    if (number && t->lanes[0].wanted && !memcmp(l->wanted, t->lanes[0].wanted, window * values)) {
        free(l->wanted);
        l->wanted = t->lanes[0].wanted;
    }
    return open_socket(l, interface, t->segments != 0);
}

/* ---- sending */

/* Makes a template that of this chunk, checksum included (RFC 1624, equation 3). */
static void renumber(const traffic *t, lane *l, uint64_t chunk) {
    size_t i = chunk % t->window;
    uint8_t *body = l->bodies + i * t->payload, *check = l->heads + i * HEAD + UDP_SUM;
    uint8_t now[6] = {(uint8_t)(chunk >> 24), (uint8_t)(chunk >> 16), (uint8_t)(chunk >> 8), (uint8_t)chunk,
                      (uint8_t)((body[PLACE] & ~VERSION) | (chunk / t->window % 2 ? VERSION : 0)), body[PLACE + 1]};
    uint32_t sum = (~get16(check) & 0xffff) + add(now, sizeof now, 0);
    for (size_t w = 0; w < sizeof now; w += 2)
        sum += ~get16(body + CHUNK + w) & 0xffff;
    sum = ~fold(sum) & 0xffff;
    put16(check, sum ? sum : 0xffff); /* 0 would say that there is none */
    memcpy(body + CHUNK, now, sizeof now);
}

static void super_head(traffic *t, uint32_t slot, const uint8_t *head, uint32_t segments) {
    uint8_t *own = t->supers[slot].head;
    uint32_t length = HEAD - UDP + segments * t->payload;
    memcpy(own, head, HEAD);
    put16(own + IP_LENGTH, length + (UDP - IP));
    put16(own + IP_SUM, 0);
    put16(own + IP_SUM, ~fold(add(own + IP, UDP - IP, 0)) & 0xffff);
    put16(own + UDP_LENGTH, length);
    put16(own + UDP_SUM, fold(add(own + IP_ADDRESSES, 8, PROTOCOL_UDP + length))); /* the rest is left to the card */
    t->supers[slot].h = (struct virtio_net_hdr){
        .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
        .gso_type = segments > 1 ? VIRTIO_NET_HDR_GSO_UDP_L4 : VIRTIO_NET_HDR_GSO_NONE,
        .gso_size = (uint16_t)(segments > 1 ? t->payload : 0),
        .hdr_len = HEAD,
        .csum_start = UDP,
        .csum_offset = UDP_SUM_OFFSET,
    };
}

/* Sends the chunks from `from` to `to` of the lane, both within its window. */
static int send_range(traffic *t, lane *l, uint64_t from, uint64_t to) {
    struct mmsghdr messages[MESSAGES];
    struct iovec vectors[MESSAGES][2];
    for (uint64_t chunk = from; chunk < to; chunk++)
        renumber(t, l, chunk);
    while (from < to) {
        uint32_t n = 0;
        memset(messages, 0, sizeof messages);
        for (; n < t->batch && from < to; n++) {
            size_t i = from % t->window, segments = 1;
            if (t->segments) { /* neighbours in memory only */
                segments = to - from < t->segments ? to - from : t->segments;
                segments = segments < t->window - i ? segments : t->window - i;
                super_head(t, n, l->heads + i * HEAD, (uint32_t)segments);
                vectors[n][0] = (struct iovec){&t->supers[n], sizeof t->supers[n]};
            } else {
                vectors[n][0] = (struct iovec){l->heads + i * HEAD, HEAD};
            }
            vectors[n][1] = (struct iovec){l->bodies + i * t->payload, segments * t->payload};
            messages[n].msg_hdr.msg_iov = vectors[n];
            messages[n].msg_hdr.msg_iovlen = 2;
            from += segments;
        }
        for (uint32_t at = 0; at < n;) {
            int done = sendmmsg(l->fd, messages + at, n - at, 0);
            if (done < 0 && errno != ENOBUFS && errno != EINTR)
                return -errno;
            at += done > 0 ? (uint32_t)done : errno == ENOBUFS; /* lost: it will be sent again */
        }
    }
    return 0;
}

static int send_new(traffic *t, lane *l) {
    uint64_t to = l->first + t->window < t->end ? l->first + t->window : t->end;
    /* Little waits for more, since what is under way will be answered without it. */
    if (to <= l->next || (to - l->next < t->burst && to < t->end))
        return 0;
    uint64_t from = l->next;
    l->next = to;
    return send_range(t, l, from, to);
}

static int send_missing(traffic *t, lane *l) {
    int status = 0;
    for (uint64_t chunk = l->first; chunk < l->next && !status; chunk++)
        if (!l->have[chunk % t->window]) {
            t->counts.resent++;
            status = send_range(t, l, chunk, chunk + 1);
        }
    l->heard = t->now;
    return status;
}

/* ---- receiving */

static int take_answer(traffic *t, const lane *l, const uint8_t *body) {
    lane *moved = &t->lanes[l->moves];
    uint32_t offset = get32(body + CHUNK) - (uint32_t)moved->first;
    uint64_t chunk = moved->first + offset;
    size_t i = chunk % t->window, values = t->payload - VALUES;
    if (chunk >= moved->next || moved->have[i]) {
        t->counts.repeated++;
        return 0;
    }
    if (memcmp(body + VALUES, l->wanted + i * values, values)) {
        t->counts.trouble = chunk;
        return -EBADMSG;
    }
    moved->have[i] = 1;
    moved->heard = t->now;
    t->counts.answers++;
    while (moved->first < moved->next && moved->have[moved->first % t->window])
        moved->have[moved->first++ % t->window] = 0;
    return 0;
}

static int take(traffic *t, const lane *l, const uint8_t *message, size_t len) {
    size_t size = t->payload;
    if (t->segments) {
        struct virtio_net_hdr h;
        memcpy(&h, message, sizeof h);
        message += sizeof h;
        len -= sizeof h;
        if (h.gso_type == VIRTIO_NET_HDR_GSO_UDP_L4 && h.gso_size == t->payload && len > HEAD)
            size = len - HEAD;
    }
    if (len != HEAD + size || size % t->payload || get16(message + TYPE) != ETH_P_IP ||
        message[IP_PROTOCOL] != PROTOCOL_UDP) {
        t->counts.strangers++;
        return 0;
    }
    int status = 0;
    for (size_t at = 0; at < size && !status; at += t->payload)
        status = take_answer(t, l, message + HEAD + at);
    return status;
}

/* How many messages came, or a negative errno. */
static int receive(traffic *t, const lane *l) {
    struct mmsghdr messages[MESSAGES];
    struct iovec vectors[MESSAGES];
    memset(messages, 0, t->batch * sizeof messages[0]);
    for (uint32_t i = 0; i < t->batch; i++) {
        vectors[i] = (struct iovec){t->buffers + i * t->stride, t->stride};
        messages[i].msg_hdr.msg_iov = &vectors[i];
        messages[i].msg_hdr.msg_iovlen = 1;
    }
    int n = recvmmsg(l->fd, messages, t->batch, MSG_DONTWAIT, NULL), status = 0;
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    t->now = clock_ns();
    for (int i = 0; i < n && !status; i++)
        status = take(t, l, t->buffers + (size_t)i * t->stride, messages[i].msg_len);
    return status ? status : n;
}

/* ---- the loop */

static uint64_t least_unanswered(const traffic *t) {
    uint64_t least = t->lanes[0].first;
    for (uint32_t i = 1; i < t->lane_count; i++)
        least = t->lanes[i].first < least ? t->lanes[i].first : least;
    return least;
}

/* From now on nothing new but what makes the lanes even. */
static void finish(traffic *t) {
    t->end = 0;
    for (uint32_t i = 0; i < t->lane_count; i++)
        t->end = t->lanes[i].next > t->end ? t->lanes[i].next : t->end;
}

static int pass(traffic *t) {
    int came = 0, status = 0;
    for (uint32_t i = 0; i < t->lane_count && status >= 0; i++) {
        status = receive(t, &t->lanes[i]);
        came |= status > 0;
    }
    for (uint32_t i = 0; i < t->lane_count && status >= 0; i++) {
        lane *l = &t->lanes[i];
        status = send_new(t, l);
        if (!status && l->first < l->next && t->now - l->heard > RESEND_NS)
            status = send_missing(t, l);
    }
    return status < 0 ? status : came;
}

/* Sends for this long, and returns when all is answered: 0, -EBADMSG, -ETIME, -EINTR after a signal (call again) or what
 * a socket said. What came so far is in `counts`. */
int traffic_run(traffic *t, int64_t ns, traffic_counts *counts) {
    int64_t start = clock_ns(), heard = start, nap = NAP_NS;
    int status = 0;
    t->counts.idle_ns = 0;
    t->end = UINT64_MAX;
    t->now = start;
    for (uint32_t i = 0; i < t->lane_count; i++)
        t->lanes[i].heard = start;
    while (status >= 0) {
        if (t->end == UINT64_MAX && t->now - start >= ns)
            finish(t);
        if (least_unanswered(t) >= t->end)
            break;
        status = pass(t);
        if (status > 0) {
            heard = t->now;
            nap = NAP_NS;
        } else if (!status) {
            int64_t before = clock_ns();
            struct timespec pause = {0, nap};
            if (clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL) == EINTR)
                status = -EINTR;
            t->now = clock_ns();
            t->counts.idle_ns += t->now - before;
            nap = nap < LONGEST_NAP_NS ? 2 * nap : nap;
            if (t->now - heard > SILENCE_NS) {
                t->counts.trouble = least_unanswered(t);
                status = -ETIME;
            }
        }
    }
    t->counts.chunks = least_unanswered(t);
    t->counts.elapsed_ns = t->now - start;
    *counts = t->counts;
    return status < 0 ? status : 0;
}
