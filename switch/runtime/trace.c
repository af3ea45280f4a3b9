/* SPDX-License-Identifier: Apache-2.0 */
/* The events of traced programs, until someone takes them. When there is no room, all that follow are counted. */
#include <stdlib.h>

#include "control.h"

int sw_trace_start(sw *s) {
    uint64_t *words = malloc(SW_TRACE_ROOM * sizeof *words);
    if (words == NULL) return -1;
    sw_lock(s);
    s->trace = words;
    sw_unlock(s);
    return 0;
}

void sw_trace(sw *s, uint32_t kind, uint64_t a, uint64_t b, const uint64_t *words, uint32_t n) {
    if (s->trace == NULL) return;
    if (s->trace_lost || SW_TRACE_ROOM - s->trace_used < 3u + n) {
        s->trace_lost++;
        return;
    }
    uint64_t *to = s->trace + s->trace_used;
    to[0] = kind | (uint64_t)n << 32;
    to[1] = a;
    to[2] = b;
    if (n) memcpy(to + 3, words, n * sizeof *words);
    s->trace_used += 3u + n;
}

size_t sw_trace_take(sw *s, uint64_t *words, uint64_t *lost) {
    sw_lock(s);
    size_t n = s->trace_used;
    if (n) memcpy(words, s->trace, n * sizeof *words);
    *lost = s->trace_lost;
    s->trace_used = 0;
    s->trace_lost = 0;
    sw_unlock(s);
    return n;
}
