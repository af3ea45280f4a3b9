/* SPDX-License-Identifier: Apache-2.0 */
/* What generated programs and the runtime share. Not for callers: they use switch.h. */
#ifndef P4REDUCE_RUNTIME_H
#define P4REDUCE_RUNTIME_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "switch.h"
#include "trace.h"
#include "wide.h"

/* Limits on what one injected packet may cause; beyond them work is cut off and counted. */
#define SW_MAX_INGRESS_PASSES 256u
#define SW_MAX_EGRESS_PASSES 8192u
#define SW_MAX_PENDING 1024u
#define SW_STEP_BUDGET 1000000u
#define SW_PARSER_BUDGET 4096u
#define SW_DIGEST_QUEUE 4096u
#define SW_LOG_QUEUE 256u
#define SW_LOG_LINE 240u
#define SW_TRACE_ROOM (1u << 17) /* words */

#define SW_LIKELY(x) __builtin_expect(!!(x), 1)
#define SW_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define SW_UNUSED __attribute__((unused))

/* ---- tables: one structure for all match kinds. Entries with the same mask form a group with a hash
 * table of its own (tuple space search); exact tables have one group, lpm one per prefix length. Where that
 * would be many groups, or long chains of ranges, slices (slices.c) answer instead. */
typedef struct sw_meter sw_meter;

typedef struct sw_entry {
    struct sw_entry *next;
    uint64_t hash;
    int64_t priority; /* larger wins; the prefix length in lpm tables */
    uint64_t handle;  /* device.py's; earlier ones win among equals */
    uint64_t packets, bytes;
    uint64_t last_hit_us;
    sw_meter *meter;
    uint64_t *args;
    const uint64_t *ranges; /* lo then hi words of each range field, as in the table's range list */
    struct sw_group *group;
    uint32_t action;
    uint64_t key[]; /* masked */
} sw_entry;

typedef struct sw_group {
    sw_entry **buckets; /* linear hashing (Litwin, VLDB 1980): they grow one by one, never all at once */
    uint64_t *mask;
    size_t half, nbuckets, count; /* half is a power of two, half <= nbuckets <= 2 * half */
    int64_t best; /* no entry of the group has a higher priority */
} sw_group;

typedef struct sw_slices sw_slices; /* slices.c */

typedef struct sw_range_desc {
    uint16_t word, nwords; /* where the field stands in the key */
} sw_range_desc;

enum { SW_EXACT, SW_LPM, SW_TERNARY, SW_RANGE };

typedef struct sw_table_desc {
    uint16_t words; /* 64-bit words of the key */
    uint8_t kind;
    uint8_t nranges;
    uint8_t direct_meter; /* 0 none, 1 packets, 2 bytes */
    const sw_range_desc *ranges;
} sw_table_desc;

typedef struct sw_table {
    const sw_table_desc *desc;
    sw_group **groups; /* best priority first */
    size_t ngroups, room, count;
    sw_slices *slices; /* of a table with many masks, or many ranges: they answer instead of the groups */
    uint64_t seed;
    int64_t default_action; /* -1: none */
    uint64_t *default_args;
    sw_entry *miss; /* direct resources of the default entry */
} sw_table;

/* ---- action profiles. An entry of an indirect table has one argument, the address of its choice; a member
 * that stands alone is a choice of one. */
typedef struct sw_member {
    struct sw_member *next; /* of all, to free them */
    uint64_t *args;
    uint32_t action; /* its number in the profile's list of actions */
} sw_member;

typedef struct sw_choice {
    struct sw_choice *next;
    sw_member **members;
    uint32_t n;
} sw_choice;

static inline const sw_choice *sw_choice_of(const sw_entry *e) { return (const sw_choice *)(uintptr_t)e->args[0]; }

/* ---- counters, meters, registers */
typedef struct sw_counter {
    uint64_t packets, bytes;
} sw_counter;

struct sw_meter {
    double rate[2]; /* units per microsecond: committed, peak */
    uint64_t burst[2], tokens[2], last[2];
    uint64_t configured;
    sw_counter colors[3]; /* green, yellow, red */
};

/* ---- value sets of the parser */
typedef struct sw_vset_desc {
    uint16_t words, ncomponents; /* of the key */
    const sw_range_desc *components;
} sw_vset_desc;

typedef struct sw_vset {
    uint64_t *members; /* of each: masks, masked values, lows, highs; `words` each */
    uint32_t n;
} sw_vset;

