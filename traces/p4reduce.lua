-- SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
-- Wireshark and tshark (3.0 or later) show p4reduce's aggregation packets: docs/traces.md, docs/protocol.md.
-- Fields for filters: p4reduce.job, .msg_type, .flag, .size, .elements, .tensor, .chunk, .version, .slot, .e0, .e1,
-- .values; .again and .first_frame; the expert infos begin with p4reduce.refused, .retransmission and .replay.

local p4reduce = Proto("p4reduce", "p4reduce aggregation")

p4reduce.prefs.first_port = Pref.uint("First job port", 0xBE00, "UDP port of job 0")
p4reduce.prefs.ports = Pref.uint("Number of job ports", 256, "Ports from the first on; 0 turns p4reduce off")

local TYPES = { [1] = "contribution", [2] = "result" }
local ELEMENTS = { [1] = 64, [3] = 256 }
local SIZES = { [1] = "64 values", [3] = "256 values" }
local HEADER = 10 -- bytes before the values

local f = {
  job = ProtoField.uint16("p4reduce.job", "Job"),
  msg_type = ProtoField.uint8("p4reduce.msg_type", "Type", base.DEC, TYPES, 0xF0),
  flag = ProtoField.bool("p4reduce.flag", "Flag (header packet)", 8, nil, 0x08),
  size = ProtoField.uint8("p4reduce.size", "Size", base.DEC, SIZES, 0x07),
  elements = ProtoField.uint16("p4reduce.elements", "Values in the packet"),
  tensor = ProtoField.uint8("p4reduce.tensor", "Tensor"),
  chunk = ProtoField.uint32("p4reduce.chunk", "Chunk"),
  version = ProtoField.uint16("p4reduce.version", "Version", base.DEC, nil, 0x8000),
  slot = ProtoField.uint16("p4reduce.slot", "Slot", base.DEC, nil, 0x7FFF),
  e0 = ProtoField.int8("p4reduce.e0", "Exponent 0"),
  e1 = ProtoField.int8("p4reduce.e1", "Exponent 1"),
  values = ProtoField.int32("p4reduce.values", "Value"),
  again = ProtoField.bool("p4reduce.again", "Seen before"),
  first_frame = ProtoField.framenum("p4reduce.first_frame", "First seen in"),
}
p4reduce.fields = f

local function refusal(name, text)
  return ProtoExpert.new("p4reduce.refused." .. name, "Refused: " .. text, expert.group.MALFORMED, expert.severity.WARN)
end
local e = {
  retransmission = ProtoExpert.new("p4reduce.retransmission", "Contribution sent again", expert.group.SEQUENCE,
    expert.severity.NOTE),
  replay = ProtoExpert.new("p4reduce.replay", "Result sent again", expert.group.SEQUENCE, expert.severity.NOTE),
  ports = refusal("two_job_ports", "both UDP ports are job ports"),
  options = refusal("ip_options", "IPv4 header with options"),
  fragment = refusal("fragment", "a fragment"),
  checksum = refusal("checksum", "wrong checksum"),
  size = refusal("size", "the size names no number of values"),
  super = refusal("super_packet", "several packets in one, as a capture inside a host sees them"),
  length = refusal("length", "the lengths are not those of the packet's size"),
  type = refusal("type", "a result for a job port, a contribution from one, or neither"),
}
p4reduce.experts = e

local ip_src, ip_dst = Field.new("ip.src"), Field.new("ip.dst")
local ip_header, ip_length, udp_length = Field.new("ip.hdr_len"), Field.new("ip.len"), Field.new("udp.length")
local more, offset = Field.new("ip.flags.mf"), Field.new("ip.frag_offset")
local ip_status, udp_status = Field.new("ip.checksum.status"), Field.new("udp.checksum.status")
local interface, frame_length, eth_type = Field.new("frame.interface_id"), Field.new("frame.len"), Field.new("eth.type")
local BAD = 0 -- of a checksum's status, where checksums are checked (preferences of IPv4 and UDP)

-- The last of a field's values: the innermost header's.
local function value(field)
  local all = { field() }
  return #all > 0 and all[#all].value or nil
end

local function is_job(port)
  local first, ports = p4reduce.prefs.first_port, p4reduce.prefs.ports
  return port >= first and port < first + ports
end

local last = {} -- by sender, receiver, slot and version: the newest chunk, and the frame of its first packet
local first_of = {} -- by frame: the first frame with the same
function p4reduce.init()
  last, first_of = {}, {}
end

