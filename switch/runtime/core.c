/* SPDX-License-Identifier: Apache-2.0 */
/* One device: its memory, lock, clock, meters, replication, digests and log. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "control.h"

void sw_table_clear(sw_table *t);
void sw_profiles_clear(sw *s);
sw_entry *sw_miss_new(const sw_table_desc *d);
void sw_miss_clear(sw_entry *e);
void sw_entry_free(sw_entry *e);

/* ---- a ticket lock: first come, first served, so that neither side starves the other */
void sw_lock(sw *s) {
    pthread_mutex_lock(&s->mutex);
    uint64_t mine = s->next_ticket++;
    while (mine != s->serving) pthread_cond_wait(&s->turn, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
}

void sw_unlock(sw *s) {
    pthread_mutex_lock(&s->mutex);
    s->serving++;
    if (s->serving != s->next_ticket) pthread_cond_broadcast(&s->turn);
    pthread_mutex_unlock(&s->mutex);
}

/* ---- time */
static uint64_t monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t sw_now_us(const sw *s) {
    return s->clock_fixed ? s->fixed_us : (monotonic_ns() - s->start_ns) / 1000;
}

void sw_set_time(sw *s, uint64_t us) {
    sw_lock(s);
    s->clock_fixed = 1;
    s->fixed_us = us;
    sw_unlock(s);
}

/* ---- arrays: anonymous mappings, so that a large array costs memory only where it is used */
static size_t group_bytes(const sw_register_group *g) { return (size_t)g->size * g->element * g->lanes + 64; }

static void *zeroes(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void unmap(void *p, size_t bytes) {
    if (p != NULL) munmap(p, bytes);
}

static void clear_map(void *p, size_t bytes) {
    if (madvise(p, bytes, MADV_DONTNEED) != 0) memset(p, 0, bytes);
}

static void digests_clear(sw *s) {
    for (sw_digest *d = s->digest_first, *after; d != NULL; d = after) {
        after = d->next;
        free(d);
    }
    s->digest_first = s->digest_last = NULL;
    s->digests = 0;
}

static void fanouts_clear(sw *s) {
    for (uint32_t i = 0; i < 65536; i++) free(s->multicast[i].r);
    for (uint32_t i = 0; i < 32768; i++) free(s->sessions[i].r);
    memset(s->multicast, 0, 65536 * sizeof *s->multicast);
    memset(s->sessions, 0, 32768 * sizeof *s->sessions);
}

void sw_free(sw *s) {
    const sw_program *p = s->prog;
    if (s->tables != NULL)
        for (uint32_t i = 0; i < p->ntables; i++) sw_table_clear(&s->tables[i]);
    for (uint32_t i = 0; s->tables != NULL && i < p->ntables; i++) sw_entry_free(s->tables[i].miss);
    free(s->tables);
    sw_profiles_clear(s);
    for (uint32_t i = 0; s->vsets != NULL && i < p->nvsets; i++) free(s->vsets[i].members);
    free(s->vsets);
    free(s->known);
    for (uint32_t i = 0; s->counters != NULL && i < p->ncounters; i++)
        unmap(s->counters[i], p->counters[i].size * sizeof(sw_counter) + 64);
    for (uint32_t i = 0; s->meters != NULL && i < p->nmeters; i++)
        unmap(s->meters[i], p->meters[i].size * sizeof(sw_meter) + 64);
    for (uint32_t i = 0; s->groups != NULL && i < p->ngroups; i++) unmap(s->groups[i], group_bytes(&p->groups[i]));
    free(s->counters);
    free(s->meters);
    free(s->groups);
    free(s->rows);
    if (s->multicast != NULL && s->sessions != NULL) fanouts_clear(s);
    free(s->multicast);
    free(s->sessions);
    digests_clear(s);
    for (int i = 0; i < 3; i++) free(s->phv[i]);
    free(s->scratch);
    free(s->out);
    free(s->log);
    free(s->trace);
    pthread_cond_destroy(&s->turn);
    pthread_mutex_destroy(&s->mutex);
    free(s);
}

sw *sw_new(uint32_t drop_port, uint64_t seed) {
    const sw_program *p = &sw_the_program;
    sw *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    s->prog = p;
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->turn, NULL);
    s->drop_port = drop_port;
    s->random = seed;
    s->start_ns = monotonic_ns();
    bool ok = (s->tables = calloc(p->ntables + 1, sizeof *s->tables)) != NULL;
    ok &= (s->vsets = calloc(p->nvsets + 1, sizeof *s->vsets)) != NULL;
    ok &= (s->known = calloc(p->nknown + 1, sizeof *s->known)) != NULL;
    ok &= (s->counters = calloc(p->ncounters + 1, sizeof *s->counters)) != NULL;
    ok &= (s->meters = calloc(p->nmeters + 1, sizeof *s->meters)) != NULL;
    ok &= (s->groups = calloc(p->ngroups + 1, sizeof *s->groups)) != NULL;
    ok &= (s->rows = calloc(p->ngroups + 1, sizeof *s->rows)) != NULL;
    ok &= (s->multicast = calloc(65536, sizeof *s->multicast)) != NULL;
    ok &= (s->sessions = calloc(32768, sizeof *s->sessions)) != NULL;
    ok &= (s->log = calloc(SW_LOG_QUEUE, sizeof *s->log)) != NULL;
    size_t phv = (p->phv_bytes + 63) / 64 * 64;
    for (int i = 0; i < 3; i++) ok &= (s->phv[i] = aligned_alloc(64, phv ? phv : 64)) != NULL;
    ok &= (s->scratch = malloc(p->scratch_bytes + SW_MAX_PACKET + 64)) != NULL;
    ok &= (s->out = malloc(p->header_bytes + SW_MAX_PACKET + 64)) != NULL;
    for (uint32_t i = 0; ok && i < p->ntables; i++) {
        s->tables[i].desc = &p->tables[i];
        s->tables[i].default_action = -1;
        ok &= (s->tables[i].miss = sw_miss_new(&p->tables[i])) != NULL;
        s->tables[i].seed = seed * 0x9E3779B97F4A7C15u + i;
    }
    for (uint32_t i = 0; ok && i < p->ncounters; i++)
        ok &= (s->counters[i] = zeroes(p->counters[i].size * sizeof(sw_counter) + 64)) != NULL;
    for (uint32_t i = 0; ok && i < p->nmeters; i++)
        ok &= (s->meters[i] = zeroes(p->meters[i].size * sizeof(sw_meter) + 64)) != NULL;
    for (uint32_t i = 0; ok && i < p->ngroups; i++) ok &= (s->groups[i] = zeroes(group_bytes(&p->groups[i]))) != NULL;
    if (!ok) {
        sw_free(s);
        return NULL;
    }
    return s;
}

int sw_reset(sw *s) {
    const sw_program *p = s->prog;
    sw_lock(s);
    for (uint32_t i = 0; i < p->ntables; i++) sw_table_clear(&s->tables[i]);
    for (uint32_t i = 0; i < p->ntables; i++) sw_miss_clear(s->tables[i].miss);
    sw_profiles_clear(s);
    for (uint32_t i = 0; i < p->nvsets; i++) s->vsets[i].n = 0;
    for (uint32_t i = 0; i < p->ncounters; i++)
        clear_map(s->counters[i], p->counters[i].size * sizeof(sw_counter) + 64);
    for (uint32_t i = 0; i < p->nmeters; i++) clear_map(s->meters[i], p->meters[i].size * sizeof(sw_meter) + 64);
    for (uint32_t i = 0; i < p->ngroups; i++) clear_map(s->groups[i], group_bytes(&p->groups[i]));
    fanouts_clear(s);
    digests_clear(s);
    sw_unlock(s);
    return 0;
}

/* ---- meters: RFC 2698, colour blind, in the order simple_switch asks: peak, then committed */
unsigned sw_meter_color(sw_meter *m, uint64_t now_us, uint32_t units) {
    for (int i = 1; i >= 0; i--) {
        uint64_t total = (uint64_t)((double)now_us * m->rate[i]);
        uint64_t fresh = total > m->last[i] ? total - m->last[i] : 0;
        m->last[i] = total;
        uint64_t room = m->burst[i] - m->tokens[i];
        m->tokens[i] = fresh < room ? m->tokens[i] + fresh : m->burst[i];
        if (m->tokens[i] < units) return (unsigned)i + 1;
        m->tokens[i] -= units;
    }
    return 0;
}

/* mode 0 reads, 1 sets, 2 makes unconfigured; the result says whether it was configured before */
static int meter_access(sw_meter *m, double *rates, uint64_t *bursts, int mode) {
    int was = m->configured != 0;
    if (mode == 0) {
        for (int i = 0; i < 2; i++) {
            rates[i] = m->rate[i];
            bursts[i] = m->burst[i];
        }
    } else {
        memset(m, 0, offsetof(sw_meter, colors));
        for (int i = 0; mode == 1 && i < 2; i++) {
            m->rate[i] = rates[i];
            m->burst[i] = m->tokens[i] = bursts[i];
            m->configured = 1;
        }
    }
    return was;
}

int sw_meter_access(sw *s, uint32_t array, uint64_t index, double *rates, uint64_t *bursts, int mode) {
    sw_lock(s);
    int was = meter_access(&s->meters[array][index], rates, bursts, mode);
    sw_unlock(s);
    return was;
}

int sw_entry_meter(sw *s, sw_entry *e, double *rates, uint64_t *bursts, int mode) {
    sw_lock(s);
    int was = meter_access(e->meter, rates, bursts, mode);
    sw_unlock(s);
    return was;
}

/* ---- counters and registers */
void sw_entry_counter(sw *s, sw_entry *e, uint64_t *packets, uint64_t *bytes, int write) {
    sw_lock(s);
    if (write) {
        e->packets = *packets;
        e->bytes = *bytes;
    } else {
        *packets = e->packets;
        *bytes = e->bytes;
    }
    sw_unlock(s);
}

uint64_t sw_entry_idle_us(sw *s, sw_entry *e) {
    sw_lock(s);
    uint64_t now = sw_now_us(s), idle = now > e->last_hit_us ? now - e->last_hit_us : 0;
    sw_unlock(s);
    return idle;
}

sw_entry *sw_table_miss(sw *s, uint32_t table) { return s->tables[table].miss; }

static void colors_access(sw *s, sw_meter *m, uint64_t *values, int write) {
    sw_lock(s);
    if (write) memcpy(m->colors, values, sizeof m->colors);
    else memcpy(values, m->colors, sizeof m->colors);
    sw_unlock(s);
}

void sw_entry_colors(sw *s, sw_entry *e, uint64_t *values, int write) { colors_access(s, e->meter, values, write); }

void sw_meter_colors(sw *s, uint32_t array, uint64_t index, uint64_t *values, int write) {
    colors_access(s, &s->meters[array][index], values, write);
}

void sw_counter_access(sw *s, uint32_t array, uint64_t index, uint64_t n, uint64_t *values, int write) {
    sw_lock(s);
    sw_counter *c = s->counters[array] + index;
    if (write) memcpy(c, values, n * sizeof *c);
    else memcpy(values, c, n * sizeof *c);
    sw_unlock(s);
}

void sw_register_access(sw *s, uint32_t group, uint32_t lane, uint64_t index, uint64_t n, uint8_t *values, int write) {
    const sw_register_group *g = &s->prog->groups[group];
    sw_lock(s);
    for (uint64_t i = 0; i < n; i++) {
        uint8_t *at = s->groups[group] + ((index + i) * g->lanes + lane) * g->element;
        if (write) memcpy(at, values + i * g->element, g->element);
        else memcpy(values + i * g->element, at, g->element);
    }
    sw_unlock(s);
}

/* ---- replication */
static int fanout_set(sw *s, sw_fanout *f, const sw_replica *r, uint32_t n, uint32_t truncate, int present) {
    sw_replica *own = malloc((n ? n : 1) * sizeof *own);
    if (own == NULL) return -1;
    if (n) memcpy(own, r, n * sizeof *own);
    sw_lock(s);
    free(f->r);
    *f = (sw_fanout){.n = n, .truncate = truncate, .present = present != 0, .r = own};
    sw_unlock(s);
    return 0;
}

int sw_multicast_set(sw *s, uint32_t group, const sw_replica *r, uint32_t n, int present) {
    return fanout_set(s, &s->multicast[group & 0xffff], r, n, 0, present);
}

int sw_session_set(sw *s, uint32_t session, const sw_replica *r, uint32_t n, uint32_t truncate, int present) {
    return fanout_set(s, &s->sessions[session & 0x7fff], r, n, truncate, present);
}

/* ---- value sets */
bool sw_vset_match(const sw *s, uint32_t set, const uint64_t *key) {
    const sw_vset_desc *d = &s->prog->vsets[set];
    const uint64_t *m = s->vsets[set].members;
    for (uint32_t i = 0; i < s->vsets[set].n; i++, m += 4 * d->words) {
        bool fits = true;
        for (unsigned w = 0; w < d->words; w++) fits &= (key[w] & m[w]) == m[d->words + w];
        for (unsigned c = 0; fits && c < d->ncomponents; c++) {
            unsigned at = d->components[c].word, n = d->components[c].nwords;
            fits = sw_big_cmp(key + at, m + 2 * d->words + at, n, false) >= 0 &&
                   sw_big_cmp(key + at, m + 3 * d->words + at, n, false) <= 0;
        }
        if (fits) return true;
    }
    return false;
}

int sw_vset_set(sw *s, uint32_t set, const uint64_t *members, uint32_t n) {
    size_t bytes = (size_t)n * 4 * s->prog->vsets[set].words * sizeof *members;
    uint64_t *own = malloc(bytes ? bytes : 1);
    if (own == NULL) return -1;
    if (bytes) memcpy(own, members, bytes);
    sw_lock(s);
    uint64_t *old = s->vsets[set].members;
    s->vsets[set] = (sw_vset){.members = own, .n = n};
    sw_unlock(s);
    free(old);
    return 0;
}

/* ---- what the program tells the control plane: both queues are bounded and lose the newest */
void sw_digest_push(sw *s, uint32_t list, const uint64_t *value, uint32_t words) {
    sw_digest *d = s->digests < SW_DIGEST_QUEUE ? malloc(sizeof *d + words * sizeof *value) : NULL;
    if (d == NULL) {
        s->stats.digests_lost++;
        return;
    }
    d->next = NULL;
    d->list = list;
    d->words = words;
    memcpy(d->value, value, words * sizeof *value);
    if (s->digest_last != NULL) s->digest_last->next = d;
    else s->digest_first = d;
    s->digest_last = d;
    s->digests++;
}

uint32_t sw_digest_take(sw *s, uint32_t *list, uint64_t *value, uint32_t words) {
    sw_lock(s);
    sw_digest *d = s->digest_first;
    uint32_t n = 0;
    if (d != NULL) {
        s->digest_first = d->next;
        if (d->next == NULL) s->digest_last = NULL;
        s->digests--;
        n = d->words < words ? d->words : words;
        *list = d->list;
        memcpy(value, d->value, n * sizeof *value);
        n += 1; /* 0 means empty */
        free(d);
    }
    sw_unlock(s);
    return n;
}

void sw_logf(sw *s, const char *format, ...) {
    if (s->log_count == SW_LOG_QUEUE) return;
    char *line = s->log[(s->log_first + s->log_count++) % SW_LOG_QUEUE];
    va_list args;
    va_start(args, format);
    vsnprintf(line, SW_LOG_LINE, format, args);
    va_end(args);
}

int sw_log_take(sw *s, char *line) {
    sw_lock(s);
    int some = s->log_count > 0;
    if (some) {
        memcpy(line, s->log[s->log_first], SW_LOG_LINE);
        s->log_first = (s->log_first + 1) % SW_LOG_QUEUE;
        s->log_count--;
    }
    sw_unlock(s);
    return some;
}

void sw_fault(sw *s, sw_pkt *k, const char *what, const char *where) {
    if (!k->fault) sw_trace(s, SW_T_FAULT, (uintptr_t)what, (uintptr_t)where, NULL, 0);
    if (!k->fault) sw_logf(s, "packet dropped: %s%s%s", what, where[0] ? " at " : "", where);
    k->fault = 1;
}

void sw_stats_read(sw *s, sw_stats *out) {
    sw_lock(s);
    *out = s->stats;
    sw_unlock(s);
}

/* ---- packets */
void sw_process(sw *s, const sw_source *source, const sw_sink *sink) {
    sw_packet in;
    sw_lock(s);
    s->now_us = sw_now_us(s); /* one time for the batch: reading the clock costs a tenth of a packet */
    while (source->next(source->ctx, &in)) {
        if (in.len > SW_MAX_PACKET) {
            s->stats.too_long++;
            continue;
        }
        s->stats.received++;
        s->prog->run(s, &in, sink);
    }
    sw_unlock(s);
}
