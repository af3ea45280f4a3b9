# SPDX-License-Identifier: Apache-2.0
"""Hash algorithms by their JSON name, and the runtime function that computes each (runtime/hash.c).

v1model's HashAlgorithm names crc32, crc32_custom, crc16, crc16_custom, identity, csum16, xor16 and random:
p4c emits no others, and simple_switch too loads no program with random. crc16_custom and crc32_custom have
simple_switch's defaults, which are those of crc16 and crc32; their parameters can be changed only over
Thrift, which this switch does not serve. The rest is for JSON written by hand; of what simple_switch has for
that, toeplitz, hash_ex, bmv2_hash and round_robin are refused.
"""

HASHES = {
    "csum16": "sw_hash_csum16",
    "cksum16": "sw_hash_csum16",
    "crc16": "sw_hash_crc16",
    "crc16_custom": "sw_hash_crc16",
    "crc32": "sw_hash_crc32",
    "crc32_custom": "sw_hash_crc32",
    "crcCCITT": "sw_hash_crc_ccitt",
    "crc8_custom": "sw_hash_crc8_custom",
    "crc64_custom": "sw_hash_crc64_custom",
    "xor16": "sw_hash_xor16",
    "xor32": "sw_hash_xor32",
    "identity": "sw_hash_identity",
    "xxh64": "sw_hash_xxh64",
}
