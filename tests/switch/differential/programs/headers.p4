// SPDX-License-Identifier: Apache-2.0
// Header stacks, unions, varbit fields, lookahead, advance, verify and the parser's errors.
#include "common.p4"

const bit<16> LABELS = 0x1001;
const bit<16> TREE = 0x1002;
const bit<16> OPTIONS = 0x1003;
const bit<16> LOOK = 0x1004;

error {
    BadTag,
    BadOption
}

header label_t {
    bit<19> value;
    bit<4>  color;
    bit<1>  bottom;
}

header shape_t {
    bit<8> kind;
    bit<8> operation;
}

header small_t {
    bit<16> x;
}

header large_t {
    bit<7>  y;
    bit<41> z;
}

header options_t {
    bit<4>      words;
    bit<4>      check;
    varbit<120> data;
}

header tail_t {
    bit<32> value;
}

header look_t {
    bit<12> first;
    bit<20> rest;
}

header report_t {
    bit<8>  error_number;
    bit<8>  valid_bits;
    bit<8>  last;
    bit<24> value;
}

header_union either_t {
    small_t small;
    large_t large;
}

struct headers_t {
    report_t   report;
    ethernet_t ethernet;
    shape_t    shape;
    label_t[5] labels;
    either_t   one;
    either_t   two;
    options_t  options;
    options_t  more;
    tail_t     tail;
    look_t     look;
}

struct metadata_t {
    bit<24> value;
    bit<8>  last;
}

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            LABELS: labelled;
            TREE: tree;
            OPTIONS: options;
            LOOK: look;
            0x2000 &&& 0xF000: tail;
            0x3000..0x3010: twice;
        }
    }
    state labelled {
        packet.extract(hdr.shape);
        transition labels;
    }
    state labels {
        packet.extract(hdr.labels.next);
        meta.value = meta.value + (bit<24>) hdr.labels.last.value;
        transition select(hdr.labels.last.bottom, hdr.labels.last.color) {
            (0, 0 &&& 8): labels;
            (0, _): done_with_labels;
            (1, 0xF): tail;
            (1, 1): accept;
            default: tree;
        }
    }
    state done_with_labels {
        meta.last = (bit<8>) hdr.labels.lastIndex;
        transition accept;
    }
    state tree {
        verify(hdr.ethernet.src[3:0] != 0xE, error.BadTag);
        transition select(packet.lookahead<bit<8>>()) {
            0..99: small_one;
            0x80 &&& 0xC0: large_one;
            default: tail;
        }
    }
    state small_one {
        packet.extract(hdr.one.small);
        transition select(hdr.one.small.x[1:0]) {
            0: large_two;
            1: options;
            2: tail;
            3: accept;
        }
    }
    state large_one {
        packet.extract(hdr.one.large);
        transition select(hdr.one.large.y, hdr.one.large.z[0:0]) {
            (0 &&& 1, 1): large_two;
            (0x7F, _): options;
            default: accept;
        }
    }
    state large_two {
        packet.extract(hdr.two.large);
        transition accept;
    }
    state options {
        bit<8> head = packet.lookahead<bit<8>>();
        verify(head[3:0] != 0, error.BadOption);
        packet.extract(hdr.options, (bit<32>) (head[7:4] * 8));
        transition select(hdr.options.check) {
            1: more_options;
            2: tail;
            default: accept;
        }
    }
    state more_options {
        // A length that is not in whole bytes, and ones beyond the field's: errors 6 and 4.
        packet.extract(hdr.more, (bit<32>) packet.lookahead<bit<8>>() & 0x9C);
        transition accept;
    }
    state look {
        bit<37> ahead = packet.lookahead<bit<37>>();
        meta.value = ahead[23:0];
        packet.advance(((bit<32>) ahead[36:33]) * 4);
        transition select(ahead[32:31], packet.lookahead<look_t>().first) {
            (0, _): looked;
            (1, 0x100 &&& 0x700): looked;
            (2, 5 .. 2000): tail;
        }
    }
    state looked {
        packet.extract(hdr.look);
        transition select(hdr.look.first ++ hdr.look.rest[3:0]) {
            0x0000 &&& 0x1000: tail;
            default: accept;
        }
    }
    state twice {
        packet.advance(16);
        packet.extract(hdr.tail);
        transition select(hdr.tail.value[31:24]) {
            1: look;
            default: accept;
        }
    }
    state tail {
        packet.extract(hdr.tail);
        transition accept;
    }
}

