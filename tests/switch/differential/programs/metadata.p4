// SPDX-License-Identifier: Apache-2.0
// What the switch itself tells a program about a packet, in both pipelines and the parser, and after each copy.
#include "common.p4"

header told_t {
    bit<32> packet_length;
    bit<32> instance_type;
    bit<9>  ingress_port;
    bit<9>  egress_port;
    bit<9>  egress_spec;
    bit<5>  zeros;
    bit<16> mcast_grp;
    bit<16> egress_rid;
    bit<1>  checksum_error;
    bit<3>  priority;
    bit<4>  parsed_on;
}

header ask_t {
    bit<8>  what;
    bit<8>  port;
    bit<8>  more;
}

struct headers_t {
    ethernet_t ethernet;
    ask_t      ask;
    told_t     at_ingress;
    told_t     at_egress;
}

struct metadata_t {
    @field_list(1)
    bit<4>  parsed_on;
    bit<32> instance_type;
}

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ask);
        transition select(std.ingress_port) {
            0: zero;
            1 &&& 1: odd;
            default: by_kind;
        }
    }
    state zero {
        meta.parsed_on = 1;
        transition accept;
    }
    state odd {
        meta.parsed_on = 2;
        transition by_kind;
    }
    state by_kind {
        meta.instance_type = std.instance_type;
        transition select(std.instance_type, std.packet_length) {
            (4, _): again;
            (6, _): again;
            (_, 0 &&& 1): even;
            default: accept;
        }
    }
    state again {
        meta.parsed_on = meta.parsed_on + 4;
        transition accept;
    }
    state even {
        meta.parsed_on = meta.parsed_on + 8;
        transition accept;
    }
}

control verify_none(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control update_none(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control tell(inout told_t told, in metadata_t meta, in standard_metadata_t std) {
    apply {
        told.setValid();
        told.packet_length = std.packet_length;
        told.instance_type = std.instance_type;
        told.ingress_port = std.ingress_port;
        told.egress_port = std.egress_port;
        told.egress_spec = std.egress_spec;
        told.mcast_grp = std.mcast_grp;
        told.egress_rid = std.egress_rid;
        told.checksum_error = std.checksum_error;
        told.priority = std.priority;
        told.parsed_on = meta.parsed_on;
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    tell() how;
    action drop() {
        mark_to_drop(std);
    }
    action group(bit<16> number) {
        std.mcast_grp = number;
    }
    action mirror(bit<32> session) {
        clone_preserving_field_list(CloneType.I2E, session, 1);
    }
    table places {
        key = {
            std.ingress_port: exact;
            std.packet_length: range;
            std.instance_type: ternary;
            meta.instance_type: ternary;
        }
        actions = {
            @tableonly drop;
            group;
            mirror;
            NoAction;
        }
        default_action = NoAction();
    }
    apply {
        std.egress_spec = 1;
        if (hdr.ask.isValid()) {
            std.egress_spec = (bit<9>) hdr.ask.port[2:0];
            how.apply(hdr.at_ingress, meta, std);
            places.apply();
            if (hdr.ask.what[0:0] == 1) {
                std.priority = hdr.ask.port[5:3];
            }
            if (hdr.ask.what[1:1] == 1 && std.instance_type == 0) {
                resubmit_preserving_field_list(1);
            }
            if (hdr.ask.what[2:2] == 1) {
                std.egress_rid = 77;
                std.ingress_port = 5;
                std.packet_length = 5;
                std.instance_type = 9;
            }
            if (hdr.ask.what[3:3] == 1) {
                truncate(30);
            }
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    tell() how;
    apply {
        if (hdr.ask.isValid()) {
            how.apply(hdr.at_egress, meta, std);
            if (hdr.ask.what[4:4] == 1 && std.instance_type < 2) {
                clone_preserving_field_list(CloneType.E2E, 2, 1);
            }
            if (hdr.ask.what[5:5] == 1) {
                std.packet_length = 3;
                std.egress_spec = 2;
                std.mcast_grp = 3;
            }
            if (hdr.ask.what[6:6] == 1) {
                hdr.ask.what[6:6] = 0;
                recirculate_preserving_field_list(1);
            }
            if (hdr.ask.what[7:7] == 1 && std.egress_rid > 1) {
                mark_to_drop(std);
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
