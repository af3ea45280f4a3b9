/* SPDX-License-Identifier: Apache-2.0 */
/* The hash algorithms of v1model, as simple_switch computes them. */
#include "runtime.h"

/* One's complement sum of big-endian 16-bit words (RFC 1071), 0 only where all are; an odd last byte counts
 * as the high one. */
uint64_t sw_sum_bytes(const uint8_t *p, size_t n) {
    uint64_t sum = 0;
    size_t words = n / 4;
    for (size_t i = 0; i < words; i++) {
        uint32_t v;
        memcpy(&v, p + 4 * i, 4);
        sum += v;
    }
    p += 4 * words;
    if (n & 2) {
        uint16_t v;
        memcpy(&v, p, 2);
        sum += v;
        p += 2;
    }
    if (n & 1) sum += *p;
    return sw_swapped16(sum);
}

bool sw_sum_out_of(const sw_sum *known, const uint8_t *data, uint32_t from, uint32_t to, uint64_t *sum) {
    /* from < known->from and to > known->to make these too large */
    uint32_t size = to - from, before = from - known->from, after = known->to - to;
    if (to <= from || before > size / 2 || after > size / 2 - before || (before | size) & 1) return false;
    *sum = known->sum;
    if (before + after == 0) return true;
    return sw_sum_without(sw_sum_bytes(data + known->from, before) + sw_sum_bytes(data + to, after), sum);
}

uint64_t sw_hash_csum16(const uint8_t *p, size_t n) { return sw_csum16_of(sw_sum_bytes(p, n)); }

/* Reflected and plain byte-wise CRC tables, filled once. */
static uint16_t crc16_table[256], ccitt_table[256];
static uint32_t crc32_table[8][256];
static uint64_t crc64_table[256];
static uint8_t crc8_table[256];

static void fill_tables(void) {
    for (unsigned i = 0; i < 256; i++) {
        uint16_t a = (uint16_t)i, c = (uint16_t)(i << 8);
        uint32_t b = i;
        uint64_t d = i;
        uint8_t e = (uint8_t)i;
        for (int k = 0; k < 8; k++) {
            a = (uint16_t)((a >> 1) ^ (a & 1 ? 0xA001 : 0));
            b = (b >> 1) ^ (b & 1 ? 0xEDB88320u : 0);
            c = (uint16_t)((c << 1) ^ (c & 0x8000 ? 0x1021 : 0));
            d = (d >> 1) ^ (d & 1 ? 0xD800000000000000u : 0);
            e = (uint8_t)((e << 1) ^ (e & 0x80 ? 0x07 : 0));
        }
        crc16_table[i] = a;
        crc32_table[0][i] = b;
        ccitt_table[i] = c;
        crc64_table[i] = d;
        crc8_table[i] = e;
    }
    for (unsigned i = 0; i < 256; i++)
        for (unsigned k = 1; k < 8; k++)
            crc32_table[k][i] = (crc32_table[k - 1][i] >> 8) ^ crc32_table[0][crc32_table[k - 1][i] & 0xff];
}

__attribute__((constructor)) static void fill_tables_once(void) { fill_tables(); }

uint64_t sw_hash_crc16(const uint8_t *p, size_t n) {
    uint16_t r = 0;
    for (size_t i = 0; i < n; i++) r = (uint16_t)((r >> 8) ^ crc16_table[(r ^ p[i]) & 0xff]);
    return r;
}

uint64_t sw_hash_crc32(const uint8_t *p, size_t n) {
    uint32_t r = 0xffffffffu;
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t lo, hi;
        memcpy(&lo, p, 4);
        memcpy(&hi, p + 4, 4);
        lo ^= r;
        r = crc32_table[7][lo & 0xff] ^ crc32_table[6][(lo >> 8) & 0xff] ^ crc32_table[5][(lo >> 16) & 0xff] ^
            crc32_table[4][lo >> 24] ^ crc32_table[3][hi & 0xff] ^ crc32_table[2][(hi >> 8) & 0xff] ^
            crc32_table[1][(hi >> 16) & 0xff] ^ crc32_table[0][hi >> 24];
    }
    for (size_t i = 0; i < n; i++) r = (r >> 8) ^ crc32_table[0][(r ^ p[i]) & 0xff];
    return (uint32_t)~r;
}

uint64_t sw_hash_crc_ccitt(const uint8_t *p, size_t n) {
    uint16_t r = 0xffff;
    for (size_t i = 0; i < n; i++) r = (uint16_t)((r << 8) ^ ccitt_table[((r >> 8) ^ p[i]) & 0xff]);
    return r;
}

uint64_t sw_hash_crc8_custom(const uint8_t *p, size_t n) {
    uint8_t r = 0;
    for (size_t i = 0; i < n; i++) r = crc8_table[r ^ p[i]];
    return r;
}

uint64_t sw_hash_crc64_custom(const uint8_t *p, size_t n) {
    uint64_t r = 0;
    for (size_t i = 0; i < n; i++) r = (r >> 8) ^ crc64_table[(r ^ p[i]) & 0xff];
    return r;
}

uint64_t sw_hash_xor16(const uint8_t *p, size_t n) {
    uint16_t r = 0;
    for (size_t i = 0; i < n; i++) r ^= (uint16_t)(p[i] << (i % 2 ? 0 : 8));
    return r;
}

uint64_t sw_hash_xor32(const uint8_t *p, size_t n) {
    uint32_t r = 0;
    for (size_t i = 0; i < n; i++) r ^= (uint32_t)p[i] << (24 - 8 * (i % 4));
    return r;
}

uint64_t sw_hash_identity(const uint8_t *p, size_t n) {
    uint64_t r = 0;
    for (size_t i = 0; i < n && i < 8; i++) r = (r << 8) | p[i];
    return r;
}

/* XXH64 with seed 0, from the algorithm's published description. */
#define P1 0x9E3779B185EBCA87u
#define P2 0xC2B2AE3D27D4EB4Fu
#define P3 0x165667B19E3779F9u
#define P4 0x85EBCA77C2B2AE63u
#define P5 0x27D4EB2F165667C5u
static uint64_t rotl(uint64_t v, unsigned n) { return (v << n) | (v >> (64 - n)); }
static uint64_t xxh_round(uint64_t acc, uint64_t v) { return rotl(acc + v * P2, 31) * P1; }
static uint64_t read64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return v; }

uint64_t sw_hash_xxh64(const uint8_t *p, size_t n) {
    uint64_t h;
    size_t left = n;
    if (n >= 32) {
        uint64_t a[4] = {P1 + P2, P2, 0, 0u - P1};
        for (; left >= 32; left -= 32, p += 32)
            for (int i = 0; i < 4; i++) a[i] = xxh_round(a[i], read64(p + 8 * i));
        h = rotl(a[0], 1) + rotl(a[1], 7) + rotl(a[2], 12) + rotl(a[3], 18);
        for (int i = 0; i < 4; i++) h = (h ^ xxh_round(0, a[i])) * P1 + P4;
    } else {
        h = P5;
    }
    h += n;
    for (; left >= 8; left -= 8, p += 8) h = rotl(h ^ xxh_round(0, read64(p)), 27) * P1 + P4;
    if (left >= 4) {
        uint32_t v;
        memcpy(&v, p, 4);
        h = rotl(h ^ v * P1, 23) * P2 + P3;
        p += 4;
        left -= 4;
    }
    for (; left > 0; left--, p++) h = rotl(h ^ *p * P5, 11) * P1;
    h = (h ^ (h >> 33)) * P2;
    h = (h ^ (h >> 29)) * P3;
    return h ^ (h >> 32);
}
