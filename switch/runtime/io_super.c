/* SPDX-License-Identifier: Apache-2.0 */
/* See io_super.h. Sums of 16-bit words are kept in the order of memory: RFC 1071 lets them, and it saves swaps. */
#include "io_super.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <string.h>

#define FEW 64 /* bytes that are quicker added up by themselves than with vectors */
enum { TCP = 6, UDP = 17, MAC_BYTES = 12, VLAN_TAGS = 2 };
enum { FIN = 1, PSH = 8, ACK = 16, CWR = 128 };
enum { MORE_FRAGMENTS_AND_OFFSET = 0x3fff, DONT_FRAGMENT = 0x4000 };
/* Offsets where joining looks: Ethernet, IPv4 of 20 bytes, UDP or TCP. */
enum { IP = 14, IP_LENGTH = 16, IP_ID = 18, IP_FRAGMENT = 20, IP_PROTOCOL = 23, IP_SUM = 24, IP_ADDRESSES = 26, L4 = 34,
       L4_OF_V6 = 54 };
enum { UDP_LENGTH = L4 + 4, UDP_SUM = L4 + 6, UDP_PAYLOAD = L4 + 8 };
enum { TCP_SEQ = L4 + 4, TCP_ACK = L4 + 8, TCP_OFFSET = L4 + 12, TCP_FLAGS = L4 + 13, TCP_WINDOW = L4 + 14,
       TCP_SUM = L4 + 16, TCP_URGENT = L4 + 18, TCP_OPTIONS = L4 + 20 };

static uint16_t get16(const uint8_t *p) { return (uint16_t)(p[0] << 8 | p[1]); }
static uint32_t get32(const uint8_t *p) { return (uint32_t)get16(p) << 16 | get16(p + 2); }

static void put16(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

static void put32(uint8_t *p, uint32_t v) {
    put16(p, v >> 16);
    put16(p + 2, v);
}

/* ---- sums */

static inline __attribute__((always_inline)) uint64_t add_tail(const uint8_t *p, size_t n, uint64_t sum) {
    uint16_t word = 0;
    if (n & 2) {
        memcpy(&word, p, 2);
        sum += word;
        p += 2;
    }
    if (n & 1) {
        word = 0;
        memcpy(&word, p, 1);
        sum += word;
    }
    return sum;
}

/* Of a few bytes, of headers: 2^32 is 1 modulo 2^16 - 1, as 2^16 is. */
static inline __attribute__((always_inline)) uint64_t add_few(const uint8_t *p, size_t n, uint64_t sum) {
    for (; n >= 4; n -= 4, p += 4) {
        uint32_t word;
        memcpy(&word, p, 4);
        sum += word;
        __asm__("" : "+r"(sum)); /* no vectors */
    }
    return add_tail(p, n, sum);
}

/* Two 16-bit words at once, in lanes of 32 bits: the compiler vectorises it. The sum of all modulo 2^32 and that of the
 * high words tell the sum of the low ones. Right for up to 256 KiB. */
static uint64_t add(const uint8_t *p, size_t n, uint64_t sum) {
    uint32_t all = 0, high = 0;
    size_t words = n / 4;
    for (size_t i = 0; i < words; i++) {
        uint32_t word;
        memcpy(&word, p + 4 * i, 4);
        all += word;
        high += word >> 16;
    }
    return add_tail(p + 4 * words, n & 3, sum + (all - (high << 16)) + high);
}

static uint64_t add_part(const uint8_t *p, size_t n, uint64_t sum) {
    return n < FEW ? add_few(p, n, sum) : add(p, n, sum);
}

static uint16_t fold(uint64_t sum) {
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)sum;
}

static uint64_t pseudo(const uint8_t *addresses, uint32_t bytes, uint8_t protocol, uint32_t l4_len) {
    return add_few(addresses, bytes, 0) + htons(protocol) + htons((uint16_t)l4_len);
}

static void put_sum(uint8_t *p, uint16_t sum) { memcpy(p, &sum, 2); }

void super_complete(uint8_t *frame, uint32_t len, uint32_t start, uint32_t offset) {
    uint64_t field = (uint64_t)start + offset;
    if (field + 2 > len)
        return;
    uint16_t sum = (uint16_t)~fold(add(frame + start, len - start, 0));
    put_sum(frame + field, sum ? sum : 0xffff); /* UDP's 0 means "none", and for TCP both are 0 */
}

/* ---- cutting up */

