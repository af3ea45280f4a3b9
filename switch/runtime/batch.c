/* SPDX-License-Identifier: Apache-2.0 */
/* Batches for Python: packets out of arrays, and what leaves into others. */
#include <stdlib.h>

#include "control.h"

/* Rows follow each other: the next one is fetched while this one's packet is worked on. */
#define AHEAD(ROW, BYTES, WRITE) \
    for (size_t i = 0; i < (BYTES); i += 64) __builtin_prefetch((const void *)((uintptr_t)(ROW) + i), WRITE)

static bool more_heads(sw_result *r) {
    size_t room = r->room ? 2 * r->room : 256;
    uint32_t *ports = realloc(r->ports, room * sizeof *ports);
    if (ports != NULL) r->ports = ports;
    uint32_t *lengths = realloc(r->lengths, room * sizeof *lengths);
    if (lengths != NULL) r->lengths = lengths;
    if (ports == NULL || lengths == NULL) return false;
    r->room = room;
    return true;
}

static bool more_bytes(sw_result *r, size_t bytes) {
    if (r->data != NULL && r->bytes_room - r->bytes >= bytes) return true;
    size_t room = 2 * (r->bytes_room + bytes) + 65536;
    uint8_t *more = realloc(r->data, room);
    if (more == NULL) return false;
    r->data = more;
    r->bytes_room = room;
    return true;
}

static uint8_t *place(void *ctx, uint32_t port, uint32_t most) {
    sw_result *r = ctx;
    (void)port;
    if (r->in_rows < r->n) return more_bytes(r, most) ? r->data + r->bytes : NULL;
    size_t at = r->n * r->stride; /* writing past the row does no harm: the next ones are still to come */
    if (at + most > r->rows_bytes) return NULL;
    AHEAD(r->rows + at + r->stride, r->stride, 1);
    return r->rows + at;
}

static void emit(void *ctx, uint32_t port, const uint8_t *data, uint32_t len, const sw_sum *sum) {
    sw_result *r = ctx;
    (void)sum;
    if (r->n == r->room && !more_heads(r)) {
        r->failed = 1;
        return;
    }
    size_t at = r->n * r->stride;
    if (r->rows != NULL && r->in_rows == r->n && len <= r->stride && at + r->stride <= r->rows_bytes) {
        uint8_t *row = r->rows + at;
        if (data != row) memcpy(row, data, len);
        if (len < r->stride) memset(row + len, 0, r->stride - len);
        r->in_rows++;
    } else {
        if (!more_bytes(r, len)) {
            r->failed = 1;
            return;
        }
        if (data != r->data + r->bytes) memcpy(r->data + r->bytes, data, len);
        r->bytes += len;
    }
    r->ports[r->n] = port;
    r->lengths[r->n++] = len;
    if (len > r->longest) r->longest = len;
}

void sw_result_free(sw_result *r) {
    free(r->ports);
    free(r->lengths);
    free(r->data);
    memset(r, 0, sizeof *r);
}

static void begin(sw_result *r) {
    r->n = r->in_rows = r->bytes = 0;
    r->longest = r->failed = 0;
}

/* Packets out of arrays, each `stride` bytes behind the one before, or right behind it where that is 0. */
typedef struct sw_rows {
    size_t at, end;
    const uint16_t *ports;
    const uint32_t *wide_ports, *lengths;
    const uint8_t *data;
    size_t stride;
} sw_rows;

static int next_row(void *ctx, sw_packet *packet) {
    sw_rows *r = ctx;
    if (r->at == r->end) return 0;
    uint32_t len = r->lengths[r->at];
    *packet = (sw_packet){.data = r->data, .len = len, .port = r->ports ? r->ports[r->at] : r->wide_ports[r->at]};
    r->data += r->stride ? r->stride : len;
    r->at++;
    if (r->at < r->end) AHEAD(r->data, r->lengths[r->at], 0);
    return 1;
}

#define SW_CHUNK 64 /* so many at once keep the lock */
static void run_rows(sw *s, size_t n, sw_rows *rows, sw_result *r) {
    const sw_source source = {next_row, rows};
    const sw_sink sink = {place, emit, r};
    begin(r);
    while (rows->at < n) {
        rows->end = n - rows->at < SW_CHUNK ? n : rows->at + SW_CHUNK;
        sw_process(s, &source, &sink);
    }
}

void sw_run_rows(sw *s, size_t n, const uint16_t *ports, const uint32_t *lengths, const uint8_t *data, size_t stride,
                 sw_result *r) {
    sw_rows rows = {.ports = ports, .lengths = lengths, .data = data, .stride = stride};
    uint32_t longest = 0; /* here: for numpy it is a hundredth of the batch's time */
    for (size_t i = 0; i < n; i++) longest = lengths[i] > longest ? lengths[i] : longest;
    if (longest > stride) {
        begin(r);
        r->failed = SW_BEYOND_ROW;
        return;
    }
    run_rows(s, n, &rows, r);
}

void sw_run_packets(sw *s, size_t n, const uint32_t *ports, const uint32_t *lengths, const uint8_t *data, sw_result *r) {
    sw_rows rows = {.wide_ports = ports, .lengths = lengths, .data = data};
    run_rows(s, n, &rows, r);
}

void sw_result_heads(const sw_result *r, uint16_t *ports, uint32_t *lengths) {
    for (size_t i = 0; i < r->n; i++) ports[i] = (uint16_t)r->ports[i];
    if (r->n) memcpy(lengths, r->lengths, r->n * sizeof *lengths);
}

void sw_result_rows(const sw_result *r, uint8_t *data, size_t stride) {
    const uint8_t *packed = r->data;
    for (size_t i = 0; i < r->n; i++) {
        const uint8_t *from = i < r->in_rows ? r->rows + i * r->stride : packed;
        if (i >= r->in_rows) packed += r->lengths[i];
        memcpy(data + i * stride, from, r->lengths[i]);
        memset(data + i * stride + r->lengths[i], 0, stride - r->lengths[i]);
    }
}
