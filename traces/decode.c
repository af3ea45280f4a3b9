/* SPDX-License-Identifier: Apache-2.0 */
/* Captures, read: where packets are in a file's bytes, and what is in them. See decoder.py, which has both in Python.
 *
 * Everything comes from files that anybody may have written: no byte is read before its place was checked. */
#include <stdint.h>
#include <string.h>

/* ---- where packets are */

typedef struct record { /* decoder.RECORD */
    int64_t at, time;
    uint32_t captured, length;
    int32_t interface;
    uint8_t direction, pad[3];
} record;

typedef struct interface { /* decoder.INTERFACE */
    int64_t offset; /* seconds to add */
    uint32_t snaplen;
    uint8_t base2, power; /* a tick is 2^-power or 10^-power seconds */
    uint8_t pad[2];
} interface;

enum { MORE = 0, SPECIAL = 1, BAD = 2, FULL = 3 }; /* decoder.State */
enum { LONG_PACKET = 1, BLOCK_LENGTH, BLOCK_ENDS, PACKET_FITS, NO_INTERFACE, LONG_BLOCK }; /* decoder.Damage */
enum { MAX_PACKET = 262144, MAX_BLOCK = 1 << 24 };
enum { OLD_PACKET = 2, SIMPLE = 3, ENHANCED = 6, SECTION = 0x0a0d0d0a, DESCRIPTION = 1 };

static uint16_t get16(const uint8_t *p, int big) { return (uint16_t)(big ? p[0] << 8 | p[1] : p[1] << 8 | p[0]); }

static uint32_t get32(const uint8_t *p, int big) {
    return big ? (uint32_t)get16(p, 1) << 16 | get16(p + 2, 1) : (uint32_t)get16(p + 2, 0) << 16 | get16(p, 0);
}

static int64_t nanoseconds(uint64_t ticks, const interface *i) {
    static const uint64_t ten[20] = {1u, 10u, 100u, 1000u, 10000u, 100000u, 1000000u, 10000000u, 100000000u,
                                     1000000000u, 10000000000u, 100000000000u, 1000000000000u, 10000000000000u,
                                     100000000000000u, 1000000000000000u, 10000000000000000u, 100000000000000000u,
                                     1000000000000000000u, 10000000000000000000u};
    __int128 t;
    if (i->base2)
        t = i->power < 64 ? ((__int128)ticks * 1000000000) >> i->power : 0;
    else if (i->power <= 9)
        t = (__int128)ticks * (int64_t)ten[9 - i->power];
    else
        t = i->power - 9 < 20 ? (__int128)(ticks / ten[i->power - 9]) : 0;
    t += (__int128)i->offset * 1000000000;
    return t > INT64_MAX ? INT64_MAX : t < INT64_MIN ? INT64_MIN : (int64_t)t;
}

/* Finds packets of a classic pcap from `*at` on. Returns a State; `*at` is where to go on, or what is bad. */
int scan_pcap(const uint8_t *bytes, int64_t len, int64_t *at, int big, int64_t tick, record *out, int64_t room,
              int64_t *found, int *damage) {
    int64_t here = *at, n = 0;
    int state = MORE;
    while (here + 16 <= len) {
        if (n == room) {
            state = FULL;
            break;
        }
        const uint8_t *p = bytes + here;
        uint32_t captured = get32(p + 8, big);
        if (captured > MAX_PACKET) {
            state = BAD, *damage = LONG_PACKET;
            break;
        }
        if (here + 16 + captured > len)
            break;
        out[n++] = (record){.at = here + 16,
                            .time = get32(p, big) * 1000000000ll + get32(p + 4, big) * tick,
                            .captured = captured,
                            .length = get32(p + 12, big)};
        here += 16 + captured;
    }
    *at = here;
    *found = n;
    return state;
}

/* epb_flags' direction: the first option of code 2 and length 4. */
static uint8_t direction(const uint8_t *p, const uint8_t *end, int big) {
    while (end - p >= 4) {
        uint16_t code = get16(p, big), size = get16(p + 2, big);
        if (code == 0 || end - p < 4 + size)
            return 0;
        if (code == 2 && size == 4) {
            uint32_t way = get32(p + 4, big) & 3;
            return way < 3 ? (uint8_t)way : 0;
        }
        int64_t step = 4 + ((size + 3) & ~3);
        if (end - p < step)
            return 0;
        p += step;
    }
    return 0;
}

