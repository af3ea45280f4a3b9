/* SPDX-License-Identifier: Apache-2.0 */
/* Ports of the embedded switch: one thread moves batches between AF_PACKET sockets and sw_process.
 *
 * Super-packets of the kernel are cut up on arrival: the program, the captures and the counters see the frames that
 * a cable would have carried. What leaves is joined to super-packets again, as far as io_new was told. Those of TCP
 * pass whole where the program cannot tell: it sees the first segment, which stands for all but the last, and the last.
 *
 * All functions may be called from any thread, io_add_port only before io_start. Functions that can fail
 * return 0 or a negative errno. Nothing here grows without bound: what does not fit is dropped and counted.
 */
#ifndef P4REDUCE_IO_H
#define P4REDUCE_IO_H

#include "switch.h"

typedef struct io io;

typedef void (*io_process)(sw *s, const sw_source *source, const sw_sink *sink);
typedef int (*io_alike)(sw *s, const sw_packet *in, uint32_t n, const sw_sink *sink, int (*agree)(void *));

typedef struct io_stats {
    uint64_t rx_packets;
    uint64_t rx_bytes;
    uint64_t rx_dropped;  /* by the kernel: the socket's buffer was full; or more came than may be held back */
    uint64_t rx_errors;   /* truncated, a super-packet of an unknown kind, or no program loaded */
    uint64_t tx_packets;
    uint64_t tx_bytes;
    uint64_t tx_dropped;  /* the link or our buffer was full, or what may be held back, or the port down */
    uint64_t tx_errors;   /* longer than the MTU, or shorter than an Ethernet header */
    uint64_t rx_supers;   /* super-packets among what came, */
    uint64_t tx_supers;   /* and among what was sent */
    uint64_t rx_wholes;   /* super-packets that ran through the program as one, but for their last segment */
} io_stats;

enum io_event_kind {
    IO_TIMEOUT = 0,
    IO_PACKET_IN,    /* a frame left on the CPU port: its bytes are in the buffer */
    IO_PORT_DOWN,
    IO_PORT_UP,
    IO_PORT_GONE,    /* the interface does not exist any more; IO_PORT_UP when there is one of its name again */
    IO_CAPTURE_LOST, /* a capture file could not be written; capturing on this port has ended */
    IO_STOPPED,
};

typedef struct io_event {
    int32_t kind;
    uint32_t port;
    uint32_t len;
    int32_t error; /* errno behind the event, 0 if there is none */
} io_event;

/* What may leave as a super-packet; Linux before 6.2 takes no UDP ones from a packet socket. */
enum io_join { IO_JOIN_TCP = 1, IO_JOIN_UDP = 2 };

/* cpu_port < 0: there is none. join: a sum of io_join. NULL only without memory. */
io *io_new(int64_t cpu_port, unsigned join);
/* Stops, flushes and closes everything. */
void io_free(io *o);

/* Binds an interface to a port number (0..65535). Captures go to in_path and out_path unless NULL. */
int io_add_port(io *o, uint32_t port, const char *interface, const char *in_path, const char *out_path);

int io_start(io *o);
/* Ends the thread and flushes captures; idempotent. */
void io_stop(io *o);

/* Lets packets run through this program from the next batch on; NULL: they are dropped. When it returns the
 * former program is not in use. alike: sw_process_alike, NULL cuts every super-packet up. -ETIMEDOUT if the batch that is running does not end within 10 s. */
int io_attach(io *o, io_process process, io_alike alike, sw *program);

/* Lets a frame enter on the CPU port. -ENOBUFS when the queue is full, -ENXIO without a CPU port. */
int io_inject(io *o, const uint8_t *data, uint32_t len);

/* Waits up to timeout_ms for the next event; a frame is cut to cap bytes. */
void io_wait(io *o, int timeout_ms, io_event *event, uint8_t *buffer, size_t cap);

/* Frames for the CPU port that were lost because nobody took them. */
uint64_t io_packet_in_lost(io *o);

enum io_direction { IO_IN = 0, IO_OUT = 1 };

/* Holds back what comes in at a port, or leaves by it, for so long from now on: no frame goes on earlier, none
 * overtakes another. What is held already keeps its time. What would be held beyond 16 MiB a port and direction is
 * dropped and counted. -ENODEV: no such port; -EINVAL: no such direction, or a delay below 0. */
int io_set_delay(io *o, uint32_t port, uint32_t direction, int64_t delay_ns);

int io_port_stats(io *o, uint32_t port, io_stats *out);

#endif
