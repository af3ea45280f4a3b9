// SPDX-License-Identifier: Apache-2.0

// ARP is answered from a table and never flooded.
control Arp(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    bit<48> mac;
    action known(bit<48> mac_) {
        mac = mac_;
    }
    table neighbors {
        key = { hdr.arp.target_ip: exact @name("ip"); }
        actions = { known; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 4096;
    }
    action answer() {
        hdr.ethernet.dst = hdr.arp.sender_mac;
        hdr.ethernet.src = mac;
        hdr.arp.operation = 2;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.sender_mac = mac;
        bit<32> ip = hdr.arp.target_ip;
        hdr.arp.target_ip = hdr.arp.sender_ip;
        hdr.arp.sender_ip = ip;
        standard.egress_spec = meta.port;
        meta.verdict = V_ARP_ANSWERED;
    }
    apply {
        meta.verdict = V_ARP_UNKNOWN;
        mac = 0;
        bool sound = hdr.arp.hardware == 1 && hdr.arp.protocol == TYPE_IPV4 && hdr.arp.hardware_length == 6
            && hdr.arp.protocol_length == 4 && hdr.arp.operation == 1
            && hdr.arp.sender_mac == hdr.ethernet.src && hdr.arp.sender_mac[40:40] == 0;
        // A host that asks for its own address probes for a second owner (RFC 5227): no answer.
        if (sound && neighbors.apply().hit && mac != hdr.arp.sender_mac) {
            answer();
        } else {
            mark_to_drop(standard);
        }
    }
}

// From a host port only with that port's own MAC and address; from a switch port with any. And a host complains
// (ICMP) of nothing but packets that were sent to it: else any host could break another's connections, or have it
// send shorter packets.
control Sources(inout headers_t hdr, inout metadata_t meta, out bool permitted) {
    table sources {
        key = {
            meta.port: exact @name("port");
            hdr.ethernet.src: exact @name("mac");
            hdr.ipv4.src: exact @name("ip");
        }
        actions = { NoAction; }
        const default_action = NoAction();
        size = 4096;
    }
    apply {
        permitted = true;
        if (meta.from_host) {
            permitted = sources.apply().hit && (!hdr.quoted.isValid() || hdr.quoted.dst == hdr.ipv4.src);
        }
    }
}

// Of several equal ways each flow takes one, by a hash of addresses, protocol and ports; by addresses and protocol
// alone for fragments, so that all of a datagram take one way. A switch's seed makes it choose unlike the others: else
// all that comes to it by one way of several would leave it by one.
control Routing(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    bit<16> group;
    bit<16> index;
    bit<16> ways;
    bit<32> seed;
    bit<32> ports;
    bit<32> flow;

    action refuse(verdict_t verdict) {
        meta.verdict = verdict;
        mark_to_drop(standard);
    }
    action forward(bit<9> port, bit<48> src_mac, bit<48> dst_mac) {
        standard.egress_spec = port;
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        meta.rewritten = true;
        meta.verdict = V_ROUTED;
    }
    action unroutable() {
        refuse(V_NO_ROUTE);
    }
    action spread(bit<16> group_, bit<16> ways_, bit<32> seed_) {
        group = group_;
        ways = ways_;
        seed = seed_;
    }
    table routes {
        key = { hdr.ipv4.dst: lpm @name("prefix"); }
        actions = { forward; spread; @defaultonly unroutable; }
        const default_action = unroutable();
        size = 4096;
    }
    table next_hops {
        key = {
            group: exact @name("group");
            index: exact @name("index");
        }
        actions = { forward; @defaultonly unroutable; }
        const default_action = unroutable();
        size = 4096;
    }
    apply {
        if (hdr.ipv4.ttl <= 1) {
            refuse(V_TTL_EXPIRED);
            return;
        }
        group = 0;
        ways = 0;
        seed = 0;
        switch (routes.apply().action_run) {
            spread: {
                ports = 0;
                if (hdr.ipv4.more_fragments == 0) { // fragments but the first have no ports parsed
                    if (hdr.tcp.isValid()) {
                        ports = hdr.tcp.src ++ hdr.tcp.dst;
                    } else if (hdr.udp.isValid()) {
                        ports = hdr.udp.src ++ hdr.udp.dst;
                    }
                }
                hash(flow, HashAlgorithm.crc32, 32w0, { hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4.protocol, ports },
                     64w0x100000000);
                flow = flow ^ seed;
                MIX(flow) // a CRC is linear: seeds alone would only rename the ways
                flow = (flow >> 16) * (bit<32>)ways; // over 2^16 the way: no division
                index = flow[31:16];
                next_hops.apply();
            }
        }
    }
}

// What is addressed to the switch and is no aggregation: an echo request is answered (RFC 792).
control Ping(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action answer() {
        bit<48> mac = hdr.ethernet.src;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = mac;
        bit<32> ip = hdr.ipv4.src;
        hdr.ipv4.src = hdr.ipv4.dst;
        hdr.ipv4.dst = ip;
        hdr.ipv4.ttl = SWITCH_TTL;
        hdr.icmp.type = 0;
        // RFC 1624: the type went from 8 to 0, so its one's-complement checksum grows by 0x0800.
        bit<17> sum = (bit<17>)hdr.icmp.checksum + 0x0800;
        hdr.icmp.checksum = sum[15:0] + (bit<16>)sum[16:16];
        standard.egress_spec = meta.port;
        meta.rewritten = true;
        meta.verdict = V_PING_ANSWERED;
    }
    apply {
        if (hdr.icmp.isValid() && hdr.icmp.type == 8 && hdr.icmp.code == 0) {
            answer();
        } else {
            meta.verdict = V_NOT_FOR_SWITCH;
            mark_to_drop(standard);
        }
    }
}