typedef struct sw_array_desc {
    uint64_t size;
    uint8_t bytes; /* meters: counts bytes, not packets */
} sw_array_desc;

typedef struct sw_register_group {
    uint64_t size;
    uint32_t element; /* bytes of one element */
    uint32_t lanes;   /* arrays side by side */
} sw_register_group;

/* ---- replication */
typedef struct sw_replica {
    uint32_t port, rid;
} sw_replica;

typedef struct sw_fanout {
    uint32_t n, truncate, present;
    sw_replica *r;
} sw_fanout;

/* ---- one packet on its way */
typedef struct sw_pkt {
    _Alignas(32) const uint8_t *data;
    uint32_t len;
    uint32_t pos;         /* bytes parsed: the payload starts here */
    uint32_t ingress_len; /* what counters and meters count */
    uint32_t reg_len;     /* length as standard_metadata.packet_length shows it */
    uint32_t truncate;
    uint32_t steps;
    uint32_t error; /* parser error */
    uint32_t clone_list, resubmit_list, recirculate_list, digest_list;
    uint16_t clone_session; /* | 0x8000 */
    uint8_t exit, fault, checksum_error;
    sw_sum sum;     /* of data */
    sw_sum out_sum; /* of what the deparser wrote */
} sw_pkt;

typedef struct sw_digest {
    struct sw_digest *next;
    uint32_t list, words;
    uint64_t value[];
} sw_digest;

typedef struct sw_program {
    uint32_t abi;
    uint32_t ntables, ncounters, nmeters, ngroups, nvsets, nknown;
    const sw_table_desc *tables;
    const sw_vset_desc *vsets;
    const sw_array_desc *counters;
    const sw_array_desc *meters;
    const sw_register_group *groups;
    size_t phv_bytes, zeroed_bytes, scratch_bytes, header_bytes;
    uint8_t alike; /* whether the program tells when it treats a super-packet's segments differently: alike.py */
    void (*run)(sw *s, const sw_packet *in, const sw_sink *sink);
} sw_program;

extern const sw_program sw_the_program;

/* The sum of a header's content, 16 bits, 0 only where all bytes are: see emit_known.py. */
typedef struct sw_known {
    uint64_t version, sum;
} sw_known;

/* The counters that a packet went by, while one packet stands for several (alike.c). */
#define SW_TALLIES 64u
typedef struct sw_tallied {
    uint8_t on;
    uint32_t n;
    uint64_t *packets[SW_TALLIES], *bytes[SW_TALLIES];
} sw_tallied;

struct sw {
    const sw_program *prog;
    pthread_mutex_t mutex;
    pthread_cond_t turn;
    uint64_t next_ticket, serving;
    sw_table *tables;
    sw_counter **counters;
    sw_meter **meters;
    uint8_t **groups; /* register storage */
    sw_vset *vsets;
    sw_known *known;
    uint64_t versions; /* given out so far */
    sw_member *members;
    sw_choice *choices;
    sw_fanout *multicast;
    sw_fanout *sessions;
    uint8_t *scratch;   /* checksum inputs */
    uint8_t *phv[3];    /* the packet, what egress may change of it, its clone */
    uint8_t *out;       /* one deparsed packet */
    uint64_t start_ns, fixed_us, random;
    uint64_t now_us;
    uint32_t drop_port, clock_fixed;
    sw_digest *digest_first, *digest_last;
    uint32_t digests;
    uint32_t log_first, log_count;
    char (*log)[SW_LOG_LINE];
    uint64_t *trace; /* of traced programs */
    size_t trace_used;
    uint64_t trace_lost; /* events */
    uint8_t differs;     /* set by the program, see alike.py */
    sw_tallied tallied;
    uintptr_t *rows; /* of each register group, where sw_ahead was last */
    sw_stats stats;
};

