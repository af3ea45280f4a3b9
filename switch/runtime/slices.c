/* SPDX-License-Identifier: Apache-2.0 */
/* Bit-sliced matching (Lakshman and Stiliadis, SIGCOMM 1998) for tables whose entries have many masks or have
 * ranges, where a hash table per mask or a list of ranges would be walked entry by entry. Entries stand in slots,
 * best first, up to 512 in a block. For each nibble of the key that some mask touches a block has 16 lines of 512
 * bits: which slots fit this nibble's value. A lookup ands one line per nibble; the first slot that is left wins. Of
 * a range the top 8 bits are sliced likewise, so what is left over is compared in full.
 *
 * An insert makes one block anew, or splits it, outside the device's lock; packets see the change at once. */
#include <stdlib.h>

#include "tables.h"

#define BLOCK 512u
#define WORDS (BLOCK / 64)
#define TOPS 256u

typedef struct nibble {
    uint16_t word, shift;
} nibble;

typedef struct block {
    int64_t priority; /* of the best entry that it had when it was made: no better one belongs here, but in */
    uint64_t handle;  /* the first block */
    unsigned used;
    sw_entry *entries[BLOCK]; /* NULL where one was deleted */
    uint64_t lines[][WORDS];  /* live slots, 16 a nibble, 256 a range */
} block;

