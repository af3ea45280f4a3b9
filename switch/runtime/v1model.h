/* SPDX-License-Identifier: Apache-2.0 */
/* The v1model target: what happens to a packet between the program's blocks, in simple_switch's order
 * (targets/simple_switch/simple_switch.cpp of p4lang/behavioral-model). Included at the end of a generated
 * program, which has defined the type `phv` and
 *   p4_parse p4_ingress p4_egress p4_deparse p4_reset_metadata p4_put_back p4_copy_list p4_digest
 *   sm_get_X sm_set_X */
#ifndef P4REDUCE_V1MODEL_H
#define P4REDUCE_V1MODEL_H

#include <stdlib.h>

enum { SM_NORMAL = 0, SM_INGRESS_CLONE = 1, SM_EGRESS_CLONE = 2, SM_RECIRC = 4, SM_REPLICATION = 5, SM_RESUBMIT = 6 };

/* Work that waits: a packet on its way back to ingress, or an egress clone on its way to egress. */
typedef struct sw_job {
    struct sw_job *next;
    phv h;
    sw_pkt k;
    uint32_t port, egress;
    uint8_t bytes[];
} sw_job;

typedef struct sw_run {
    sw *s;
    const sw_sink *sink;
    sw_job *first, *last;           /* to ingress */
    sw_job *egress_first, *egress_last; /* to egress */
    uint32_t pending, ingress_passes, egress_passes;
} sw_run;

static void sw_pkt_clear(sw_pkt *k) {
    k->clone_list = k->resubmit_list = k->recirculate_list = k->digest_list = 0;
    k->clone_session = 0;
    k->exit = 0;
}

static sw_job *sw_job_new(sw_run *r, const uint8_t *data, uint32_t len) {
    size_t bytes = (sizeof(sw_job) + len + 63) / 64 * 64; /* aligned as a phv may have to be */
    sw_job *j = r->pending < SW_MAX_PENDING ? aligned_alloc(64, bytes) : NULL;
    if (j == NULL) {
        r->s->stats.over_budget++;
        SW_TRACE(r->s, DROPPED, SW_D_BUDGET, 0);
        return NULL;
    }
    r->pending++;
    memset(&j->h, 0, sizeof j->h);
    memset(&j->k, 0, sizeof j->k);
    j->next = NULL;
    memcpy(j->bytes, data, len);
    j->k.data = j->bytes;
    j->k.len = j->k.ingress_len = j->k.reg_len = len;
    j->k.truncate = UINT32_MAX;
    return j;
}

static void sw_push(sw_job **first, sw_job **last, sw_job *j) {
    if (*last != NULL) (*last)->next = j;
    else *first = j;
    *last = j;
}

static void sw_egress(sw_run *r, phv *h, sw_pkt *k, uint32_t port);

static void sw_to_egress(sw_run *r, phv *h, sw_pkt *k, uint32_t port) {
    if (sm_get_priority(h) != 0) { /* simple_switch has one queue a port and drops other priorities */
        SW_TRACE(r->s, DROPPED, SW_D_PRIORITY, 0);
        return;
    }
    sm_set_enq_timestamp(h, r->s->now_us);
    sm_set_enq_qdepth(h, 0);
    sw_egress(r, h, k, port);
}

/* A copy starts with all of the packet's bytes: simple_switch's truncate() does not pass on to copies. */
static uint32_t sw_copy_length(uint32_t of_session) {
    return of_session ? of_session : UINT32_MAX;
}

/* Leaves h as the last copy's egress did: between copies only what egress can change is put back. */
static void sw_replicate(sw_run *r, phv *h, const sw_pkt *k, const sw_fanout *f, uint32_t truncate) {
    phv *before = (phv *)r->s->phv[1];
    if (f->n > 1) p4_put_back(before, h);
    for (uint32_t i = 0; i < f->n; i++) {
        sw_pkt kk;
        sw_copy_quads(&kk, k, sizeof kk);
        sw_pkt_clear(&kk);
        kk.truncate = sw_copy_length(truncate);
        if (i > 0) p4_put_back(h, before);
        sm_set_egress_rid(h, f->r[i].rid);
        sw_to_egress(r, h, &kk, f->r[i].port);
    }
}

