/* SPDX-License-Identifier: Apache-2.0 */
/* Match tables: lookup, insert, delete. See runtime.h for the structure. */
#include <stdlib.h>

#include "control.h"

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

static bool in_ranges(const sw_table_desc *d, const sw_entry *e, const uint64_t *key) {
    const uint64_t *r = e->ranges;
    for (unsigned i = 0; i < d->nranges; i++) {
        unsigned n = d->ranges[i].nwords;
        const uint64_t *v = key + d->ranges[i].word;
        if (sw_big_cmp(v, r, n, false) < 0 || sw_big_cmp(v, r + n, n, false) > 0) return false;
        r += 2 * n;
    }
    return true;
}

sw_entry *sw_lookup_many(const sw_table *t, const uint64_t *key) {
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
        for (sw_entry *e = g->buckets[h & (g->nbuckets - 1)]; e != NULL; e = e->next) {
            if (e->hash != h || memcmp(e->key, masked, n * sizeof *masked) != 0) continue;
            if (d->nranges && !in_ranges(d, e, key)) continue;
            if (best == NULL || e->priority > best->priority ||
                (e->priority == best->priority && e->seq < best->seq))
                best = e;
            break;
        }
    }
    return best;
}

static bool before(const sw_entry *a, const sw_entry *b) {
    return a->priority > b->priority || (a->priority == b->priority && a->seq < b->seq);
}

static void chain_insert(sw_group *g, sw_entry *e) {
    sw_entry **at = &g->buckets[e->hash & (g->nbuckets - 1)];
    while (*at != NULL && before(*at, e)) at = &(*at)->next;
    e->next = *at;
    *at = e;
}

static int grow(sw_group *g) {
    size_t old = g->nbuckets, n = old ? 2 * old : 16;
    sw_entry **now = g->buckets, **next = calloc(n, sizeof *next);
    if (next == NULL) return -1;
    g->buckets = next;
    g->nbuckets = n;
    for (size_t i = 0; i < old; i++)
        for (sw_entry *e = now[i], *after; e != NULL; e = after) {
            after = e->next;
            chain_insert(g, e);
        }
    free(now);
    return 0;
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

static sw_group *group_for(sw_table *t, const uint64_t *mask) {
    size_t bytes = t->desc->words * sizeof *mask;
    for (size_t i = 0; i < t->ngroups; i++)
        if (memcmp(t->groups[i]->mask, mask, bytes) == 0) return t->groups[i];
    sw_group *g = calloc(1, sizeof *g);
    sw_group **list = realloc(t->groups, (t->ngroups + 1) * sizeof *list);
    if (list != NULL) t->groups = list;
    if (g == NULL || list == NULL || (g->mask = malloc(bytes ? bytes : 1)) == NULL || grow(g) != 0) {
        if (g != NULL) free(g->mask);
        free(g);
        return NULL;
    }
    memcpy(g->mask, mask, bytes);
    g->id = t->next_group_id++;
    g->best = INT64_MIN;
    t->groups[t->ngroups++] = g;
    return g;
}

static void sort_groups(sw_table *t) {
    for (size_t i = 1; i < t->ngroups; i++)
        for (size_t k = i; k > 0 && t->groups[k]->best > t->groups[k - 1]->best; k--) {
            sw_group *g = t->groups[k];
            t->groups[k] = t->groups[k - 1];
            t->groups[k - 1] = g;
        }
}

static uint64_t *copy_args(const uint64_t *args, uint32_t n) {
    uint64_t *c = malloc((n ? n : 1) * sizeof *c);
    if (c != NULL && n) memcpy(c, args, n * sizeof *c);
    return c;
}

sw_entry *sw_table_insert(sw *s, uint32_t table, const uint64_t *key, const uint64_t *mask, const uint64_t *ranges,
                          int64_t priority, uint32_t action, const uint64_t *args, uint32_t nargs) {
    sw_table *t = &s->tables[table];
    const sw_table_desc *d = t->desc;
    size_t range_words = 0;
    for (unsigned i = 0; i < d->nranges; i++) range_words += 2u * d->ranges[i].nwords;
    sw_entry *e = calloc(1, sizeof *e + (d->words + range_words) * sizeof(uint64_t));
    uint64_t *own = copy_args(args, nargs);
    sw_meter *meter = d->direct_meter ? calloc(1, sizeof *meter) : NULL;
    if (e == NULL || own == NULL || (d->direct_meter && meter == NULL)) goto no_memory;
    for (unsigned i = 0; i < d->words; i++) e->key[i] = key[i] & mask[i];
    e->ranges = e->key + d->words;
    if (range_words) memcpy(e->key + d->words, ranges, range_words * sizeof *ranges);
    e->args = own;
    e->meter = meter;
    e->action = action;
    e->priority = priority;
    e->hash = sw_hash_words(e->key, d->words, t->seed);

    sw_lock(s);
    sw_group *g = group_for(t, mask);
    if (g == NULL || (g->count >= g->nbuckets && grow(g) != 0)) {
        sw_unlock(s);
        goto no_memory;
    }
    e->seq = t->seq++;
    e->group = g->id;
    e->last_hit_us = sw_now_us(s);
    chain_insert(g, e);
    g->count++;
    if (priority > g->best) {
        g->best = priority;
        sort_groups(t);
    }
    sw_unlock(s);
    return e;

no_memory:
    free(e);
    free(own);
    free(meter);
    return NULL;
}

int sw_table_modify(sw *s, uint32_t table, sw_entry *e, uint32_t action, const uint64_t *args, uint32_t nargs) {
    (void)table;
    uint64_t *own = copy_args(args, nargs);
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
    sw_lock(s);
    sw_table *t = &s->tables[table];
    for (size_t i = 0; i < t->ngroups; i++) {
        sw_group *g = t->groups[i];
        if (g->id != e->group) continue;
        sw_entry **at = &g->buckets[e->hash & (g->nbuckets - 1)];
        while (*at != e) at = &(*at)->next;
        *at = e->next;
        if (--g->count == 0) {
            memmove(&t->groups[i], &t->groups[i + 1], (t->ngroups - i - 1) * sizeof *t->groups);
            t->ngroups--;
            group_free(g);
        }
        break;
    }
    sw_unlock(s);
    sw_entry_free(e);
}

int sw_table_default(sw *s, uint32_t table, int64_t action, const uint64_t *args, uint32_t nargs) {
    uint64_t *own = copy_args(args, nargs);
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
    free(t->default_args);
    t->groups = NULL;
    t->ngroups = 0;
    t->default_args = NULL;
    t->default_action = -1;
}
