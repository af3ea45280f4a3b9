/* SPDX-License-Identifier: Apache-2.0 */
/* What worker/kernels.py does with numpy, in one pass over memory and one call a burst. The bits are the same.
 *
 * Packets are worker's payloads (wire.packet.payload_dtype), back to back: `stride` bytes each, values big-endian
 * and unaligned. A tensor is `size` values; chunk c is values c * elements on, the last one may be short.
 */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if FLT_EVAL_METHOD == 1 || FLT_EVAL_METHOD == 2
#error "this processor computes float64 in more bits: numpy does the work"
#endif

enum { KIND = 0, TENSOR = 1, CHUNK = 2, PLACE = 6, E0 = 8, E1 = 9, VALUES = 10 }; /* bytes of a payload */

#define UNUSED (-128)
#define QUANTUM 2147483647.0
#define LIMIT_BITS 0x7F000000u /* of 2^127: no int8 exponent above it; infinity and NaN are greater still */

struct tensor {
    void *values;
    uint64_t size, elements;
};

static inline size_t stride_of(const struct tensor *t) { return VALUES + 4 * t->elements; }

static inline size_t length_of(const struct tensor *t, size_t chunk)
{
    size_t left = t->size - chunk * t->elements;
    return left < t->elements ? left : t->elements;
}

/* ---- which of received packets are awaited results: see Taken in worker/kernels.py */

#define PARKED 1e300
#define FLAG 8

struct taken {
    int64_t count, strays, in_order, highest, first;
    double sent_at;
};

/* The ring has 2 * window rows; chunk offset 0 lies in row `base`. `found` has room for m picked, then m offsets. */
void take(const uint8_t *ring, const int64_t *offset, double *deadline, const double *sent_at, const int32_t *tries,
          size_t window, size_t stride, unsigned kind, size_t base, const uint8_t *packets, size_t m, int64_t end,
          int64_t *found, struct taken *t)
{
    int64_t highest = t->highest;
    for (size_t i = 0; i < m; i++) {
        const uint8_t *p = packets + i * stride;
        size_t place = (size_t)p[PLACE] << 8 | p[PLACE + 1], slot = place & 0x7FFF;
        if ((p[KIND] & ~FLAG) != (int)kind || slot >= window) {
            t->strays++;
            continue;
        }
        size_t row = slot + (place >> 15) * window;
        if (memcmp(p + CHUNK, ring + row * stride + CHUNK, 4) != 0 || !(deadline[row] < PARKED))
            continue;
        if (tries[row] == 1 && offset[row] > highest && (!t->in_order++ || sent_at[row] > t->sent_at))
            t->sent_at = sent_at[row];
        deadline[row] = INFINITY;
        found[t->count] = (int64_t)i;
        found[m + t->count++] = offset[row];
        t->highest = offset[row] > t->highest ? offset[row] : t->highest;
    }
    while (t->first < end && isinf(deadline[(base + (size_t)t->first) % (2 * window)]))
        t->first++;
}

/* ---- filling packets, k of them from chunk `first` on */

void fill_heads(uint8_t *packets, size_t stride, size_t k, unsigned kind, unsigned tensor, uint32_t chunk)
{
    for (size_t i = 0; i < k; i++) {
        uint8_t *packet = packets + i * stride;
        uint32_t number = __builtin_bswap32(chunk + (uint32_t)i);
        packet[KIND] = (uint8_t)kind;
        packet[TENSOR] = (uint8_t)tensor;
        memcpy(packet + CHUNK, &number, 4);
        packet[E0] = packet[E1] = (uint8_t)UNUSED;
    }
}

void fill_int32(const struct tensor *t, size_t first, size_t k, uint8_t *packets)
{
    const uint32_t *values = t->values;
    for (size_t i = 0; i < k; i++) {
        size_t n = length_of(t, first + i);
        const uint32_t *row = values + (first + i) * t->elements;
        uint8_t *out = packets + i * stride_of(t) + VALUES;
        for (size_t j = 0; j < n; j++) {
            uint32_t v = __builtin_bswap32(row[j]);
            memcpy(out + 4 * j, &v, 4);
        }
        memset(out + 4 * n, 0, 4 * (t->elements - n));
    }
}