/* The same of a pcapng's blocks; SPECIAL at one that Python reads (a section's header, an interface). */
int scan_pcapng(const uint8_t *bytes, int64_t len, int64_t *at, int big, const interface *interfaces, int64_t count,
                record *out, int64_t room, int64_t *found, int *damage) {
    int64_t here = *at, n = 0;
    int state = MORE;
    while (here + 12 <= len) {
        const uint8_t *p = bytes + here;
        uint32_t type = get32(p, big), size = get32(p + 4, big);
        if (type == SECTION || type == DESCRIPTION) {
            state = SPECIAL;
            break;
        }
        if (size < 12 || size & 3) {
            state = BAD, *damage = BLOCK_LENGTH;
            break;
        }
        if (size > MAX_BLOCK) {
            state = BAD, *damage = LONG_BLOCK;
            break;
        }
        if (here + size > len)
            break;
        if (get32(p + size - 4, big) != size) {
            state = BAD, *damage = BLOCK_ENDS;
            break;
        }
        if (type == ENHANCED || type == SIMPLE || type == OLD_PACKET) {
            uint32_t head = type == SIMPLE ? 12 : 28, captured, length, id;
            if (n == room) {
                state = FULL;
                break;
            }
            if (size < head + 4) {
                state = BAD, *damage = PACKET_FITS;
                break;
            }
            id = type == SIMPLE ? 0 : type == ENHANCED ? get32(p + 8, big) : get16(p + 8, big);
            if (id >= count) {
                state = BAD, *damage = NO_INTERFACE;
                break;
            }
            length = get32(p + (type == SIMPLE ? 8 : 24), big);
            captured = type == SIMPLE ? length : get32(p + 20, big);
            if (type == SIMPLE && interfaces[id].snaplen && captured > interfaces[id].snaplen)
                captured = interfaces[id].snaplen;
            if (captured > MAX_PACKET) {
                state = BAD, *damage = LONG_PACKET;
                break;
            }
            uint32_t padded = (captured + 3) & ~3u;
            if (head + padded + 4 > size) {
                state = BAD, *damage = PACKET_FITS;
                break;
            }
            record *r = &out[n++];
            *r = (record){.at = here + head, .captured = captured, .length = length, .interface = (int32_t)id};
            if (type != SIMPLE) {
                r->time = nanoseconds((uint64_t)get32(p + 12, big) << 32 | get32(p + 16, big), &interfaces[id]);
                r->direction = direction(p + head + padded, p + size - 4, big);
            }
        }
        here += size;
    }
    *at = here;
    *found = n;
    return state;
}

/* ---- what is in them */

typedef struct row { /* decoder.ROW */
    uint64_t digest;
    int64_t at;
    uint32_t src_ip, dst_ip, chunk;
    uint16_t src_port, dst_port, slot;
    int16_t job, elements;
    uint8_t category, problem, udp_checksum, msg_type, flag, size, tensor, version;
    int8_t e0, e1;
} row;

enum { OTHER, CONTRIBUTION, RESULT, MALFORMED };
enum { NONE, TWO_JOB_PORTS, IP_OPTIONS, FRAGMENT, IP_CHECKSUM, SUPER_PACKET, LENGTH, SIZE, TYPE, SNAPPED };
enum { RIGHT, WRONG, ABSENT, UNCHECKED, UNFINISHED };
enum { P4REDUCE, SWITCHML };
enum { IP = 14, UDP = 34, AGG = 42, VALUES = 52 };

static uint32_t fold(uint64_t sum) {
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint32_t)sum;
}

/* The sum of n / 2 words in the order of memory; n is even. */
static uint64_t add(const uint8_t *p, uint32_t n) {
    uint32_t low = 0, high = 0; /* right for up to 256 KiB */
    for (uint32_t i = 0; i + 4 <= n; i += 4) {
        uint32_t word;
        memcpy(&word, p + i, 4);
        low += word & 0xffff;
        high += word >> 16;
    }
    uint16_t last = 0;
    if (n & 2)
        memcpy(&last, p + n - 2, 2);
    return (uint64_t)low + high + last;
}

static uint8_t udp_checksum(const uint8_t *p, uint32_t udp_bytes) {
    uint16_t field, n = (uint16_t)(udp_bytes << 8 | udp_bytes >> 8), protocol = 17 << 8;
    if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
        n = (uint16_t)udp_bytes, protocol = 17;
    memcpy(&field, p + UDP + 6, 2);
    if (!field)
        return ABSENT;
    uint64_t pseudo = add(p + IP + 12, 8) + n + protocol;
    if (fold(pseudo + add(p + UDP, udp_bytes)) == 0xffff)
        return RIGHT;
    return fold(pseudo) == field ? UNFINISHED : WRONG;
}

