// SPDX-License-Identifier: Apache-2.0
// Tables whose actions are members and groups: action profiles and selectors.
#include "common.p4"

header flow_t {
    bit<32> src;
    bit<32> dst;
    bit<16> sport;
    bit<16> dport;
    bit<8>  protocol;
    bit<8>  class;
    bit<8>  ways;
}

struct headers_t {
    ethernet_t ethernet;
    flow_t     flow;
}

struct metadata_t {
    bit<14> mixed;
}

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.flow);
        transition accept;
    }
}

#include "plain.p4"

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    // One each: bmv2 ends at a hit in a table that shares its profile.
    action_profile(64) of_classes;
    action_profile(64) of_sources;
    action_selector(HashAlgorithm.crc16, 64, 16) by_flow;
    action_selector(HashAlgorithm.crc32, 64, 14) by_mix;

    action to_port(bit<9> port) {
        std.egress_spec = port;
    }
    action to_next(bit<9> port, bit<48> address) {
        std.egress_spec = port;
        hdr.ethernet.dst = address;
    }
    action classify(bit<8> class) {
        hdr.flow.class = class;
    }
    action drop() {
        mark_to_drop(std);
    }
    table classes {
        key = {
            hdr.flow.protocol: ternary;
            hdr.flow.dport: range;
        }
        actions = {
            classify;
            to_port;
            NoAction;
        }
        implementation = of_classes;
    }
    table sources {
        key = {
            hdr.flow.src: lpm;
        }
        actions = {
            classify;
            to_port;
            NoAction;
        }
        implementation = of_sources;
    }
    table routes {
        key = {
            hdr.flow.dst: lpm;
            hdr.flow.src: selector;
            hdr.flow.dst: selector;
            hdr.flow.sport: selector;
            hdr.flow.protocol: selector;
        }
        actions = {
            to_port;
            to_next;
            drop;
            NoAction;
        }
        implementation = by_flow;
    }
    table mixes {
        key = {
            hdr.flow.class: exact;
            meta.mixed: selector;
        }
        actions = {
            to_next;
            NoAction;
        }
        implementation = by_mix;
    }
    apply {
        if (hdr.flow.isValid()) {
            std.egress_spec = 3;
            meta.mixed = hdr.flow.sport[13:0];
            classes.apply();
            if (sources.apply().hit) {
                hdr.flow.ways = hdr.flow.ways + 1;
            }
            if (routes.apply().hit) {
                hdr.flow.ways = hdr.flow.ways + 16;
            }
            switch (mixes.apply().action_run) {
                to_next: { hdr.flow.ways = hdr.flow.ways + 64; }
            }
        }
    }
}

control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(parse(), verify_none(), ingress(), egress_none(), update_none(), deparse()) main;
