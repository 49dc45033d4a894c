-- Reads buffers and flushes, both of a scope at one instant.
-- KEYS: the quarantine, then flush and buffer of each scope.
-- ARGV: the member of each scope.
-- Reply: for each scope {{field, value, ...} of the flush, the same of the
--        buffer, whether it is in quarantine}, or an empty array when one of the
--        three keys is of a wrong type.

local kind = redis.call('TYPE', KEYS[1])['ok']
local replies = {}
for i, member in ipairs(ARGV) do
  local flush, buffer = on_hash('HGETALL', KEYS[2 * i]), on_hash('HGETALL', KEYS[2 * i + 1])
  if not flush or not buffer or kind ~= 'set' and kind ~= 'none' then
    replies[i] = {}
  else
    replies[i] = {flush, buffer, kind == 'set' and redis.call('SISMEMBER', KEYS[1], member) or 0}
  end
end
return replies
