/* SPDX-License-Identifier: Apache-2.0 */
/* Bits and wide integers: loads and stores of packet bytes, and arithmetic on arrays of 64-bit limbs
 * (least significant first, two's complement) for values beyond 128 bits. */
#ifndef P4REDUCE_WIDE_H
#define P4REDUCE_WIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef unsigned __int128 sw_u128;
typedef __int128 sw_i128;

#define SW_INLINE static inline __attribute__((always_inline, unused))

typedef uint64_t sw_quad __attribute__((vector_size(32), aligned(32), may_alias));

/* Copies aligned bytes 32 at a time: a byte that is read soon out of a store of 64 takes some 70 cycles. */
SW_INLINE void sw_copy_quads(void *to, const void *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += sizeof(sw_quad)) {
        *(sw_quad *)((uint8_t *)to + at) = *(const sw_quad *)((const uint8_t *)from + at);
        __asm__ volatile("" ::: "memory"); /* else the compiler makes it 64 again */
    }
}

/* Copies bytes from..to of one to the other by whole cache lines: a store across two holds up reading. */
SW_INLINE void sw_copy_lines(void *other, const void *one, size_t from, size_t to) {
    from = from / 64 * 64;
    sw_copy_quads((uint8_t *)other + from, (const uint8_t *)one + from, (to + 63) / 64 * 64 - from);
}

