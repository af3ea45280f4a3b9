/* SPDX-License-Identifier: Apache-2.0 */
/* Frames that a port holds back: the delay of a link, where the kernel has none to give. First in, first out. */
#include "io_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void line_init(delay_line *d) {
    atomic_store(&d->delay_ns, 0);
    d->head = NULL;
    d->tail = &d->head;
    d->bytes = 0;
}

int line_put(delay_line *d, int64_t now_ns, const uint8_t *data, uint32_t len, const super_header *header,
             const super_run *run) {
    size_t bytes = sizeof(parcel) + len;
    if (d->bytes + bytes > LINE_BYTES)
        return -ENOBUFS;
    parcel *p = malloc(bytes);
    if (!p)
        return -ENOMEM;
    *p = (parcel){.due_ns = now_ns + atomic_load_explicit(&d->delay_ns, memory_order_relaxed), .len = len};
    if (header)
        p->header = *header;
    if (run)
        p->run = *run;
    memcpy(p->data, data, len);
    *d->tail = p;
    d->tail = &p->next;
    d->bytes += bytes;
    return 0;
}

parcel *line_take(delay_line *d, int64_t now_ns) {
    parcel *p = d->head;
    if (!p || p->due_ns > now_ns)
        return NULL;
    d->head = p->next;
    if (!d->head)
        d->tail = &d->head;
    d->bytes -= sizeof(parcel) + p->len;
    return p;
}

void line_free(delay_line *d) {
    parcel *p;
    while ((p = line_take(d, INT64_MAX)))
        free(p);
}
