-- Takes the lease and freezes up to limit flushes.
-- KEYS: the four sets, then the lease. The keys of buffers and flushes are made
--       here from the members of the sets; they have the same hash tag, so they
--       are in the same slot.
-- ARGV: the bucket's key prefix, the holder, the lease's TTL in ms, the batch
--       id, the limit.
-- Reply: {1} when another holder has the lease, else
--        {0, {{member, {field, value, ...}}, ...}, {expired member, ...}, {corrupt member, ...}}

local wrong = misfit({'set', 'set', 'set', 'set', 'string'})
if wrong then return wrong end

local quarantine, inflight, lease = KEYS[1], KEYS[2], KEYS[5]
local prefix, holder, ttl, batch, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local owner = redis.call('GET', lease)
if owner and owner ~= holder then return {1} end
redis.call('SET', lease, holder, 'PX', ttl)

local flushes, expired, corrupt, seen = {}, {}, {}, {}
local any_quarantined = redis.call('SCARD', quarantine) > 0

-- Markers have no leading zeros, so the shorter one is the smaller one.
local function less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

-- smallest is the smallest marker of a buffer, its counters, and whether there
-- are others; nil when the buffer holds what Emit does not write.
local function smallest(fields)
  local best, counters, others
  for i = 1, #fields, 2 do
    local marker, counter = string.match(fields[i], '^(%d+):(%l+)$')
    local known = counter == 'bytes' or counter == 'components' or counter == 'emissions'
    if not known or not magnitude(fields[i + 1]) then return nil end
    if marker ~= best then
      if not magnitude(marker) then return nil end
      others = best ~= nil
      if not best or less(marker, best) then
        best, counters = marker, {bytes = '0', components = '0', emissions = '0'}
      end
    end
    if marker == best then counters[counter] = fields[i + 1] end
  end
  return best, counters, others
end

-- freeze moves the smallest marker into a flush that nothing changes any more
-- [R2]. It says whether it did, and whether the buffer is empty now.
local function freeze(member, buffer, flush)
  local fields = on_hash('HGETALL', buffer)
  if fields and #fields == 0 then
    expired[#expired + 1] = member
    return false
  end
  local marker, counters, others = smallest(fields or {})
  if not marker then
    corrupt[#corrupt + 1] = member
    return false
  end
  local frozen = {'batch', batch, 'marker', marker, 'bytes', counters.bytes,
    'components', counters.components, 'emissions', counters.emissions}
  redis.call('HSET', flush, unpack(frozen))
  redis.call('HDEL', buffer, marker .. ':bytes', marker .. ':components', marker .. ':emissions')
  flushes[#flushes + 1] = {member, frozen}
  return true, not others
end

-- visit judges a member by the set it stands in: inflight promises a flush, a
-- dirty set a buffer. It says whether the member belongs into inflight, and
-- whether it belongs into its set no more.
local function visit(member, set)
  if seen[member] then return false end
  seen[member] = true
  if any_quarantined and redis.call('SISMEMBER', quarantine, member) == 1 then
    corrupt[#corrupt + 1] = member
    return false
  end
  local flush = prefix .. 'flush:' .. member
  local frozen = on_hash('HGETALL', flush)
  if not frozen then
    corrupt[#corrupt + 1] = member
    return false
  elseif #frozen > 0 then
    flushes[#flushes + 1] = {member, frozen}
    return true
  elseif set == inflight then
    expired[#expired + 1] = member
    return false
  end
  return freeze(member, prefix .. 'buf:' .. member, flush)
end

-- Lua takes at most some thousands of arguments.
local function in_parts(how, command, set, members)
  for i = 1, #members, 1000 do
    redis[how](command, set, unpack(members, i, math.min(i + 999, #members)))
  end
end

-- visit_some changes the sets last and in this order, so that even a script
-- that fails half-way leaves each frozen flush in one of them.
local function visit_some(set, count)
  local members, arriving, leaving = redis.call('SRANDMEMBER', set, count), {}, {}
  for _, member in ipairs(members) do
    local arrives, leaves = visit(member, set)
    if arrives then arriving[#arriving + 1] = member end
    if leaves then leaving[#leaving + 1] = member end
  end
  in_parts('call', 'SADD', inflight, arriving)
  in_parts('call', 'SREM', set, leaving)
  if set ~= inflight then in_parts('pcall', 'ZREM', since(), leaving) end
  return #members
end

-- Leftovers first. What room they leave is shared by the two dirty sets in
-- halves, and what one does not need is the other's; an odd place goes to
-- either by the clock, because Redis gives math.random the same seed each time.
local room = limit - visit_some(inflight, limit)
if room > 0 then
  local half = math.floor((room + redis.call('TIME')[2] % 2) / 2)
  local share = math.max(half, room - redis.call('SCARD', KEYS[4]))
  room = room - visit_some(KEYS[3], share)
  visit_some(KEYS[4], room)
end
return {0, flushes, expired, corrupt}