uint64_t sw_now_us(const sw *s);
void sw_logf(sw *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sw_digest_push(sw *s, uint32_t list, const uint64_t *value, uint32_t words);
unsigned sw_meter_color(sw_meter *m, uint64_t now_us, uint32_t units);
bool sw_vset_match(const sw *s, uint32_t set, const uint64_t *key);
void sw_fault(sw *s, sw_pkt *k, const char *what, const char *where);
sw_entry *sw_lookup_many(const sw_table *t, const uint64_t *key);

/* Folded multiplication: both halves of each product, so that every bit of the key comes to the low ones. */
static inline uint64_t sw_hash_words(const uint64_t *key, unsigned n, uint64_t seed) {
    uint64_t h = seed;
    for (unsigned i = 0; i < n; i++) {
        sw_u128 product = (sw_u128)(h ^ key[i]) * 0x9E3779B97F4A7C15u;
        h = (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    return h;
}

static inline size_t sw_bucket(const sw_group *g, uint64_t hash) {
    size_t i = hash & (2 * g->half - 1);
    return i < g->nbuckets ? i : i - g->half;
}

static inline bool sw_same_words(const uint64_t *a, const uint64_t *b, unsigned n) {
    for (unsigned i = 0; i < n; i++)
        if (a[i] != b[i]) return false;
    return true;
}

/* Without a look at the hash in an entry: chains are short, and the key tells all. */
static inline sw_entry *sw_lookup_exact(const sw_table *t, const uint64_t *key, unsigned n) {
    if (t->ngroups == 0) return NULL;
    const sw_group *g = t->groups[0];
    sw_entry *e = g->buckets[sw_bucket(g, sw_hash_words(key, n, t->seed))];
    while (e != NULL && !sw_same_words(e->key, key, n)) e = e->next;
    return e;
}

/* Packets mostly take one slot after the other: fetches the one of the next packet while this one's is worked on. */
static inline SW_UNUSED void sw_ahead(sw *s, unsigned group, const void *row, size_t bytes) {
    uintptr_t at = (uintptr_t)row, next = at + (at - s->rows[group]);
    s->rows[group] = at;
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch((const void *)(next + i), 1);
}

static inline uint64_t sw_random(sw *s, uint64_t lo, uint64_t hi) {
    uint64_t z = (s->random += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    uint64_t n = hi - lo + 1;
    return n == 0 ? z : lo + z % n;
}

static inline void sw_count(sw_counter *c, const sw_pkt *k) {
    c->packets++;
    c->bytes += k->ingress_len;
}

/* The packet's color, counted; green where no rates were set. */
static inline SW_UNUSED unsigned sw_meter_run(sw_meter *m, uint64_t now_us, uint32_t units, const sw_pkt *k) {
    unsigned color = SW_UNLIKELY(m->configured) ? sw_meter_color(m, now_us, units) : 0;
    sw_count(&m->colors[color], k);
    return color;
}

void sw_tally_add(sw *s, uint64_t *packets, uint64_t *bytes);

static inline SW_UNUSED void sw_tally(sw *s, uint64_t *packets, uint64_t *bytes) {
    if (SW_UNLIKELY(s->tallied.on)) sw_tally_add(s, packets, bytes);
}

/* Writes values of any width one after the other, as checksum and hash inputs are laid out. */
typedef struct sw_bits {
    uint8_t *buf;
    size_t bit;
} sw_bits;

static inline void sw_bits_put(sw_bits *b, uint64_t v, unsigned width) {
    while (width > 0) {
        unsigned room = 8 - (unsigned)(b->bit & 7), n = width < room ? width : room;
        uint8_t part = (uint8_t)((v >> (width - n)) & ((1u << n) - 1));
        if ((b->bit & 7) == 0) b->buf[b->bit >> 3] = 0;
        b->buf[b->bit >> 3] |= (uint8_t)(part << (room - n));
        b->bit += n;
        width -= n;
    }
}

static inline void sw_bits_put_wide(sw_bits *b, const uint64_t *v, unsigned width) {
    unsigned top = width & 63;
    if (top) sw_bits_put(b, v[width >> 6], top);
    for (unsigned i = width >> 6; i-- > 0;) sw_bits_put(b, v[i], 64);
}

static inline void sw_bits_put_bytes(sw_bits *b, const uint8_t *v, size_t n) {
    if ((b->bit & 7) == 0) {
        memcpy(b->buf + (b->bit >> 3), v, n);
        b->bit += 8 * n;
        return;
    }
    for (size_t i = 0; i < n; i++) sw_bits_put(b, v[i], 8);
}

/* ---- one's complement sums of fields where they are: see emit_sum.py */
static inline uint64_t sw_halves(uint64_t v) { return (v & 0xffffffffu) + (v >> 32); }

static inline uint64_t sw_fold16(uint64_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

/* of words added up as they lie in memory, not big-endian: only the bytes of the sum are swapped then */
static inline uint64_t sw_swapped16(uint64_t sum) { return __builtin_bswap16((uint16_t)sw_fold16(sum)); }

static inline SW_UNUSED uint64_t sw_raw2(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline SW_UNUSED uint64_t sw_raw4(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return v; }

static inline uint64_t sw_csum16_of(uint64_t sum) { return (uint16_t)~sw_fold16(sum); }

/* of n fields in a row, at most 65536, in lanes of 32 bits; of 32-bit fields the sum modulo 2^32 and that of the
 * high halves tell the sum of the low halves */
static inline SW_UNUSED uint64_t sw_sum_run16(const void *header, size_t offset, size_t n) {
    const uint8_t *p = (const uint8_t *)header + offset;
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, p + i * sizeof v, sizeof v);
        sum += v;
    }
    return sum;
}

static inline SW_UNUSED uint64_t sw_sum_run32(const void *header, size_t offset, size_t n) {
    const uint8_t *p = (const uint8_t *)header + offset;
    uint32_t all = 0, high = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, p + i * sizeof v, sizeof v);
        all += v;
        high += v >> 16;
    }
    return (uint64_t)(all - (high << 16)) + high;
}

/* Loads such fields as sw_load_run16 and 32 do, and tells their sum. */
static inline SW_UNUSED uint64_t sw_load_sum16(void *to, const uint8_t *p, size_t n) {
    uint8_t *q = to;
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t v;
        memcpy(&v, p + i * sizeof v, sizeof v);
        v = __builtin_bswap16(v);
        memcpy(q + i * sizeof v, &v, sizeof v);
        sum += v;
    }
    return sum;
}

static inline SW_UNUSED uint64_t sw_load_sum32(void *to, const uint8_t *p, size_t n) {
    uint8_t *q = to;
    uint32_t all = 0, high = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t v;
        memcpy(&v, p + i * sizeof v, sizeof v);
        v = __builtin_bswap32(v);
        memcpy(q + i * sizeof v, &v, sizeof v);
        all += v;
        high += v >> 16;
    }
    return (uint64_t)(all - (high << 16)) + high;
}