/* Each chunk's smallest exponent E >= -128 with 2^E > max|x|: the bits of |x| are ordered as |x| is. */
void fill_exponents(const struct tensor *t, size_t first, size_t k, uint8_t *packets, uint8_t *unsendable)
{
    const float *values = t->values;
    for (size_t i = 0; i < k; i++) {
        size_t n = length_of(t, first + i);
        const float *row = values + (first + i) * t->elements;
        uint32_t most = 0;
        for (size_t j = 0; j < n; j++) {
            uint32_t bits;
            memcpy(&bits, row + j, 4);
            bits &= 0x7FFFFFFFu;
            most = bits > most ? bits : most;
        }
        int bad = most >= LIMIT_BITS;
        int e = most >> 23 ? (int)(most >> 23) - 126 : most ? 32 - __builtin_clz(most) - 149 : UNUSED;
        uint8_t *packet = packets + i * stride_of(t);
        packet[E0] = (uint8_t)(bad || e < UNUSED ? UNUSED : e);
        packet[E1] = (uint8_t)(bad ? 0 : UNUSED);
        unsendable[i] = (uint8_t)bad;
    }
}

static inline void put(uint8_t *out, double v)
{
    uint32_t q = __builtin_bswap32((uint32_t)(int32_t)v);
    memcpy(out, &q, 4);
}

/* rint(x * QUANTUM / scale), the quotient taken as a product with 1 / scale. That is the quotient itself where
 * n is a power of two. Else product and quotient lie within 3 * 2^-53 of each other, relatively, so within 2^-20,
 * since they are below 2^31, and round alike unless a half lies between. Says whether one may. */
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

void fill_quantized(const struct tensor *t, size_t first, size_t k, const int8_t *exponents,
                    const uint8_t *unsendable, unsigned workers, uint8_t *packets)
{
    const float *values = t->values;
    int exact = (workers & (workers - 1)) == 0;
    for (size_t i = 0; i < k; i++) {
        size_t n = unsendable[i] ? 0 : length_of(t, first + i);
        const float *row = values + (first + i) * t->elements;
        uint8_t *out = packets + i * stride_of(t) + VALUES;
        double scale = ldexp(workers, exponents[i]);
        if (quantize_by_product(row, n, scale, out) && !exact)
            quantize_exactly(row, n, scale, out);
        memset(out + 4 * n, 0, 4 * (t->elements - n));
    }
}

/* ---- results: packets[picked[i]] answers place places[i] */

void deliver_int32(const struct tensor *t, const uint8_t *packets, const int64_t *picked, const int64_t *places,
                   size_t count)
{
    uint32_t *values = t->values;
    for (size_t i = 0; i < count; i++) {
        size_t chunk = (size_t)places[i], n = length_of(t, chunk);
        const uint8_t *in = packets + (size_t)picked[i] * stride_of(t) + VALUES;
        uint32_t *row = values + chunk * t->elements;
        for (size_t j = 0; j < n; j++) {
            uint32_t v;
            memcpy(&v, in + 4 * j, 4);
            row[j] = __builtin_bswap32(v);
        }
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

/* Places beyond the last chunk carry no exponent. */
void deliver_exponents(const uint8_t *packets, size_t stride, const int64_t *picked, const int64_t *places,
                       size_t count, int8_t *exponents, uint8_t *unsendable, size_t chunks)
{
    for (size_t i = 0; i < count; i++) {
        if (places[i] >= (int64_t)chunks)
            continue;
        const uint8_t *packet = packets + (size_t)picked[i] * stride;
        exponents[places[i]] = (int8_t)packet[E0];
        unsendable[places[i]] = (int8_t)packet[E1] != UNUSED;
    }
}

/* Negative places carry no values. */
void deliver_quantized(const struct tensor *t, const uint8_t *packets, const int64_t *picked, const int64_t *places,
                       size_t count, const int8_t *exponents, unsigned divisor)
{
    float *values = t->values;
    for (size_t i = 0; i < count; i++) {
        if (places[i] < 0)
            continue;
        size_t chunk = (size_t)places[i];
        const uint8_t *in = packets + (size_t)picked[i] * stride_of(t) + VALUES;
        double scale = ldexp(divisor, exponents[chunk]);
        dequantize_row(in, length_of(t, chunk), scale, values + chunk * t->elements);
    }
}
