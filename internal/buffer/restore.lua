-- Puts the scopes of buffers and flushes back into the sets they belong to,
-- unless they were set aside.
-- KEYS: the four sets, then a buffer or a flush each.
-- ARGV: for each 'buf:' or 'flush:', and the member.
-- Reply: how many were missing.

local wrong = misfit(SETS)
if wrong then return wrong end

local found = 0
for i = 1, #KEYS - #SETS do
  local name, member = ARGV[2 * i - 1], ARGV[2 * i]
  local set = name == 'flush:' and KEYS[2] or dirty_set(member)
  if redis.call('EXISTS', KEYS[#SETS + i]) == 1 and redis.call('SISMEMBER', KEYS[1], member) == 0 then
    found = found + redis.call('SADD', set, member)
  end
end
return found
