// SPDX-License-Identifier: Apache-2.0
// Registers, counters by index, and control flow: switch, exit, return, nested conditions, action_run.
// All indices are within their arrays: beyond them a bmv2 built with NDEBUG writes to whatever is there.
#include "common.p4"

header work_t {
    bit<8>   code;
    bit<8>   index;
    bit<16>  key;
    bit<32>  value;
    bit<100> wide;
    bit<1>   flag;
    bit<3>   port;
    bit<8>   trace;
    int<16>  signed;
}

struct headers_t {
    ethernet_t ethernet;
    work_t     work;
}

struct metadata_t {
    bit<8>  step;
    bit<32> scratch;
}

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.work);
        transition accept;
    }
}

control verify_none(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control update_none(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    counter(16, CounterType.packets_and_bytes) both;
    counter(256, CounterType.bytes) octets;
    register<bit<32>>(16) sums;
    register<bit<100>>(8) wides;
    register<bit<1>>(32) bits;
    // Not of int<16>: bmv2 reads an element as a positive number, and v1model.p4 promises bit<W> only.
    register<bit<16>>(8) signeds;

    action trace(bit<8> value) {
        hdr.work.trace = hdr.work.trace << 1 ^ value;
    }
    action add(bit<32> value) {
        bit<32> old;
        sums.read(old, (bit<32>) hdr.work.index & 15);
        hdr.work.value = old + value;
        sums.write((bit<32>) hdr.work.index & 15, hdr.work.value);
    }
    action leave() {
        std.egress_spec = 5;
        exit;
    }
    action early(bit<1> stop) {
        hdr.work.trace = hdr.work.trace + 3;
        if (stop == 1) {
            return;
        }
        hdr.work.trace = hdr.work.trace + 5;
    }
    action count(bit<8> index) {
        both.count((bit<32>) index & 15);
        octets.count((bit<32>) hdr.work.index);
    }
    table first {
        key = {
            hdr.work.code: exact;
        }
        actions = {
            trace;
            add;
            leave;
            early;
            count;
            NoAction;
        }
        default_action = trace(1);
    }
    table second {
        key = {
            hdr.work.key: ternary;
            meta.step: exact;
        }
        actions = {
            trace;
            early;
            leave;
        }
        default_action = early(1);
    }
    table third {
        key = {
            hdr.work.key[7:0]: lpm;
        }
        actions = {
            add;
            count;
            trace;
        }
    }

    table fourth {
        key = {
            hdr.work.index: range;
        }
        actions = {
            trace;
            leave;
            NoAction;
        }
    }
    table fifth {
        key = {
            hdr.work.index: exact;
            hdr.work.flag: exact;
        }
        actions = {
            early;
            count;
        }
        default_action = count(3);
    }
    table sixth {
        key = {
            hdr.work.signed: optional;
        }
        actions = {
            add;
            early;
        }
        const default_action = add(0x80000001);
    }

    apply {
        if (!hdr.work.isValid()) {
            std.egress_spec = 7;
            return;
        }
        std.egress_spec = (bit<9>) hdr.work.port;
        both.count((bit<32>) hdr.work.index & 15);
        switch (first.apply().action_run) {
            trace: {
                meta.step = 1;
                if (second.apply().hit) {
                    hdr.work.trace = hdr.work.trace + 16;
                } else {
                    third.apply();
                }
            }
            add:
            count: {
                meta.step = 2;
                if (hdr.work.index > 7) {
                    fourth.apply();
                } else if (hdr.work.index != 3) {
                    if (!fifth.apply().hit && hdr.work.code[0:0] == 1) {
                        return;
                    }
                }
            }
            early: {
                if (sixth.apply().miss) {
                    hdr.work.trace = 0xAA;
                }
            }
            default: {
                meta.step = 3;
            }
        }
        switch (hdr.work.code >> 2 & 7) {
            0:
            1: {
                bit<100> old;
                wides.read(old, (bit<32>) hdr.work.index & 7);
                wides.write((bit<32>) hdr.work.index & 7, hdr.work.wide);
                hdr.work.wide = old ^ (bit<100>) meta.step;
            }
            2: {
                bit<1> old;
                bits.read(old, (bit<32>) hdr.work.index & 31);
                bits.write((bit<32>) hdr.work.index & 31, ~old);
                hdr.work.flag = old;
            }
            3: {
                bit<16> read;
                signeds.read(read, (bit<32>) hdr.work.index & 7);
                int<16> old = (int<16>) read;
                signeds.write((bit<32>) hdr.work.index & 7, (bit<16>) (old |-| hdr.work.signed));
                hdr.work.signed = old < hdr.work.signed ? old : -old;
            }
            4: {
                sums.write(1, 5);
                sums.read(meta.scratch, (bit<32>) hdr.work.index[3:0]);
                hdr.work.value = meta.scratch;
                octets.count((bit<32>) hdr.work.index);
            }
            default: {
                if (hdr.work.key > 0x7FFF && (hdr.work.index == 1 || hdr.work.value[0:0] == 0)
                    || hdr.work.signed < 0) {
                    exit;
                }
                hdr.work.value = hdr.work.value + 1;
            }
        }
        hdr.work.trace = hdr.work.trace ^ 0x80;
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    register<bit<16>>(8) seen;

    action mark() {
        hdr.ethernet.src = (bit<48>) meta.step;
    }
    table last {
        key = {
            std.egress_port: exact;
            meta.step: exact;
        }
        actions = {
            mark;
            NoAction;
        }
        default_action = mark();
    }
    apply {
        if (std.egress_port < 8) {
            bit<16> number;
            seen.read(number, (bit<32>) std.egress_port);
            seen.write((bit<32>) std.egress_port, number + 1);
            hdr.ethernet.dst = (bit<48>) number;
            if (number[2:0] == 7) {
                exit;
            }
            if (last.apply().hit) {
                return;
            }
            hdr.ethernet.type = 0x1234;
        }
    }
}

control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(parse(), verify_none(), ingress(), egress(), update_none(), deparse()) main;
