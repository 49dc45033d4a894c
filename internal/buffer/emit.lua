-- Adds the deltas of one transaction to the buffers of one namespace.
-- KEYS: the quarantine, then the dirty set of each delta, then its buffer.
-- ARGV: the buffer's TTL in ms, the marker, then member, bytes and components
--       of each delta.
-- Reply: the numbers (from 1) of the deltas that were not added.
--
-- Every write of a registry runs this. So it makes no functions, asks Redis
-- nothing that a failing command will tell, and leaves what is rarely needed to
-- refuse.lua, which goes on where this ends when a set is none.

local call, pcall = redis.call, redis.pcall
local ttl, marker = ARGV[1], ARGV[2]
local bytes, components, emissions = marker .. ':bytes', marker .. ':components', marker .. ':emissions'

-- dirtied is, for each delta, 1 when its scope has become dirty, 0 when it was,
-- false when it is in quarantine.
local dirtied, n = {}, (#KEYS - 1) / 2
local quarantined = pcall('SCARD', KEYS[1])
local wrong = type(quarantined) == 'table' and quarantined
for i = 1, n do
  local member, reply = ARGV[3 * i], 0
  if wrong then break end
  if quarantined > 0 then reply = pcall('SISMEMBER', KEYS[1], member) end
  if reply == 0 then
    reply = pcall('SADD', KEYS[1 + i], member)
    dirtied[i] = reply
  else
    dirtied[i] = false
  end
  if type(reply) == 'table' then wrong = reply end
end

-- A delta is not added when its buffer holds what is no number, when a sum would
-- overflow, or when an ACL forbids it. The caller requests a reconciliation,
-- which makes up for what was not added, and for what was.
if not wrong then
  local failed, since, now = {}, nil, nil
  for i, new in ipairs(dirtied) do
    local member, buffer = ARGV[3 * i], KEYS[1 + n + i]
    if not (new
      and type(pcall('HINCRBY', buffer, bytes, ARGV[3 * i + 1])) == 'number'
      and type(pcall('HINCRBY', buffer, components, ARGV[3 * i + 2])) == 'number'
      and type(pcall('HINCRBY', buffer, emissions, '1')) == 'number'
      and pcall('PEXPIRE', buffer, ttl) == 1) then
      failed[#failed + 1] = i
      if new == 1 then pcall('SREM', KEYS[1 + i], member) end
    elseif new == 1 then
      if not now then
        local time = call('TIME')
        since = string.sub(KEYS[1], 1, -#'quarantine' - 1) .. 'since'
        now = string.format('%d%03d', time[1], math.floor(time[2] / 1000))
      end
      pcall('ZADD', since, now, member)
    end
  end
  return failed
end
