// SPDX-License-Identifier: Apache-2.0

// Who may contribute: an entry for each worker, and at a leaf for its parent, new in every epoch.
control Admission(inout headers_t hdr, inout metadata_t meta) {
    action worker(bit<6> bit_index, bit<64> mask, bit<64> full, bit<16> base, bit<16> window, bit<32> epoch,
                  bit<16> group) {
        meta.admitted = true;
        meta.role = ROLE_ROOT_WORKER;
        meta.worker = bit_index;
        meta.mask = mask;
        meta.full = full;
        meta.base = base;
        meta.window = window;
        meta.epoch = epoch;
        meta.group = group;
    }
    action leaf_worker(bit<6> bit_index, bit<64> mask, bit<64> full, bit<16> base, bit<16> window,
                       bit<32> epoch, bit<9> up_port, bit<48> src_mac, bit<48> dst_mac, bit<32> src_ip,
                       bit<32> dst_ip, bit<16> src_port, bit<16> dst_port) {
        worker(bit_index, mask, full, base, window, epoch, 0);
        meta.role = ROLE_LEAF_WORKER;
        meta.uplink = { up_port, src_mac, dst_mac, src_ip, dst_ip, src_port, dst_port };
    }
    action parent(bit<64> full, bit<16> base, bit<16> window, bit<32> epoch, bit<16> group) {
        worker(0, 0, full, base, window, epoch, group);
        meta.role = ROLE_PARENT;
    }
    table members {
        key = {
            meta.port: exact @name("port");
            hdr.ipv4.src: exact @name("ip_src");
            hdr.udp.src: exact @name("udp_src");
            hdr.udp.dst: exact @name("udp_dst");
        }
        actions = { worker; leaf_worker; parent; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16384;
    }
    apply {
        members.apply();
    }
}

// Everything a frame to a job port has to pass, then its slot, then what goes out.
control Aggregation(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Admission()   admission;
    UdpChecksum() checksum;
    Slots()       slots;
    Values()      values;
    meter(JOBS, MeterType.bytes) rates;
    bit<2>  color;
    bit<16> sum;

    action refuse(verdict_t verdict) {
        meta.verdict = verdict;
        mark_to_drop(standard);
    }
    action send_header(bit<4> msg_type) {
        hdr.agg.msg_type = msg_type;
        hdr.ipv4.tos = 0;
        hdr.ipv4.id = 0;
        hdr.ipv4.dont_fragment = 1;
        hdr.ipv4.ttl = SWITCH_TTL;
        meta.rewritten = true;
        meta.aggregate = true;
    }
    action send_to_all() {
        send_header(MSG_RESULT);
        standard.mcast_grp = meta.group;
    }
    action send_back() {
        send_header(MSG_RESULT);
        standard.egress_spec = meta.port;
        bit<48> mac = hdr.ethernet.src;
        hdr.ethernet.src = hdr.ethernet.dst;
        hdr.ethernet.dst = mac;
        bit<32> ip = hdr.ipv4.src;
        hdr.ipv4.src = hdr.ipv4.dst;
        hdr.ipv4.dst = ip;
        bit<16> port = hdr.udp.src;
        hdr.udp.src = hdr.udp.dst;
        hdr.udp.dst = port;
    }
    action send_up() {
        send_header(MSG_CONTRIBUTION);
        standard.egress_spec = meta.uplink.port;
        hdr.ethernet.src = meta.uplink.src_mac;
        hdr.ethernet.dst = meta.uplink.dst_mac;
        hdr.ipv4.src = meta.uplink.src_ip;
        hdr.ipv4.dst = meta.uplink.dst_ip;
        hdr.udp.src = meta.uplink.src_port;
        hdr.udp.dst = meta.uplink.dst_port;
    }

    apply {
        if (hdr.packet_out.isValid()) { // peeks share the slots' state register
            if (hdr.packet_out.operation != PACKET_OUT_PEEK || hdr.packet_out.version > 1
                || hdr.packet_out.slot >= SLOTS) {
                refuse(V_BAD_PACKET_OUT);
                return;
            }
            meta.index = (bit<32>)hdr.packet_out.version * SLOTS + (bit<32>)hdr.packet_out.slot;
        } else {
            if (hdr.udp.src[15:8] == 0xBE && hdr.udp.dst[15:8] == 0xBE) {
                refuse(V_TWO_JOB_PORTS);
                return;
            }
            admission.apply(hdr, meta);
            if (!meta.admitted) {
                refuse(V_NOT_ADMITTED);
                return;
            }
            if (!hdr.agg.isValid()) {
                refuse(V_BAD_LENGTH);
                return;
            }
            rates.execute_meter((bit<32>)meta.job, color);
            if (color == 2) {
                refuse(V_OVER_RATE);
                return;
            }
            if (hdr.udp.checksum != 0) {
                checksum.apply(hdr, sum);
                if (sum != 0) {
                    refuse(V_BAD_UDP_CHECKSUM);
                    return;
                }
            }
            if (hdr.agg.size != SIZE_CODE) {
                refuse(V_WRONG_SIZE);
                return;
            }
            if ((meta.role == ROLE_PARENT && hdr.agg.msg_type != MSG_RESULT)
                || (meta.role != ROLE_PARENT && hdr.agg.msg_type != MSG_CONTRIBUTION)) {
                refuse(V_WRONG_TYPE);
                return;
            }
            if ((bit<16>)hdr.agg.slot >= meta.window) {
                refuse(V_SLOT_BEYOND_POOL);
                return;
            }
            meta.index = (bit<32>)hdr.agg.version * SLOTS + (bit<32>)meta.base + (bit<32>)hdr.agg.slot;
        }

        slots.apply(hdr, meta, standard);
        if (meta.value_op != VALUES_NONE) {
            values.apply(hdr, meta);
        }
        if (meta.verdict == V_COMPLETED || meta.verdict == V_RESULT_STORED) {
            send_to_all();
        } else if (meta.verdict == V_REPLAYED) {
            send_back();
        } else if (meta.verdict == V_PARTIAL_SENT || meta.verdict == V_PARTIAL_RESENT) {
            send_up();
        }
    }
}