struct sw_slices {
    size_t lines, nblocks;
    unsigned nnibbles, nranges;
    nibble *nibbles;
    unsigned *shifts; /* of each range: what is right of its top 8 bits */
    block **blocks;
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

static void shell_free(sw_slices *x) {
    free(x->nibbles);
    free(x->shifts);
    free(x->blocks);
    free(x);
}

void sw_slices_free(sw_slices *x) {
    if (x == NULL) return;
    for (size_t b = 0; x->blocks != NULL && b < x->nblocks; b++) free(x->blocks[b]);
    shell_free(x);
}

void sw_slices_retire(sw_slices *old, const sw_slices *now) {
    if (old == NULL) return;
    /* both are in order, and what they share stands in one run at each end */
    size_t first = 0, last = old->nblocks, end = now->nblocks;
    while (first < last && first < end && old->blocks[first] == now->blocks[first]) first++;
    while (last > first && end > first && old->blocks[last - 1] == now->blocks[end - 1]) last--, end--;
    for (size_t b = first; b < last; b++) free(old->blocks[b]);
    shell_free(old);
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
    for (size_t b = 0; b < x->nblocks; b++) {
        const block *k = x->blocks[b];
        uint64_t fit[WORDS], some = ~UINT64_C(0);
        memset(fit, 0xff, sizeof fit);
        for (unsigned i = 0; i <= n && some; i++) {
            some = 0;
            for (unsigned w = 0; w < WORDS; w++) some |= fit[w] &= k->lines[lines[i]][w];
        }
        for (unsigned w = 0; some && w < WORDS; w++)
            for (uint64_t left = fit[w]; left; left &= left - 1) {
                sw_entry *e = k->entries[w * 64 + (unsigned)__builtin_ctzll(left)];
                if (sw_in_ranges(d, e, key)) return e;
            }
    }
    return NULL;
}

static bool covers(const sw_slices *x, const sw_table *t, const sw_entry *e) {
    const sw_table_desc *d = t->desc;
    uint64_t rest[d->words ? d->words : 1];
    memcpy(rest, e->group->mask, d->words * sizeof *rest);
    for (unsigned i = 0; i < x->nnibbles; i++) rest[x->nibbles[i].word] &= ~(UINT64_C(15) << x->nibbles[i].shift);
    for (unsigned i = 0; i < d->words; i++)
        if (rest[i]) return false;
    const uint64_t *r = e->ranges;
    for (unsigned i = 0; i < d->nranges; r += 2 * d->ranges[i++].nwords)
        if (top(r + d->ranges[i].nwords, d->ranges[i].nwords, x->shifts[i]) == TOPS) return false;
    return true;
}

/* Sets an entry's bits in a slot that has none. */
static void put(const sw_slices *x, const sw_table_desc *d, block *k, unsigned slot, sw_entry *e) {
    unsigned w = slot / 64;
    uint64_t bit = UINT64_C(1) << slot % 64;
    for (unsigned i = 0; i < x->nnibbles; i++) {
        nibble at = x->nibbles[i];
        unsigned m = e->group->mask[at.word] >> at.shift & 15, v = e->key[at.word] >> at.shift & 15;
        for (unsigned n = 0; n < 16; n++)
            if ((n & m) == v) k->lines[1 + 16 * i + n][w] |= bit;
    }
    const uint64_t *r = e->ranges;
    for (unsigned i = 0; i < d->nranges; i++) {
        unsigned n = d->ranges[i].nwords, low = top(r, n, x->shifts[i]), high = top(r + n, n, x->shifts[i]);
        for (unsigned v = low; v <= high; v++) k->lines[1 + 16 * x->nnibbles + TOPS * i + v][w] |= bit;
        r += 2 * n;
    }
    k->entries[slot] = e;
    k->lines[0][w] |= bit;
}

/* NULL where there is no memory. */
static block *block_new(const sw_slices *x, const sw_table_desc *d, sw_entry *const *list, size_t n) {
    block *k = calloc(1, sizeof *k + x->lines * sizeof *k->lines);
    if (k == NULL) return NULL;
    k->priority = list[0]->priority;
    k->handle = list[0]->handle;
    k->used = (unsigned)n;
    for (unsigned i = 0; i < n; i++) put(x, d, k, i, list[i]);
    return k;
}

/* Where an entry belongs: at the first slot whose entry it is better than. */
static unsigned place(const block *k, const sw_entry *e) {
    unsigned low = 0, high = k->used;
    while (low < high) {
        unsigned middle = (low + high) / 2, at = middle;
        while (at < high && k->entries[at] == NULL) at++;
        if (at < high && sw_before(k->entries[at], e))
            low = at + 1;
        else
            high = middle;
    }
    return low;
}

/* A copy of a block with one more entry: in a deleted one's slot, else those behind it move up by one. */
static block *block_with(const sw_slices *x, const sw_table_desc *d, const block *old, sw_entry *e, unsigned at) {
    size_t size = sizeof *old + x->lines * sizeof *old->lines;
    block *k = malloc(size);
    if (k == NULL) return NULL;
    memcpy(k, old, size);
    bool reused = at < k->used && k->entries[at] == NULL;
    unsigned w = at / 64;
    uint64_t low = (UINT64_C(1) << at % 64) - 1;
    for (size_t i = 0; i < x->lines; i++) {
        uint64_t *line = k->lines[i];
        if (reused) {
            line[w] &= ~(low + 1);
            continue;
        }
        for (unsigned v = WORDS - 1; v > w; v--) line[v] = line[v] << 1 | line[v - 1] >> 63;
        line[w] = (line[w] & low) | (line[w] & ~low) << 1;
    }
    if (!reused) memmove(k->entries + at + 1, k->entries + at, (k->used++ - at) * sizeof *k->entries);
    put(x, d, k, at, e);
    return k;
}

static size_t block_of(const sw_slices *x, const sw_entry *e) {
    size_t low = 1, high = x->nblocks; /* the first block that starts behind e */
    while (low < high) {
        size_t middle = (low + high) / 2;
        const block *k = x->blocks[middle];
        if (e->priority > k->priority || (e->priority == k->priority && e->handle < k->handle))
            high = middle;
        else
            low = middle + 1;
    }
    return low - 1;
}

/* The same slices with one or two blocks in place of block b. */
static sw_slices *with_blocks(const sw_slices *old, size_t b, block *first, block *second) {
    sw_slices *x = malloc(sizeof *x);
    if (x == NULL) return NULL;
    *x = *old;
    x->nblocks += second != NULL;
    x->nibbles = malloc((x->nnibbles + 1u) * sizeof *x->nibbles);
    x->shifts = malloc((x->nranges + 1u) * sizeof *x->shifts);
    x->blocks = malloc(x->nblocks * sizeof(block *));
    if (x->nibbles == NULL || x->shifts == NULL || x->blocks == NULL) {
        shell_free(x);
        return NULL;
    }
    memcpy(x->nibbles, old->nibbles, x->nnibbles * sizeof *x->nibbles);
    memcpy(x->shifts, old->shifts, x->nranges * sizeof *x->shifts);
    memcpy(x->blocks, old->blocks, b * sizeof(block *));
    x->blocks[b] = first;
    if (second != NULL) x->blocks[b + 1] = second;
    memcpy(x->blocks + x->nblocks - (old->nblocks - b - 1), old->blocks + b + 1,
           (old->nblocks - b - 1) * sizeof(block *));
    return x;
}

static sw_slices *insert(const sw_slices *old, const sw_table_desc *d, sw_entry *e) {
    size_t b = block_of(old, e), n = 0;
    const block *k = old->blocks[b];
    unsigned at = place(k, e);
    block *first, *second = NULL;
    if (at > 0 && k->entries[at - 1] == NULL) at--;
    if (k->used < BLOCK || (at < k->used && k->entries[at] == NULL)) {
        first = block_with(old, d, k, e, at);
    } else {
        sw_entry *list[BLOCK + 1];
        for (unsigned i = 0; i <= k->used; i++) {
            if (i == at) list[n++] = e;
            if (i < k->used && k->entries[i] != NULL) list[n++] = k->entries[i];
        }
        /* in halves, but what comes in order fills its blocks */
        size_t half = n <= BLOCK ? n : at == k->used ? BLOCK : at == 0 ? 1 : n / 2;
        first = block_new(old, d, list, half);
        if (half < n && first != NULL && (second = block_new(old, d, list + half, n - half)) == NULL) {
            free(first);
            first = NULL;
        }
    }
    sw_slices *x = first == NULL ? NULL : with_blocks(old, b, first, second);
    if (x == NULL) {
        free(first);
        free(second);
    }
    return x;
}

void sw_slices_delete(sw_table *t, sw_entry *e) {
    block *k = t->slices->blocks[block_of(t->slices, e)];
    unsigned slot = 0;
    while (k->entries[slot] != e) slot++;
    k->lines[0][slot / 64] &= ~(UINT64_C(1) << slot % 64);
    k->entries[slot] = NULL;
}

static int order(const void *a, const void *b) {
    const sw_entry *x = *(sw_entry *const *)a, *y = *(sw_entry *const *)b;
    return sw_before(x, y) ? -1 : sw_before(y, x);
}

/* All entries of the table and the new one; blocks have room for a third more. */
static sw_slices *make(const sw_table *t, sw_entry *e) {
    const sw_table_desc *d = t->desc;
    size_t n = 0, most = t->count + 1, share = BLOCK / 4 * 3;
    sw_slices *x = calloc(1, sizeof *x);
    sw_entry **all = malloc(most * sizeof *all);
    uint64_t mask[d->words ? d->words : 1];
    unsigned length[d->nranges ? d->nranges : 1];
    if (x == NULL || all == NULL) goto no_memory;
    memcpy(mask, e->group->mask, d->words * sizeof *mask);
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
    x->nibbles = malloc((16u * d->words + 1) * sizeof *x->nibbles);
    x->shifts = malloc((d->nranges + 1u) * sizeof *x->shifts);
    x->blocks = malloc((n + share - 1) / share * sizeof(block *));
    if (x->nibbles == NULL || x->shifts == NULL || x->blocks == NULL) goto no_memory;
    for (unsigned w = 0; w < d->words; w++)
        for (unsigned s = 0; s < 64; s += 4)
            if (mask[w] >> s & 15) x->nibbles[x->nnibbles++] = (nibble){(uint16_t)w, (uint16_t)s};
    for (unsigned k = 0; k < d->nranges; k++) x->shifts[k] = length[k] > 8 ? length[k] - 8 : 0;
    x->lines = 1 + 16 * (size_t)x->nnibbles + TOPS * (size_t)x->nranges;
    for (size_t i = 0; i < n; i += share) {
        block *k = block_new(x, d, all + i, n - i < share ? n - i : share);
        if (k == NULL) goto no_memory;
        x->blocks[x->nblocks++] = k;
    }
    free(all);
    return x;

no_memory:
    free(all);
    sw_slices_free(x);
    return NULL;
}

sw_slices *sw_slices_with(const sw_table *t, sw_entry *e) {
    return t->slices != NULL && covers(t->slices, t, e) ? insert(t->slices, t->desc, e) : make(t, e);
}
