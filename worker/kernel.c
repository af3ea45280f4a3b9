/* SPDX-License-Identifier: Apache-2.0 */
/* What worker/kernels.py does with numpy, in one pass over memory and one call a burst. The bits are the same.
 *
 * Packets are worker's payloads (wire.packet.payload_dtype), back to back: `stride` bytes each, values big-endian
 * and unaligned. A tensor is `size` values; chunk c is values c * elements on, the last one may be short.
 */
#include "kernel.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2
#error "this processor computes float64 in more bits: numpy does the work"
#endif

#define QUANTUM 2147483647.0
#define LIMIT_BITS 0x7F000000u /* of 2^127: no int8 exponent above it; infinity and NaN are greater still */

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline int is_float(const struct stream *s) { return s->dtype != DTYPE_INT32; }

static inline size_t bytes_of_value(const struct stream *s)
{
    return s->dtype == DTYPE_FLOAT64 ? 8 : s->dtype == DTYPE_FLOAT16 || s->dtype == DTYPE_BFLOAT16 ? 2 : 4;
}

/* Where the values of a chunk lie, and how many; `hint` is a segment that may hold it. */
static void *find(const struct tensors *t, const struct stream *s, uint64_t chunk, size_t *hint, size_t *n)
{
    size_t at = *hint;
    if (t->segments[at].first > chunk || (at + 1 < t->count && t->segments[at + 1].first <= chunk)) {
        size_t end = t->count;
        for (at = 0; end - at > 1;) {
            size_t middle = at + (end - at) / 2;
            if (t->segments[middle].first <= chunk)
                at = middle;
            else
                end = middle;
        }
        *hint = at;
    }
    const struct segment *of = &t->segments[at];
    uint64_t begin = (chunk - of->first) * s->elements, left = of->size - begin;
    *n = left < s->elements ? left : s->elements;
    return (uint8_t *)of->values + begin * bytes_of_value(s);
}

/* ---- floats of other dtypes, which are float32 on the way; loops without branches, to be vectorized */

static inline float from_float16(uint16_t half)
{
    uint32_t most = half & 0x7FFFu, sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t bits = (most << 13) + (112u << 23) + (most < 0x7C00 ? 0 : 112u << 23); /* to infinity and NaN */
    float denormal = (float)(int32_t)most * 0x1p-24f;
    return float_of((most < 0x400 ? bits_of(denormal) : bits) | sign);
}

/* Rounded half to even, as all here; not for NaN, which is no sum. */
static inline uint16_t to_float16(float x)
{
    uint32_t sign = bits_of(x) >> 16 & 0x8000, most = bits_of(x) & 0x7FFFFFFFu;
    uint32_t at_most = most < 0x47800000 ? most : 0x47800000; /* 2^16, which becomes infinity */
    uint32_t normal = ((at_most + 0xFFF + (at_most >> 13 & 1)) >> 13) - (112u << 10);
    uint32_t denormal = bits_of(float_of(most) + 0.5f) - 0x3F000000; /* a float32 next to 1/2 counts 2^-24 */
    return (uint16_t)((most < 0x38800000 ? denormal : normal) | sign);
}

