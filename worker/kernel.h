/* SPDX-License-Identifier: Apache-2.0 */
/* What C and Python share: each struct is the ctypes.Structure of the Python class of that name, which explains it. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { KIND = 0, TENSOR = 1, CHUNK = 2, PLACE = 6, E0 = 8, E1 = 9, VALUES = 10 }; /* bytes of a payload */

#define FLAG 8
#define UNUSED (-128)
#define UNKNOWN 2
#define PARKED 1e300

/* One flat array; its chunk c has number first + c. */
struct segment {
    void *values;
    uint64_t size, first;
};

/* worker/kernels.py */
struct tensors {
    const struct segment *segments;
    uint64_t count;
};

struct stream {
    uint64_t elements, headers, ahead, chunks;
    int8_t *exponents;
    uint8_t *unsendable, *own_unsendable;
    uint32_t chunk, workers, divisor, dtype, kind, tensor;
};

/* worker/ring.py: 2 * window rows; chunk offset 0 lies in row `base`. */
struct ring {
    uint8_t *packets;
    int64_t *offset;
    double *deadline, *sent_at;
    int32_t *tries;
    uint8_t *held;
    size_t window, stride, base;
    uint32_t result_kind;
};

/* What there was in one or more runs of packets: `highest` is the greatest chunk with a result before, `reached` now. */
struct taken {
    int64_t count, strays, in_order, highest, reached, first;
    double sent_at;
};

/* worker/timer.py; `SAMPLES` and other names of Python's come with the compiler's -D. */
struct timer {
    double quickest, base, backoff, samples[SAMPLES];
    uint64_t sampled;
};

/* worker/recovery.py */
struct recovery {
    double window, threshold, limit, next_check, cut_at, overtaken, probed_at;
};

/* worker/flow.py */
struct flow {
    int64_t first, next, highest, end, in_flight;
    double progress_at, clocked, stall_at;
    uint32_t limited;
    /* counts since Python took them over */
    int64_t sent, received, duplicates, strays;
    double seconds, packet_seconds, limited_seconds;
    int64_t *round_trips;
};

/* worker/operation.py; `next` is the one begun after it. */
struct operation {
    const struct stream *stream;
    const struct tensors *source, *target;
    int64_t start, end, lacking, headers_missing;
    int32_t *calls;
    const int32_t *own_call;
    struct operation *next;
    uint32_t rank;
};

static inline size_t stride_of(const struct stream *s) { return VALUES + 4 * s->elements; }

void take_run(struct ring *r, const uint8_t *packets, size_t m, const uint8_t **picked, int64_t *offsets,
              struct taken *t);
void take_end(const struct ring *r, int64_t end, struct taken *t);
void fill(const struct stream *s, const struct tensors *source, uint8_t *packets, uint64_t position, size_t k);
void deliver_run(const struct stream *s, const struct tensors *target, const uint8_t *const *picked,
                 const int64_t *positions, size_t count);
