/* SPDX-License-Identifier: Apache-2.0 */
/* What waits between the thread of io.h and Python: events and frames, first come, first served. */
#include "io_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void queue_init(queue *q) {
    q->head = NULL;
    q->tail = &q->head;
    q->packets = 0;
}

int queue_put(queue *q, io_event event, const uint8_t *data) {
    node *n = malloc(sizeof *n + event.len);
    if (!n)
        return -ENOMEM;
    n->next = NULL;
    n->event = event;
    if (event.len)
        memcpy(n->data, data, event.len);
    *q->tail = n;
    q->tail = &n->next;
    q->packets += event.kind == IO_PACKET_IN;
    return 0;
}

node *queue_take(queue *q) {
    node *n = q->head;
    if (n) {
        q->head = n->next;
        if (!q->head)
            q->tail = &q->head;
        q->packets -= n->event.kind == IO_PACKET_IN;
    }
    return n;
}