static void sw_egress_clone(sw_run *r, const phv *h, const sw_pkt *k) {
    const sw_fanout *f = &r->s->sessions[k->clone_session & 0x7fff];
    SW_TRACE(r->s, CLONE, k->clone_session & 0x7fff, f->present ? f->n : 0);
    for (uint32_t i = 0; f->present && i < f->n; i++) {
        sw_job *j = sw_job_new(r, k->data, k->len);
        if (j == NULL) return;
        memcpy(&j->h, h, sizeof j->h);
        p4_reset_metadata(&j->h);
        p4_copy_list(k->clone_list, &j->h, h);
        sm_set_instance_type(&j->h, SM_EGRESS_CLONE);
        if (f->r[i].rid) sm_set_egress_rid(&j->h, f->r[i].rid);
        j->k = *k;
        j->k.data = j->bytes;
        sw_pkt_clear(&j->k);
        j->k.truncate = sw_copy_length(f->truncate);
        j->port = f->r[i].port;
        sw_push(&r->egress_first, &r->egress_last, j);
    }
}

/* What is known of the payload, `header` bytes being put before it. */
static void sw_payload_sum(sw_pkt *k, uint32_t header) {
    uint32_t from = k->sum.from > k->pos ? k->sum.from : k->pos;
    uint64_t sum;
    if (!sw_sum_of_part(&k->sum, k->data, from, k->sum.to, &sum)) return;
    k->out_sum.from = header + (from - k->pos);
    k->out_sum.to = header + (k->sum.to - k->pos);
    k->out_sum.sum = (uint32_t)sum;
}

static void sw_egress(sw_run *r, phv *h, sw_pkt *k, uint32_t port) {
    sw *s = r->s;
    if (r->egress_passes++ >= SW_MAX_EGRESS_PASSES) {
        s->stats.over_budget++;
        SW_TRACE(s, DROPPED, SW_D_BUDGET, 0);
        return;
    }
    SW_TRACE_WORDS(s, EGRESS, port, sm_get_egress_rid(h), (uint64_t[]){sm_get_instance_type(h)}, 1);
    sm_set_egress_global_timestamp(h, s->now_us);
    sm_set_deq_timedelta(h, 0);
    sm_set_deq_qdepth(h, 0);
    sm_set_egress_port(h, port);
    sm_set_egress_spec(h, s->drop_port + 1);
    sm_set_packet_length(h, k->reg_len);
    k->exit = 0;
    k->steps = 0;
    p4_egress(s, k, h);
    if (k->fault) {
        s->stats.faults++;
        SW_TRACE(s, DROPPED, SW_D_FAULT, 0);
        return;
    }
    if (k->clone_session) {
        sw_egress_clone(r, h, k);
        k->clone_session = 0;
    }
    if (sm_get_egress_spec(h) == s->drop_port) {
        SW_TRACE(s, DROPPED, SW_D_EGRESS, 0);
        return;
    }
    uint32_t payload = k->len - k->pos;
    uint8_t *out = NULL;
    if (r->sink->place != NULL) out = r->sink->place(r->sink->ctx, port, (uint32_t)s->prog->header_bytes + payload);
    if (out == NULL) out = s->out;
    uint32_t header = p4_deparse(s, k, h, out), len = header + payload;
    if (k->fault) {
        s->stats.faults++;
        SW_TRACE(s, DROPPED, SW_D_FAULT, 0);
        return;
    }
    const uint8_t *bytes = out;
    if (header == 0) bytes = k->data + k->pos;
    else memcpy(out + header, k->data + k->pos, payload);
    if (len > SW_MAX_PACKET) {
        s->stats.too_long++;
        SW_TRACE(s, DROPPED, SW_D_TOO_LONG, 0);
        return;
    }
    if (k->recirculate_list) {
        SW_TRACE(s, RECIRCULATE, 0, 0);
        sw_job *j = sw_job_new(r, bytes, len);
        if (j == NULL) return;
        p4_copy_list(k->recirculate_list, &j->h, h);
        sm_set_instance_type(&j->h, SM_RECIRC);
        sm_set_packet_length(&j->h, len);
        sw_push(&r->first, &r->last, j);
        return;
    }
    SW_TRACE(s, SENT, port, len);
    s->stats.sent++;
    if (len > k->truncate) len = k->truncate;
    if (k->out_sum.from == k->out_sum.to) sw_payload_sum(k, header);
    if (k->out_sum.to > len) k->out_sum.to = k->out_sum.from;
    r->sink->emit(r->sink->ctx, port, bytes, len, &k->out_sum);
}

static void sw_ingress_clone(sw_run *r, const phv *h, const sw_pkt *k, uint32_t ingress_port) {
    sw *s = r->s;
    const sw_fanout *f = &s->sessions[k->clone_session & 0x7fff];
    SW_TRACE(s, CLONE, k->clone_session & 0x7fff, f->present ? f->n : 0);
    if (!f->present || f->n == 0) return;
    /* The clone starts from the original bytes: they are parsed again, knowing only the ingress port
     * (behavioral-model issue 795), then all metadata goes and the field list comes. */
    phv *c = (phv *)s->phv[2];
    memset(c, 0, sizeof *c);
    sw_pkt kk = {.data = k->data, .len = k->len, .ingress_len = k->ingress_len, .reg_len = k->ingress_len,
                 .truncate = UINT32_MAX};
    sm_set_ingress_port(c, ingress_port);
    p4_parse(s, &kk, c);
    if (kk.fault) {
        s->stats.faults++;
        SW_TRACE(s, DROPPED, SW_D_FAULT, 0);
        return;
    }
    p4_reset_metadata(c);
    p4_copy_list(k->clone_list, c, h);
    sm_set_instance_type(c, SM_INGRESS_CLONE);
    sw_replicate(r, c, &kk, f, f->truncate);
}