/* What the next segment's headers have, but for the L4 checksum: put in when the one before it has been cut. They are
 * copied in long words later, which would have to wait for what was just written in short ones. */
static void next_head(super_cut *c) {
    uint32_t n = c->len - c->at < c->size ? c->len - c->at : c->size, l4_len = c->payload - c->l4 + n;
    uint8_t *ip = c->head + c->l3, *l4 = c->head + c->l4;
    if (c->v6)
        put16(ip + 4, l4_len);
    else {
        uint16_t length = (uint16_t)(c->l4 - c->l3 + l4_len), id = (uint16_t)(c->id + c->index);
        put16(ip + 2, length);
        put16(ip + 4, id);
        put_sum(ip + 10, (uint16_t)~fold((uint64_t)c->l3_sum + htons(length) + htons(id)));
    }
    if (c->tcp)
        put32(l4 + 4, c->seq + (c->at - c->payload));
    else
        put16(l4 + 4, l4_len);
    c->next = n;
}

int super_cut_begin(super_cut *c, uint8_t *frame, uint32_t len, uint8_t gso_type, uint16_t gso_size) {
    uint32_t kind = gso_type & ~(uint32_t)VIRTIO_NET_HDR_GSO_ECN, at = MAC_BYTES, end;
    uint8_t protocol;
    memset(c, 0, sizeof *c);
    for (int tags = 0; tags < VLAN_TAGS && at + 6 <= len; tags++, at += 4)
        if (get16(frame + at) != ETH_P_8021Q && get16(frame + at) != ETH_P_8021AD)
            break;
    c->l3 = at + 2;
    if (c->l3 + 20 > len || !gso_size)
        return -EINVAL;
    const uint8_t *ip = frame + c->l3;
    if (get16(frame + at) == ETH_P_IP && ip[0] >> 4 == 4 && (ip[0] & 15) >= 5) {
        if (get16(ip + 6) & MORE_FRAGMENTS_AND_OFFSET)
            return -EINVAL;
        c->l4 = c->l3 + 4 * (ip[0] & 15u);
        end = c->l3 + get16(ip + 2);
        protocol = ip[9];
    } else if (get16(frame + at) == ETH_P_IPV6 && c->l3 + 40 <= len) {
        c->v6 = 1;
        c->l4 = c->l3 + 40;
        end = c->l4 + get16(ip + 4);
        protocol = ip[6];
    } else
        return -EINVAL;
    c->tcp = protocol == TCP;
    if (!(c->tcp && kind == (c->v6 ? VIRTIO_NET_HDR_GSO_TCPV6 : VIRTIO_NET_HDR_GSO_TCPV4)) &&
        !(protocol == UDP && kind == VIRTIO_NET_HDR_GSO_UDP_L4))
        return -EINVAL;
    if (c->l4 + (c->tcp ? 20 : 8) > len || end != len)
        return -EINVAL;
    c->payload = c->l4 + (c->tcp ? 4 * (frame[c->l4 + 12] >> 4) : 8);
    if (c->payload >= len || c->payload < c->l4 + (c->tcp ? 20 : 8))
        return -EINVAL;
    c->frame = frame;
    c->len = len;
    c->size = gso_size;
    c->at = c->payload;
    uint8_t own[SUPER_HEADERS];
    memcpy(c->head, frame, c->payload);
    memcpy(own, frame, c->payload);
    if (!c->v6) {
        memset(own + c->l3 + 2, 0, 4); /* length, identification */
        memset(own + c->l3 + 10, 0, 2);
        c->l3_sum = fold(add(own + c->l3, c->l4 - c->l3, 0));
    }
    memset(own + c->l4 + 4, 0, 4); /* TCP's sequence number; UDP's length and checksum */
    if (c->tcp) {
        memset(own + c->l4 + 12, 0, 2); /* flags */
        memset(own + c->l4 + 16, 0, 2);
    }
    uint64_t sum = pseudo(ip + (c->v6 ? 8 : 12), c->v6 ? 32 : 8, protocol, 0);
    c->l4_sum = fold(add(own + c->l4, c->payload - c->l4, sum));
    c->id = get16(ip + 4);
    c->seq = c->tcp ? get32(frame + c->l4 + 4) : 0;
    next_head(c);
    return 0;
}

/* Those of nearly all headers without a call: n is not known to the compiler. */
static inline void copy_head(uint8_t *to, const uint8_t *from, uint32_t n) {
    if (n >= 32 && n <= 64) {
        memcpy(to, from, 32);
        memcpy(to + n - 32, from + n - 32, 32);
    } else
        memcpy(to, from, n);
}

