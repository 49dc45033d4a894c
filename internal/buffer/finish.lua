-- Deletes flushes whose outcome is committed.
-- KEYS: the four sets, then the flush of each scope.
-- ARGV: member and batch id of each scope.
-- A flush of another batch is a later one, which is not committed yet.

local wrong = misfit(SETS)
if wrong then return wrong end

for i = 1, #KEYS - #SETS do
  local flush, member, batch = KEYS[#SETS + i], ARGV[2 * i - 1], ARGV[2 * i]
  local found = on_hash('HMGET', flush, 'batch')
  if found and found[1] == batch then
    redis.call('DEL', flush)
    redis.call('SREM', KEYS[2], member)
  end
end
return redis.status_reply('OK')
