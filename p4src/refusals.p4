// SPDX-License-Identifier: Apache-2.0

// What the controller is told of a refused packet. Of a header that is absent the fields are 0.
struct refusal_t {
    bit<16> port;
    bit<8>  verdict;
    bit<48> eth_src;
    bit<1>  ipv4;     // whether there is such a header
    bit<32> ip_src;
    bit<32> ip_dst;
    bit<1>  udp;
    bit<16> udp_src;
    bit<16> udp_dst;
    bit<1>  for_job;  // whether a UDP port names a job
    bit<8>  job;
    bit<1>  admitted; // worker and epoch are those of the entry that admitted it
    bit<8>  worker;
    bit<32> epoch;
    bit<1>  agg;
    bit<32> chunk;
    bit<1>  version;
    bit<16> slot;
}

// Reports refused packets, of each port one in REPORT_INTERVAL_US at most, whatever it sends: a meter would have
// to be configured first, and one that is not is green for ever. Ingress has one thread, so nothing comes between
// the read and the write of a port's cell.
control Refusals(in headers_t hdr, in metadata_t meta, in standard_metadata_t standard) {
    register<bit<48>>(PORTS) reported; // when the port's last report was made; 0 is never
    bit<48>   last;
    refusal_t refusal;

    apply {
        // A duplicate tells nothing new, and on simple_switch it has no timestamp.
        if (standard.instance_type != INSTANCE_RECIRCULATED) {
            reported.read(last, (bit<32>)meta.port);
            if (last == 0 || standard.ingress_global_timestamp - last >= REPORT_INTERVAL_US) {
                reported.write((bit<32>)meta.port, standard.ingress_global_timestamp);
                refusal = { (bit<16>)meta.port, (bit<8>)meta.verdict, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
                if (hdr.ethernet.isValid()) {
                    refusal.eth_src = hdr.ethernet.src;
                }
                if (hdr.ipv4.isValid()) {
                    refusal.ipv4 = 1;
                    refusal.ip_src = hdr.ipv4.src;
                    refusal.ip_dst = hdr.ipv4.dst;
                }
                if (hdr.udp.isValid()) {
                    refusal.udp = 1;
                    refusal.udp_src = hdr.udp.src;
                    refusal.udp_dst = hdr.udp.dst;
                }
                if (meta.for_job) {
                    refusal.for_job = 1;
                    refusal.job = meta.job;
                }
                if (meta.admitted) {
                    refusal.admitted = 1;
                    refusal.worker = (bit<8>)meta.worker;
                    refusal.epoch = meta.epoch;
                }
                if (hdr.agg.isValid()) {
                    refusal.agg = 1;
                    refusal.chunk = hdr.agg.chunk;
                    refusal.version = hdr.agg.version;
                    refusal.slot = (bit<16>)hdr.agg.slot;
                }
                digest<refusal_t>(1, refusal);
            }
        }
    }
}