-- Remember a packet, and what came before it. Frames are read in order once, then again in any order.
local function remember(pinfo, chunk, place)
  if pinfo.visited then
    return first_of[pinfo.number]
  end
  local key = table.concat({ tostring(value(interface)), tostring(pinfo.src), pinfo.src_port, tostring(pinfo.dst),
    pinfo.dst_port, place }, " ")
  local before = last[key]
  if before and before.chunk == chunk then
    first_of[pinfo.number] = before.frame
  else
    last[key] = { chunk = chunk, frame = pinfo.number }
  end
  return first_of[pinfo.number]
end

-- Why a packet is refused whatever the switch knows: the first reason, nil if there is none.
local function refused(tvb, pinfo, elements, kind, up, down)
  local bytes = tvb:reported_len()
  if up and down then return e.ports end
  if value(ip_header) and value(ip_header) ~= 20 then return e.options end
  if value(more) == true or value(more) == 1 or (value(offset) or 0) ~= 0 then return e.fragment end
  if value(ip_status) == BAD then return e.checksum end
  if bytes < HEADER then return e.length end
  if tvb:len() < HEADER then return nil end -- captured too little of it to tell
  if elements == nil then return e.size end
  local right = HEADER + 4 * elements
  local told = value(udp_length) == right + 8 and (value(ip_length) == nil or value(ip_length) == right + 28)
  -- On plain Ethernet nothing may follow either.
  told = told and (value(eth_type) ~= 0x0800 or value(frame_length) == right + 42)
  if bytes ~= right or not told then
    -- A capture in a host may have several in one: whole ones, without the headers between them.
    return bytes > right and bytes % right == 0 and e.super or e.length
  end
  if kind ~= (up and 1 or 2) then return e.type end
  if value(udp_status) == BAD then return e.checksum end
  return nil
end

function p4reduce.dissector(tvb, pinfo, tree)
  local up, down = is_job(pinfo.dst_port), is_job(pinfo.src_port)
  if not up and not down then return 0 end
  pinfo.cols.protocol = "p4reduce"
  local job = (up and pinfo.dst_port or pinfo.src_port) - p4reduce.prefs.first_port
  local root = tree:add(p4reduce, tvb())
  root:add(f.job, job):set_generated()
  local elements, kind
  if tvb:len() >= HEADER then
    local size = tvb(0, 1):bitfield(5, 3)
    kind, elements = tvb(0, 1):bitfield(0, 4), ELEMENTS[size]
    for _, name in ipairs({ "msg_type", "flag", "size" }) do root:add(f[name], tvb(0, 1)) end
    root:add(f.tensor, tvb(1, 1))
    root:add(f.chunk, tvb(2, 4))
    root:add(f.version, tvb(6, 2))
    root:add(f.slot, tvb(6, 2))
    root:add(f.e0, tvb(8, 1))
    root:add(f.e1, tvb(9, 1))
  end
  local why = refused(tvb, pinfo, elements, kind, up, down)
  if why then
    root:add_proto_expert_info(why)
    pinfo.cols.info = "Refused, job " .. job
    return tvb:len()
  end
  if tvb:len() < HEADER then
    pinfo.cols.info = "Cut off by the capture, job " .. job
    return tvb:len()
  end
  local chunk, slot, version = tvb(2, 4):uint(), tvb(6, 2):bitfield(1, 15), tvb(6, 2):bitfield(0, 1)
  local told = string.format("%s job %d tensor %d chunk %d slot %d.%d", TYPES[kind], job, tvb(1, 1):uint(), chunk,
    slot, version)
  local first = remember(pinfo, chunk, tvb(6, 2):uint())
  if first then
    root:add(f.again, true):set_generated()
    root:add(f.first_frame, first):set_generated()
    root:add_proto_expert_info(up and e.retransmission or e.replay)
    told = told .. " again"
  end
  pinfo.cols.info = told
  root:append_text(", " .. told)
  local whole = math.min(elements, math.floor((tvb:len() - HEADER) / 4))
  root:add(f.elements, elements):set_generated()
  if whole > 0 then
    local values = root:add(p4reduce, tvb(HEADER, 4 * whole), "Values")
    for i = 0, whole - 1 do
      values:add(f.values, tvb(HEADER + 4 * i, 4)):prepend_text("[" .. i .. "] ")
    end
  end
  return tvb:len()
end

-- The ports that the dissector has: no heuristics, nothing outside them.
local ports = DissectorTable.get("udp.port")
local registered
local function register()
  local first, count = p4reduce.prefs.first_port, math.min(p4reduce.prefs.ports, 65536)
  if registered then
    ports:remove(registered, p4reduce)
    registered = nil
  end
  if count > 0 and first > 0 and first < 65536 then
    registered = string.format("%d-%d", first, math.min(first + count - 1, 65535))
    ports:add(registered, p4reduce)
  end
end
p4reduce.prefs_changed = register
register()
