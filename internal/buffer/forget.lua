-- Takes members out of the sets whose promise is still broken: inflight
-- promises a flush, a dirty set a buffer.
-- KEYS: the four sets, then flush and buffer of each scope.
-- ARGV: the member of each scope.

local wrong = misfit(SETS)
if wrong then return wrong end

for i, member in ipairs(ARGV) do
  local flush, buffer = KEYS[#SETS + 2 * i - 1], KEYS[#SETS + 2 * i]
  if redis.call('EXISTS', flush) == 0 then redis.call('SREM', KEYS[2], member) end
  if redis.call('EXISTS', buffer) == 0 then redis.call('SREM', dirty_set(member), member) end
end
return redis.status_reply('OK')
