/* SPDX-License-Identifier: Apache-2.0 */
/* What io.c (the face), io_thread.c (what moves packets), io_port.c (one port: socket, captures, sending), io_line.c
 * (what a port holds back) and io_queue.c share. */
#ifndef P4REDUCE_IO_INTERNAL_H
#define P4REDUCE_IO_INTERNAL_H

#define _GNU_SOURCE
#include "io.h"
#include "io_super.h"

#include <linux/if_packet.h>
#include <net/if.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>

#define BATCH 64
#define VLAN_BYTES 4

typedef struct capture {
    FILE *file;
    char *buffer;
} capture;

enum port_state { PORT_UP, PORT_DOWN, PORT_GONE };

/* A frame that waits to be sent: a super_header, then the frame, which may grow to a super-packet. */
typedef struct waiting {
    size_t at;
    super_run run;
} waiting;

/* A frame that is held back: one that came, with its header, or one that leaves, with its run. */
typedef struct parcel {
    struct parcel *next;
    int64_t due_ns;
    uint32_t len;
    super_header header;
    super_run run;
    uint8_t data[];
} parcel;

#define LINE_BYTES (16u << 20) /* a port and direction: 5 ms at 26 Gbit/s */

/* What a port holds back in one direction. A frame waits for those before it, also where the delay was made shorter. */
typedef struct delay_line {
    _Atomic int64_t delay_ns;
    parcel *head, **tail;
    size_t bytes;
} delay_line;

typedef struct port {
    uint32_t number;
    char interface[IF_NAMESIZE];
    int fd; /* -1 while there is no such interface */
    int ifindex;
    uint32_t longest; /* frame that the MTU allows */
    unsigned join;    /* io_join */
    enum port_state state;
    capture in, out;
    unsigned batch; /* messages of the next receive call */
    uint8_t *bytes; /* of the frames that wait, one after the other */
    size_t used, room;
    uint32_t count;
    waiting *queue;
    int touched; /* listed by the thread as one that has frames waiting */
    delay_line lines[2]; /* by io_direction */
    _Atomic uint64_t rx_packets, rx_bytes, rx_dropped, rx_errors, rx_supers, rx_wholes;
    _Atomic uint64_t tx_packets, tx_bytes, tx_dropped, tx_errors, tx_supers;
} port;

/* For counters that the thread alone writes: no locked instruction a packet. */
static inline void count(_Atomic uint64_t *counter, uint64_t n) {
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n, memory_order_relaxed);
}

/* io_line.c. Times are io_now_ns(). */
void line_init(delay_line *d);
/* Whether frames have to go through it. */
static inline int line_active(const delay_line *d) {
    return d->head || atomic_load_explicit(&d->delay_ns, memory_order_relaxed);
}
/* Copies a frame, and what is known of it. -ENOBUFS: as much as may be is held. */
int line_put(delay_line *d, int64_t now_ns, const uint8_t *data, uint32_t len, const super_header *header,
             const super_run *run);
parcel *line_take(delay_line *d, int64_t now_ns); /* the next that is due, to be freed, or NULL */
void line_free(delay_line *d);

/* io_port.c. The callbacks of a port's troubles come from the thread. */
typedef struct port_listener {
    void (*tell)(void *context, int32_t kind, uint32_t number, int error);
    void *context;
} port_listener;

int port_open(port *p, const char *interface);
void port_free(port *p);
void port_failed(port *p, int error, const port_listener *l);
/* Where the next frame to be queued may be written, of at most `most` bytes; NULL: there is no room. */
uint8_t *port_place(port *p, uint32_t most);
void port_queue(port *p, const uint8_t *data, uint32_t len, const sw_sum *sum);
/* A super-packet of some segments: their headers, and the payload of all, which lies elsewhere. */
void port_queue_whole(port *p, const super_run *run, const uint8_t *headers, const uint8_t *payload);
void port_flush(port *p, const port_listener *l);
void port_release(port *p, int64_t now_ns, const port_listener *l); /* sends what was held back and is due */
int port_is_full(const port *p); /* enough waits to be worth a call */
int port_tick(port *p, const port_listener *l); /* 1 when the port has a socket that nobody listens to yet */
void port_lose(port *p);                        /* closes the socket; ticks look for the interface from then on */
/* Puts the VLAN tag back that the kernel took out; VLAN_BYTES before the frame are free. Returns its new start. */
uint8_t *port_restore_vlan(struct msghdr *header, uint8_t *frame, uint32_t *len);

int capture_open(capture *c, const char *path);
void capture_write(port *p, capture *c, const uint8_t *data, uint32_t len, const port_listener *l);

/* io_queue.c. Not locked. */
typedef struct node {
    struct node *next;
    io_event event;
    uint8_t data[];
} node;

typedef struct queue {
    node *head, **tail;
    uint32_t packets; /* those of the events that are frames */
} queue;

void queue_init(queue *q);
int queue_put(queue *q, io_event event, const uint8_t *data); /* 0 or -ENOMEM */
node *queue_take(queue *q);                                   /* to be freed; NULL when empty */

int64_t io_now_ms(void);
int64_t io_now_ns(void);

/* ---- all of it */

#define PORT_NUMBERS 65536
#define MAX_PORTS 1024
#define HELD 8 /* ports that a super-packet may leave on whole */

typedef struct held {
    uint32_t port, len;
} held;

struct io {
    int64_t cpu_port;
    port_listener listener;
    int epoll, wake;
    int timer;           /* goes off when a frame that is held back is due */
    int64_t armed_ns;    /* for when; INT64_MAX: not at all */
    atomic_int delaying; /* since a port has been given a delay for the first time */
    pthread_t thread;
    int started;
    atomic_int stop;
    port *by_number[PORT_NUMBERS];
    port *ports[MAX_PORTS];
    size_t port_count;
    unsigned join;
    port *touched[MAX_PORTS]; /* ports with frames to send */
    size_t touched_count;

    pthread_mutex_t control; /* guards the five below */
    pthread_cond_t changed;
    int running;
    io_process next_process;
    io_alike next_alike;
    sw *next_program;
    atomic_int change;
    io_process process; /* of the thread */
    io_alike alike;
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
    size_t cut_bytes;  /* in super-packets of the batch that were cut up */
    sw_packet packets[BATCH]; /* ready for the program */
    size_t packet_count, packet_at;

    const super_cut *cut;  /* of a super-packet whose first segment runs through the program for others, too: */
    const uint8_t *first;  /* as it came */
    held held[HELD]; /* what came of it so far */
    uint32_t held_count;
    int unlike; /* nothing is held any more */
    uint8_t *held_bytes;
};

/* io.c */
void io_tell(void *context, int32_t kind, uint32_t number, int error);

/* io_thread.c */
void *io_loop(void *context);
void io_tick(io *o); /* by the thread, or after it has ended */

#endif
