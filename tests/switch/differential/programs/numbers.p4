// SPDX-License-Identifier: Apache-2.0
// Every operator at widths around those of machine words. One header, of one width, a packet.
#include "common.p4"

// All results of one width; 24 fields make whole bytes of any width.
#define FIELDS(T, W) \
    T<W> a; T<W> b; \
    T<W> r0; T<W> r1; T<W> r2; T<W> r3; T<W> r4; T<W> r5; T<W> r6; T<W> r7; T<W> r8; T<W> r9; T<W> r10; \
    T<W> r11; T<W> r12; T<W> r13; T<W> r14; T<W> r15; T<W> r16; T<W> r17; T<W> r18; T<W> r19; T<W> r20; \
    T<W> r21;

#define HEADERS(W) \
    header u##W##_t { FIELDS(bit, W) } \
    header s##W##_t { FIELDS(int, W) }

#define MEMBERS(W) \
    u##W##_t u##W; \
    s##W##_t s##W;

#define STATES(W) \
    state u##W { packet.extract(hdr.u##W); transition accept; } \
    state s##W { packet.extract(hdr.s##W); transition accept; }

#define UNSIGNED(W) \
    if (hdr.u##W.isValid()) { \
        bit<W> a = hdr.u##W.a; \
        bit<W> b = hdr.u##W.b; \
        hdr.u##W.r0 = a + b; \
        hdr.u##W.r1 = a - b; \
        hdr.u##W.r2 = a |+| b; \
        hdr.u##W.r3 = a |-| b; \
        hdr.u##W.r4 = a * b; \
        hdr.u##W.r5 = (a & b) ^ ~(a | b); \
        hdr.u##W.r6 = -a; \
        hdr.u##W.r7 = a << (bit<8>) b; \
        hdr.u##W.r8 = a >> (bit<8>) b; \
        hdr.u##W.r9 = (a + b) >> 1; \
        hdr.u##W.r10 = ((a - b) << 3) |-| (b >> 1); \
        hdr.u##W.r11 = (bit<W>) (b ++ a); \
        hdr.u##W.r12 = (bit<W>) ((bit<(2 * W)>) a * (bit<(2 * W)>) b >> W); \
        hdr.u##W.r13 = (bit<W>) ((int<W>) a >> (bit<8>) b); \
        hdr.u##W.r14 = (bit<W>) (bit<1>) (a < b) << 1 | (bit<W>) (bit<1>) (a == b); \
        hdr.u##W.r15 = a + b < a ? a : b; \
        hdr.u##W.r16 = a > b && !(a == 1) || b <= 1 ? a - 1 : a + 1; \
        hdr.u##W.r17 = (bit<W>) (bit<(W + 3)>) (int<(W + 3)>) (int<W>) a; \
        hdr.u##W.r18 = (bit<W>) ((bit<(W + 7)>) a + (bit<(W + 7)>) b >> 1); \
        hdr.u##W.r19[0:0] = (bit<1>) (a >= b) ^ (bit<1>) ((int<W>) a >= (int<W>) b); \
        hdr.u##W.r20 = (a |+| b) |-| (a + b); \
        hdr.u##W.r21 = a[0:0] ++ b[W - 1:W - 1] == 2w2 ? ~a : (a ^ b) - a * 3; \
        std.egress_spec = 1; \
    }

#define SIGNED(W) \
    if (hdr.s##W.isValid()) { \
        int<W> a = hdr.s##W.a; \
        int<W> b = hdr.s##W.b; \
        hdr.s##W.r0 = a + b; \
        hdr.s##W.r1 = a - b; \
        hdr.s##W.r2 = a |+| b; \
        hdr.s##W.r3 = a |-| b; \
        hdr.s##W.r4 = a * b; \
        hdr.s##W.r5 = (a & b) ^ ~(a | b); \
        hdr.s##W.r6 = -a; \
        hdr.s##W.r7 = a << (bit<8>) (bit<W>) b; \
        hdr.s##W.r8 = a >> (bit<8>) (bit<W>) b; \
        hdr.s##W.r9 = (a + b) >> 1; \
        hdr.s##W.r10 = ((a - b) << 3) |-| (b >> 1); \
        hdr.s##W.r11 = (int<W>) (b ++ a); \
        hdr.s##W.r12 = (int<W>) ((int<(2 * W)>) a * (int<(2 * W)>) b >> W); \
        hdr.s##W.r13 = (int<W>) ((bit<W>) a >> (bit<8>) (bit<W>) b); \
        hdr.s##W.r14 = a < b ? (a == b ? a : b) : b - a; \
        hdr.s##W.r15 = a + b < a ? a : b; \
        hdr.s##W.r16 = a > b && !(a == 0) || b <= -1 ? -b : a; \
        hdr.s##W.r17 = (int<W>) ((int<(W + 3)>) a - (int<(W + 3)>) b >> 2); \
        hdr.s##W.r18 = (int<W>) (bit<W>) ((bit<(W + 7)>) (int<(W + 7)>) a >> 1); \
        hdr.s##W.r19 = (a >= b) == ((bit<W>) a >= (bit<W>) b) ? a : b;   \
        hdr.s##W.r20 = (a |+| b) |-| (a + b); \
        hdr.s##W.r21 = a[W - 1:W - 1] ++ b[0:0] == 2w2 ? ~a : (a ^ b) - a * b; \
        std.egress_spec = 2; \
    }

// Parts of values need widths that have them.
#define PARTS(W) \
    if (hdr.u##W.isValid()) { \
        hdr.u##W.r5[6:2] = hdr.u##W.a[7:3]; \
        hdr.u##W.r6 = hdr.u##W.b[4:0] ++ hdr.u##W.a[W - 1:5]; \
        hdr.u##W.r7[W - 2:1] = hdr.u##W.r7[W - 1:2]; \
        hdr.u##W.r9 = hdr.u##W.a ^ (bit<W>) hdr.u##W.b[W - 1:W / 2]; \
    } \
    if (hdr.s##W.isValid()) { \
        hdr.s##W.r6 = (int<W>) (int<6>) hdr.s##W.a[W - 1:W - 6]; \
        hdr.s##W.r9 = hdr.s##W.a - (int<W>) (int<8>) hdr.s##W.b[7:0]; \
    }

#define SMALL(M) M(1) M(7)
#define LARGE(M) M(8) M(16) M(32) M(33) M(63) M(64) M(65) M(128) M(129)

SMALL(HEADERS)
LARGE(HEADERS)

struct headers_t {
    ethernet_t ethernet;
    SMALL(MEMBERS)
    LARGE(MEMBERS)
}

struct metadata_t {}

#define SELECT(W) 0x0100 + W: u##W; 0x0200 + W: s##W;

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            SMALL(SELECT)
            LARGE(SELECT)
        }
    }
    SMALL(STATES)
    LARGE(STATES)
}

#include "plain.p4"

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        SMALL(UNSIGNED)
        SMALL(SIGNED)
        LARGE(UNSIGNED)
        LARGE(SIGNED)
        LARGE(PARTS)
    }
}

control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(parse(), verify_none(), ingress(), egress_none(), update_none(), deparse()) main;