uint8_t *super_cut_next(super_cut *c, uint32_t *len) {
    uint32_t n = c->next, l4_len = c->payload - c->l4 + n;
    if (!n)
        return NULL;
    const uint8_t *l4 = c->head + c->l4, *payload = c->frame + c->at;
    uint8_t *out = c->frame + c->at - c->payload, *new_l4 = out + c->l4;
    copy_head(out, c->head, c->payload);
    uint64_t body = add(payload, n, 0);
    uint64_t sum = body + c->l4_sum + htons((uint16_t)l4_len);
    c->sum = (sw_sum){c->payload, c->payload + n, ntohs(fold(body))};
    if (n % 2)
        c->sum = (sw_sum){0, 0, 0};
    if (c->tcp) {
        uint8_t flags = l4[13];
        if (c->index)
            flags &= (uint8_t)~CWR;
        if (c->at + n < c->len)
            flags &= (uint8_t)~(FIN | PSH);
        new_l4[13] = flags;
        sum += add_few(l4 + 4, 4, 0) + htons((uint16_t)(l4[12] << 8 | flags));
        put_sum(new_l4 + 16, (uint16_t)~fold(sum));
    } else {
        uint16_t check = (uint16_t)~fold(sum + htons((uint16_t)l4_len)), udp[4];
        memcpy(udp, l4, sizeof udp);
        /* UDP without checksum has a 0 there, never as a sum */
        udp[3] = !udp[3] ? 0 : check ? check : 0xffff;
        memcpy(new_l4, udp, sizeof udp); /* at once: so the program reads it without waiting for parts */
    }
    c->at += n;
    c->index++;
    next_head(c);
    *len = c->payload + n;
    return out;
}

void super_cut_skip(super_cut *c, uint32_t index) {
    c->at += (index - c->index) * c->size;
    c->index = index;
    next_head(c);
}

/* ---- passing whole */

uint32_t super_uniform(const super_cut *c) {
    const uint8_t *ip = c->frame + IP, *tcp = c->frame + c->l4;
    if (!c->tcp || c->l3 != IP || c->len > SUPER_BYTES || (tcp[13] & ~(FIN | PSH)) != ACK || tcp[12] & 15 ||
        get16(tcp + 18))
        return 0;
    if (c->v6 ? ip[0] >> 4 != 6 : c->l4 != L4 || get16(ip + 6) & ~(uint32_t)DONT_FRAGMENT)
        return 0;
    uint32_t n = (c->len - c->payload - 1) / c->size;
    return n > 1 ? n : 0;
}

int super_like(const super_cut *c, const uint8_t *first, const uint8_t *out, uint32_t len) {
    const uint8_t *ip = out + IP, *tcp = out + c->l4, *was = first + c->l4;
    uint32_t l4_len = len - c->l4;
    if (len != c->payload + c->size || memcmp(out + MAC_BYTES, first + MAC_BYTES, 2))
        return 0;
    if (c->v6) {
        if (ip[0] >> 4 != 6 || get16(ip + 4) != l4_len || ip[6] != TCP)
            return 0;
    } else if (ip[0] != 0x45 || get16(ip + 2) != len - IP || get16(ip + 6) & ~(uint32_t)DONT_FRAGMENT || ip[9] != TCP ||
               memcmp(ip + 4, first + IP_ID, 2) || get16(ip + 10) == 0xffff || fold(add(ip, L4 - IP, 0)) != 0xffff)
        return 0;
    if (tcp[13] != ACK || tcp[12] != was[12] || get16(tcp + 18) || memcmp(tcp + 4, was + 4, 4) ||
        get16(tcp + 16) == 0xffff)
        return 0;
    uint64_t sum = pseudo(ip + (c->v6 ? 8 : 12), c->v6 ? 32 : 8, TCP, l4_len);
    return fold(add(tcp, l4_len, sum)) == 0xffff;
}

void super_run_whole(super_run *r, const super_cut *c, uint32_t segments) {
    *r = (super_run){.len = c->payload + segments * c->size, .headers = c->payload, .size = c->size,
                     .segments = segments, .tcp = 1, .verified = 1, .v6 = c->v6};
}

/* ---- joining */

