/* SPDX-License-Identifier: Apache-2.0 */
/* Match tables: lookup, insert, delete. See runtime.h for the structure. */
#include <stdlib.h>

#include "tables.h"

void sw_entry_free(sw_entry *e) {
    if (e == NULL) return;
    free(e->args);
    free(e->meter);
    free(e);
}

sw_entry *sw_miss_new(const sw_table_desc *d) {
    sw_entry *e = calloc(1, sizeof *e);
    if (e == NULL || (d->direct_meter && (e->meter = calloc(1, sizeof *e->meter)) == NULL)) {
        free(e);
        return NULL;
    }
    return e;
}

void sw_miss_clear(sw_entry *e) {
    e->packets = e->bytes = 0;
    if (e->meter != NULL) memset(e->meter, 0, sizeof *e->meter);
}

/* Whether slices answer: one masked hash per group costs about as much as 256 slots. A table with ranges stays
 * with its slices, since in its groups one list may hold all entries. */
static bool slices_pay(const sw_table *t) {
    return t->desc->nranges ? t->slices != NULL || t->count >= 32 : t->ngroups > 16 + t->count / 256;
}

sw_entry *sw_lookup_many(const sw_table *t, const uint64_t *key) {
    if (t->slices != NULL && slices_pay(t)) return sw_slices_lookup(t, key);
    const sw_table_desc *d = t->desc;
    unsigned n = d->words;
    uint64_t masked[n ? n : 1];
    sw_entry *best = NULL;
    for (size_t i = 0; i < t->ngroups; i++) {
        const sw_group *g = t->groups[i];
        if (best != NULL && g->best < best->priority) break;
        for (unsigned w = 0; w < n; w++) masked[w] = key[w] & g->mask[w];
        uint64_t h = sw_hash_words(masked, n, t->seed);
        /* a chain is ordered, best first: the first that fits is the group's answer */
        for (sw_entry *e = g->buckets[sw_bucket(g, h)]; e != NULL; e = e->next) {
            if (e->hash != h || memcmp(e->key, masked, n * sizeof *masked) != 0) continue;
            if (d->nranges && !sw_in_ranges(d, e, key)) continue;
            if (best == NULL || sw_before(e, best)) best = e;
            break;
        }
    }
    return best;
}

static void chain_insert(sw_group *g, sw_entry *e) {
    sw_entry **at = &g->buckets[sw_bucket(g, e->hash)];
    while (*at != NULL && sw_before(*at, e)) at = &(*at)->next;
    e->next = *at;
    *at = e;
}

/* One bucket more: the entries of the next one to split that belong there move, in their order. */
static void split(sw_group *g) {
    size_t from = g->nbuckets - g->half;
    sw_entry *e = g->buckets[from], **low = &g->buckets[from], **high = &g->buckets[g->nbuckets++];
    for (; e != NULL; e = e->next) {
        sw_entry ***to = sw_bucket(g, e->hash) == from ? &low : &high;
        **to = e;
        *to = &e->next;
    }
    *low = *high = NULL;
}

static void group_free(sw_group *g) {
    for (size_t i = 0; i < g->nbuckets; i++)
        for (sw_entry *e = g->buckets[i], *after; e != NULL; e = after) {
            after = e->next;
            sw_entry_free(e);
        }
    free(g->buckets);
    free(g->mask);
    free(g);
}

static sw_group *group_new(const sw_table_desc *d, const uint64_t *mask) {
    sw_group *g = calloc(1, sizeof *g);
    if (g == NULL) return NULL;
    g->half = 8;
    g->nbuckets = 16;
    g->best = INT64_MIN;
    g->buckets = calloc(g->nbuckets, sizeof *g->buckets);
    g->mask = malloc((d->words ? d->words : 1) * sizeof *mask);
    if (g->buckets == NULL || g->mask == NULL) {
        free(g->buckets);
        free(g->mask);
        free(g);
        return NULL;
    }
    memcpy(g->mask, mask, d->words * sizeof *mask);
    return g;
}

