-- Adds the deltas of one transaction to the buffers of one namespace.
-- KEYS: the four sets, then the buffer of each delta.
-- ARGV: the buffer's TTL in ms, the marker, then member, bytes and components
--       of each delta.
-- Reply: the numbers (from 1) of the deltas that were not added.

local wrong = misfit(SETS)
if wrong then return wrong end

local FIRST = #SETS
local ttl, marker = ARGV[1], ARGV[2]
local fields = {marker .. ':bytes', marker .. ':components', marker .. ':emissions'}

-- takes says that HINCRBY can neither refuse nor overflow: a value has at most
-- 18 digits, a delta too, and their sum fits in 64 bits.
local function takes(buffer, member)
  if redis.call('SISMEMBER', KEYS[1], member) == 1 then return false end
  local values = on_hash('HMGET', buffer, unpack(fields))
  for _, value in ipairs(values or {}) do
    if value and (magnitude(value) or 19) > 18 then return false end
  end
  return values ~= nil
end

-- add is false when Redis refused after all (an ACL, say). The scope is dirty
-- by then: what was added is drained, and the caller requests a
-- reconciliation, which makes up for the rest.
local function add(buffer, member, bytes, components)
  if redis.call('SADD', dirty_set(member), member) == 1 then
    redis.pcall('ZADD', since(), now_ms(), member)
  end
  for i, by in ipairs({bytes, components, '1'}) do
    local reply = redis.pcall('HINCRBY', buffer, fields[i], by)
    if type(reply) == 'table' then return false end
  end
  redis.call('PEXPIRE', buffer, ttl)
  return true
end

local accepted, failed = {}, {}
for i = 1, #KEYS - FIRST do
  accepted[i] = takes(KEYS[FIRST + i], ARGV[3 * i])
end
for i, ok in ipairs(accepted) do
  ok = ok and add(KEYS[FIRST + i], ARGV[3 * i], ARGV[3 * i + 1], ARGV[3 * i + 2])
  if not ok then failed[#failed + 1] = i end
end
return failed
