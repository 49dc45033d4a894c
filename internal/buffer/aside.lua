-- Moves the flushes and buffers of scopes to keys that nothing reads, and takes
-- the scopes out of the sets. The bucket loses its identity in the same step, so
-- the next tick requests its namespaces even if the caller dies.
-- KEYS: the four sets, the identity, then flush and buffer of each scope and the
--       keys that the two become.
-- ARGV: the TTL of what is moved in ms, then the member of each scope.
-- Reply: for each scope the marker of its flush and the fields of its buffer,
--        nil when it has neither.

local wrong = misfit(SETS)
if wrong then return wrong end

local ttl = ARGV[1]

local function move(from, to)
  if redis.call('EXISTS', from) == 0 then return false end
  redis.call('RENAME', from, to)
  redis.call('PEXPIRE', to, ttl)
  return true
end

redis.call('DEL', KEYS[5])
local replies = {}
for i = 2, #ARGV do
  local member, first = ARGV[i], 4 * i - 2
  local flush, buffer = KEYS[first + 2], KEYS[first + 3]
  local flushed, buffered = move(KEYS[first], flush), move(KEYS[first + 1], buffer)
  replies[i - 1] = false
  if flushed or buffered then
    replies[i - 1] = on_hash('HKEYS', buffer) or {}
    local marker = on_hash('HMGET', flush, 'marker')
    if marker and marker[1] then table.insert(replies[i - 1], marker[1]) end
  end
  redis.call('SREM', KEYS[1], member)
  redis.call('SREM', KEYS[2], member)
  redis.call('SREM', dirty_set(member), member)
  redis.pcall('ZREM', since(), member)
end
return replies
