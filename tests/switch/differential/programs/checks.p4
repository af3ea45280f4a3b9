// SPDX-License-Identifier: Apache-2.0
// Checksums with conditions and payload, verified and updated, and hashes with every algorithm.
#include "common.p4"

header inner_t {
    bit<4>      words;
    bit<4>      what;
    bit<8>      flags;
    bit<16>     sum;
    bit<32>     a;
    bit<32>     b;
    bit<13>     c;
    int<11>     d;
    bit<24>     e;
    varbit<120> options;
}

header outer_t {
    bit<16> length;
    bit<16> sum;
    bit<32> crc;
}

header hashes_t {
    bit<16> crc16;
    bit<16> crc16_custom;
    bit<32> crc32;
    bit<32> crc32_custom;
    bit<16> csum16;
    bit<16> xor16;
    bit<64> identity;
    bit<32> of_options;
    bit<16> in_range;
    bit<8>  narrow;
    bit<7>  with_base;
    bit<1>  wrong;
    bit<48> of_one;
}

struct headers_t {
    ethernet_t ethernet;
    outer_t    outer;
    inner_t    inner;
    hashes_t   hashes;
}

struct metadata_t {
    bit<8> flags;
}

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x1101: outer;
            0x1102: inner;
            default: accept;
        }
    }
    state outer {
        packet.extract(hdr.outer);
        transition select(hdr.outer.length[1:0]) {
            3: accept;
            default: inner;
        }
    }
    state inner {
        packet.extract(hdr.inner, (bit<32>) packet.lookahead<bit<4>>() * 8);
        meta.flags = hdr.inner.flags;
        transition accept;
    }
}

control verify_sums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.inner.isValid() && hdr.inner.flags[0:0] == 1,
            { hdr.inner.a, hdr.inner.b, hdr.inner.c, hdr.inner.d, hdr.inner.e }, hdr.inner.sum,
            HashAlgorithm.csum16);
        verify_checksum_with_payload(hdr.outer.isValid() && hdr.outer.length[2:2] == 1,
            { hdr.outer.length }, hdr.outer.sum, HashAlgorithm.csum16);
        verify_checksum(hdr.outer.isValid() && hdr.outer.length[3:3] == 1,
            { hdr.outer.length, hdr.outer.sum }, hdr.outer.crc, HashAlgorithm.crc32);
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        std.egress_spec = 1;
        if (hdr.inner.isValid()) {
            hdr.hashes.setValid();
            hash(hdr.hashes.crc16, HashAlgorithm.crc16, 16w0,
                { hdr.inner.a, hdr.inner.b, hdr.inner.c }, 32w65536);
            hash(hdr.hashes.crc16_custom, HashAlgorithm.crc16_custom, 16w0,
                { hdr.inner.a, hdr.inner.d, hdr.inner.c, 3w5 }, 32w65536);
            hash(hdr.hashes.crc32, HashAlgorithm.crc32, 32w0,
                { hdr.inner.d, hdr.inner.e, hdr.inner.what }, 64w0x100000000);
            hash(hdr.hashes.crc32_custom, HashAlgorithm.crc32_custom, 32w0,
                { hdr.inner.a, hdr.inner.b, std.ingress_port }, 64w0x100000000);
            hash(hdr.hashes.csum16, HashAlgorithm.csum16, 16w0,
                { hdr.inner.a, hdr.inner.e, hdr.inner.flags }, 32w65536);
            hash(hdr.hashes.xor16, HashAlgorithm.xor16, 16w0,
                { hdr.inner.a, hdr.inner.b, hdr.inner.sum }, 32w65536);
            hash(hdr.hashes.identity, HashAlgorithm.identity, 64w0,
                { hdr.inner.c, hdr.inner.d, hdr.inner.b }, 128w0x10000000000000000);
            hash(hdr.hashes.of_options, HashAlgorithm.crc32, 32w1,
                { hdr.inner.options, hdr.inner.a }, 64w0xFFFFFFFF);
            hash(hdr.hashes.in_range, HashAlgorithm.crc16, 16w1000,
                { hdr.inner.a }, 16w97);
            hash(hdr.hashes.narrow, HashAlgorithm.crc32, 8w250,
                { hdr.inner.a, hdr.inner.b }, 8w16);
            hash(hdr.hashes.with_base, HashAlgorithm.xor16, hdr.inner.b[6:0],
                { hdr.inner.e }, hdr.inner.flags);
            hash(hdr.hashes.of_one, HashAlgorithm.crc32, 48w0xFFFFFF000000,
                { hdr.inner.d }, 32w100000);
            hdr.hashes.wrong = std.checksum_error;
            if (hdr.inner.what == 1) {
                hdr.inner.a = hdr.inner.a + 1;
            } else if (hdr.inner.what == 2) {
                hdr.hashes.setInvalid();
            } else if (hdr.inner.what == 3) {
                truncate(40);
            }
        } else if (std.checksum_error == 1) {
            std.egress_spec = 2;
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        if (hdr.inner.isValid() && hdr.inner.what == 4) {
            hdr.inner.setInvalid();
        }
    }
}

control update_sums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.inner.isValid() && meta.flags[1:1] == 1,
            { hdr.inner.a, hdr.inner.b, hdr.inner.c, hdr.inner.d, hdr.inner.e, hdr.inner.options },
            hdr.inner.sum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.outer.isValid() && meta.flags[2:2] == 1,
            { hdr.outer.length, hdr.inner.sum, hdr.inner.a }, hdr.outer.sum, HashAlgorithm.csum16);
        update_checksum_with_payload(hdr.outer.isValid() && meta.flags[3:3] == 1,
            { hdr.outer.length, hdr.outer.sum }, hdr.outer.crc, HashAlgorithm.crc32);
        update_checksum(hdr.hashes.isValid() && meta.flags[4:4] == 1,
            { hdr.hashes.crc16, 16w0x800, hdr.hashes.crc32 }, hdr.hashes.xor16, HashAlgorithm.xor16);
        update_checksum(hdr.hashes.isValid() && meta.flags[5:5] == 1,
            { hdr.hashes.crc16, hdr.hashes.identity }, hdr.hashes.csum16, HashAlgorithm.crc16);
    }
}

control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(parse(), verify_sums(), ingress(), egress(), update_sums(), deparse()) main;
