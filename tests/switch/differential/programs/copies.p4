// SPDX-License-Identifier: Apache-2.0
// Clones, multicast, resubmit, recirculate, truncate and drops, in whatever order the packet asks for.
#include "common.p4"

const bit<32> NORMAL = 0;
const bit<32> I2E = 1;
const bit<32> E2E = 2;
const bit<32> RECIRCULATED = 4;
const bit<32> RESUBMITTED = 6;

header orders_t {
    bit<4>  in1;
    bit<4>  in2;
    bit<4>  in3;
    bit<4>  in4;
    bit<4>  out1;
    bit<4>  out2;
    bit<4>  out3;
    bit<4>  lives;
    bit<3>  port;
    bit<3>  group;
    bit<3>  session;
    bit<7>  length;
    bit<16> value;
}

header trail_t {
    bit<4>  instance_type;
    bit<4>  marks;
    bit<16> rid;
    bit<16> group;
    bit<16> kept;
    bit<16> also_kept;
    bit<16> lost;
    bit<16> packet_length;
    bit<7>  ingress_port;
    bit<9>  egress_port;
}

struct headers_t {
    ethernet_t ethernet;
    trail_t    trail;
    orders_t   orders;
}

struct metadata_t {
    @field_list(1, 2)
    bit<16> kept;
    @field_list(2)
    bit<16> also_kept;
    bit<16> lost;
    @field_list(1, 2, 3)
    bit<8>  rounds;
}

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            0x1800 &&& 0xFFFE: trail;
            default: orders;
        }
    }
    state trail {
        packet.extract(hdr.trail);
        transition orders;
    }
    state orders {
        packet.extract(hdr.orders);
        transition accept;
    }
}


control verify_none(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control update_none(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ingress_order(in bit<4> order, inout headers_t hdr, inout metadata_t meta,
                      inout standard_metadata_t std) {
    apply {
        switch (order) {
            1: { mark_to_drop(std); }
            2: { std.egress_spec = (bit<9>) hdr.orders.port; }
            3: { std.mcast_grp = (bit<16>) hdr.orders.group; }
            4: { clone(CloneType.I2E, (bit<32>) hdr.orders.session); }
            5: { clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.orders.session, 1); }
            6: { clone_preserving_field_list(CloneType.I2E, (bit<32>) hdr.orders.session + 1, 2); }
            7: { if (meta.rounds < 3) { resubmit_preserving_field_list(1); } }
            8: { if (meta.rounds < 2) { resubmit_preserving_field_list(2); } }
            9: { truncate((bit<32>) hdr.orders.length); }
            10: { std.egress_spec = 511; }
            11: { std.mcast_grp = 0; }
            12: { meta.kept = meta.kept + hdr.orders.value; }
            13: { meta.also_kept = meta.also_kept ^ hdr.orders.value; meta.lost = 7; }
            14: { hdr.ethernet.src = hdr.ethernet.src + 1; }
        }
    }
}

control egress_order(in bit<4> order, inout headers_t hdr, inout metadata_t meta,
                     inout standard_metadata_t std) {
    apply {
        switch (order) {
            1: { mark_to_drop(std); }
            2: { std.egress_spec = 3; }
            3: { if (std.instance_type != E2E) {
                     clone(CloneType.E2E, (bit<32>) hdr.orders.session);
                 } }
            4: { if (std.instance_type != E2E) {
                     clone_preserving_field_list(CloneType.E2E, (bit<32>) hdr.orders.session, 1);
                 } }
            5: { if (std.instance_type != E2E) {
                     clone_preserving_field_list(CloneType.E2E, (bit<32>) hdr.orders.session, 2);
                 } }
            6: { if (hdr.orders.lives != 0 && std.egress_port < 3) {
                     recirculate_preserving_field_list(1);
                 } }
            7: { if (hdr.orders.lives != 0) { recirculate_preserving_field_list(2); } }
            8: { truncate((bit<32>) hdr.orders.length); }
            9: { std.egress_spec = 511; }
            10: { meta.kept = meta.kept + 1; }
            11: { meta.also_kept = meta.also_kept + 256; meta.lost = 8; }
            12: { std.egress_port = 2; }
            13: { hdr.ethernet.setInvalid(); hdr.ethernet.setValid(); hdr.ethernet.dst = 5; hdr.ethernet.src = 6;
                  hdr.ethernet.type = 0x1999; }
            14: { hdr.ethernet.dst = hdr.ethernet.dst + 1; }
        }
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    ingress_order() one;
    ingress_order() two;
    ingress_order() three;
    ingress_order() four;

    apply {
        meta.rounds = meta.rounds + 1;
        if (!hdr.orders.isValid()) {
            std.egress_spec = 4;
        } else {
            one.apply(hdr.orders.in1, hdr, meta, std);
            if (hdr.orders.in1 == 15) {
                exit;
            }
            two.apply(hdr.orders.in2, hdr, meta, std);
            three.apply(hdr.orders.in3, hdr, meta, std);
            four.apply(hdr.orders.in4, hdr, meta, std);
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    egress_order() one;
    egress_order() two;
    egress_order() three;

    apply {
        if (hdr.orders.isValid()) {
            if (!hdr.trail.isValid()) {
                hdr.trail.setValid();
                hdr.trail.marks = 0;
                hdr.ethernet.type = 0x1800;
            } else {
                hdr.trail.marks = hdr.trail.marks + 1;
            }
            hdr.trail.instance_type = (bit<4>) std.instance_type;
            hdr.trail.rid = std.egress_rid;
            hdr.trail.group = std.mcast_grp;
            hdr.trail.kept = meta.kept;
            hdr.trail.also_kept = meta.also_kept;
            hdr.trail.lost = meta.lost;
            hdr.trail.packet_length = (bit<16>) std.packet_length;
            hdr.trail.ingress_port = (bit<7>) std.ingress_port;
            hdr.trail.egress_port = std.egress_port;
            one.apply(hdr.orders.out1, hdr, meta, std);
            if (hdr.orders.out1 == 15) {
                exit;
            }
            two.apply(hdr.orders.out2, hdr, meta, std);
            three.apply(hdr.orders.out3, hdr, meta, std);
            if (hdr.orders.lives != 0) {
                hdr.orders.lives = hdr.orders.lives >> 3;
            }
        }
    }
}

control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr);
    }
}

V1Switch(parse(), verify_none(), ingress(), egress(), update_none(), deparse()) main;
