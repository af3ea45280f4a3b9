// SPDX-License-Identifier: Apache-2.0
// The controls of programs that use neither egress nor checksums.
control verify_none(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control egress_none(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t std) {
    apply {}
}

control update_none(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}