static sw_group *group_find(const sw_table *t, const uint64_t *mask) {
    size_t bytes = t->desc->words * sizeof *mask;
    for (size_t i = 0; i < t->ngroups; i++)
        if (memcmp(t->groups[i]->mask, mask, bytes) == 0) return t->groups[i];
    return NULL;
}

/* Puts a group, whose best entry got better, where it belongs. */
static void move_up(sw_table *t, sw_group *g) {
    size_t at = 0, to = 0;
    while (t->groups[at] != g) at++;
    while (to < at && t->groups[to]->best >= g->best) to++;
    memmove(&t->groups[to + 1], &t->groups[to], (at - to) * sizeof *t->groups);
    t->groups[to] = g;
}

uint64_t *sw_copy_args(const uint64_t *args, uint32_t n) {
    uint64_t *c = malloc((n ? n : 1) * sizeof *c);
    if (c != NULL && n) memcpy(c, args, n * sizeof *c);
    return c;
}

static sw_entry *entry_new(const sw_table *t, const uint64_t *key, const uint64_t *mask, const uint64_t *ranges,
                           const uint64_t *args, uint32_t nargs) {
    const sw_table_desc *d = t->desc;
    size_t range_words = 0;
    for (unsigned i = 0; i < d->nranges; i++) range_words += 2u * d->ranges[i].nwords;
    sw_entry *e = calloc(1, sizeof *e + (d->words + range_words) * sizeof(uint64_t));
    if (e == NULL) return NULL;
    e->args = sw_copy_args(args, nargs);
    if (d->direct_meter) e->meter = calloc(1, sizeof *e->meter);
    if (e->args == NULL || (d->direct_meter && e->meter == NULL)) {
        sw_entry_free(e);
        return NULL;
    }
    for (unsigned i = 0; i < d->words; i++) e->key[i] = key[i] & mask[i];
    e->ranges = e->key + d->words;
    if (range_words) memcpy(e->key + d->words, ranges, range_words * sizeof *ranges);
    /* where slices answer, ranges tell apart entries that would make one long chain */
    unsigned hashed = d->words + (t->slices != NULL ? (unsigned)range_words : 0);
    e->hash = sw_hash_words(e->key, hashed, t->seed);
    return e;
}

/* Room for one more key of a small table, with what is there already; `keys` becomes its size. NULL where there is
 * no memory. */
static sw_entry **more_keys(const sw_table *t, uint64_t key, size_t *keys) {
    size_t n = 16;
    while (n <= key) n *= 2;
    sw_entry **list = calloc(n, sizeof *list);
    if (list != NULL && t->keys) memcpy(list, t->by_key, t->keys * sizeof *list);
    *keys = n;
    return list;
}