/* Length of the headers of a frame of a form that can be joined, 0 for others; the L4 checksum is not looked at. */
static uint32_t form(const uint8_t *f, uint32_t len, int udp, int tcp) {
    if (len <= UDP_PAYLOAD || len > SUPER_BYTES || get16(f + MAC_BYTES) != ETH_P_IP || f[IP] != 0x45 ||
        get16(f + IP_LENGTH) != len - IP || get16(f + IP_FRAGMENT) & ~(uint32_t)DONT_FRAGMENT)
        return 0;
    uint32_t headers = 0;
    if (udp && f[IP_PROTOCOL] == UDP) {
        if (get16(f + UDP_LENGTH) == len - L4 && get16(f + UDP_SUM))
            headers = UDP_PAYLOAD;
    } else if (tcp && f[IP_PROTOCOL] == TCP && len > TCP_OPTIONS) {
        /* 0xffff for a sum of 0 would come back as 0 */
        if ((f[TCP_FLAGS] & ~PSH) == ACK && !(f[TCP_OFFSET] & 15) && !get16(f + TCP_URGENT) &&
            get16(f + TCP_SUM) != 0xffff)
            headers = L4 + 4 * (f[TCP_OFFSET] >> 4);
    }
    if (headers < UDP_PAYLOAD || headers >= len || (f[IP_PROTOCOL] == TCP && headers < TCP_OPTIONS))
        return 0;
    return get16(f + IP_SUM) != 0xffff && fold(add_few(f + IP, L4 - IP, 0)) == 0xffff ? headers : 0;
}

static int sum_is_of(const sw_sum *known, uint32_t len) {
    return known->from < known->to && known->from >= L4 && known->from % 2 == L4 % 2 && known->to <= len;
}

static int sum_is_right(const uint8_t *f, uint32_t len, const sw_sum *known) {
    uint64_t sum = pseudo(f + IP_ADDRESSES, 8, f[IP_PROTOCOL], len - L4);
    if (!sum_is_of(known, len))
        return fold(add(f + L4, len - L4, sum)) == 0xffff;
    sum = add_part(f + L4, known->from - L4, sum + htons((uint16_t)known->sum));
    return fold(add_part(f + known->to, len - known->to, sum)) == 0xffff;
}

void super_run_begin(super_run *r, const uint8_t *frame, uint32_t len, const sw_sum *sum, uint32_t longest, int udp,
                     int tcp) {
    *r = (super_run){.len = len, .segments = 1, .sum = *sum};
    if (len > longest)
        return;
    r->headers = form(frame, len, udp, tcp);
    r->size = len - r->headers;
    r->tcp = r->headers && frame[IP_PROTOCOL] == TCP;
    r->push = r->tcp && frame[TCP_FLAGS] & PSH;
}

static int same_flow(const super_run *r, const uint8_t *a, const uint8_t *b) {
    /* All but lengths and checksums. Without fragments the identification means nothing (RFC 6864): where
     * fragmenting is allowed, it must count up as it will when the super-packet is cut. */
    if (memcmp(a + L4, b + L4, 4) || memcmp(a, b, IP_LENGTH) ||
        memcmp(a + IP_FRAGMENT, b + IP_FRAGMENT, IP_SUM - IP_FRAGMENT) ||
        memcmp(a + IP_ADDRESSES, b + IP_ADDRESSES, 8))
        return 0;
    if (!(get16(a + IP_FRAGMENT) & DONT_FRAGMENT) &&
        get16(b + IP_ID) != (uint16_t)(get16(a + IP_ID) + r->segments))
        return 0;
    return !r->tcp || (get32(b + TCP_SEQ) == get32(a + TCP_SEQ) + (r->len - r->headers) &&
                       a[TCP_OFFSET] == b[TCP_OFFSET] && !memcmp(a + TCP_ACK, b + TCP_ACK, 4) &&
                       !memcmp(a + TCP_WINDOW, b + TCP_WINDOW, 2) &&
                       !memcmp(a + TCP_OPTIONS, b + TCP_OPTIONS, r->headers - TCP_OPTIONS));
}

static uint64_t get64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

/* The sum of two words in the order of memory, modulo 2^16 - 1. */
static uint32_t of_two(const uint8_t *a, const uint8_t *b) {
    uint16_t x, y;
    memcpy(&x, a, 2);
    memcpy(&y, b, 2);
    return ((uint32_t)x + y) % 0xffff;
}

