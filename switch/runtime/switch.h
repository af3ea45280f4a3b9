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

/* What is known of a packet's bytes: the one's complement sum (RFC 1071) of the big-endian 16-bit words from byte
 * `from` up to byte `to`, an even number of bytes; it is 0 only where all are. Nothing is known where to == from. */
typedef struct sw_sum {
    uint32_t from, to, sum;
} sw_sum;

typedef struct sw_packet {
    const uint8_t *data;
    uint32_t len;
    uint32_t port;
    sw_sum sum;
} sw_packet;

/* Who takes the packets that leave. Called with the lock held: call nothing of the switch. */
typedef struct sw_sink {
    /* Where the next packet may be written that leaves at this port, of at most `most` bytes; NULL: elsewhere. It
     * may still be dropped. The function itself may be NULL. */
    uint8_t *(*place)(void *ctx, uint32_t port, uint32_t most);
    /* A packet leaves: take its bytes, where they are not what was written to the last place. One to the CPU port
     * comes here as any other, packet_in header in front. */
    void (*emit)(void *ctx, uint32_t port, const uint8_t *data, uint32_t len, const sw_sum *sum);
    void *ctx;
} sw_sink;

/* Where packets come from. Called with the lock held: call nothing of the switch. */
typedef struct sw_source {
    /* Returns 0 when there is none now. The packet's bytes must stay until the next call, no longer. */
    int (*next)(void *ctx, sw_packet *packet);
    void *ctx;
} sw_source;

/* Runs all that the source has to completion, one after the other. This is the signature of SwitchDevice.c_process. */
void sw_process(sw *s, const sw_source *source, const sw_sink *sink);

/* Runs one packet that stands for n of its length, which differ as the segments of a TCP super-packet do (see
 * switch/alike.py for what that is; only those that io_super.h calls uniform are such). Returns 1 when the program
 * would have done the same with each of them and `agree` agrees, asked when everything was emitted: then all n are
 * counted. Returns 0 when the packet stands for itself alone: let the others follow by sw_process. */
int sw_process_alike(sw *s, const sw_packet *in, uint32_t n, const sw_sink *sink, int (*agree)(void *ctx));

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
