-- Takes members out of the sets whose promise is still broken: inflight
-- promises a flush, a dirty set a buffer. Those in quarantine leave all three.
-- KEYS: the four sets, then flush and buffer of each scope.
-- ARGV: the member of each scope.

local wrong = misfit(SETS)
if wrong then return wrong end

for i, member in ipairs(ARGV) do
  local flush, buffer = KEYS[#SETS + 2 * i - 1], KEYS[#SETS + 2 * i]
  if redis.call('SISMEMBER', KEYS[1], member) == 1 then
    for set = 2, 4 do redis.call('SREM', KEYS[set], member) end
    redis.pcall('ZREM', since(), member)
  else
    if redis.call('EXISTS', flush) == 0 then redis.call('SREM', KEYS[2], member) end
    if redis.call('EXISTS', buffer) == 0 then
      redis.call('SREM', dirty_set(member), member)
      redis.pcall('ZREM', since(), member)
    end
  end
end
return redis.status_reply('OK')
