/* SPDX-License-Identifier: Apache-2.0 */
/* Super-packets: one frame that stands for up to 64 with the same headers, as Linux hands them over (GSO).
 *
 * Pure functions on bytes. Cutting gives the frames that a cable would have carried, with whole checksums.
 * Joining takes only frames whose checksums are right, since whoever cuts the super-packet computes new ones.
 */
#ifndef P4REDUCE_IO_SUPER_H
#define P4REDUCE_IO_SUPER_H

#include "switch.h"

#include <linux/virtio_net.h>
#include <stddef.h>
#include <stdint.h>

#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5 /* Linux 6.2 */
#endif

#define SUPER_BYTES 65535u  /* a longer one would be cut up at once, by dev->gso_max_size */
#define SUPER_SEGMENTS 64u  /* UDP_MAX_SEGMENTS of the older kernels */
#define SUPER_HEADERS 160u  /* at most: Ethernet, two VLAN tags, IPv4 and TCP with options */

typedef struct virtio_net_hdr super_header;

/* Computes a checksum that the sender left to its network card: over the bytes from `start` to the end, into the
 * field at `start + offset`, which holds the pseudo-header's sum. What lies outside the frame is left alone. */
void super_complete(uint8_t *frame, uint32_t len, uint32_t start, uint32_t offset);

/* ---- cutting up: TCP and UDP over IPv4 or IPv6, without extension headers, behind up to two VLAN tags */
typedef struct super_cut {
    uint8_t *frame;
    uint8_t head[SUPER_HEADERS]; /* the next segment's headers, flags of TCP and checksum of L4 as they came */
    uint32_t len, size; /* of the frame; of the payload of each segment but the last */
    uint32_t next;      /* payload of the next segment, 0: there is none */
    uint32_t seq;       /* TCP's first */
    uint32_t l3, l4, payload;
    uint32_t at, index; /* where the next segment's payload starts, and its number */
    uint8_t v6, tcp;
    uint16_t id;             /* IPv4's first */
    uint16_t l3_sum, l4_sum; /* of the headers, but for what is each segment's own */
    sw_sum sum;              /* of the last segment's payload */
} super_cut;

/* 0, or -EINVAL for a frame that cannot be cut up like this. The frame must stay while it is being cut. */
int super_cut_begin(super_cut *c, uint8_t *frame, uint32_t len, uint8_t gso_type, uint16_t gso_size);
/* The next segment, and its length; NULL after the last. It is made where its payload lies: its headers overwrite the end
 * of the segment before, which must not be needed any more. */
uint8_t *super_cut_next(super_cut *c, uint32_t *len);

/* How many segments from the first on are uniform: of one length, with the same headers but for IPv4's identification
 * and checksum and TCP's sequence number and checksum. 0 where that is not worth knowing, or where there are options of
 * IP, VLAN tags, or flags that are not the same in all. The last segment is never one of them. */
uint32_t super_uniform(const super_cut *c);
/* Whether what became of the first segment is how it came, with other values in headers at most, and may be sent as a
 * super-packet: then its headers, before the payload of all that are uniform, stand for what becomes of those. */
int super_like(const super_cut *c, const uint8_t *first, const uint8_t *out, uint32_t len);

void super_cut_skip(super_cut *c, uint32_t index); /* to the segment of this number, none of the last */

/* ---- joining: IPv4 without options, not fragmented, UDP with checksum or TCP */
typedef struct super_run {
    uint32_t len;      /* of the frame, all segments' payloads included */
    uint32_t headers;  /* before the payload; 0: nothing can be joined to it */
    uint32_t size;     /* payload of the first segment */
    uint32_t segments;
    uint8_t tcp, push, verified, v6;
    uint16_t udp_rest; /* of UDP: sum of all but checksum and payload that its segments have in common; 0: unknown */
    sw_sum sum;        /* what is known of the first frame */
} super_run;

/* The run of a super-packet's first `segments`, which are uniform. */
void super_run_whole(super_run *r, const super_cut *c, uint32_t segments);
/* A run of one frame, of which `sum` is known; one that is longer than `longest` is never joined. */
void super_run_begin(super_run *r, const uint8_t *frame, uint32_t len, const sw_sum *sum, uint32_t longest, int udp,
                     int tcp);
/* Bytes of `next`'s payload if it continues the run, 0 if not. They go behind the run's, then r->len is right. */
uint32_t super_run_join(super_run *r, const uint8_t *frame, const uint8_t *next, uint32_t len, const sw_sum *sum);
uint8_t super_run_kind(const super_run *r); /* its gso_type, if it is of more than one frame */
/* Makes the frame what the kernel takes: a single frame stays as it is. */
void super_run_end(const super_run *r, uint8_t *frame, super_header *h);

#endif