/* Memory is found and filled before the lock is taken, which is held for a few steps only. */
sw_entry *sw_table_insert(sw *s, uint32_t table, uint64_t handle, const uint64_t *key, const uint64_t *mask,
                          const uint64_t *ranges, int64_t priority, uint32_t action, const uint64_t *args,
                          uint32_t nargs) {
    sw_table *t = &s->tables[table];
    sw_entry *e = entry_new(t, key, mask, ranges, args, nargs);
    sw_group *g = group_find(t, mask), *fresh = g == NULL ? group_new(t->desc, mask) : NULL;
    sw_group **list = NULL;
    sw_entry **buckets = NULL;
    sw_entry **by_key = NULL;
    sw_slices *slices = NULL;
    size_t room = t->room, keys = t->keys;
    if (e == NULL || (g == NULL && fresh == NULL)) goto no_memory;
    if (fresh != NULL) g = fresh;
    e->handle = handle;
    e->action = action;
    e->priority = priority;
    e->group = g;
    if (fresh != NULL && t->ngroups == room) {
        room = room ? 2 * room : 1;
        if ((list = malloc(room * sizeof *list)) == NULL) goto no_memory;
        if (t->ngroups) memcpy(list, t->groups, t->ngroups * sizeof *list);
    }
    bool full = g->count >= g->nbuckets;
    if (full && g->nbuckets == 2 * g->half) {
        if ((buckets = malloc(2 * g->nbuckets * sizeof *buckets)) == NULL) goto no_memory;
        memcpy(buckets, g->buckets, g->nbuckets * sizeof *buckets);
    }
    if (t->desc->small && e->key[0] >= keys)
        if ((by_key = more_keys(t, e->key[0], &keys)) == NULL) goto no_memory;
    if (t->slices != NULL || slices_pay(t))
        if ((slices = sw_slices_with(t, e)) == NULL) goto no_memory;

    sw_lock(s);
    if (list != NULL) {
        sw_group **old = t->groups;
        t->groups = list;
        list = old;
        t->room = room;
    }
    if (fresh != NULL) t->groups[t->ngroups++] = g;
    if (buckets != NULL) {
        sw_entry **old = g->buckets;
        g->buckets = buckets;
        buckets = old;
        g->half = g->nbuckets;
    }
    if (by_key != NULL) {
        sw_entry **old = t->by_key;
        t->by_key = by_key;
        by_key = old;
        t->keys = keys;
    }
    if (full) split(g);
    e->last_hit_us = sw_now_us(s);
    chain_insert(g, e);
    g->count++;
    t->count++;
    if (priority > g->best) {
        g->best = priority;
        move_up(t, g);
    }
    if (t->desc->small) t->by_key[e->key[0]] = sw_lookup_exact(t, e->key, 1);
    if (slices != NULL) {
        sw_slices *old = t->slices;
        t->slices = slices;
        slices = old;
    }
    sw_unlock(s);
    free(list);
    free(buckets);
    free(by_key);
    sw_slices_retire(slices, t->slices);
    return e;

no_memory:
    sw_entry_free(e);
    if (fresh != NULL) group_free(fresh);
    free(list);
    free(buckets);
    free(by_key);
    return NULL;
}

int sw_table_modify(sw *s, uint32_t table, sw_entry *e, uint32_t action, const uint64_t *args, uint32_t nargs) {
    (void)table;
    uint64_t *own = sw_copy_args(args, nargs);
    if (own == NULL) return -1;
    sw_lock(s);
    uint64_t *old = e->args;
    e->args = own;
    e->action = action;
    sw_unlock(s);
    free(old);
    return 0;
}

void sw_table_delete(sw *s, uint32_t table, sw_entry *e) {
    sw_table *t = &s->tables[table];
    sw_group *g = e->group;
    sw_slices *slices = NULL;
    sw_lock(s);
    sw_entry **at = &g->buckets[sw_bucket(g, e->hash)];
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    if (t->slices != NULL) sw_slices_delete(t, e);
    if (--t->count == 0) {
        slices = t->slices;
        t->slices = NULL;
    }
    if (--g->count == 0) {
        size_t i = 0;
        while (t->groups[i] != g) i++;
        memmove(&t->groups[i], &t->groups[i + 1], (--t->ngroups - i) * sizeof *t->groups);
    } else {
        g = NULL;
    }
    if (t->desc->small) t->by_key[e->key[0]] = sw_lookup_exact(t, e->key, 1);
    sw_unlock(s);
    if (g != NULL) group_free(g);
    sw_slices_free(slices);
    sw_entry_free(e);
}

int sw_table_default(sw *s, uint32_t table, int64_t action, const uint64_t *args, uint32_t nargs) {
    uint64_t *own = sw_copy_args(args, nargs);
    if (own == NULL) return -1;
    sw_lock(s);
    sw_table *t = &s->tables[table];
    uint64_t *old = t->default_args;
    t->default_args = own;
    t->default_action = action;
    sw_unlock(s);
    free(old);
    return 0;
}

void sw_table_clear(sw_table *t) {
    for (size_t i = 0; i < t->ngroups; i++) group_free(t->groups[i]);
    free(t->groups);
    free(t->by_key);
    free(t->default_args);
    sw_slices_free(t->slices);
    t->groups = NULL;
    t->by_key = NULL;
    t->keys = 0;
    t->slices = NULL;
    t->ngroups = t->room = t->count = 0;
    t->default_args = NULL;
    t->default_action = -1;
}
