// SPDX-License-Identifier: Apache-2.0

#define FIELDS_DUPLICATE 1

const bit<16> TYPE_IPV4 = 0x0800;
const bit<16> TYPE_ARP = 0x0806;
const bit<8>  PROTOCOL_ICMP = 1;
const bit<8>  PROTOCOL_TCP = 6;
const bit<8>  PROTOCOL_UDP = 17;
const bit<8>  SWITCH_TTL = 64;

const bit<4>  MSG_CONTRIBUTION = 1;
const bit<4>  MSG_RESULT = 2;
const bit<8>  PACKET_OUT_PEEK = 1;

const bit<9>  CPU_PORT = 510;
const bit<32> PORTS = 512;
const bit<32> JOBS = 256;

// Of each port's refused packets the controller is told one in a tenth of a second.
const bit<48> REPORT_INTERVAL_US = 100000;

// An aggregation frame has one length, and its headers say the same.
const bit<32> FRAME_BYTES = 52 + 4 * ELEMENTS;
const bit<16> IPV4_BYTES = 38 + 4 * ELEMENTS;
const bit<16> UDP_BYTES = 18 + 4 * ELEMENTS;

// simple_switch's standard_metadata.instance_type
const bit<32> INSTANCE_INGRESS_CLONE = 1;
const bit<32> INSTANCE_EGRESS_CLONE = 2;
const bit<32> INSTANCE_RECIRCULATED = 4;

// Clone sessions are 1..512 in P4Runtime servers: port p duplicates at egress with p + 1, all ports at ingress with 512.
const bit<32> SESSION_INGRESS_DUPLICATE = 512;
const bit<32> SESSION_EGRESS_DUPLICATE = 1;

typedef bit<3> handling_t;
const handling_t HANDLE_NONE = 0; // refused
const handling_t HANDLE_AGGREGATION = 1;
const handling_t HANDLE_ARP = 2;
const handling_t HANDLE_PING = 3;
const handling_t HANDLE_ROUTING = 4;

typedef bit<2> role_t;
const role_t ROLE_ROOT_WORKER = 1; // a worker of a switch that completes sums itself
const role_t ROLE_LEAF_WORKER = 2; // a worker of a switch that sends its partial to a parent
const role_t ROLE_PARENT = 3;      // the parent, which sends results

typedef bit<2> value_op_t;
const value_op_t VALUES_NONE = 0;
const value_op_t VALUES_STORE = 1; // register = packet
const value_op_t VALUES_ADD = 2;   // register = packet = register + packet
const value_op_t VALUES_LOAD = 3;  // packet = register

error { BadIPv4Header }
