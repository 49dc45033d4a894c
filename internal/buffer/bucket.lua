-- Describes a bucket. The keys of flushes and buffers are made here, as in
-- claim.lua.
-- KEYS: the four sets, then the lease.
-- ARGV: the bucket's key prefix, how many dirty members of a kind to look at, how
--       many members of inflight and of since.
-- Reply: {sizes of quarantine, inflight, dirty:namespace and dirty:repository,
--        holder of the lease or '', its ms, the smallest batch id of a flush or
--        '', the least ms that a buffer has to live, or -1, how many emissions
--        flushes and buffers hold, the ms since the oldest member became dirty, or
--        -1}

local wrong = misfit({'set', 'set', 'set', 'set', 'string'})
if wrong then return wrong end

local prefix, buffers, flushes = ARGV[1], ARGV[2], ARGV[3]
local emissions = 0

-- some hands count random members of a set to each, and adds up the emissions that it
-- returns, as many times as the set is larger.
local function some(set, count, each)
  local members, sum = redis.call('SRANDMEMBER', set, count), 0
  for _, member in ipairs(members) do sum = sum + each(member) end
  if #members > 0 then emissions = emissions + sum * redis.call('SCARD', set) / #members end
end

local oldest = ''
some(KEYS[2], flushes, function(member)
  local found = on_hash('HMGET', prefix .. 'flush:' .. member, 'batch', 'emissions') or {}
  local batch = found[1] or ''
  if oldest == '' or batch ~= '' and batch < oldest then oldest = batch end
  return tonumber(found[2] or 0) or 0
end)

local least = -1
for set = 3, 4 do
  some(KEYS[set], buffers, function(member)
    local buffer, sum = prefix .. 'buf:' .. member, 0
    local left = redis.call('PTTL', buffer)
    if left >= 0 and (least < 0 or left < least) then least = left end
    local fields = on_hash('HGETALL', buffer) or {}
    for i = 1, #fields, 2 do
      if string.find(fields[i], ':emissions', 1, true) then sum = sum + (tonumber(fields[i + 1]) or 0) end
    end
    return sum
  end)
end

-- A member that is dirty no more was claimed by an older build, which does not
-- know this set.
local waited = -1
local first = redis.pcall('ZRANGE', since(), 0, flushes - 1, 'WITHSCORES')
for i = 1, #first, 2 do
  if redis.call('SISMEMBER', dirty_set(first[i]), first[i]) == 1 then
    waited = math.max(0, now_ms() - first[i + 1])
    break
  end
end

local reply = {}
for set = 1, 4 do reply[set] = redis.call('SCARD', KEYS[set]) end
reply[5] = redis.call('GET', KEYS[5]) or ''
reply[6] = redis.call('PTTL', KEYS[5])
reply[7] = oldest
reply[8] = least
reply[9] = string.format('%.0f', emissions)
reply[10] = waited
return reply
