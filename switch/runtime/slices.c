/* SPDX-License-Identifier: Apache-2.0 */
/* Bit-sliced matching (Lakshman and Stiliadis, SIGCOMM 1998) for tables whose entries have many masks or have
 * ranges, where a hash table per mask or a list of ranges would be walked entry by entry. Entries have slots, 512
 * to a block. For each nibble of the key that some mask touches a block has 16 lines of 512 bits: which slots fit
 * this nibble's value. A lookup ands one line per nibble. Of a range the top 8 bits are sliced likewise, so what is
 * left over is compared in full. */
#include <stdlib.h>

#include "tables.h"

#define BLOCK 512u
#define WORDS (BLOCK / 64)
#define TOPS 256u

typedef struct nibble {
    uint16_t word, shift;
} nibble;

struct sw_slices {
    size_t room, used, sorted; /* slots; the first `sorted` are ordered, best first */
    size_t lines;              /* of a block: live slots, 16 a nibble, 256 a range */
    unsigned nnibbles, nranges;
    nibble *nibbles;
    unsigned *shifts;  /* of each range: what is right of its top 8 bits */
    uint64_t *bits;    /* [room / BLOCK][lines][WORDS] */
    int64_t *priority; /* of each slot */
    int64_t *best;     /* of each block */
    sw_entry **entries;
};

/* v >> shift, TOPS where it is larger still */
static unsigned top(const uint64_t *v, unsigned n, unsigned shift) {
    unsigned w = shift >> 6, s = shift & 63;
    uint64_t x = v[w] >> s;
    if (s && w + 1 < n) {
        if (v[w + 1] >> s) return TOPS;
        x |= v[w + 1] << (64 - s);
    }
    for (unsigned i = w + (s ? 2 : 1); i < n; i++)
        if (v[i]) return TOPS;
    return x < TOPS ? (unsigned)x : TOPS;
}

static unsigned bit_length(const uint64_t *v, unsigned n) {
    while (n > 0 && v[n - 1] == 0) n--;
    return n == 0 ? 0 : 64 * n - (unsigned)__builtin_clzll(v[n - 1]);
}

void sw_slices_free(sw_slices *x) {
    if (x == NULL) return;
    free(x->nibbles);
    free(x->shifts);
    free(x->bits);
    free(x->priority);
    free(x->best);
    free(x->entries);
    free(x);
}

sw_entry *sw_slices_lookup(const sw_table *t, const uint64_t *key) {
    const sw_slices *x = t->slices;
    const sw_table_desc *d = t->desc;
    unsigned n = x->nnibbles + x->nranges;
    size_t lines[n + 1];
    lines[0] = 0;
    for (unsigned i = 0; i < x->nnibbles; i++)
        lines[i + 1] = 1 + 16 * i + (key[x->nibbles[i].word] >> x->nibbles[i].shift & 15);
    for (unsigned i = 0; i < x->nranges; i++) {
        unsigned v = top(key + d->ranges[i].word, d->ranges[i].nwords, x->shifts[i]);
        if (v == TOPS) return NULL; /* beyond every entry's range */
        lines[x->nnibbles + i + 1] = 1 + 16 * x->nnibbles + TOPS * i + v;
    }
    sw_entry *best = NULL;
    for (size_t b = 0; b * BLOCK < x->used; b++) {
        if (best != NULL && x->best[b] < best->priority) continue;
        const uint64_t *block = x->bits + b * x->lines * WORDS;
        uint64_t fit[WORDS], some = ~UINT64_C(0);
        memset(fit, 0xff, sizeof fit);
        for (unsigned i = 0; i <= n && some; i++) {
            const uint64_t *line = block + lines[i] * WORDS;
            some = 0;
            for (unsigned w = 0; w < WORDS; w++) some |= fit[w] &= line[w];
        }
        for (unsigned w = 0; some && w < WORDS; w++)
            for (uint64_t left = fit[w]; left; left &= left - 1) {
                size_t slot = b * BLOCK + w * 64 + (size_t)__builtin_ctzll(left);
                if (best != NULL && x->priority[slot] < best->priority) continue;
                sw_entry *e = x->entries[slot];
                if ((best != NULL && !sw_before(e, best)) || !sw_in_ranges(d, e, key)) continue;
                best = e;
                if (slot < x->sorted) goto next_block;
            }
    next_block:;
    }
    return best;
}

static bool covers(const sw_slices *x, const sw_table *t, const sw_entry *e, const uint64_t *mask) {
    const sw_table_desc *d = t->desc;
    uint64_t rest[d->words ? d->words : 1];
    memcpy(rest, mask, d->words * sizeof *rest);
    for (unsigned i = 0; i < x->nnibbles; i++) rest[x->nibbles[i].word] &= ~(UINT64_C(15) << x->nibbles[i].shift);
    for (unsigned i = 0; i < d->words; i++)
        if (rest[i]) return false;
    const uint64_t *r = e->ranges;
    for (unsigned i = 0; i < d->nranges; r += 2 * d->ranges[i++].nwords)
        if (top(r + d->ranges[i].nwords, d->ranges[i].nwords, x->shifts[i]) == TOPS) return false;
    return true;
}

bool sw_slices_fit(const sw_table *t, const sw_entry *e, const uint64_t *mask) {
    const sw_slices *x = t->slices;
    return x->used < x->room && covers(x, t, e, mask);
}