SW_INLINE uint64_t sw_load2(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
SW_INLINE uint64_t sw_load4(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
SW_INLINE void sw_store2(uint8_t *p, uint64_t v) { uint16_t w = __builtin_bswap16((uint16_t)v); memcpy(p, &w, 2); }
SW_INLINE void sw_store4(uint8_t *p, uint64_t v) { uint32_t w = __builtin_bswap32((uint32_t)v); memcpy(p, &w, 4); }

/* n bytes, 0..8, big endian */
SW_INLINE uint64_t sw_load(const uint8_t *p, unsigned n) {
    switch (n) {
    case 0: return 0;
    case 1: return p[0];
    case 2: return sw_load2(p);
    case 3: return (uint64_t)p[0] << 16 | sw_load2(p + 1);
    case 4: return sw_load4(p);
    case 5: return (uint64_t)p[0] << 32 | sw_load4(p + 1);
    case 6: return sw_load2(p) << 32 | sw_load4(p + 2);
    case 7: return (uint64_t)p[0] << 48 | sw_load2(p + 1) << 32 | sw_load4(p + 3);
    default: { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
    }
}

SW_INLINE void sw_store(uint8_t *p, uint64_t v, unsigned n) {
    switch (n) {
    case 0: break;
    case 1: p[0] = (uint8_t)v; break;
    case 2: sw_store2(p, v); break;
    case 3: p[0] = (uint8_t)(v >> 16), sw_store2(p + 1, v); break;
    case 4: sw_store4(p, v); break;
    case 5: p[0] = (uint8_t)(v >> 32), sw_store4(p + 1, v); break;
    case 6: sw_store2(p, v >> 32), sw_store4(p + 2, v); break;
    case 7: p[0] = (uint8_t)(v >> 48), sw_store2(p + 1, v >> 32), sw_store4(p + 3, v); break;
    default: { uint64_t w = __builtin_bswap64(v); memcpy(p, &w, 8); }
    }
}

/* n consecutive fields of 16, 32 or 64 bits between a header and its bytes */
#define SW_RUN(BITS)                                                                    \
    static inline __attribute__((unused)) void sw_load_run##BITS(void *to, const uint8_t *p, size_t n) { \
        uint8_t *q = to;                                                                \
        for (size_t i = 0; i < n; i++) {                                                \
            uint##BITS##_t v;                                                           \
            memcpy(&v, p + i * sizeof v, sizeof v);                                     \
            v = __builtin_bswap##BITS(v);                                               \
            memcpy(q + i * sizeof v, &v, sizeof v);                                     \
        }                                                                               \
    }                                                                                   \
    static inline __attribute__((unused)) void sw_store_run##BITS(uint8_t *p, const void *from, size_t n) { \
        sw_load_run##BITS(p, (const uint8_t *)from, n);                                 \
    }
SW_RUN(16)
SW_RUN(32)
SW_RUN(64)

static inline __attribute__((unused)) void sw_load_run8(void *to, const uint8_t *p, size_t n) { memcpy(to, p, n); }
static inline __attribute__((unused)) void sw_store_run8(uint8_t *p, const void *from, size_t n) { memcpy(p, from, n); }

/* width bits that start `bit` bits after p, into limbs */
static inline __attribute__((unused)) void sw_load_wide(uint64_t *to, const uint8_t *p, size_t bit, unsigned width) {
    size_t end = bit + width;
    for (unsigned i = 0; width > 0; i++) {
        unsigned n = width < 64 ? width : 64;
        uint64_t v = 0;
        size_t at = end - n;
        for (unsigned got = 0; got < n;) {
            unsigned room = 8 - (unsigned)(at & 7), take = n - got < room ? n - got : room;
            v = (v << take) | ((p[at >> 3] >> (room - take)) & ((1u << take) - 1));
            at += take;
            got += take;
        }
        to[i] = v;
        end -= n;
        width -= n;
    }
}

/* whether two big-endian byte strings are the same number */
static inline __attribute__((unused)) bool sw_same_number(const uint8_t *a, size_t na, const uint8_t *b, size_t nb) {
    for (; na > nb; na--) if (*a++ != 0) return false;
    for (; nb > na; nb--) if (*b++ != 0) return false;
    return memcmp(a, b, na) == 0;
}

SW_INLINE uint64_t sw_shl64(uint64_t v, uint64_t n) { return n < 64 ? v << n : 0; }
SW_INLINE uint64_t sw_shr64(uint64_t v, uint64_t n) { return n < 64 ? v >> n : 0; }
SW_INLINE uint64_t sw_sar64(uint64_t v, uint64_t n) { return (uint64_t)((int64_t)v >> (n < 64 ? n : 63)); }
SW_INLINE sw_u128 sw_shl128(sw_u128 v, uint64_t n) { return n < 128 ? v << n : 0; }
SW_INLINE sw_u128 sw_shr128(sw_u128 v, uint64_t n) { return n < 128 ? v >> n : 0; }
SW_INLINE sw_u128 sw_sar128(sw_u128 v, uint64_t n) { return (sw_u128)((sw_i128)v >> (n < 128 ? n : 127)); }
SW_INLINE uint64_t sw_sext64(uint64_t v, unsigned bits) { return (uint64_t)((int64_t)(v << (64 - bits)) >> (64 - bits)); }
SW_INLINE sw_u128 sw_sext128(sw_u128 v, unsigned bits) { return (sw_u128)((sw_i128)(v << (128 - bits)) >> (128 - bits)); }
SW_INLINE sw_u128 sw_ld128(const uint64_t *p) { return ((sw_u128)p[1] << 64) | p[0]; }
SW_INLINE void sw_st128(uint64_t *p, sw_u128 v) { p[0] = (uint64_t)v; p[1] = (uint64_t)(v >> 64); }

/* 64 bits of v (n limbs) from bit `at` up; what lies beyond reads as zero */
SW_INLINE uint64_t sw_slice(const uint64_t *v, unsigned n, unsigned at) {
    unsigned i = at >> 6, r = at & 63;
    uint64_t lo = i < n ? v[i] >> r : 0;
    return r && i + 1 < n ? lo | (v[i + 1] << (64 - r)) : lo;
}

SW_INLINE void sw_big_from64(uint64_t *d, uint64_t v, unsigned n) {
    d[0] = v;
    for (unsigned i = 1; i < n; i++) d[i] = 0;
}
SW_INLINE void sw_big_from128(uint64_t *d, sw_u128 v, unsigned n) {
    sw_st128(d, v);
    for (unsigned i = 2; i < n; i++) d[i] = 0;
}
SW_INLINE void sw_big_copy(uint64_t *d, unsigned n, const uint64_t *a, unsigned na) {
    for (unsigned i = 0; i < n; i++) d[i] = i < na ? a[i] : 0;
}
/* Limb by limb, as below: what is copied has mostly just been stored so. */
SW_INLINE void sw_big_put(uint64_t *d, const uint64_t *a, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        uint64_t v = a[i];
        __asm__("" : "+r"(v));
        d[i] = v;
    }
}
SW_INLINE void sw_big_add(uint64_t *d, const uint64_t *a, const uint64_t *b, unsigned n) {
    sw_u128 c = 0;
    for (unsigned i = 0; i < n; i++) { c += (sw_u128)a[i] + b[i]; d[i] = (uint64_t)c; c >>= 64; }
}
SW_INLINE void sw_big_sub(uint64_t *d, const uint64_t *a, const uint64_t *b, unsigned n) {
    sw_u128 c = 1;
    for (unsigned i = 0; i < n; i++) { c += (sw_u128)a[i] + ~b[i]; d[i] = (uint64_t)c; c >>= 64; }
}
SW_INLINE void sw_big_mul(uint64_t *restrict d, const uint64_t *a, const uint64_t *b, unsigned n) {
    for (unsigned i = 0; i < n; i++) d[i] = 0;
    for (unsigned i = 0; i < n; i++) {
        sw_u128 c = 0;
        for (unsigned j = 0; i + j < n; j++) {
            c += (sw_u128)a[i] * b[j] + d[i + j];
            d[i + j] = (uint64_t)c;
            c >>= 64;
        }
    }
}
/* Limb by limb: a vector of limbs that were just stored one by one would have to wait for them. */
#define SW_BIG_BITWISE(NAME, OP)                                                               \
    SW_INLINE void sw_big_##NAME(uint64_t *d, const uint64_t *a, const uint64_t *b, unsigned n) { \
        for (unsigned i = 0; i < n; i++) {                                                     \
            uint64_t v = a[i] OP b[i];                                                         \
            __asm__("" : "+r"(v));                                                             \
            d[i] = v;                                                                          \
        }                                                                                      \
    }