static inline uint16_t to_bfloat16(float x)
{
    uint32_t bits = bits_of(x);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* n values as float32: where they lie if they are, else in `room`. */
static const float *as_float32(const struct stream *s, const void *values, size_t n, float *room)
{
    if (s->dtype == DTYPE_FLOAT16)
        for (size_t j = 0; j < n; j++)
            room[j] = from_float16(((const uint16_t *)values)[j]);
    else if (s->dtype == DTYPE_BFLOAT16)
        for (size_t j = 0; j < n; j++)
            room[j] = float_of((uint32_t)((const uint16_t *)values)[j] << 16);
    else if (s->dtype == DTYPE_FLOAT64)
        for (size_t j = 0; j < n; j++)
            room[j] = (float)((const double *)values)[j];
    else
        return values;
    return room;
}

static void store_float32(const struct stream *s, const float *row, size_t n, void *values)
{
    if (s->dtype == DTYPE_FLOAT16)
        for (size_t j = 0; j < n; j++)
            ((uint16_t *)values)[j] = to_float16(row[j]);
    else if (s->dtype == DTYPE_BFLOAT16)
        for (size_t j = 0; j < n; j++)
            ((uint16_t *)values)[j] = to_bfloat16(row[j]);
    else
        for (size_t j = 0; j < n; j++)
            ((double *)values)[j] = row[j];
}

/* ---- which of received packets are awaited results: see Taken in worker/kernels.py */

/* Append what m packets answer to `picked` and `offsets`. */
void take_run(struct ring *r, const uint8_t *packets, size_t m, const uint8_t **picked, int64_t *offsets,
              struct taken *t)
{
    for (size_t i = 0; i < m; i++) {
        const uint8_t *p = packets + i * r->stride;
        size_t place = (size_t)p[PLACE] << 8 | p[PLACE + 1], slot = place & 0x7FFF;
        if ((p[KIND] & ~FLAG) != (int)r->result_kind || slot >= r->window) {
            t->strays++;
            continue;
        }
        size_t row = slot + (place >> 15) * r->window;
        if (memcmp(p + CHUNK, r->packets + row * r->stride + CHUNK, 4) != 0 || !(r->deadline[row] < PARKED))
            continue;
        if (r->tries[row] == 1 && r->offset[row] > t->highest && (!t->in_order++ || r->sent_at[row] > t->sent_at))
            t->sent_at = r->sent_at[row];
        r->deadline[row] = INFINITY;
        picked[t->count] = p;
        offsets[t->count++] = r->offset[row];
        t->reached = r->offset[row] > t->reached ? r->offset[row] : t->reached;
    }
}

void take_end(const struct ring *r, int64_t end, struct taken *t)
{
    while (t->first < end && isinf(r->deadline[(r->base + (size_t)t->first) % (2 * r->window)]))
        t->first++;
}

/* For Python: `found` has room for m picked, as indexes, then m offsets. */
void take(struct ring *r, const uint8_t *packets, size_t m, int64_t end, int64_t *found, struct taken *t)
{
    const uint8_t **picked = (const uint8_t **)found;
    take_run(r, packets, m, picked, found + m, t);
    take_end(r, end, t);
    for (int64_t i = t->count; i-- > 0;) /* an index may need more room than a pointer */
        found[i] = (int64_t)((size_t)(picked[i] - packets) / r->stride);
}

/* ---- filling packets */

static void fill_int32(const uint32_t *row, size_t n, uint8_t *out)
{
    for (size_t j = 0; j < n; j++) {
        uint32_t v = __builtin_bswap32(row[j]);
        memcpy(out + 4 * j, &v, 4);
    }
}

/* A chunk's smallest exponent E >= -128 with 2^E > max|x|: the bits of |x| are ordered as |x| is. */
static int fill_exponent(const float *row, size_t n, uint8_t *packet)
{
    uint32_t most = 0;
    for (size_t j = 0; j < n; j++) {
        uint32_t bits = bits_of(row[j]) & 0x7FFFFFFFu;
        most = bits > most ? bits : most;
    }
    int bad = most >= LIMIT_BITS;
    int e = most >> 23 ? (int)(most >> 23) - 126 : most ? 32 - __builtin_clz(most) - 149 : UNUSED;
    packet[E0] = (uint8_t)(bad || e < UNUSED ? UNUSED : e);
    packet[E1] = (uint8_t)(bad ? 0 : UNUSED);
    return bad;
}

static inline void put(uint8_t *out, double v)
{
    uint32_t q = __builtin_bswap32((uint32_t)(int32_t)v);
    memcpy(out, &q, 4);
}

/* n * 2^e, which is exact; ldexp takes as long as a tenth of a packet. */
static inline double scale_of(uint32_t n, int e)
{
    uint64_t bits = (uint64_t)(1023 + e) << 52;
    double power;
    memcpy(&power, &bits, 8);
    return n * power;
}

/* rint(x * QUANTUM / scale) where scale is a power of two: x * QUANTUM is rounded as x * (QUANTUM / scale) is. */
static void quantize_by_power(const float *row, size_t n, double scale, uint8_t *out)
{
    double by = QUANTUM / scale;
    for (size_t j = 0; j < n; j++)
        put(out + 4 * j, rint((double)row[j] * by));
}

/* rint(x * QUANTUM / scale), the quotient taken as a product with 1 / scale. Product and quotient lie within
 * 3 * 2^-53 of each other, relatively, so within 2^-20, since they are below 2^31, and round alike unless a half lies
 * between. Says whether one may. */
static int quantize_by_product(const float *row, size_t n, double scale, uint8_t *out)
{
    double by = 1.0 / scale;
    uint64_t close = 0;
    for (size_t j = 0; j < n; j++) {
        double v = (double)row[j] * QUANTUM * by, r = rint(v);
        close |= fabs(v - r) > 0.5 - 0x1p-19;
        put(out + 4 * j, r);
    }
    return close != 0;
}

static void quantize_exactly(const float *row, size_t n, double scale, uint8_t *out)
{
    for (size_t j = 0; j < n; j++)
        put(out + 4 * j, rint((double)row[j] * QUANTUM / scale));
}

/* k packets from `position` on; a header's values are 0 yet. */
void fill(const struct stream *s, const struct tensors *source, uint8_t *packets, uint64_t position, size_t k)
{
    int power = (s->workers & (s->workers - 1)) == 0;
    size_t near = 0, far = 0, n = 0;
    float room[MOST_ELEMENTS];
    for (size_t i = 0; i < k; i++) {
        uint8_t *packet = packets + i * stride_of(s), *out = packet + VALUES;
        uint64_t at = position + i;
        uint32_t number = __builtin_bswap32(s->chunk + (uint32_t)at);
        packet[KIND] = (uint8_t)s->kind;
        packet[TENSOR] = (uint8_t)s->tensor;
        memcpy(packet + CHUNK, &number, 4);
        packet[E0] = packet[E1] = (uint8_t)UNUSED;
        n = 0;
        if (at >= s->headers && is_float(s)) {
            uint64_t chunk = at - s->headers;
            if (chunk < s->chunks) {
                const void *values = find(source, s, chunk, &far, &n);
                const float *row = as_float32(s, values, n, room);
                s->own_unsendable[chunk] = (uint8_t)fill_exponent(row, n, packet);
                n = 0;
            }
            chunk -= s->ahead; /* or beyond all chunks */
            if (chunk < s->chunks && !s->own_unsendable[chunk] && s->unsendable[chunk] != UNKNOWN) {
                const void *values = find(source, s, chunk, &near, &n);
                const float *row = as_float32(s, values, n, room);
                double scale = scale_of(s->workers, s->exponents[chunk]);
                if (power)
                    quantize_by_power(row, n, scale, out);
                else if (quantize_by_product(row, n, scale, out))
                    quantize_exactly(row, n, scale, out);
            }
        } else if (at >= s->headers) {
            const uint32_t *row = find(source, s, at - s->headers, &near, &n);
            fill_int32(row, n, out);
        }
        memset(out + 4 * n, 0, 4 * (s->elements - n));
    }
}

/* ---- results */

static void deliver_int32(const uint8_t *in, size_t n, uint32_t *row)
{
    for (size_t j = 0; j < n; j++) {
        uint32_t v;
        memcpy(&v, in + 4 * j, 4);
        row[j] = __builtin_bswap32(v);
    }
}

static inline double get(const uint8_t *in)
{
    uint32_t q;
    memcpy(&q, in, 4);
    return (int32_t)__builtin_bswap32(q);
}

/* (float)(sum * scale / QUANTUM), by a product with c = 1 / QUANTUM rounded, unless the result may be denormal.
 *
 * It is the same float32. Let T = |sum| * n < 2^40, Q = QUANTUM = 2^31 - 1, 2^k <= T/Q < 2^(k+1), so k <= 8; powers
 * of two change nothing. 1/Q = 2^-31 (1 + 2^-31 + 2^-62 + ...), so c is less than 2^-61 below it, relatively. The
 * float64s next to Tc and to T/Q are equal, or neighbours with a border B of their rounding between Tc and T/Q. Only
 * if one of the neighbours is M, half way between two float32s, may these differ: M = m 2^(k-24) with m odd, and
 * B = M +- 2^(k-53). Times Q 2^(53-k), the distance of T/Q from B is the integer N = T 2^(53-k) - Q (m 2^29 +- 1),
 * 0 <= N < 2^23. Modulo 2^29, N = +-1: it is 1, and T 2^(53-k) = Q m 2^29 + 2^31, or T 2^(24-k) = Q m + 4. The left
 * side is even and the right one odd. (Among denormals M has fewer bits, and it does happen: sum 715828053, n 3,
 * E -128.) Where infinity begins, M is as among other numbers.
 */
static inline void dequantize_row(const uint8_t *in, size_t n, double scale, float *row)
{
    if (scale / QUANTUM < FLT_MIN) {
        for (size_t j = 0; j < n; j++)
            row[j] = (float)(get(in + 4 * j) * scale / QUANTUM);
    } else {
        for (size_t j = 0; j < n; j++)
            row[j] = (float)(get(in + 4 * j) * scale * (1.0 / QUANTUM));
    }
}

/* picked[i] answers positions[i], which is no header's. */
void deliver_run(const struct stream *s, const struct tensors *target, const uint8_t *const *picked,
                 const int64_t *positions, size_t count)
{
    size_t near = 0, n = 0;
    float room[MOST_ELEMENTS];
    for (size_t i = 0; i < count; i++) {
        const uint8_t *packet = picked[i], *in = packet + VALUES;
        uint64_t chunk = (uint64_t)positions[i] - s->headers;
        if (!is_float(s)) {
            uint32_t *row = find(target, s, chunk, &near, &n);
            deliver_int32(in, n, row);
            continue;
        }
        if (chunk < s->chunks) {
            s->exponents[chunk] = (int8_t)packet[E0];
            s->unsendable[chunk] = (int8_t)packet[E1] != UNUSED;
        }
        if (chunk >= s->ahead) {
            chunk -= s->ahead;
            void *values = find(target, s, chunk, &near, &n);
            float *row = s->dtype == DTYPE_FLOAT32 ? values : room;
            dequantize_row(in, n, scale_of(s->divisor, s->exponents[chunk]), row);
            if (row == room)
                store_float32(s, row, n, values);
        }
    }
}

/* For Python: packets[picked[i]] answers positions[i]. */
void deliver(const struct stream *s, const struct tensors *target, const uint8_t *packets, const int64_t *picked,
             const int64_t *positions, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const uint8_t *packet = packets + (size_t)picked[i] * stride_of(s);
        deliver_run(s, target, &packet, positions + i, 1);
    }
}