static void sw_ingress(sw_run *r, phv *h, sw_pkt *k, uint32_t ingress_port) {
    sw *s = r->s;
    p4_parse(s, k, h);
    sm_set_parser_error(h, k->error);
    sm_set_checksum_error(h, k->checksum_error);
    if (!k->fault) p4_ingress(s, k, h);
    if (k->fault) {
        s->stats.faults++;
        SW_TRACE(s, DROPPED, SW_D_FAULT, 0);
        return;
    }
    if (k->clone_session) {
        sw_ingress_clone(r, h, k, ingress_port);
        k->clone_session = 0;
        k->clone_list = 0;
    }
    if (k->digest_list) {
        SW_TRACE(s, DIGEST, k->digest_list, 0);
        p4_digest(s, k->digest_list, h);
        k->digest_list = 0;
    }
    if (k->resubmit_list) {
        SW_TRACE(s, RESUBMIT, 0, 0);
        sw_job *j = sw_job_new(r, k->data, k->len);
        if (j == NULL) return;
        p4_copy_list(k->resubmit_list, &j->h, h);
        sm_set_instance_type(&j->h, SM_RESUBMIT);
        sm_set_packet_length(&j->h, k->ingress_len);
        sw_push(&r->first, &r->last, j);
        return;
    }
    uint32_t group = (uint32_t)sm_get_mcast_grp(h);
    if (group != 0) {
        const sw_fanout *f = &s->multicast[group & 0xffff];
        /* PI keeps the replicas of clone session n as group 2^15 + n. */
        if (!f->present && (group & 0x8000)) f = &s->sessions[group & 0x7fff];
        sm_set_instance_type(h, SM_REPLICATION);
        SW_TRACE(s, MULTICAST, group, f->present ? f->n : 0);
        if (f->present && f->n > 0) sw_replicate(r, h, k, f, 0);
        else SW_TRACE(s, DROPPED, SW_D_NO_GROUP, 0);
        return;
    }
    uint32_t port = (uint32_t)sm_get_egress_spec(h);
    if (port == s->drop_port) {
        SW_TRACE(s, DROPPED, SW_D_INGRESS, 0);
        return;
    }
    sm_set_instance_type(h, SM_NORMAL);
    sw_to_egress(r, h, k, port);
}

static void sw_drain(sw_run *r) {
    while (r->egress_first != NULL) {
        sw_job *j = r->egress_first;
        r->egress_first = j->next;
        if (j->next == NULL) r->egress_last = NULL;
        sw_to_egress(r, &j->h, &j->k, j->port);
        r->pending--;
        free(j);
    }
}

static void p4_run(sw *s, const sw_packet *in, const sw_sink *sink) {
    sw_run r = {.s = s, .sink = sink};
    phv *h = (phv *)s->phv[0];
    /* A size that gcc does not see: its own "rep stos" starts slowly. What comes after it the parser sets. */
    memset(h, 0, s->prog->zeroed_bytes);
    p4_no_late_headers(h);
    sw_pkt k = {.data = in->data, .len = in->len, .ingress_len = in->len, .reg_len = in->len, .truncate = UINT32_MAX,
                .sum = in->sum};
    sm_set_ingress_port(h, in->port);
    sm_set_packet_length(h, in->len);
    sm_set_ingress_global_timestamp(h, s->now_us);
    r.ingress_passes = 1;
    SW_TRACE_WORDS(s, RECEIVED, in->port, in->len, &s->stats.received, 1);
    sw_ingress(&r, h, &k, in->port);
    sw_drain(&r);
    while (r.first != NULL) {
        sw_job *j = r.first;
        r.first = j->next;
        if (j->next == NULL) r.last = NULL;
        if (r.ingress_passes++ < SW_MAX_INGRESS_PASSES) {
            SW_TRACE(s, INGRESS, sm_get_instance_type(&j->h), 0);
            sw_ingress(&r, &j->h, &j->k, in->port);
            sw_drain(&r);
        } else {
            SW_TRACE(s, DROPPED, SW_D_BUDGET, 0);
            s->stats.over_budget++;
        }
        r.pending--;
        free(j);
    }
}

#endif
