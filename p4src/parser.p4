// SPDX-License-Identifier: Apache-2.0

#define JOB_PORT 0xBE00 &&& 0xFF00

parser SwitchParser(packet_in packet, out headers_t hdr, inout metadata_t meta,
                    inout standard_metadata_t standard) {
    state start {
        transition select(standard.ingress_port) {
            CPU_PORT: parse_packet_out;
            default: parse_ethernet;
        }
    }
    state parse_packet_out {
        packet.extract(hdr.packet_out);
        transition accept;
    }
    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.type) {
            TYPE_ARP: parse_arp;
            TYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }
    state parse_arp {
        packet.extract(hdr.arp);
        transition accept;
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        verify(hdr.ipv4.version == 4 && hdr.ipv4.ihl >= 5, error.BadIPv4Header);
        transition select(hdr.ipv4.ihl) {
            5: parse_payload;
            default: parse_options;
        }
    }
    state parse_options {
        packet.extract(hdr.ipv4_options, ((bit<32>)hdr.ipv4.ihl - 5) * 32);
        transition parse_payload;
    }
    state parse_payload {
        transition select(hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (0, PROTOCOL_UDP): parse_udp;
            (0, PROTOCOL_TCP): parse_tcp;
            (0, PROTOCOL_ICMP): parse_icmp;
            default: accept;
        }
    }
    state parse_icmp {
        packet.extract(hdr.icmp);
        transition select(hdr.icmp.type) {
            3: parse_quoted;  // destination unreachable
            4: parse_quoted;  // source quench
            5: parse_quoted;  // redirect
            11: parse_quoted; // time exceeded
            12: parse_quoted; // parameter problem
            default: accept;
        }
    }
    state parse_quoted {
        packet.extract(hdr.quoted);
        transition accept;
    }
    state parse_tcp {
        packet.extract(hdr.tcp);
        transition accept;
    }
    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.src, hdr.udp.dst) {
            (_, JOB_PORT): parse_lengths;
            (JOB_PORT, _): parse_lengths;
            default: accept;
        }
    }
    // Any other length leaves agg invalid: control refuses it where it is addressed to the switch.
    state parse_lengths {
        transition select(hdr.ipv4.ihl, standard.packet_length, hdr.ipv4.length, hdr.udp.length) {
            (5, FRAME_BYTES, IPV4_BYTES, UDP_BYTES): parse_agg;
            default: accept;
        }
    }
    state parse_agg {
        packet.extract(hdr.agg);
        packet.extract(hdr.exponents);
        packet.extract(hdr.values);
        transition accept;
    }
}

control SwitchDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv4_options);
        packet.emit(hdr.icmp);
        packet.emit(hdr.quoted);
        packet.emit(hdr.tcp);
        packet.emit(hdr.udp);
        packet.emit(hdr.agg);
        packet.emit(hdr.exponents);
        packet.emit(hdr.values);
    }
}