#include "plain.p4"

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {
        hdr.report.setValid();
        hdr.report.value = meta.value;
        hdr.report.last = meta.last;
        hdr.report.valid_bits = 0;
        hdr.report.error_number = 99;
        if (std.parser_error == error.NoError) {
            hdr.report.error_number = 0;
        } else if (std.parser_error == error.PacketTooShort) {
            hdr.report.error_number = 1;
        } else if (std.parser_error == error.NoMatch) {
            hdr.report.error_number = 2;
        } else if (std.parser_error == error.StackOutOfBounds) {
            hdr.report.error_number = 3;
        } else if (std.parser_error == error.HeaderTooShort) {
            hdr.report.error_number = 4;
        } else if (std.parser_error == error.ParserTimeout) {
            hdr.report.error_number = 5;
        } else if (std.parser_error == error.ParserInvalidArgument) {
            hdr.report.error_number = 6;
        } else if (std.parser_error == error.BadTag) {
            hdr.report.error_number = 7;
        } else if (std.parser_error == error.BadOption) {
            hdr.report.error_number = 8;
        }
        if (std.parser_error == error.StackOutOfBounds) {
            hdr.report.last = 200;
        }
        if (hdr.labels[0].isValid()) {
            hdr.report.valid_bits[0:0] = 1;
            hdr.report.value = hdr.report.value ^ (bit<24>) hdr.labels[0].value;
        }
        if (hdr.labels[4].isValid()) {
            hdr.report.valid_bits[1:1] = 1;
        }
        if (hdr.one.isValid()) {
            hdr.report.valid_bits[2:2] = 1;
        }
        if (hdr.two.large.isValid()) {
            hdr.report.valid_bits[3:3] = 1;
        }
        if (hdr.options.isValid()) {
            hdr.report.valid_bits[4:4] = 1;
        }
        if (hdr.shape.isValid()) {
            switch (hdr.shape.operation & 15) {
                0: { hdr.labels.push_front(1); hdr.labels[0].setValid(); hdr.labels[0] = {1, 2, 1}; }
                1: { hdr.labels.push_front(2); }
                2: { hdr.labels.pop_front(1); }
                3: { hdr.labels.pop_front(3); }
                4: { hdr.labels[2].setInvalid(); }
                5: { hdr.labels[3] = hdr.labels[0]; }
                6: { hdr.labels.push_front(5); hdr.labels[4].setValid(); hdr.labels[4].value = 5;
                     hdr.labels[4].color = 1; hdr.labels[4].bottom = 0; }
                7: { hdr.labels.pop_front(5); }
                8: { label_t spare = hdr.labels[1]; hdr.labels[1] = hdr.labels[0]; hdr.labels[0] = spare; }
                9: { if (hdr.labels[0] == hdr.labels[1]) { hdr.report.last = 55; } }
                10: { hdr.labels.push_front(3); hdr.labels.pop_front(1); }
                11: { hdr.labels[0].setValid(); hdr.labels[0].color = 3; hdr.labels[0].value = 1;
                      hdr.labels[0].bottom = 1; hdr.labels.push_front(1); }
            }
        }
        if (hdr.one.small.isValid()) {
            if (hdr.one.small.x[15:14] == 1) {
                hdr.one.large.setValid();
                hdr.one.large.y = 3;
                hdr.one.large.z = 0x123456789A;
            } else if (hdr.one.small.x[15:14] == 2) {
                hdr.two = hdr.one;
            } else if (hdr.one.small.x[15:14] == 3) {
                hdr.one.small.setInvalid();
            }
        } else if (hdr.one.large.isValid() && hdr.two.large.isValid()) {
            if (hdr.one == hdr.two) {
                hdr.report.last = 44;
            } else {
                hdr.two.small.setValid();
                hdr.two.small.x = 0xABCD;
            }
        }
        if (hdr.options.isValid() && !hdr.more.isValid()) {
            if (hdr.options.check == 3) {
                hdr.more = hdr.options;
            } else if (hdr.options.check == 4) {
                hdr.options.setInvalid();
            } else if (hdr.options.check == 5) {
                hdr.more = hdr.options;
                hdr.more.words = 0;
                if (hdr.more == hdr.options) {
                    hdr.report.last = 33;
                }
            }
        }
        std.egress_spec = 1;
    }
}

control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.report);
        packet.emit(hdr.shape);
        packet.emit(hdr.labels);
        packet.emit(hdr.one);
        packet.emit(hdr.two);
        packet.emit(hdr.options);
        packet.emit(hdr.more);
        packet.emit(hdr.tail);
        packet.emit(hdr.look);
    }
}

V1Switch(parse(), verify_none(), ingress(), egress_none(), update_none(), deparse()) main;
