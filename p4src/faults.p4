// SPDX-License-Identifier: Apache-2.0

struct fault_t {
    bool    drop;
    bool    duplicate;
    bit<32> flip; // xor into the first value; one bit of its low half: a checksum notices two of these, too (RFC 1071)
}

// One step of a 32-bit mixer ("lowbias32"): CRC32 alone is linear, and neighbouring counts would fault in patterns.
#define MIX(x) \
    x = x ^ (x >> 16); x = x * 0x7feb352d; \
    x = x ^ (x >> 15); x = x * 0x846ca68b; \
    x = x ^ (x >> 16);

// Drops, duplicates and corrupts a settable share of a port's packets, by hash(seed, port, direction, packet
// counter): every target faults the same packets of one order. A share s of 1 is the threshold s * (2^32 - 1); 0 is never.
control Faults(in bit<9> port, in bool corruptible, out fault_t fault)(bit<8> direction) {
    register<bit<32>>(PORTS) packets;
    counter(PORTS * VERDICTS, CounterType.packets_and_bytes) injected;
    bit<32> drop_below;
    bit<32> duplicate_below;
    bit<32> corrupt_below;
    bit<32> seed;

    action inject(bit<32> seed_, bit<32> drop, bit<32> duplicate, bit<32> corrupt) {
        seed = seed_;
        drop_below = drop;
        duplicate_below = duplicate;
        corrupt_below = corrupt;
    }
    table shares {
        key = { port: exact; }
        actions = { inject; @defaultonly NoAction; }
        const default_action = NoAction();
        size = PORTS;
    }

    apply {
        fault.drop = false;
        fault.duplicate = false;
        fault.flip = 0;
        seed = 0;
        drop_below = 0;
        duplicate_below = 0;
        corrupt_below = 0;
        if (shares.apply().hit) {
            bit<32> n;
            bit<32> x;
            packets.read(n, (bit<32>)port);
            packets.write((bit<32>)port, n + 1);
            hash(x, HashAlgorithm.crc32, 32w0, { seed, 7w0, port, direction, n }, 64w0x100000000);
            MIX(x)
            if (drop_below != 0 && x <= drop_below) {
                fault.drop = true;
                injected.count((bit<32>)(port ++ V_FAULT_DROPPED));
            } else {
                x = x + 0x9e3779b9;
                MIX(x)
                if (duplicate_below != 0 && x <= duplicate_below) {
                    fault.duplicate = true;
                    injected.count((bit<32>)(port ++ V_FAULT_DUPLICATED));
                }
                x = x + 0x9e3779b9;
                MIX(x)
                if (corruptible && corrupt_below != 0 && x <= corrupt_below) {
                    fault.flip = 32w1 << (bit<8>)n[3:0];
                    injected.count((bit<32>)(port ++ V_FAULT_CORRUPTED));
                }
            }
        }
    }
}