SW_BIG_BITWISE(and, &)
SW_BIG_BITWISE(or, |)
SW_BIG_BITWISE(xor, ^)
SW_INLINE void sw_big_not(uint64_t *d, const uint64_t *a, unsigned n) {
    for (unsigned i = 0; i < n; i++) d[i] = ~a[i];
}
SW_INLINE void sw_big_shl(uint64_t *restrict d, const uint64_t *a, uint64_t by, unsigned n) {
    unsigned r = by & 63;
    uint64_t w = by >> 6;
    for (unsigned i = 0; i < n; i++) {
        uint64_t v = i >= w ? a[i - w] << r : 0;
        if (r && i >= w + 1) v |= a[i - w - 1] >> (64 - r);
        d[i] = v;
    }
}
/* arithmetic shift: `fill` is 0 or all ones, what comes in at the top */
SW_INLINE void sw_big_shr(uint64_t *restrict d, const uint64_t *a, uint64_t by, unsigned n, uint64_t fill) {
    unsigned r = by & 63;
    uint64_t w = by >> 6;
    for (unsigned i = 0; i < n; i++) {
        uint64_t lo = w < n && i + w < n ? a[i + w] : fill;
        uint64_t hi = w < n && i + w + 1 < n ? a[i + w + 1] : fill;
        d[i] = r ? (lo >> r) | (hi << (64 - r)) : lo;
    }
}
/* keep `bits` bits; above them zeros, or copies of the highest one */
SW_INLINE void sw_big_mask(uint64_t *d, unsigned n, unsigned bits) {
    for (unsigned i = 0; i < n; i++) {
        if (i > bits >> 6 || (i == bits >> 6 && (bits & 63) == 0)) d[i] = 0;
        else if (i == bits >> 6) d[i] &= ((uint64_t)1 << (bits & 63)) - 1;
    }
}
SW_INLINE void sw_big_sext(uint64_t *d, unsigned n, unsigned bits) {
    unsigned top = bits - 1;
    sw_big_mask(d, n, bits);
    if ((d[top >> 6] >> (top & 63)) & 1)
        for (unsigned i = 0; i < n; i++) {
            if (i > bits >> 6 || (i == bits >> 6 && (bits & 63) == 0)) d[i] = ~(uint64_t)0;
            else if (i == bits >> 6) d[i] |= ~(uint64_t)0 << (bits & 63);
        }
}
SW_INLINE int sw_big_cmp(const uint64_t *a, const uint64_t *b, unsigned n, bool is_signed) {
    if (is_signed && a[n - 1] != b[n - 1]) return (int64_t)a[n - 1] < (int64_t)b[n - 1] ? -1 : 1;
    for (unsigned i = n; i-- > 0;)
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    return 0;
}

#endif
