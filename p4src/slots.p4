// SPDX-License-Identifier: Apache-2.0

// What happens to a slot (docs/protocol.md, the state machine). The state of slot and version is one wide register,
// read and written once a packet: epoch, tag (the chunk whose sum it holds), seen (a bit per worker), done.
control Slots(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    register<bit<136>>(2 * SLOTS) state;
    bit<136> word;
    bit<32>  epoch;
    bit<32>  tag;
    bit<64>  seen;
    bit<8>   done;

    action refuse(verdict_t verdict) {
        meta.verdict = verdict;
        mark_to_drop(standard);
    }
    action read_state() {
        state.read(word, meta.index);
        epoch = word[135:104];
        tag = word[103:72];
        seen = word[71:8];
        done = word[7:0];
    }
    action write_state() {
        state.write(meta.index, meta.epoch ++ hdr.agg.chunk ++ seen ++ done);
    }
    action answer_peek() {
        hdr.packet_in.setValid();
        hdr.packet_in.operation = hdr.packet_out.operation;
        hdr.packet_in.version = hdr.packet_out.version;
        hdr.packet_in.slot = hdr.packet_out.slot;
        hdr.packet_in.epoch = epoch;
        hdr.packet_in.tag = tag;
        hdr.packet_in.seen = seen;
        hdr.packet_in.done = done;
        hdr.packet_out.setInvalid();
        standard.egress_spec = CPU_PORT;
        meta.verdict = V_PEEKED;
    }

    apply {
        read_state();
        if (hdr.packet_out.isValid()) {
            answer_peek();
            return;
        }
        if (meta.epoch < epoch) {
            refuse(V_OLD_EPOCH);
            return;
        }
        if (meta.role == ROLE_PARENT) {
            if (meta.epoch == epoch && hdr.agg.chunk == tag && seen == meta.full && done == 0) {
                done = 1;
                write_state();
                meta.value_op = VALUES_STORE;
                meta.verdict = V_RESULT_STORED;
            } else {
                refuse(V_RESULT_UNEXPECTED);
            }
            return;
        }
        bit<32> ahead = hdr.agg.chunk - tag; // RFC 1982: newer if in 1 .. 2^31 - 1
        if (meta.epoch > epoch || (ahead != 0 && ahead < 0x80000000)) {
            seen = 0;
            done = 0;
        } else if (ahead != 0) {
            refuse(V_STALE);
            return;
        }
        if (done == 1) {
            meta.value_op = VALUES_LOAD;
            meta.verdict = V_REPLAYED;
        } else if (seen & meta.mask != 0) {
            if (meta.role == ROLE_LEAF_WORKER && seen == meta.full) {
                meta.value_op = VALUES_LOAD;
                meta.verdict = V_PARTIAL_RESENT;
            } else {
                refuse(V_DUPLICATE);
            }
        } else {
            meta.value_op = VALUES_ADD;
            if (seen == 0) {
                meta.value_op = VALUES_STORE;
            }
            seen = seen | meta.mask;
            if (seen != meta.full) {
                refuse(V_ABSORBED);
            } else if (meta.role == ROLE_LEAF_WORKER) {
                meta.verdict = V_PARTIAL_SENT;
            } else {
                done = 1;
                meta.verdict = V_COMPLETED;
            }
            write_state();
        }
    }
}

#define ELEMENT_REGISTER(v) register<bit<32>>(2 * SLOTS) sum_##v;
#define ELEMENT_STORE(v) sum_##v.write(meta.index, hdr.values.v);
#define ELEMENT_ADD(v) sum_##v.read(old, meta.index); hdr.values.v = hdr.values.v + old; sum_##v.write(meta.index, hdr.values.v);
#define ELEMENT_LOAD(v) sum_##v.read(hdr.values.v, meta.index);

// The sums, modulo 2^32: then neither order nor tree changes one. Of the exponents the greatest stays.
control Values(inout headers_t hdr, inout metadata_t meta) {
    EACH_ELEMENT(ELEMENT_REGISTER)
    register<bit<16>>(2 * SLOTS) exponents;
    bit<16> kept;
    int<8>  kept0;
    int<8>  kept1;
    bit<32> old;

    action store() {
        EACH_ELEMENT(ELEMENT_STORE)
    }
    action add() {
        EACH_ELEMENT(ELEMENT_ADD)
    }
    action load() {
        EACH_ELEMENT(ELEMENT_LOAD)
    }

    apply {
        if (meta.value_op != VALUES_STORE) {
            exponents.read(kept, meta.index);
            kept0 = (int<8>)kept[15:8];
            kept1 = (int<8>)kept[7:0];
            if (meta.value_op == VALUES_LOAD || kept0 > hdr.exponents.e0) {
                hdr.exponents.e0 = kept0;
            }
            if (meta.value_op == VALUES_LOAD || kept1 > hdr.exponents.e1) {
                hdr.exponents.e1 = kept1;
            }
        }
        if (meta.value_op != VALUES_LOAD) {
            exponents.write(meta.index, (bit<8>)hdr.exponents.e0 ++ (bit<8>)hdr.exponents.e1);
        }
        if (meta.value_op == VALUES_STORE) {
            store();
        } else if (meta.value_op == VALUES_ADD) {
            add();
        } else {
            load();
        }
    }
}
