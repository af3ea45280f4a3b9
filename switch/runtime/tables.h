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

/* The slices of a table with one more entry, whose group is known: they are to take the place of the table's under
 * the device's lock. NULL where there is no memory. */
sw_slices *sw_slices_with(const sw_table *t, sw_entry *e);
/* Frees slices whose place others have taken, and what these do not share with them. */
void sw_slices_retire(sw_slices *old, const sw_slices *now);
void sw_slices_free(sw_slices *x);
/* Under the device's lock. */
void sw_slices_delete(sw_table *t, sw_entry *e);
sw_entry *sw_slices_lookup(const sw_table *t, const uint64_t *key);

#endif