/* Takes others, the sums of at most two parts, out of a sum. What is left may be 0xffff, or 0 because all bytes are:
 * the difference cannot tell, and the function returns false. */
static inline bool sw_sum_without(uint64_t others, uint64_t *sum) {
    *sum = sw_fold16(*sum + 2 * 0xffff - others);
    return *sum != 0xffff;
}

/* Whether what is known of a packet's bytes tells the sum of bytes from..to, at less cost than adding them up. */
bool sw_sum_out_of(const sw_sum *known, const uint8_t *data, uint32_t from, uint32_t to, uint64_t *sum);

#define SW_FEW_BYTES 32u
static inline SW_UNUSED bool sw_sum_of_part(const sw_sum *known, const uint8_t *data, uint32_t from, uint32_t to,
                                            uint64_t *sum) {
    uint32_t before = from - known->from;
    if (known->from == known->to) return false;
    if (known->to != to || before > SW_FEW_BYTES || before % 2 || to - known->from < 3 * SW_FEW_BYTES)
        return sw_sum_out_of(known, data, from, to, sum);
    /* all but some headers: few bytes, added up here */
    uint64_t others = 0;
    const uint8_t *p = data + known->from, *end = data + from;
    for (; end - p >= 4; p += 4) {
        others += sw_raw4(p);
        __asm__("" : "+r"(others)); /* no vectors */
    }
    if (p != end) others += sw_raw2(p);
    *sum = known->sum;
    return before == 0 || sw_sum_without(sw_swapped16(others), sum);
}

/* ---- hashes over bytes (hash.c) */
uint64_t sw_sum_bytes(const uint8_t *p, size_t n);
uint64_t sw_hash_csum16(const uint8_t *p, size_t n);
uint64_t sw_hash_crc16(const uint8_t *p, size_t n);
uint64_t sw_hash_crc32(const uint8_t *p, size_t n);
uint64_t sw_hash_crc_ccitt(const uint8_t *p, size_t n);
uint64_t sw_hash_crc8_custom(const uint8_t *p, size_t n);
uint64_t sw_hash_crc64_custom(const uint8_t *p, size_t n);
uint64_t sw_hash_xor16(const uint8_t *p, size_t n);
uint64_t sw_hash_xor32(const uint8_t *p, size_t n);
uint64_t sw_hash_identity(const uint8_t *p, size_t n);
uint64_t sw_hash_xxh64(const uint8_t *p, size_t n);

#endif
