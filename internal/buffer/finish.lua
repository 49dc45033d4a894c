-- Deletes flushes whose outcome is committed.
-- KEYS: the four sets, then the flush of each scope.
-- ARGV: member and batch id of each scope.
-- A flush of another batch is a later one, which is not committed yet.

local wrong = misfit(SETS)
if wrong then return wrong end

for i = 1, #KEYS - #SETS do
  local flush, member, batch = KEYS[#SETS + i], ARGV[2 * i - 1], ARGV[2 * i]
  if redis.call('TYPE', flush)['ok'] == 'hash' and redis.call('HGET', flush, 'batch') == batch then
    redis.call('DEL', flush)
    redis.call('SREM', KEYS[2], member)
  end
end
return redis.status_reply('OK')
