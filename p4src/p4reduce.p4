// SPDX-License-Identifier: Apache-2.0
// p4reduce's data plane for v1model: sums gradient packets in registers, answers ARP and ping, routes the rest.
// Compiled for ELEMENTS values a packet (64 or 256) and SLOTS slots; see p4src/compile.py.

#include <core.p4>
#include <v1model.p4>

#include "constants.p4"
#include "verdicts.p4"
#include "elements.p4"
#include "headers.p4"
#include "parser.p4"
#include "checksums.p4"
#include "faults.p4"
#include "slots.p4"
#include "admission.p4"
#include "routing.p4"
#include "refusals.p4"

// Never trust a packet: what comes from a port is refused until something here admits it.
control Receive(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Faults(8w0) faults;
    fault_t     fault;
    bool        corruptible;
    bool        local;

    action refuse(verdict_t verdict) {
        meta.verdict = verdict;
        mark_to_drop(standard);
    }
    action host_port() {
        meta.from_host = true;
    }
    action switch_port() {
        meta.from_host = false;
    }
    table ports {
        key = { meta.port: exact @name("port"); }
        actions = { host_port; switch_port; @defaultonly NoAction; }
        const default_action = NoAction();
        size = PORTS;
    }
    table addresses {
        key = { hdr.ipv4.dst: exact @name("ip"); }
        actions = { NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    apply {
        if (standard.ingress_port == CPU_PORT) {
            if (hdr.packet_out.isValid()) {
                meta.handling = HANDLE_AGGREGATION; // a peek, which shares the slots' state register
            } else {
                refuse(V_BAD_PACKET_OUT);
            }
            return;
        }
        if (!ports.apply().hit) {
            refuse(V_UNKNOWN_PORT);
            return;
        }
        local = false;
        if (hdr.ipv4.isValid()) {
            local = addresses.apply().hit;
        }
        // Known before anything is refused, so that what is refused counts for the job that it names.
        if (local && hdr.udp.isValid() && hdr.udp.dst[15:8] == 0xBE) {
            meta.for_job = true;
            meta.job = hdr.udp.dst[7:0];
        } else if (local && hdr.udp.isValid() && hdr.udp.src[15:8] == 0xBE) {
            meta.for_job = true;
            meta.job = hdr.udp.src[7:0];
        }
        if (standard.instance_type != INSTANCE_RECIRCULATED) {
            corruptible = hdr.values.isValid() && hdr.udp.checksum != 0; // else nobody would notice
            faults.apply(meta.port, corruptible, fault);
            if (fault.drop) {
                refuse(V_FAULT_DROPPED);
                return;
            }
            if (fault.duplicate) {
                clone_preserving_field_list(CloneType.I2E, SESSION_INGRESS_DUPLICATE, FIELDS_DUPLICATE);
            }
            if (corruptible) {
                hdr.values.v00 = hdr.values.v00 ^ fault.flip;
            }
        }
        if (standard.parser_error != error.NoError) {
            refuse(V_MALFORMED);
        } else if (hdr.arp.isValid()) {
            meta.handling = HANDLE_ARP;
        } else if (!hdr.ipv4.isValid()) {
            refuse(V_NOT_IPV4);
        } else if (standard.checksum_error == 1) {
            refuse(V_BAD_IP_CHECKSUM);
        } else if ((bit<32>)hdr.ipv4.length + 14 > standard.packet_length
                   || hdr.ipv4.length < (bit<16>)hdr.ipv4.ihl << 2) {
            refuse(V_MALFORMED);
        } else if (hdr.ethernet.dst[40:40] == 1) {
            refuse(V_NOT_FOR_SWITCH);
        } else if (!local) {
            meta.handling = HANDLE_ROUTING;
        } else if (hdr.ipv4_options.isValid()) {
            refuse(V_IP_OPTIONS);
        } else if (hdr.ipv4.more_fragments == 1 || hdr.ipv4.fragment_offset != 0) {
            refuse(V_FRAGMENT);
        } else if (meta.for_job) {
            meta.handling = HANDLE_AGGREGATION;
        } else {
            meta.handling = HANDLE_PING;
        }
    }
}

control Handle(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Aggregation() aggregation;
    Arp()         arp;
    Sources()     sources;
    Ping()        ping;
    Routing()     routing;
    bool permitted;

    apply {
        if (meta.handling == HANDLE_AGGREGATION) {
            aggregation.apply(hdr, meta, standard);
        } else if (meta.handling == HANDLE_ARP) {
            arp.apply(hdr, meta, standard);
        } else if (meta.handling != HANDLE_NONE) {
            sources.apply(hdr, meta, permitted);
            if (!permitted) {
                meta.verdict = V_SPOOFED_SOURCE;
                mark_to_drop(standard);
            } else if (meta.handling == HANDLE_PING) {
                ping.apply(hdr, meta, standard);
            } else {
                routing.apply(hdr, meta, standard);
            }
        }
    }
}

control SwitchIngress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Receive()  receive;
    Handle()   handle;
    Refusals() refusals;
    counter(PORTS * VERDICTS, CounterType.packets_and_bytes) port_verdicts;
    counter(JOBS * VERDICTS, CounterType.packets_and_bytes) job_verdicts;
    counter(JOBS * 64 * WORKER_VERDICTS, CounterType.packets_and_bytes) worker_verdicts;

    apply {
        if (standard.instance_type != INSTANCE_RECIRCULATED) {
            meta.port = standard.ingress_port;
        }
        receive.apply(hdr, meta, standard);
        handle.apply(hdr, meta, standard);
        port_verdicts.count((bit<32>)(meta.port ++ meta.verdict));
        if (meta.admitted && meta.role != ROLE_PARENT) {
            worker_verdicts.count((bit<32>)(meta.job ++ meta.worker ++ meta.verdict[3:0]));
        } else if (meta.for_job) {
            job_verdicts.count((bit<32>)(meta.job ++ meta.verdict));
        }
        if ((meta.verdict >= FIRST_REPORTED && meta.verdict <= LAST_REPORTED) || meta.verdict == V_OLD_EPOCH) {
            refusals.apply(hdr, meta, standard);
        }
    }
}

// Each multicast copy is addressed to its receiver, by the replication id alone.
control Receivers(inout headers_t hdr, inout standard_metadata_t standard, out bool found) {
    action receiver(bit<48> src_mac, bit<48> dst_mac, bit<32> src_ip, bit<32> dst_ip, bit<16> src_port,
                    bit<16> dst_port) {
        hdr.ethernet.src = src_mac;
        hdr.ethernet.dst = dst_mac;
        hdr.ipv4.src = src_ip;
        hdr.ipv4.dst = dst_ip;
        hdr.udp.src = src_port;
        hdr.udp.dst = dst_port;
    }
    table receivers {
        key = { standard.egress_rid: exact @name("rid"); }
        actions = { receiver; @defaultonly NoAction; }
        const default_action = NoAction();
        size = 16384;
    }
    apply {
        found = receivers.apply().hit;
    }
}

control SwitchEgress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Receivers()   receivers;
    UdpChecksum() checksum;
    Faults(8w1)   faults;
    counter(PORTS * VERDICTS, CounterType.packets_and_bytes) port_verdicts;
    fault_t fault;
    bool    corruptible;
    bool    found;
    bit<16> sum;

    apply {
        if (standard.instance_type == INSTANCE_INGRESS_CLONE) {
            recirculate_preserving_field_list(FIELDS_DUPLICATE);
        } else if (standard.instance_type == INSTANCE_EGRESS_CLONE) {
            // Its headers are as egress left them; only the IPv4 checksum is still to be written.
            meta.rewritten = true;
        } else if (standard.egress_port != CPU_PORT) {
            found = true;
            if (standard.egress_rid != 0) {
                receivers.apply(hdr, standard, found);
            }
            if (!found) {
                port_verdicts.count((bit<32>)(standard.egress_port ++ V_NO_RECEIVER));
                mark_to_drop(standard);
            } else {
                if (meta.aggregate) {
                    hdr.udp.checksum = 0;
                    checksum.apply(hdr, sum);
                    if (sum == 0) {
                        sum = 0xFFFF; // 0 on the wire would mean "none"
                    }
                    hdr.udp.checksum = sum;
                }
                corruptible = hdr.values.isValid() && hdr.udp.checksum != 0;
                faults.apply(standard.egress_port, corruptible, fault);
                if (fault.drop) {
                    mark_to_drop(standard);
                } else {
                    if (fault.duplicate) {
                        clone_preserving_field_list(CloneType.E2E,
                            SESSION_EGRESS_DUPLICATE + (bit<32>)standard.egress_port, FIELDS_DUPLICATE);
                    }
                    if (corruptible) {
                        hdr.values.v00 = hdr.values.v00 ^ fault.flip;
                    }
                }
            }
        }
    }
}

V1Switch(SwitchParser(), VerifyIPv4(), SwitchIngress(), SwitchEgress(), WriteIPv4(), SwitchDeparser()) main;
