/* SPDX-License-Identifier: Apache-2.0 */
/* Frames from a packet socket as pcapng blocks, one a packet as a cable would have carried it.
 *
 * The socket has PACKET_VNET_HDR, PACKET_AUXDATA and SO_TIMESTAMPNS: what the kernel left undone (segments, checksums,
 * VLAN tags) is done here, with the cutting of the embedded switch's ports. */
#define _GNU_SOURCE
#include "io_super.h"

#include <errno.h>
#include <linux/if_packet.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { BATCH = 32, FRAME = 4 + 65550 + 256 }; /* a VLAN tag fits in front */
enum { BLOCK = 28 + 4 + 12, ENHANCED = 6 };   /* around a packet: head, end, options */
enum { UP = 1, DOWN = 2 };
enum { TAG = 4, MACS = 12 };

typedef union control {
    char bytes[CMSG_SPACE(sizeof(struct timespec)) + CMSG_SPACE(sizeof(struct tpacket_auxdata))];
    struct cmsghdr align;
} control;

typedef struct batch {
    uint8_t frames[BATCH][FRAME];
    super_header headers[BATCH];
    struct sockaddr_ll from[BATCH];
    control controls[BATCH];
} batch;

typedef struct tally { /* capture._Tally */
    uint64_t packets; /* written */
    uint64_t uncut;   /* super-packets that could not be cut up, written as they are */
    uint64_t left;    /* packets that found no room */
} tally;

uint64_t capture_bytes(void) { return sizeof(batch); }

static uint32_t padded(uint32_t n) { return (n + 3) & ~3u; }

static void put32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }

/* Puts a block around the `len` bytes at out + 28; returns its size. Little-endian machines write the section so. */
static uint32_t finish(uint8_t *out, uint32_t len, uint64_t time, uint32_t way) {
    uint32_t size = BLOCK + padded(len);
    uint8_t *end = out + 28 + len;
    put32(out, ENHANCED);
    put32(out + 4, size);
    put32(out + 8, 0);
    put32(out + 12, (uint32_t)(time >> 32));
    put32(out + 16, (uint32_t)time);
    put32(out + 20, len);
    put32(out + 24, len);
    memset(end, 0, padded(len) - len);
    end = out + 28 + padded(len);
    put32(end, 2 | 4u << 16); /* epb_flags */
    put32(end + 4, way);
    put32(end + 8, 0);
    put32(end + 12, size);
    return size;
}

/* Reads what came with a frame: its time, and a tag, which it puts back. Returns where the frame begins. */
static uint8_t *dress(uint8_t *frame, uint32_t *len, struct msghdr *m, super_header *h, uint64_t *time) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec t;
            memcpy(&t, CMSG_DATA(c), sizeof t);
            *time = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
        } else if (c->cmsg_level == SOL_PACKET && c->cmsg_type == PACKET_AUXDATA) {
            struct tpacket_auxdata a;
            memcpy(&a, CMSG_DATA(c), sizeof a);
            if (!(a.tp_status & TP_STATUS_VLAN_VALID) || *len < MACS)
                continue;
            uint16_t kind = a.tp_status & TP_STATUS_VLAN_TPID_VALID ? a.tp_vlan_tpid : 0x8100;
            memmove(frame - TAG, frame, MACS);
            frame -= TAG;
            frame[MACS] = (uint8_t)(kind >> 8), frame[MACS + 1] = (uint8_t)kind;
            frame[MACS + 2] = (uint8_t)(a.tp_vlan_tci >> 8), frame[MACS + 3] = (uint8_t)a.tp_vlan_tci;
            *len += TAG;
            h->csum_start = (uint16_t)(h->csum_start + TAG);
        }
    }
    return frame;
}

/* Writes one frame, or the packets it stands for; returns the bytes. */
static uint64_t write_frame(uint8_t *out, uint64_t room, uint8_t *frame, uint32_t len, const super_header *h,
                            uint64_t time, uint32_t way, tally *t) {
    super_cut cut;
    uint64_t used = 0;
    if (h->gso_type != VIRTIO_NET_HDR_GSO_NONE && !super_cut_begin(&cut, frame, len, h->gso_type, h->gso_size)) {
        for (;;) {
            if (room - used < BLOCK + 4 + SUPER_HEADERS + cut.size) {
                t->left++;
                return used;
            }
            uint32_t n;
            const uint8_t *segment = super_cut_next(&cut, &n);
            if (!segment)
                return used;
            memcpy(out + used + 28, segment, n);
            used += finish(out + used, n, time, way);
            t->packets++;
        }
    }
    if (h->gso_type != VIRTIO_NET_HDR_GSO_NONE)
        t->uncut++;
    else if (h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)
        super_complete(frame, len, h->csum_start, h->csum_offset);
    if (room < BLOCK + 4 + (uint64_t)len) {
        t->left++;
        return 0;
    }
    memcpy(out + 28, frame, len);
    t->packets++;
    return finish(out, len, time, way);
}

/* Takes what a socket has, up to BATCH frames, into `out` as blocks of interface 0. Returns how many frames there
 * were, 0 for none, or -errno; `*used` are the bytes written. `space` has capture_bytes(). */
int capture_take(int fd, void *space, uint8_t *out, uint64_t room, uint64_t *used, tally *t) {
    batch *b = space;
    struct mmsghdr m[BATCH];
    struct iovec parts[BATCH][2];
    for (int i = 0; i < BATCH; i++) {
        parts[i][0] = (struct iovec){&b->headers[i], sizeof(super_header)};
        parts[i][1] = (struct iovec){b->frames[i] + TAG, FRAME - TAG};
        m[i].msg_hdr = (struct msghdr){.msg_name = &b->from[i],
                                       .msg_namelen = sizeof b->from[i],
                                       .msg_iov = parts[i],
                                       .msg_iovlen = 2,
                                       .msg_control = &b->controls[i],
                                       .msg_controllen = sizeof b->controls[i]};
    }
    *used = 0;
    int got = recvmmsg(fd, m, BATCH, MSG_DONTWAIT, NULL);
    if (got < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
    for (int i = 0; i < got; i++) {
        uint64_t time = 0;
        uint32_t way = b->from[i].sll_pkttype == PACKET_OUTGOING ? DOWN : UP;
        if (m[i].msg_len < sizeof(super_header))
            continue;
        uint32_t len = m[i].msg_len - (uint32_t)sizeof(super_header);
        uint8_t *frame = dress(b->frames[i] + TAG, &len, &m[i].msg_hdr, &b->headers[i], &time);
        *used += write_frame(out + *used, room - *used, frame, len, &b->headers[i], time, way, t);
    }
    return got;
}
