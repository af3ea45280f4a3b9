/* SPDX-License-Identifier: Apache-2.0 */
/* One packet in place of several that the program cannot tell apart: see switch.h and switch/alike.py. */
#include "control.h"

void sw_tally_add(sw *s, uint64_t *packets, uint64_t *bytes) {
    sw_tallied *t = &s->tallied;
    if (t->n == SW_TALLIES) {
        s->differs = 1;
        return;
    }
    t->packets[t->n] = packets;
    t->bytes[t->n++] = bytes;
}

int sw_process_alike(sw *s, const sw_packet *in, uint32_t n, const sw_sink *sink, int (*agree)(void *ctx)) {
    sw_lock(s);
    s->now_us = sw_now_us(s);
    sw_stats before = s->stats;
    s->differs = !s->prog->alike;
    s->tallied.n = 0;
    s->tallied.on = s->prog->alike;
    s->stats.received++;
    s->prog->run(s, in, sink);
    s->tallied.on = 0;
    const sw_stats *now = &s->stats;
    int alike = !s->differs && now->too_long == before.too_long && now->over_budget == before.over_budget &&
                now->faults == before.faults && agree(sink->ctx);
    if (alike) {
        for (uint32_t i = 0; i < s->tallied.n; i++) {
            *s->tallied.packets[i] += n - 1;
            *s->tallied.bytes[i] += (uint64_t)(n - 1) * in->len;
        }
        s->stats.received += n - 1;
        s->stats.sent += (n - 1) * (now->sent - before.sent);
    }
    sw_unlock(s);
    return alike;
}
