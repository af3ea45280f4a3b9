/* SPDX-License-Identifier: Apache-2.0 */
/* What io.c (the thread and its face) and io_port.c (one port: socket, captures, sending) share. */
#ifndef P4REDUCE_IO_INTERNAL_H
#define P4REDUCE_IO_INTERNAL_H

#define _GNU_SOURCE
#include "io.h"

#include <linux/if_packet.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>

#define BATCH 64
#define HEADROOM 4 /* for a VLAN tag that the kernel took out */

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

/* io_port.c. The callbacks of a port's troubles come from the thread. */
typedef struct port_listener {
    void (*tell)(void *context, int32_t kind, uint32_t number, int error);
    void *context;
} port_listener;

int port_open(port *p, const char *interface);
void port_free(port *p);
void port_failed(port *p, int error, const port_listener *l);
int port_queue(port *p, const uint8_t *data, uint32_t len); /* 1: the first frame of this batch */
void port_flush(port *p, const port_listener *l);
void port_tick(port *p, const port_listener *l);
/* Puts a frame as received in the form that it had on the wire; HEADROOM bytes before it are free. */
uint8_t *port_restore(struct msghdr *header, uint8_t *frame, uint32_t *len);

int capture_open(capture *c, const char *path);
void capture_write(port *p, capture *c, const uint8_t *data, uint32_t len, const port_listener *l);

int64_t io_now_ms(void);

#endif
