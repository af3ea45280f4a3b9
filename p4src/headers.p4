// SPDX-License-Identifier: Apache-2.0
// What is on the wire (docs: DESIGN of the packet format in docs/protocol.md; numbers: wire/constants.py).

header ethernet_h {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}

header arp_h { // RFC 826 for Ethernet and IPv4
    bit<16> hardware;
    bit<16> protocol;
    bit<8>  hardware_length;
    bit<8>  protocol_length;
    bit<16> operation;
    bit<48> sender_mac;
    bit<32> sender_ip;
    bit<48> target_mac;
    bit<32> target_ip;
}

header ipv4_h { // RFC 791
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  tos;
    bit<16> length;
    bit<16> id;
    bit<1>  reserved;
    bit<1>  dont_fragment;
    bit<1>  more_fragments;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src;
    bit<32> dst;
}

header ipv4_options_h {
    varbit<320> bytes;
}

header icmp_h { // RFC 792, of an echo only what the answer changes
    bit<8>  type;
    bit<8>  code;
    bit<16> checksum;
}

header quoted_h { // RFC 792: an ICMP error's second word, and the IPv4 header of the packet that it is about
    bit<32> word;
    bit<96> head;
    bit<32> src;
    bit<32> dst;
}

header tcp_h { // RFC 9293, what tells flows apart
    bit<16> src;
    bit<16> dst;
}

header udp_h {
    bit<16> src;
    bit<16> dst;
    bit<16> length;
    bit<16> checksum;
}

header agg_h {
    bit<4>  msg_type;
    bit<1>  flag;
    bit<3>  size;
    bit<8>  tensor;
    bit<32> chunk;
    bit<1>  version;
    bit<15> slot;
}

header exponents_h {
    int<8> e0;
    int<8> e1;
}

header values_h {
    EACH_ELEMENT(ELEMENT_FIELD)
}

// The controller peeks at a slot: its question, and the answer before the question's payload.
@controller_header("packet_out")
header packet_out_h {
    bit<8>  operation;
    bit<8>  version;
    bit<16> slot;
}

@controller_header("packet_in")
header packet_in_h {
    bit<8>  operation;
    bit<8>  version;
    bit<16> slot;
    bit<32> epoch;
    bit<32> tag;
    bit<64> seen;
    bit<8>  done;
}

struct headers_t {
    packet_out_h   packet_out;
    packet_in_h    packet_in;
    ethernet_h     ethernet;
    arp_h          arp;
    ipv4_h         ipv4;
    ipv4_options_h ipv4_options;
    icmp_h         icmp;
    quoted_h       quoted;
    tcp_h          tcp;
    udp_h          udp;
    agg_h          agg;
    exponents_h    exponents;
    values_h       values;
}

// Where a leaf's partial goes, or (all zero) at a root.
struct uplink_t {
    bit<9>  port;
    bit<48> src_mac;
    bit<48> dst_mac;
    bit<32> src_ip;
    bit<32> dst_ip;
    bit<16> src_port;
    bit<16> dst_port;
}

struct metadata_t {
    @field_list(FIELDS_DUPLICATE)
    bit<9>    port;      // that the packet came in by; kept for a duplicate, whose ingress_port is lost
    bool      from_host;
    handling_t handling;
    verdict_t verdict;
    bool      rewritten; // the IPv4 checksum must be written
    bool      aggregate; // an aggregation packet that this switch sends: the UDP checksum must be written

    bool      for_job;   // its UDP port names a job
    bit<8>    job;
    bool      admitted;
    role_t    role;
    bit<6>    worker;
    bit<64>   mask;      // 1 << worker
    bit<64>   full;      // the masks of all workers
    bit<16>   base;      // of the job's pool
    bit<16>   window;    // W, the pool's slots
    bit<32>   epoch;
    bit<16>   group;     // multicast group of the receivers
    uplink_t  uplink;
    bit<32>   index;     // of the slot and version in every register
    value_op_t value_op;
}
