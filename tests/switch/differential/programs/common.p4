// SPDX-License-Identifier: Apache-2.0
// What every program here begins with.
#include <core.p4>
#include <v1model.p4>

header ethernet_t {
    bit<48> dst;
    bit<48> src;
    bit<16> type;
}
