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
    if not known or not magnitude(marker) or not magnitude(fields[i + 1]) then return nil end
    if best and marker ~= best then others = true end
    if not best or less(marker, best) then
      best, counters = marker, {bytes = '0', components = '0', emissions = '0'}
    end
    if marker == best then counters[counter] = fields[i + 1] end
  end
  return best, counters, others
end

local function freeze(member, buffer, flush)
  local kind = redis.call('TYPE', buffer)['ok']
  if kind == 'none' then
    expired[#expired + 1] = member
    return
  end
  local marker, counters, others
  if kind == 'hash' then marker, counters, others = smallest(redis.call('HGETALL', buffer)) end
  if not marker then
    corrupt[#corrupt + 1] = member
    return
  end
  local frozen = {'batch', batch, 'marker', marker, 'bytes', counters.bytes,
    'components', counters.components, 'emissions', counters.emissions}
  redis.call('HSET', flush, unpack(frozen))
  redis.call('HDEL', buffer, marker .. ':bytes', marker .. ':components', marker .. ':emissions')
  redis.call('SADD', inflight, member)
  if not others then redis.call('SREM', dirty_set(member), member) end
  flushes[#flushes + 1] = {member, frozen}
end

-- visit judges a member by the set it stands in: inflight promises a flush, a
-- dirty set a buffer.
local function visit(member, set)
  if seen[member] then return end
  seen[member] = true
  if redis.call('SISMEMBER', quarantine, member) == 1 then
    redis.call('SREM', set, member)
    return
  end
  local flush = prefix .. 'flush:' .. member
  local kind = redis.call('TYPE', flush)['ok']
  if kind == 'hash' then
    if set ~= inflight then redis.call('SADD', inflight, member) end
    flushes[#flushes + 1] = {member, redis.call('HGETALL', flush)}
  elseif kind ~= 'none' then
    corrupt[#corrupt + 1] = member
  elseif set == inflight then
    expired[#expired + 1] = member
  else
    freeze(member, prefix .. 'buf:' .. member, flush)
  end
end

local function visit_some(set, count)
  local members = redis.call('SRANDMEMBER', set, count)
  for _, member in ipairs(members) do visit(member, set) end
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