static void put(sw_slices *x, const sw_table_desc *d, sw_entry *e, const uint64_t *mask) {
    size_t slot = x->used++, b = slot / BLOCK;
    uint64_t *block = x->bits + b * x->lines * WORDS + slot % BLOCK / 64, bit = UINT64_C(1) << slot % 64;
    for (unsigned i = 0; i < x->nnibbles; i++) {
        nibble at = x->nibbles[i];
        unsigned m = mask[at.word] >> at.shift & 15, v = e->key[at.word] >> at.shift & 15;
        for (unsigned k = 0; k < 16; k++)
            if ((k & m) == v) block[(1 + 16 * i + k) * WORDS] |= bit;
    }
    const uint64_t *r = e->ranges;
    for (unsigned i = 0; i < d->nranges; i++) {
        unsigned n = d->ranges[i].nwords, low = top(r, n, x->shifts[i]), high = top(r + n, n, x->shifts[i]);
        for (unsigned k = low; k <= high; k++) block[(1 + 16 * x->nnibbles + TOPS * i + k) * WORDS] |= bit;
        r += 2 * n;
    }
    x->priority[slot] = e->priority;
    x->entries[slot] = e;
    if (e->priority > x->best[b]) x->best[b] = e->priority;
    e->slot = (uint32_t)slot;
    block[0] |= bit;
}

void sw_slices_insert(sw_table *t, sw_entry *e, const uint64_t *mask) { put(t->slices, t->desc, e, mask); }

void sw_slices_delete(sw_table *t, sw_entry *e) {
    sw_slices *x = t->slices;
    x->bits[e->slot / BLOCK * x->lines * WORDS + e->slot % BLOCK / 64] &= ~(UINT64_C(1) << e->slot % 64);
    x->entries[e->slot] = NULL;
}

static int order(const void *a, const void *b) {
    const sw_entry *x = *(sw_entry *const *)a, *y = *(sw_entry *const *)b;
    return sw_before(x, y) ? -1 : sw_before(y, x);
}

/* All entries of the table and the new one, with room for a quarter more: the unordered rest stays short, and
 * the cost of making this anew is shared by many inserts. */
sw_slices *sw_slices_make(const sw_table *t, sw_entry *e, const sw_group *own) {
    const sw_table_desc *d = t->desc;
    size_t n = 0, most = t->count + 1;
    sw_slices *x = calloc(1, sizeof *x);
    sw_entry **all = malloc(most * sizeof *all);
    uint64_t mask[d->words ? d->words : 1];
    unsigned length[d->nranges ? d->nranges : 1];
    if (x == NULL || all == NULL) goto no_memory;
    memcpy(mask, own->mask, d->words * sizeof *mask);
    for (size_t i = 0; i < t->ngroups; i++) {
        const sw_group *g = t->groups[i];
        for (unsigned w = 0; w < d->words; w++) mask[w] |= g->mask[w];
        for (size_t b = 0; b < g->nbuckets; b++)
            for (sw_entry *o = g->buckets[b]; o != NULL; o = o->next) all[n++] = o;
    }
    all[n++] = e;
    qsort(all, n, sizeof *all, order);
    memset(length, 0, sizeof length);
    for (size_t i = 0; i < n; i++) {
        const uint64_t *r = all[i]->ranges;
        for (unsigned k = 0; k < d->nranges; r += 2 * d->ranges[k++].nwords) {
            unsigned bits = bit_length(r + d->ranges[k].nwords, d->ranges[k].nwords);
            if (bits > length[k]) length[k] = bits;
        }
    }
    x->nranges = d->nranges;
    x->room = (n + (n / 4 > 256 ? n / 4 : 256) + BLOCK - 1) / BLOCK * BLOCK;
    x->nibbles = malloc((16u * d->words + 1) * sizeof *x->nibbles);
    x->shifts = malloc((d->nranges + 1u) * sizeof *x->shifts);
    if (x->nibbles == NULL || x->shifts == NULL) goto no_memory;
    for (unsigned w = 0; w < d->words; w++)
        for (unsigned s = 0; s < 64; s += 4)
            if (mask[w] >> s & 15) x->nibbles[x->nnibbles++] = (nibble){(uint16_t)w, (uint16_t)s};
    for (unsigned k = 0; k < d->nranges; k++) x->shifts[k] = length[k] > 8 ? length[k] - 8 : 0;
    x->lines = 1 + 16 * (size_t)x->nnibbles + TOPS * (size_t)x->nranges;
    size_t bytes = x->room / BLOCK * x->lines * WORDS * sizeof *x->bits;
    x->bits = aligned_alloc(64, bytes);
    x->priority = malloc(x->room * sizeof *x->priority);
    x->best = malloc(x->room / BLOCK * sizeof *x->best);
    x->entries = calloc(x->room, sizeof *x->entries);
    if (x->bits == NULL || x->priority == NULL || x->best == NULL || x->entries == NULL) goto no_memory;
    memset(x->bits, 0, bytes);
    for (size_t b = 0; b < x->room / BLOCK; b++) x->best[b] = INT64_MIN;
    for (size_t i = 0; i < n; i++) put(x, d, all[i], all[i] == e ? own->mask : all[i]->group->mask);
    x->sorted = n;
    free(all);
    return x;

no_memory:
    free(all);
    sw_slices_free(x);
    return NULL;
}
