// SPDX-License-Identifier: Apache-2.0

#define IPV4_CHECKSUMMED { \
    hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.length, hdr.ipv4.id, hdr.ipv4.reserved, \
    hdr.ipv4.dont_fragment, hdr.ipv4.more_fragments, hdr.ipv4.fragment_offset, hdr.ipv4.ttl, \
    hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst, hdr.ipv4_options.bytes }

control VerifyIPv4(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), IPV4_CHECKSUMMED, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

// Only for what this switch rewrote: a damaged packet must not be repaired on its way to be duplicated.
control WriteIPv4(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(meta.rewritten && hdr.ipv4.isValid(), IPV4_CHECKSUMMED, hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}

// RFC 768 over pseudo-header, UDP and payload, the checksum field included: over a right packet it gives 0.
// Not by verify_checksum and update_checksum: those take a valid 0xFFFF for wrong, write 0, and run after
// egress, where they would repair a corrupted packet.
// The values are summed as a whole header, apart: p4c copies each item of a list into a temporary first.
control UdpChecksum(inout headers_t hdr, out bit<16> result) {
    bit<16> head;
    bit<16> body;
    bit<17> both;
    apply {
        hash(head, HashAlgorithm.csum16, 16w0,
             { hdr.ipv4.src, hdr.ipv4.dst, 8w0, hdr.ipv4.protocol, hdr.udp.length,
               hdr.udp.src, hdr.udp.dst, hdr.udp.length, hdr.udp.checksum,
               hdr.agg.msg_type, hdr.agg.flag, hdr.agg.size, hdr.agg.tensor, hdr.agg.chunk,
               hdr.agg.version, hdr.agg.slot, hdr.exponents.e0, hdr.exponents.e1 },
             32w0x10000);
        hash(body, HashAlgorithm.csum16, 16w0, hdr.values, 32w0x10000);
        both = (bit<17>)~head + (bit<17>)~body;
        result = ~(both[15:0] + (bit<16>)both[16:16]);
    }
}
