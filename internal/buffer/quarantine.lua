-- Moves members from the other sets into the quarantine; their keys stay.
-- KEYS: the four sets. ARGV: the members.

local wrong = misfit(SETS)
if wrong then return wrong end

for _, member in ipairs(ARGV) do
  redis.call('SADD', KEYS[1], member)
  for i = 2, 4 do redis.call('SREM', KEYS[i], member) end
end
return redis.status_reply('OK')
