/* SPDX-License-Identifier: Apache-2.0 */
/* What tables.c, slices.c and profiles.c share. */
#ifndef P4REDUCE_TABLES_H
#define P4REDUCE_TABLES_H

#include "control.h"

static inline bool sw_in_ranges(const sw_table_desc *d, const sw_entry *e, const uint64_t *key) {
    const uint64_t *r = e->ranges;
    for (unsigned i = 0; i < d->nranges; i++) {
        unsigned n = d->ranges[i].nwords;
        const uint64_t *v = key + d->ranges[i].word;
        if (sw_big_cmp(v, r, n, false) < 0 || sw_big_cmp(v, r + n, n, false) > 0) return false;
        r += 2 * n;
    }
    return true;
}

static inline bool sw_before(const sw_entry *a, const sw_entry *b) {
    return a->priority > b->priority || (a->priority == b->priority && a->handle < b->handle);
}

/* NULL where there is no memory. */
uint64_t *sw_copy_args(const uint64_t *args, uint32_t n);

/* Slices are made, and asked whether an entry fits in, outside the device's lock; the rest happens under it. */
sw_slices *sw_slices_make(const sw_table *t, sw_entry *e, const sw_group *own);
void sw_slices_free(sw_slices *x);
bool sw_slices_fit(const sw_table *t, const sw_entry *e, const uint64_t *mask);
void sw_slices_insert(sw_table *t, sw_entry *e, const uint64_t *mask);
void sw_slices_delete(sw_table *t, sw_entry *e);
sw_entry *sw_slices_lookup(const sw_table *t, const uint64_t *key);

#endif
