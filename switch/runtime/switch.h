/* SPDX-License-Identifier: Apache-2.0 */
/* The C face of one loaded program: what Python (ctypes) and a C I/O loop call.
 *
 * Every function takes the device's lock, a fair one (first come, first served): a loop
 * that processes batch after batch cannot starve a control call, nor the other way round.
 * A batch is atomic towards control calls. Functions may be called from any thread.
 */
#ifndef P4REDUCE_SWITCH_H
#define P4REDUCE_SWITCH_H

#include <stddef.h>
#include <stdint.h>

#define SW_ABI 1

typedef struct sw sw;

typedef struct sw_packet {
    const uint8_t *data;
    uint32_t len;
    uint32_t port;
} sw_packet;

/* Called for each packet that leaves, in order, with the lock held: copy the bytes, call nothing of
 * the switch. A packet to the CPU port comes here as any other, packet_in header in front. */
typedef void (*sw_emit)(void *ctx, uint32_t port, const uint8_t *data, uint32_t len);

/* Runs n packets to completion, in order. This is the signature of SwitchDevice.c_process. */
void sw_process(sw *s, const sw_packet *in, size_t n, sw_emit emit, void *ctx);

/* Runs one packet that stands for n of its length, which differ as the segments of a TCP super-packet do (see
 * switch/alike.py for what that is; only those that io_super.h calls uniform are such). Returns 1 when the program
 * would have done the same with each of them and `agree` agrees, asked when everything was emitted: then all n are
 * counted. Returns 0 when the packet stands for itself alone: let the others follow by sw_process. */
int sw_process_alike(sw *s, const sw_packet *in, uint32_t n, sw_emit emit, int (*agree)(void *ctx), void *ctx);

typedef struct sw_stats {
    uint64_t received;        /* packets given to sw_process */
    uint64_t sent;            /* packets emitted */
    uint64_t too_long;        /* refused: longer than SW_MAX_PACKET */
    uint64_t over_budget;     /* passes or copies cut off because one packet made too many of them */
    uint64_t faults;          /* packets dropped at run time: assert, division by zero, step budget */
    uint64_t digests_lost;    /* the digest queue was full */
} sw_stats;

#define SW_MAX_PACKET 65535u

#endif