/* The values as a polynomial, highest power first, over lanes of eight: decoder.digests. */
static uint64_t digest(const uint8_t *exponents, const uint8_t *values, uint32_t elements) {
    const uint64_t k = 0x9e3779b97f4a7c15u;
    uint64_t lane[8] = {0}, h = (uint64_t)get16(exponents, 1) + 1;
    for (uint32_t i = 0; i < elements; i += 8)
        for (int j = 0; j < 8; j++) {
            uint32_t v;
            memcpy(&v, values + 4 * (i + j), 4);
            if (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)
                v = __builtin_bswap32(v);
            lane[j] = lane[j] * k + v;
        }
    for (int j = 0; j < 8; j++) {
        h = (h ^ h >> 32) * k + lane[j];
        h ^= h >> 29;
    }
    h = (h ^ h >> 32) * k;
    h ^= h >> 32;
    return h ? h : 1;
}

static uint32_t elements_of(uint8_t size, int format) {
    if (format == SWITCHML)
        return size < 4 ? 32u << size : 0;
    return size == 1 ? 64 : size == 3 ? 256 : 0;
}

static int is_job(uint16_t port, int format) {
    return format == SWITCHML ? (port & 0xfff0) == 0xbee0 : (port & 0xff00) == 0xbe00;
}

static void decode_one(const uint8_t *p, uint32_t captured, uint32_t length, int64_t at, int format, row *r) {
    uint32_t have = captured < length ? captured : length;
    memset(r, 0, sizeof *r);
    r->job = -1;
    r->at = -1;
    r->udp_checksum = UNCHECKED;
    if (have < UDP || get16(p + 12, 1) != 0x0800 || p[IP] >> 4 != 4)
        return;
    uint32_t header = 4 * (p[IP] & 15u), l4 = IP + header;
    uint16_t fragment = get16(p + IP + 6, 1) & 0x3fff;
    r->src_ip = get32(p + IP + 12, 1);
    r->dst_ip = get32(p + IP + 16, 1);
    if (p[IP + 9] != 17 || header < 20 || fragment & 0x1fff || have < l4 + 4)
        return;
    r->src_port = get16(p + l4, 1);
    r->dst_port = get16(p + l4 + 2, 1);
    int up = is_job(r->dst_port, format), down = is_job(r->src_port, format);
    if (!up && !down)
        return;
    uint16_t port = up ? r->dst_port : r->src_port;
    r->job = (int16_t)(port & (format == SWITCHML ? 0x0f : 0xff));
    r->category = MALFORMED;
    if (up && down)
        r->problem = TWO_JOB_PORTS;
    else if (header != 20)
        r->problem = IP_OPTIONS;
    else if (fragment)
        r->problem = FRAGMENT;
    else if (fold(add(p + IP, 20)) != 0xffff)
        r->problem = IP_CHECKSUM;
    if (header != 20 || fragment)
        return;
    if (have < VALUES) {
        if (!r->problem)
            r->problem = length < VALUES ? LENGTH : SNAPPED;
        return;
    }
    r->msg_type = p[AGG] >> 4;
    r->flag = p[AGG] >> 3 & 1;
    r->size = p[AGG] & 7;
    r->tensor = p[AGG + 1];
    r->chunk = get32(p + AGG + 2, format != SWITCHML);
    r->version = p[AGG + 6] >> 7;
    r->slot = get16(p + AGG + 6, 1) & (format == SWITCHML ? 0x3fff : 0x7fff);
    r->e0 = (int8_t)p[AGG + 8];
    r->e1 = (int8_t)p[AGG + 9];
    if (r->problem)
        return;
    uint32_t elements = elements_of(r->size, format), unit = 10 + 4 * elements;
    uint32_t ip_bytes = get16(p + IP + 2, 1), udp_bytes = get16(p + UDP + 4, 1);
    if (!elements) {
        r->problem = SIZE;
        return;
    }
    if (length != VALUES + 4 * elements || ip_bytes + IP != length || udp_bytes + UDP != length) {
        int more = length > VALUES + 4 * elements && ip_bytes + IP == length;
        r->problem = more && (length - AGG) % unit == 0 ? SUPER_PACKET : LENGTH;
        return;
    }
    if (have == length)
        r->udp_checksum = udp_checksum(p, udp_bytes);
    if (format == P4REDUCE && r->msg_type != (up ? 1 : 2)) {
        r->problem = TYPE;
        return;
    }
    r->category = up ? CONTRIBUTION : RESULT;
    if (have == length) {
        r->elements = (int16_t)elements;
        r->at = at + VALUES;
        r->digest = digest(p + AGG + 8, p + VALUES, elements);
    }
}

/* `ethernet` says of each interface whether its packets begin with an Ethernet header. */
void decode(const uint8_t *bytes, const record *records, int64_t count, const uint8_t *ethernet, int format, row *out) {
    for (int64_t i = 0; i < count; i++) {
        const record *r = &records[i];
        uint32_t captured = ethernet[r->interface] ? r->captured : 0;
        decode_one(bytes + r->at, captured, r->length, r->at, format, &out[i]);
    }
}
