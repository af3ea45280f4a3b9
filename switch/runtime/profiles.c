/* SPDX-License-Identifier: Apache-2.0 */
/* Action profiles: members, and the choices (a member alone, or a selector's group) that entries point to.
 * Python keeps the references: nothing is freed here that an entry or a choice still names. */
#include <stdlib.h>

#include "tables.h"

static int member_set(sw *s, sw_member *m, uint32_t action, const uint64_t *args, uint32_t nargs) {
    uint64_t *own = sw_copy_args(args, nargs);
    if (own == NULL) return -1;
    sw_lock(s);
    uint64_t *old = m->args;
    m->action = action;
    m->args = own;
    sw_unlock(s);
    free(old);
    return 0;
}

sw_member *sw_member_new(sw *s, uint32_t action, const uint64_t *args, uint32_t nargs) {
    sw_member *m = calloc(1, sizeof *m);
    if (m == NULL || member_set(s, m, action, args, nargs) != 0) {
        free(m);
        return NULL;
    }
    sw_lock(s);
    m->next = s->members;
    s->members = m;
    sw_unlock(s);
    return m;
}

int sw_member_modify(sw *s, sw_member *m, uint32_t action, const uint64_t *args, uint32_t nargs) {
    return member_set(s, m, action, args, nargs);
}

void sw_member_delete(sw *s, sw_member *m) {
    sw_lock(s);
    sw_member **at = &s->members;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    sw_unlock(s);
    free(m->args);
    free(m);
}

sw_choice *sw_choice_new(sw *s) {
    sw_choice *c = calloc(1, sizeof *c);
    if (c == NULL) return NULL;
    sw_lock(s);
    c->next = s->choices;
    s->choices = c;
    sw_unlock(s);
    return c;
}

int sw_choice_set(sw *s, sw_choice *c, sw_member *const *members, uint32_t n) {
    sw_member **own = malloc((n ? n : 1) * sizeof *own);
    if (own == NULL) return -1;
    if (n) memcpy(own, members, n * sizeof *own);
    sw_lock(s);
    sw_member **old = c->members;
    c->members = own;
    c->n = n;
    sw_unlock(s);
    free(old);
    return 0;
}

void sw_choice_delete(sw *s, sw_choice *c) {
    sw_lock(s);
    sw_choice **at = &s->choices;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    sw_unlock(s);
    free(c->members);
    free(c);
}

/* With the lock held, or on a device that nobody uses any more. */
void sw_profiles_clear(sw *s) {
    for (sw_choice *c = s->choices, *after; c != NULL; c = after) {
        after = c->next;
        free(c->members);
        free(c);
    }
    for (sw_member *m = s->members, *after; m != NULL; m = after) {
        after = m->next;
        free(m->args);
        free(m);
    }
    s->choices = NULL;
    s->members = NULL;
}