/* Most frames of UDP that can be joined are like the first one, which was looked at: 1 for these, 0 may be either. */
static int is_next(const super_run *r, const uint8_t *a, const uint8_t *b, uint32_t len, const sw_sum *known) {
    if (!r->udp_rest || len != UDP_PAYLOAD + r->size || !sum_is_of(known, len) || known->from < UDP_PAYLOAD)
        return 0;
    /* all headers but identification and checksums */
    if ((get64(a) ^ get64(b)) | (get64(a + 8) ^ get64(b + 8)) | (get16(a + IP_LENGTH) ^ get16(b + IP_LENGTH)) |
        (get32(a + IP_FRAGMENT) ^ get32(b + IP_FRAGMENT)) | (get64(a + IP_ADDRESSES) ^ get64(b + IP_ADDRESSES)) |
        (get64(a + UDP_SUM - 8) ^ get64(b + UDP_SUM - 8)))
        return 0;
    if (!(a[IP_FRAGMENT] & DONT_FRAGMENT >> 8) && get16(b + IP_ID) != (uint16_t)(get16(a + IP_ID) + r->segments))
        return 0;
    uint16_t check;
    memcpy(&check, b + UDP_SUM, 2);
    uint64_t sum = add_part(b + UDP_PAYLOAD, known->from - UDP_PAYLOAD, (uint64_t)r->udp_rest + check);
    sum = add_part(b + known->to, len - known->to, sum + htons((uint16_t)known->sum));
    return check && fold(sum) == 0xffff && get16(b + IP_SUM) != 0xffff &&
           of_two(a + IP_ID, a + IP_SUM) == of_two(b + IP_ID, b + IP_SUM);
}

uint32_t super_run_join(super_run *r, const uint8_t *frame, const uint8_t *next, uint32_t len, const sw_sum *sum) {
    if (!r->headers || r->v6 || len <= r->headers || len - r->headers > r->size || r->push || r->segments >= SUPER_SEGMENTS ||
        r->len + (len - r->headers) > SUPER_BYTES || r->len != r->headers + r->segments * r->size)
        return 0;
    if (!is_next(r, frame, next, len, sum)) {
        if (form(next, len, !r->tcp, r->tcp) != r->headers || !same_flow(r, frame, next) || !sum_is_right(next, len, sum))
            return 0;
        if (!r->verified && !sum_is_right(frame, r->len, &r->sum)) {
            r->headers = 0;
            return 0;
        }
        r->verified = 1;
        if (!r->tcp)
            r->udp_rest = fold(add_few(frame + L4, UDP_SUM - L4,
                                       pseudo(frame + IP_ADDRESSES, 8, UDP, r->size + UDP_PAYLOAD - L4)));
        r->push = r->tcp && next[TCP_FLAGS] & PSH;
    }
    r->segments++;
    r->len += len - r->headers;
    return len - r->headers;
}

uint8_t super_run_kind(const super_run *r) {
    return !r->tcp ? VIRTIO_NET_HDR_GSO_UDP_L4 : r->v6 ? VIRTIO_NET_HDR_GSO_TCPV6 : VIRTIO_NET_HDR_GSO_TCPV4;
}

void super_run_end(const super_run *r, uint8_t *frame, super_header *h) {
    memset(h, 0, sizeof *h);
    if (r->segments == 1)
        return;
    uint32_t l4 = r->v6 ? L4_OF_V6 : L4, l4_len = r->len - l4;
    h->flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    h->gso_type = super_run_kind(r);
    h->hdr_len = (uint16_t)r->headers;
    h->gso_size = (uint16_t)r->size;
    h->csum_start = (uint16_t)l4;
    h->csum_offset = (r->tcp ? TCP_SUM : UDP_SUM) - L4;
    if (r->v6) {
        put16(frame + IP + 4, l4_len);
        put_sum(frame + l4 + h->csum_offset, fold(pseudo(frame + IP + 8, 32, TCP, l4_len)));
        return;
    }
    put16(frame + IP_LENGTH, r->len - IP);
    put16(frame + IP_SUM, 0);
    put_sum(frame + IP_SUM, (uint16_t)~fold(add(frame + IP, L4 - IP, 0)));
    if (r->tcp)
        frame[TCP_FLAGS] |= r->push ? PSH : 0;
    else
        put16(frame + UDP_LENGTH, l4_len);
    put_sum(frame + (r->tcp ? TCP_SUM : UDP_SUM), fold(pseudo(frame + IP_ADDRESSES, 8, frame[IP_PROTOCOL], l4_len)));
}
