// SPDX-License-Identifier: Apache-2.0
// Tables of every match kind, mixed kinds, default actions, odd widths of keys and parameters.
#include "common.p4"

header keys_t {
    bit<32>  a;
    bit<32>  b;
    bit<16>  c;
    bit<7>   d;
    bit<1>   e;
    bit<20>  f;
    bit<12>  g;
    bit<128> h;
    bit<65>  i;
    int<15>  j;
    bit<3>   port;
    bit<5>   k;
}

header results_t {
    bit<1>   r1;
    bit<3>   r3;
    bit<7>   r7;
    bit<9>   r9;
    bit<33>  r33;
    bit<65>  r65;
    bit<128> r128;
    bit<2>   hit;
    bit<8>   exacts;
    bit<8>   lpms;
    bit<8>   wides;
    bit<8>   ternaries;
    bit<8>   ranges;
    bit<8>   optionals;
    bit<8>   constants;
    bit<8>   keyless;
    bit<8>   computed;
}

struct headers_t {
    ethernet_t ethernet;
    keys_t     keys;
    results_t  results;
}

struct metadata_t {
    // Whole bytes: bmv2's P4Runtime server counts the prefix of other widths from their padding on.
    bit<16> mixed;
}

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.keys);
        packet.extract(hdr.results);
        transition accept;
    }
}

#include "plain.p4"

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    direct_counter(CounterType.packets_and_bytes) exact_counter;
    direct_counter(CounterType.packets) lpm_counter;
    direct_counter(CounterType.bytes) ternary_counter;
    direct_counter(CounterType.packets_and_bytes) range_counter;

    action set(inout bit<8> result, bit<8> value) {
        result = value;
    }
    action narrow(bit<1> v1, bit<3> v3, bit<7> v7, bit<9> v9) {
        hdr.results.r1 = v1;
        hdr.results.r3 = v3;
        hdr.results.r7 = v7;
        hdr.results.r9 = v9;
    }
    action wide(bit<33> v33, bit<65> v65, bit<128> v128) {
        hdr.results.r33 = v33;
        hdr.results.r65 = hdr.results.r65 + v65;
        hdr.results.r128 = hdr.results.r128 ^ v128;
    }
    action drop() {
        mark_to_drop(std);
    }
    action forward(bit<9> port) {
        std.egress_spec = port;
    }

    table exacts {
        key = {
            hdr.keys.a: exact;
            hdr.keys.d: exact;
        }
        actions = {
            set(hdr.results.exacts);
            narrow;
            @tableonly drop;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        counters = exact_counter;
    }
    table lpms {
        key = {
            hdr.keys.e: exact;
            hdr.keys.b: lpm;
        }
        actions = {
            set(hdr.results.lpms);
            wide;
            forward;
            NoAction;
        }
        default_action = set(hdr.results.lpms, 77);
        counters = lpm_counter;
    }
    table wides {
        key = {
            hdr.keys.h: lpm;
        }
        actions = {
            set(hdr.results.wides);
            @tableonly wide;
        }
        const default_action = set(hdr.results.wides, 1);
    }
    table ternaries {
        key = {
            hdr.keys.c: ternary;
            hdr.keys.h: ternary;
            hdr.keys.b: lpm;
            hdr.keys.d: exact;
        }
        actions = {
            set(hdr.results.ternaries);
            narrow;
            forward;
            NoAction;
        }
        default_action = NoAction();
        counters = ternary_counter;
    }
    table ranges {
        key = {
            hdr.keys.f: range;
            hdr.keys.g: range;
            hdr.keys.c: ternary;
            hdr.keys.e: optional;
        }
        actions = {
            set(hdr.results.ranges);
            wide;
            NoAction;
        }
        default_action = wide(1, 2, 3);
        counters = range_counter;
    }
    table optionals {
        key = {
            hdr.keys.a: optional;
            hdr.keys.i: optional;
            hdr.keys.j: optional;
        }
        actions = {
            set(hdr.results.optionals);
            NoAction;
        }
        size = 8;
    }
    table constants {
        key = {
            hdr.keys.k: ternary;
            hdr.keys.c[3:0]: range;
        }
        actions = {
            set(hdr.results.constants);
            NoAction;
        }
        default_action = set(hdr.results.constants, 255);
        const entries = {
            (0x01 &&& 0x03, 2..9): set(hdr.results.constants, 1);
            (0x03, _): set(hdr.results.constants, 2);
            (0x10 &&& 0x10, 0..5): NoAction();
            (_, 8..15): set(hdr.results.constants, 4);
        }
    }
    table keyless {
        actions = {
            set(hdr.results.keyless);
            NoAction;
        }
        default_action = set(hdr.results.keyless, 9);
    }
    table computed {
        key = {
            meta.mixed: lpm @name("mixed");
            hdr.keys.f[11:4]: exact @name("part");
            hdr.keys.isValid(): exact @name("valid");
        }
        actions = {
            set(hdr.results.computed);
            forward;
        }
        default_action = forward(2);
    }

    apply {
        if (!hdr.results.isValid()) {
            // A packet that is too short leaves as it came.
            std.egress_spec = 6;
        } else {
            std.egress_spec = (bit<9>) hdr.keys.port;
            meta.mixed = hdr.keys.k ++ hdr.keys.c[10:0];
            if (exacts.apply().hit) {
                hdr.results.hit[0:0] = 1;
            }
            lpms.apply();
            wides.apply();
            ternaries.apply();
            ranges.apply();
            if (optionals.apply().miss) {
                hdr.results.hit[1:1] = 1;
            }
            constants.apply();
            keyless.apply();
            computed.apply();
        }
    }
}

control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(parse(), verify_none(), ingress(), egress_none(), update_none(), deparse()) main;
